"""JSON schemas of servers: whether one can be used, and whether a value fits it, in bounded time.

Schemas of third-party servers are not trusted. Their references must lead to a place within the schema and
must not go in circles, their patterns are searched in linear time (`core.patterns`), and a check that takes
more than `_STEPS` steps ends without a verdict: then only the server can judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from jsonschema_specifications import REGISTRY
from referencing import Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from mcpagent.core.patterns import PatternError, pattern_cost, pattern_found, pattern_problem
from mcpagent.core.records import JsonObject

_STEPS = 30_000  # of one check: at most about 0.2 s
_DEPTH = 100  # keywords within keywords; Python's own limit would break the library, not only the check
_PATTERN_COST_A_STEP = 1_000
_MESSAGE_CHARS_A_STEP = 100
_MESSAGE_CHARS = 200
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")  # of the same value


class SchemaCheck:
    """One JSON schema, compiled at its first use: compiling costs about sixty validations."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema

    def fault(self, value: Any) -> str | None:
        """Return where and why `value` breaks the schema; None if it fits, or if that cannot be told."""
        if self._validator is None:
            return None
        try:
            return _first_fault(self._validator, value)
        except (_TooMuchWork, Unresolvable, RecursionError, UnknownType, ArithmeticError):
            return None

    @cached_property
    def _validator(self) -> Validator | None:
        """The validator of the schema; None if values cannot be checked against it."""
        if schema_problem(self._schema) is not None:
            return None
        return _bounded(_dialect(self._schema))(_without_dialects(self._schema), registry=REGISTRY)


def schema_problem(schema: JsonObject) -> str | None:
    """Return why values cannot be checked against the schema: it is not valid by its dialect, a reference
    leads out of it, nowhere or in circles, or it is nested too deeply. None if they can."""
    kind = _dialect(schema)
    try:
        if (fault := _dialect_fault(kind, schema)) is not None:
            return f"it is not a valid JSON schema: {fault}"
        dialect = specification_with(str(kind.META_SCHEMA["$schema"]))
        resolver = REGISTRY.resolver_with_root(dialect.create_resource(schema))
        return _reference_problem(schema, resolver, dialect)
    except RecursionError:
        return "it is nested too deeply"


def usable_schema(schema: JsonObject) -> tuple[JsonObject, str | None]:
    """Return the schema, and why values cannot be checked against it (`schema_problem`). One that can be used
    only without its keywords that are null, which some libraries write for those that are absent, comes back
    without them."""
    problem = schema_problem(schema)
    if problem is not None and schema_problem(without := _without_nulls(schema)) is None:
        return without, None
    return schema, problem


def pattern_notes(schema: JsonObject) -> list[str]:
    """Return what is wrong with each pattern of the schema that is not checked."""
    notes: list[str] = []
    for part in _parts(schema):
        patterns = part.get("patternProperties")
        names = list(patterns) if isinstance(patterns, dict) else []
        notes += [p for pattern in [part.get("pattern", ""), *names] if (p := pattern_problem(pattern))]
    return notes


class _TooMuchWork(Exception):
    """A check took all its steps, or went too deep."""


@dataclass
class _Work:
    steps_left: int = _STEPS
    depth: int = 0

    def charge(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise _TooMuchWork


_work: ContextVar[_Work] = ContextVar("_work")


def _reference_problem(schema: JsonObject, resolver: Any, dialect: Specification[Any]) -> str | None:
    """Follow every reference of the schema; one that leads back without a step into the value is a circle."""
    leads: dict[int, list[Any]] = {}  # by id of a subschema, those that check the same value
    pending: list[tuple[Any, Any]] = [(schema, resolver)]
    while pending:
        part, resolver = pending.pop()
        if not isinstance(part, dict) or id(part) in leads:
            continue
        leads[id(part)] = _in_place(part)
        for keyword in ("$ref", "$recursiveRef", "$dynamicRef"):
            if keyword not in part:
                continue
            try:
                target = resolver.lookup(part[keyword])
            except Unresolvable:
                return f"its reference {part[keyword][:100]!r} leads to no place within it"
            leads[id(part)].append(target.contents)
            pending.append((target.contents, target.resolver))
        for below in dialect.create_resource(part).subresources():
            pending.append((below.contents, resolver.in_subresource(below)))
    return "its references go in circles" if _has_circle(leads) else None


def _in_place(schema: Mapping[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for keyword in _IN_PLACE:
        value = schema.get(keyword)
        if keyword == "dependentSchemas" and isinstance(value, dict):
            parts += value.values()
        else:
            parts += value if isinstance(value, list) else [value]
    return [part for part in parts if isinstance(part, dict)]


def _has_circle(leads: Mapping[int, list[Any]]) -> bool:
    try:
        TopologicalSorter({node: map(id, parts) for node, parts in leads.items()}).prepare()
    except CycleError:
        return True
    return False


def _dialect(schema: JsonObject) -> type[Validator]:
    try:
        return validator_for(schema, default=Draft202012Validator)
    except (AttributeError, ValueError):  # `$schema` is not a URI; the dialect's own schema says so
        return Draft202012Validator


def _dialect_fault(kind: type[Validator], schema: JsonObject) -> str | None:
    """Return where and why the schema is none by its dialect; the formats of its texts are not looked at."""
    meta = _bounded(kind)(_without_dialects(kind.META_SCHEMA), registry=REGISTRY)
    try:
        return _first_fault(meta, schema)
    except _TooMuchWork:
        return "it is too large to be checked"


def _first_fault(validator: Validator, value: Any) -> str | None:
    """Return where and why the value breaks the validator's schema, within the steps of one check."""
    token = _work.set(_Work())
    try:
        error = best_match(validator.iter_errors(value))
    finally:
        _work.reset(token)
    if error is None:
        return None
    where = ".".join(str(part) for part in error.absolute_path)
    return (f"{where}: {error.message}" if where else error.message)[:_MESSAGE_CHARS]


_BY_NAME = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
_DATA = ("enum", "const", "default", "examples")


def _without_nulls(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("const", "default") or (key in _DATA and value is not None):
            kept[key] = value
        elif key in _BY_NAME and isinstance(value, dict):
            kept[key] = {name: {} if part is None else _without_nulls(part) for name, part in value.items()}
        elif value is not None:
            kept[key] = _without_nulls(value)
    return kept


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every object within the schema that is a schema, not a mapping of names to schemas or data (enum,
    const, default, examples)."""
    pending = [(schema, False)]
    while pending:
        node, is_by_name = pending.pop()
        if isinstance(node, list):
            pending += [(item, False) for item in node]
        elif isinstance(node, dict) and is_by_name:
            pending += [(value, False) for value in node.values()]
        elif isinstance(node, dict):
            yield node
            pending += [(value, key in _BY_NAME) for key, value in node.items() if key not in _DATA]


def _without_dialects(schema: Any) -> Any:
    """Copy the schema without `$schema`, of which each would bring back validators without bounds. Without
    `unevaluatedProperties`, too, if it has patterns: the library decides that one with `re`."""
    has_patterns = any("patternProperties" in part for part in _parts(schema))
    dropped = {"$schema", "unevaluatedProperties"} if has_patterns else {"$schema"}

    def copy(node: Any) -> Any:
        if isinstance(node, list):
            return [copy(item) for item in node]
        if not isinstance(node, dict):
            return node
        return {
            key: copy(value)
            for key, value in node.items()
            if key not in dropped or (key == "$schema" and not isinstance(value, str))
        }

    return copy(schema)


@cache
def _bounded(kind: type[Validator]) -> type[Validator]:
    """Return the validator of a dialect whose keywords count their steps."""
    ours = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {name: _counted(name, ours.get(name, rule)) for name, rule in kind.VALIDATORS.items()}
    return cast("type[Validator]", extend(cast("Any", kind), keywords))


Rule = Callable[..., Any]
_PER_ITEM = frozenset(
    {"const", "contains", "enum", "propertyNames", "unevaluatedProperties", "unevaluatedItems"}
)


def _counted(name: str, rule: Rule) -> Rule:
    """Return the rule of a keyword, charged for what its argument, its value and its messages are long."""

    def counting(validator: Any, argument: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        length = len(argument) if isinstance(argument, dict | list) else 1
        if name in _PER_ITEM and isinstance(instance, dict | list):
            length = (length + 1) * (len(instance) + 1)
        work = _work.get()
        work.charge(1 + length)
        work.depth += 1
        if work.depth > _DEPTH:
            raise _TooMuchWork
        try:
            for error in rule(validator, argument, instance, schema) or ():
                work.charge(len(error.message) // _MESSAGE_CHARS_A_STEP)
                yield error
        finally:
            work.depth -= 1

    return counting


def _is_found(pattern: Any, text: str) -> bool | None:
    """Return whether the pattern is found; None if it cannot be searched."""
    if not isinstance(pattern, str):
        return None
    try:
        _work.get().charge(pattern_cost(pattern, text) // _PATTERN_COST_A_STEP)
        return pattern_found(pattern, text)
    except PatternError:
        return None


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and _is_found(pattern, instance) is False:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, rules: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, part in rules.items():
            _work.get().charge(len(instance))
            for name, value in instance.items():
                if _is_found(pattern, name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, rule: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    _work.get().charge(len(instance))
    patterns = schema.get("patternProperties", {})
    # A name is of a pattern if it may be: what cannot be searched refuses nothing.
    extras = [
        name
        for name in instance
        if name not in schema.get("properties", {})
        and all(_is_found(pattern, name) is False for pattern in patterns)
    ]
    if isinstance(rule, dict):
        for name in extras:
            yield from validator.descend(instance[name], rule, path=name)
    elif not rule and extras:
        listed = ", ".join(map(repr, sorted(extras)))
        if patterns:
            does = "does" if len(extras) == 1 else "do"
            regexes = ", ".join(map(repr, sorted(patterns)))
            yield ValidationError(f"{listed} {does} not match any of the regexes: {regexes}")
        else:
            verb = "was" if len(extras) == 1 else "were"
            yield ValidationError(f"Additional properties are not allowed ({listed} {verb} unexpected)")


def _unique_items(validator: Any, is_asked: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check `uniqueItems` in linear time; the library compares each pair of objects."""
    if is_asked and isinstance(instance, list):
        _work.get().charge(len(instance))
        if len({_canonical(item) for item in instance}) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _canonical(value: Any) -> Any:
    """Return the value so that it can be in a set: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, dict):
        _work.get().charge(len(value))
        return frozenset((key, _canonical(item)) for key, item in value.items())
    if isinstance(value, list):
        _work.get().charge(len(value))
        return tuple(map(_canonical, value))
    return (bool, value) if isinstance(value, bool) else value
