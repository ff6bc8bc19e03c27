"""Step references in gold plans: `${step1.close}`, `${step2.results[0].title}`, and arithmetic on them.

An expression is a path into the structured result of an earlier step, a number, `+ - * /` with
parentheses, or one of the functions

    round(x, n)  abs(x)  min(...)  max(...)  sum(...)   of numbers, or of one list of them
    count(list)       how many items it has; count_over(list, x) and count_under(list, x) of those
    pluck(list, "f")  the field f of every item
    find(list, x)     the place of x, which the list has once
    argmax(...), argmin(...)   the place of the one extreme
    at(i, ...)        the i-th of the values, or of one list
    number(text, i)   the i-th number of a text (`core.values`), negative i counts from the end
    word(text, i)     the i-th whitespace-separated word
    rest(text, i)     the i-th word and what follows it in its line
    text(x)           x as text, for a parameter that is a string (`"${text(step1.price)}"`)

It is parsed to Python's syntax tree and walked through a whitelist; nothing is ever evaluated as code.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from mcpagent.core.text_records import text_fields, text_records
from mcpagent.core.tools import ToolResult
from mcpagent.core.values import is_json_array, is_json_object, numbers_in, scalars

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_STEP = re.compile(r"step([0-9]+)")
# Fields may have any name, Python keywords too (`step1.from`), so `.name` is parsed as `["name"]`.
_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s*")
_FIELD = re.compile(r"(\"[^\"]*\"|'[^']*')|\.\s*([A-Za-z_]\w*)")
_MAX_EXPRESSION_CHARS = 300  # bounds the recursion too
_DECIMALS = 10  # binary noise such as 0.1 + 0.2 lies far below the tenth decimal


class PlaceholderError(ValueError):
    """A reference that cannot be parsed or resolved; the message quotes it."""


def resolve_references(value: Any, results: Mapping[str, Any]) -> Any:
    """`value` with every `${...}` in strings, lists and dicts replaced.

    `results["step1"]` is the structured result of step 1. A string that is exactly one reference takes the
    type of what it refers to; a reference inside a longer string is formatted as text.
    Raises PlaceholderError.
    """
    if isinstance(value, str):
        whole = _REFERENCE.fullmatch(value)
        if whole:
            return _value(whole[1], results)
        return _REFERENCE.sub(lambda match: format_value(_value(match[1], results)), value)
    if is_json_object(value):
        return {key: resolve_references(item, results) for key, item in value.items()}
    if is_json_array(value):
        return [resolve_references(item, results) for item in value]
    return value


def references(value: Any) -> set[int]:
    """Return numbers of the steps that `value` refers to. Raises PlaceholderError if one is malformed."""
    return {step for text in reference_texts(value) for step in _steps(text[2:-1])}


def reference_texts(value: Any) -> list[str]:
    """Return every `${...}` of `value` as it is written, in order."""
    texts = (item for item in scalars(value) if isinstance(item, str))
    return [match[0] for text in texts for match in _REFERENCE.finditer(text)]


def result_value(result: ToolResult) -> dict[str, Any]:
    """Return all that a result holds, for the environment's own calls: its structured content, else what its
    text says."""
    return result.structured if result.structured is not None else text_value(result.content)


def shown_value(result: ToolResult) -> dict[str, Any]:
    """Return what a step reference sees of a result: what its text says, which is all that a model is shown
    of it."""
    return text_value(result.content)


def text_value(content: str) -> dict[str, Any]:
    """Return what a step reference sees of a text that a model was shown: the object that it is in JSON;
    other JSON, and several documents one after the other, under `result`, as MCP servers wrap lists; plain
    text under `text`. Lists and objects that a server in Python printed as they are count as JSON."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = _printed(content) or _documents(content.lstrip())
        if value is None:
            return {"text": content}
    return dict(value) if is_json_object(value) else {"result": value}


def nested_value(text: str) -> Any:
    """Return the object or list that a text, or the one fence in it, is in JSON or in Python's notation, the
    list of several such in JSON, or that of a table, rows or items (`core.text_records`); else the text
    itself."""
    value = None
    if (fenced := _fenced(text)) is not None:
        return text if isinstance(inside := nested_value(fenced), str) else inside
    if text[:1] in ("[", "{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = _printed(text) or _documents(text)
    if not (is_json_object(value) or is_json_array(value)):
        value = text_records(text)
    return text if value is None else value


def _fenced(text: str) -> str | None:
    """Return what stands in the one fence of a text; None if there is none, or are several."""
    lines = text.splitlines() if "```" in text else []
    marks = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    return "\n".join(lines[marks[0] + 1 : marks[1]]) if len(marks) == 2 else None


def opened_value(text: str) -> Any:
    """Return what a reference goes on into: the object or list that a text is, or the fields that its lines
    name; else the text itself."""
    nested = nested_value(text)
    return (text_fields(text) or text) if isinstance(nested, str) else nested


def _printed(content: str) -> Any:
    """Return a list or an object in Python's notation, as JSON has it; None if it is neither."""
    if content[:1] not in ("[", "{"):
        return None
    try:
        return json.loads(json.dumps(ast.literal_eval(content), allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _documents(content: str) -> list[Any] | None:
    """Objects and lists in JSON that stand one after the other: a line each, or the blocks of a server that
    gives one for each item of a list."""
    decoder, documents, end = json.JSONDecoder(), list[Any](), 0
    try:
        while start := _SPACE.match(content, end):
            document, end = decoder.raw_decode(content, start.end())
            documents.append(document)
            if not content[end:].strip():
                break
    except (ValueError, RecursionError):
        return None
    is_whole = all(is_json_object(item) or is_json_array(item) for item in documents)
    return documents if is_whole and len(documents) > 1 else None


def lookup_path(value: Any, path: str) -> Any:
    """Return what is at `path` (`messages[0].text`) of a JSON value. Raises PlaceholderError."""
    joined = path if path.startswith("[") else f".{path}"
    return _value(f"step0{joined}", {"step0": value})


def format_value(value: Any) -> str:
    """`value` as text: strings as they are, floats by shortest repr without binary noise, else JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(_without_noise(value))
    return json.dumps(value, ensure_ascii=False)


def _value(expression: str, results: Mapping[str, Any]) -> Any:
    try:
        return _evaluate(_parse(expression), results)
    except PlaceholderError as error:
        raise PlaceholderError(f"${{{expression}}}: {error}") from None


def _steps(expression: str) -> set[int]:
    try:
        return {_step_number(node) for node in ast.walk(_parse(expression)) if _is_path_root(node)}
    except PlaceholderError as error:
        raise PlaceholderError(f"${{{expression}}}: {error}") from None


@lru_cache(maxsize=4096)
def _parse(expression: str) -> ast.expr:
    if len(expression) > _MAX_EXPRESSION_CHARS:
        raise PlaceholderError(f"expression of {len(expression)} characters, at most {_MAX_EXPRESSION_CHARS}")
    source = _FIELD.sub(lambda m: m[1] or f'["{m[2]}"]', expression.strip())
    try:
        node = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise PlaceholderError(f"{expression!r} is not an expression") from None
    _check(node)
    return node


def _check(node: ast.expr) -> None:
    """Refuse everything outside the grammar, so that a plan is known to be well-formed before it runs."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return
        case ast.Name():
            _step_number(node)
        case ast.Subscript(value=base, slice=key):
            if not isinstance(base, ast.Subscript | ast.Name):
                raise PlaceholderError("a path starts at a step: step1.field[0]")
            _key(key)
            _check(base)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _check(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check(left)
            _check(right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            for argument in args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    _check(argument)
        case _:
            allowed = ", ".join(sorted(_FUNCTIONS))
            raise PlaceholderError(f"only paths, numbers, + - * / and {allowed} may be used")


def _evaluate(node: ast.expr, results: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in results:
                raise PlaceholderError(f"{name} has no result")
            return results[name]
        case ast.Subscript(value=base, slice=key):
            container = _evaluate(base, results)
            if isinstance(base, ast.Name) and _key(key) == "result" and "result" not in container:
                return _unwrapped(container)
            return _lookup(container, _key(key))
        case ast.UnaryOp(op=op, operand=operand):
            value = _number(_evaluate(operand, results))
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, _evaluate(left, results), _evaluate(right, results))
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_evaluate(argument, results) for argument in args]
            try:
                return _FUNCTIONS[name](*values)
            except TypeError:
                raise PlaceholderError(f"{name}() does not take {len(values)} arguments") from None
        case _:
            raise AssertionError("_check admits no other node")


def _arithmetic(op: ast.operator, left: Any, right: Any) -> int | float:
    try:
        value = _OPERATORS[type(op)](_number(left), _number(right))
    except (ZeroDivisionError, OverflowError) as error:
        raise PlaceholderError(str(error)) from None
    return _without_noise(_number(value)) if isinstance(value, float) else value


def _unwrapped(shown: Mapping[str, Any]) -> Any:
    """Return what a typed tool returned, of which the text shows no `result` around it: a list of one item
    is shown as that item, a text as it is."""
    return _Returned(shown["text"]) if [*shown] == ["text"] else [shown]


class _Returned(str):
    """The text of a result of which a reference reads `result`."""


def _lookup(container: Any, key: str | int) -> Any:
    if isinstance(container, str):  # many servers give an object, a list or a table as a text
        container = _opened(container)
    elif isinstance(container, int | float) and isinstance(key, int):
        container = [container]  # a list of one number is shown as that number
    if is_json_object(container) and isinstance(key, str) and key in container:
        return container[key]
    if is_json_array(container) and isinstance(key, int):
        if -len(container) <= key < len(container):
            return container[key]
        raise PlaceholderError(f"index {key} of a list of {len(container)}")
    kind = f"fields {sorted(map(str, container))}" if is_json_object(container) else repr(container)[:80]
    raise PlaceholderError(f"no {key!r} in {kind}")


def _is_path_root(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id not in _FUNCTIONS


def _step_number(node: ast.AST) -> int:
    name = node.id if isinstance(node, ast.Name) else ""
    match = _STEP.fullmatch(name)
    if match is None:
        raise PlaceholderError(f"{name!r} is not a step; write step1, step2, ...")
    return int(match[1])


def _key(node: ast.expr) -> str | int:
    match node:
        case ast.Constant(value=str() | int() as key) if not isinstance(key, bool):
            return key
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as index)):
            return -index
        case _:
            raise PlaceholderError("an index is a whole number or a quoted name")


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlaceholderError(f"{value!r} is not a number; number(text, i) reads one out of a text")
    if not math.isfinite(value):
        raise PlaceholderError(f"{value!r} is not finite")
    return value


def _without_noise(value: float) -> float:
    rounded = round(value, _DECIMALS)
    return rounded if abs(value) > 1e-6 else float(f"{value:.{_DECIMALS}g}")


def _round(value: Any, digits: Any = 0) -> int | float:
    places = _index(digits)
    if not 0 <= places <= _DECIMALS:
        raise PlaceholderError(f"round(x, n) takes n from 0 to {_DECIMALS}")
    return round(_number(value), places) if places > 0 else int(round(_number(value), places))


def _arguments(values: tuple[Any, ...]) -> list[Any]:
    """Return the arguments of a function, or the list that is the only one."""
    items: Any = values[0] if len(values) == 1 and is_json_array(values[0]) else values
    return list(items)


def _extreme(pick: Callable[[list[int | float]], int | float], values: tuple[Any, ...]) -> int | float:
    numbers = [_number(item) for item in _arguments(values)]
    if not numbers:
        raise PlaceholderError("min, max and their places need at least one number")
    return pick(numbers)


def _place(value: Any, items: list[Any]) -> int:
    if (count := items.count(value)) != 1:
        raise PlaceholderError(f"{value!r} occurs {count} times, but one place is asked for")
    return items.index(value)


def _sum(*values: Any) -> int | float:
    total = sum(_number(item) for item in _arguments(values))
    return _without_noise(total) if isinstance(total, float) else total


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):
        value = _opened(value)
    if not is_json_array(value):
        raise PlaceholderError(f"{repr(value)[:80]} is not a list")
    return list(value)


def _opened(text: str) -> Any:
    """Return the list or object that a text is; of what a typed tool returned, else its lines, since a list
    is shown as a line for each item."""
    nested = opened_value(text)
    if is_json_array(nested) or not isinstance(text, _Returned):
        return nested
    return [text_value(line).get("result", line) for line in text.splitlines()]


def _at(index: Any, *values: Any) -> Any:
    return _lookup(_arguments(values), _index(index))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PlaceholderError(f"{value!r} is not a text")
    return value


def _rest_of_line(value: Any, index: Any) -> str:
    text = _text(value)
    starts = [match.start() for match in _WORD.finditer(text)]
    return text[_lookup(starts, _index(index)) :].split("\n", 1)[0].strip()


def _index(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlaceholderError(f"{value!r} is not a whole number")
    return value


def _divide(left: int | float, right: int | float) -> float:
    return left / right  # `operator.truediv` has no types


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
}
_OF_ONE: dict[str, Callable[[Any], Any]] = {
    "abs": lambda value: abs(_number(value)),
    "count": lambda items: len(_list(items)),
    "text": format_value,
}
_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "find": lambda items, value: _place(value, _list(items)),
    "pluck": lambda items, name: [_lookup(item, name) for item in _list(items)],
    "count_over": lambda items, least: sum(_number(item) > _number(least) for item in _list(items)),
    "count_under": lambda items, most: sum(_number(item) < _number(most) for item in _list(items)),
    "number": lambda text, index: _lookup(numbers_in(_text(text)), _index(index)),
    "word": lambda text, index: _lookup(_text(text).split(), _index(index)),
    "rest": _rest_of_line,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_OF_ONE,
    **_OF_TWO,
    "round": _round,
    "min": lambda *values: _extreme(min, values),
    "max": lambda *values: _extreme(max, values),
    "sum": _sum,
    "argmax": lambda *values: _place(_extreme(max, values), _arguments(values)),
    "argmin": lambda *values: _place(_extreme(min, values), _arguments(values)),
    "at": _at,
}
