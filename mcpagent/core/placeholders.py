"""Step references in gold plans: `${step1.close}`, `${step2.results[0].title}`, and arithmetic on them.

An expression is a path into what the result of an earlier step shows, a number, `+ - * /` with
parentheses, or one of the functions (`core.functions`)

    round(x, n)  abs(x)  sum(...)  mean(...)   of numbers, or of one list of them
    min(...), max(...)   of dates too
    count(list)        how many items it has; count_over(list, x) and count_under(list, x) of those
    pluck(list, "f")   the field f of every item
    where(list, "f", "<", x)   the items whose field f is so: = != < <= > >= in between
    join(list, "f", others, "g")   each item with the fields of the others whose g is its f
    max_by(list, "f"), min_by(list, "f")   the item with the one extreme
    most_common(list)  the value that is there most often; group_count(list) how often each is there
    sum_products(a, b) of two lists of numbers
    has(list, x)       whether x is one of the items
    days(a, b)         the days from one date to another
    find(list, x)      the place of x, which the list has once
    argmax(...), argmin(...)   the place of the one extreme
    at(i, ...)         the i-th of the values, or of one list
    after(text, "n")   what follows n, which the text has once, in its line
    number(text, i)    the i-th number of a text (`core.values`), negative i counts from the end
    word(text, i)      the i-th whitespace-separated word
    rest(text, i)      the i-th word and what follows it in its line
    text(x)            x as text, for a parameter that is a string (`"${text(step1.price)}"`)
    quoted(list), in_one_text(list, ", ")   a list in a text: of SQL, or of names

A comparison (`< <= > >= == !=`) and `not`, `and`, `or` of such give true or false. What is compared or given
to a function may also be a text, `true`, `false`, `null`, or a list: `mean([step1.a, step2.a])`. A path may
go on behind a function: `max_by(step1.rows, "price").name`.

It is parsed to Python's syntax tree and walked through a whitelist; nothing is ever evaluated as code.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mcpagent.core.functions import (
    FUNCTIONS,
    PlaceholderError,
    compared,
    format_value,
    lookup,
    number_of,
    unwrapped,
    without_noise,
)
from mcpagent.core.values import is_json_array, is_json_object, scalars

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_STEP = re.compile(r"step([0-9]+)")
# Fields may have any name, Python keywords too (`step1.from`), so `.name` is parsed as `["name"]`.
_FIELD = re.compile(r"(\"[^\"]*\"|'[^']*')|\.\s*([A-Za-z_]\w*)")
_MAX_EXPRESSION_CHARS = 300  # bounds the recursion too


def resolve_references(value: Any, results: Mapping[str, Any]) -> Any:
    """`value` with every `${...}` in strings, lists and dicts replaced.

    `results["step1"]` is what step 1 shows (`core.shown_values`). A string that is exactly one reference
    takes the type of what it refers to; a reference inside a longer string is formatted as text.
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


def lookup_path(value: Any, path: str) -> Any:
    """Return what is at `path` (`messages[0].text`) of a JSON value. Raises PlaceholderError."""
    joined = path if path.startswith("[") else f".{path}"
    return _value(f"step0{joined}", {"step0": value})


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
        node = _Constants().visit(ast.parse(source, mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise PlaceholderError(f"{expression!r} is not an expression") from None
    _check(node)
    return node


class _Constants(ast.NodeTransformer):
    """JSON's names of constants, as constants."""

    _VALUES: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._VALUES[node.id]) if node.id in self._VALUES else node


def _check(node: ast.expr) -> None:
    """Refuse everything outside the grammar, so that a plan is known to be well-formed before it runs."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return
        case ast.Name():
            _step_number(node)
        case ast.Subscript(value=base, slice=key):
            if not isinstance(base, ast.Subscript | ast.Name | ast.Call):
                raise PlaceholderError("a path starts at a step: step1.field[0]")
            _key(key)
            _check(base)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            _check(operand)
        case ast.BoolOp(values=values):
            for value in values:
                _check(value)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _SIGNS:
            _check_argument(left)
            _check_argument(right)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check(left)
            _check(right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            for argument in args:
                _check_argument(argument)
        case _:
            allowed = ", ".join(sorted(FUNCTIONS))
            raise PlaceholderError(f"only paths, numbers, + - * /, comparisons and {allowed} may be used")


def _check_argument(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=str() | bool() | None):
            return
        case ast.List(elts=items):
            for item in items:
                _check_argument(item)
        case _:
            _check(node)


def _evaluate(node: ast.expr, results: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_evaluate(item, results) for item in items]
        case ast.Name(id=name):
            if name not in results:
                raise PlaceholderError(f"{name} has no result")
            return results[name]
        case ast.Subscript(value=base, slice=key):
            container = _evaluate(base, results)
            if isinstance(base, ast.Name) and _key(key) == "result" and "result" not in container:
                return unwrapped(container)
            return lookup(container, _key(key))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _truth(_evaluate(operand, results))
        case ast.BoolOp(op=op, values=values):
            truths = [_truth(_evaluate(value, results)) for value in values]
            return all(truths) if isinstance(op, ast.And) else any(truths)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return compared(_evaluate(left, results), _SIGNS[type(op)], _evaluate(right, results))
        case ast.UnaryOp(op=op, operand=operand):
            value = number_of(_evaluate(operand, results))
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, _evaluate(left, results), _evaluate(right, results))
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_evaluate(argument, results) for argument in args]
            try:
                return FUNCTIONS[name](*values)
            except TypeError:
                raise PlaceholderError(f"{name}() does not take {len(values)} arguments") from None
        case _:
            raise AssertionError("_check admits no other node")


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise PlaceholderError(f"{value!r:.80} is not true or false")
    return value


def _arithmetic(op: ast.operator, left: Any, right: Any) -> int | float:
    try:
        value = _OPERATORS[type(op)](number_of(left), number_of(right))
    except (ZeroDivisionError, OverflowError) as error:
        raise PlaceholderError(str(error)) from None
    return without_noise(number_of(value)) if isinstance(value, float) else value


def numbers_by_place(value: Any) -> list[str]:
    """Return the references of `value` that take a number of a text by its place in the whole of it, and not
    behind its name (`after`). Raises PlaceholderError."""
    return [
        text
        for text in reference_texts(value)
        for node in ast.walk(_parse(text[2:-1]))
        if isinstance(node, ast.Call)
        and _is_call(node, "number")
        and not (node.args and _is_call(node.args[0], "after"))
    ]


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


@dataclass(frozen=True)
class Read:
    """A leaf that an expression takes from results: its value, and the steps that it may be of."""

    value: Any
    steps: frozenset[int]


def leaves_read(value: Any, results: Mapping[str, Any]) -> list[Read]:
    """Return the leaves of results that the references of `value` take, each once: the values that it gives
    or is computed from, and of rows that are counted the first leaf of each. What only decides whether a row
    is taken (`where`, `join`) is not among them. Raises PlaceholderError."""
    reads = [read for text in reference_texts(value) for read in _reads(_parse(text[2:-1]), results)]
    return list({(format_value(read.value), read.steps): read for read in reads}.values())


def _reads(node: ast.expr, results: Mapping[str, Any]) -> Iterator[Read]:
    match node:
        case ast.Constant():
            return
        case ast.Call(func=ast.Name(id="pluck" | "where" | "join" | "max_by" | "min_by" as name), args=args):
            yield from _taken(node, results)
            if name in ("max_by", "min_by"):
                field = ast.Subscript(node, args[1])
                yield from _taken(field, results)
        case ast.Subscript() | ast.Name() | ast.Call(func=ast.Name(id="after" | "number" | "rest" | "word")):
            yield from _taken(node, results)  # of a text the part that is taken, and not the text
        case _:
            for below in ast.iter_child_nodes(node):
                if isinstance(below, ast.expr) and below is not getattr(node, "func", None):
                    yield from _reads(below, results)


def _taken(node: ast.expr, results: Mapping[str, Any]) -> Iterator[Read]:
    steps = frozenset(_step_number(part) for part in ast.walk(node) if _is_path_root(part))
    value = _evaluate(node, results)
    for item in value if is_json_array(value) else [value]:
        first = next(iter(scalars(item)), None)
        if first is not None:
            yield Read(first, steps)


def _is_path_root(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id not in FUNCTIONS


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


def _divide(left: int | float, right: int | float) -> float:
    return left / right  # `operator.truediv` has no types


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
}
_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "=",
    ast.NotEq: "!=",
}
