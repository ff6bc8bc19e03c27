"""Schemas of servers: what fits them, which are left out, and that no check of one takes long."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from mcpagent.core.patterns import PatternError, pattern_found
from mcpagent.core.tools import ToolSpec
from mcpagent.env.offer import offer
from mcpagent.tools.probes.arguments import harmless_arguments
from mcpagent.tools.schemas import SchemaCheck, pattern_notes, schema_problem

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"properties": {"a": {"type": "integer"}}}, {"a": "x"}, "a: 'x' is not of type 'integer'"),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 1}, None),
        ({"pattern": "^(a+)+$"}, "a" * 40 + "b", "does not match"),
        ({"pattern": "(?=x)y"}, "z", None),  # cannot be searched: only the server can judge
        ({"patternProperties": {"^x": {"type": "null"}}}, {"xa": 1}, "xa: 1 is not of type 'null'"),
        ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"y": 1}, "do"),
        ({"patternProperties": {"(?=x)": {}}, "additionalProperties": False}, {"y": 1}, None),
        ({"additionalProperties": {"type": "null"}}, {"y": 1}, "y: 1 is not of type 'null'"),
        ({"additionalProperties": False}, {"y": 1, "z": 2}, "('y', 'z' were unexpected)"),
        ({"uniqueItems": True}, [1, True, {"a": [1]}, {"a": [2]}], None),
        ({"uniqueItems": True}, [{"a": [1.0]}, {"a": [1]}], "has non-unique elements"),
        (
            {"$schema": DRAFT_7, "properties": {"s": {"$ref": DRAFT_7}}},
            {"s": {"type": 5}},
            "s.type: 5 is not",
        ),
        ({"properties": {"a": {"$schema": DRAFT_7, "pattern": "^(a+)+$"}}}, {"a": "a" * 40 + "b"}, "a: "),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"a": {}}, "a: 'a' is a required property"),
    ],
)
def test_a_value_fits_a_schema_or_is_told_where_not(
    schema: dict[str, Any], value: Any, fault: str | None
) -> None:
    said = SchemaCheck(schema).fault(value)
    assert said is None if fault is None else said is not None and fault in said


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"$ref": "#"}, "go in circles"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}}, "go in circles"),
        ({"$schema": DRAFT_7, "properties": {"a": {"$ref": "#/properties/a"}}}, "go in circles"),
        ({"$ref": "http://192.0.2.1/schema.json"}, "leads to no place within it"),
        ({"$ref": "file:///etc/passwd"}, "leads to no place within it"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "'#/$defs/none' leads to no place within it"),
        ({"properties": []}, "not a valid JSON schema: properties: [] is not of type 'object'"),
        ({"$schema": 5}, "not a valid JSON schema"),
        ({"properties": {"children": {"items": {"$ref": "#"}}}}, None),  # a tree
        ({"$defs": {"a": {"$anchor": "x"}}, "properties": {"b": {"$ref": "#x"}}}, None),
    ],
)
def test_a_schema_is_usable_or_told_why_not(schema: dict[str, Any], problem: str | None) -> None:
    said = schema_problem(schema)
    assert said is None if problem is None else said is not None and problem in said


def test_a_parameter_called_pattern_is_no_pattern() -> None:
    schema = {"type": "object", "properties": {"pattern": {"type": "string"}, "enum": {"pattern": "("}}}
    (note,) = pattern_notes(schema)
    assert note.startswith("'('")  # that of the parameter called enum


def test_patterns_that_cannot_be_searched_are_named() -> None:
    schema = {"properties": {"a": {"pattern": "(?!x)"}}, "patternProperties": {"(": {}, "^b": {}}}
    assert [note.split(" ")[0] for note in sorted(pattern_notes(schema))] == ["'('", "'(?!x)'"]


NESTED = ["({0}+)+", "({0}*)*b", "(?:{0}|{0})+", "{0}{0}", "({0}){{1,9}}", "({0}){{1000}}", "^{0}$", "({0}"]
REFERENCES = ["#", "#/$defs/a", "#/$defs/b", "#/$defs/a", "#/$defs/b"] * 4
REFERENCES += ["#/$defs/none", "http://192.0.2.1/x", "#%", "http://[", 7]
KEYWORDS = (
    *("properties", "patternProperties", "$defs", "dependentSchemas", "allOf", "anyOf", "oneOf", "not", "if"),
    *("then", "items", "additionalProperties", "unevaluatedProperties", "propertyNames", "contains", "$ref"),
    *("$dynamicRef", "uniqueItems", "multipleOf", "enum", "required", "maxLength", "minLength", "minItems"),
)


def _patterns(rng: random.Random) -> str:
    """Nested repetitions, alternatives that overlap, and what is no pattern at all."""
    part = rng.choice(["a", ".", "[ab]", "\\w", "(?:a|aa)", "a?", "\\p{L}", "(?=a)", "(a)\\1", "é", "\ud800"])
    for _ in range(rng.randrange(1, 7)):
        part = rng.choice(NESTED).format(part)
    return part


def _schemas(rng: random.Random, depth: int = 0) -> Any:
    """Schemas that refer to themselves, grow when they are followed, or are none."""
    ref = rng.choice(REFERENCES)
    wrong = rng.choice([[], 7, None, "x", True, {"type": "any"}, {"$id": "::"}, {"$schema": "x:y"}])
    if depth > 3:
        leaves = [{"$ref": ref}, {"pattern": _patterns(rng)}, {"type": "string"}, True, {"const": "a"}]
        return wrong if rng.random() < 0.01 else rng.choice(leaves)

    def below() -> Any:
        return _schemas(rng, depth + 1)

    schema: dict[str, Any] = {}
    for _ in range(rng.randrange(1, 4)):
        keyword = rng.choice(KEYWORDS)
        match keyword:
            case "properties" | "$defs" | "dependentSchemas":
                schema[keyword] = {name: below() for name in "ab"}
            case "patternProperties":
                schema[keyword] = {_patterns(rng): below()}
            case "allOf" | "anyOf" | "oneOf":
                schema[keyword] = [below() for _ in range(rng.choice([1, 2, 2, 40]) if depth < 2 else 2)]
            case "$ref" | "$dynamicRef":
                schema[keyword] = ref
            case "uniqueItems":
                schema[keyword] = True
            case "multipleOf":
                schema[keyword] = rng.choice([1e-300, 3, 10**400])
            case "maxLength" | "minLength" | "minItems":
                schema["type"] = "array" if keyword == "minItems" else "string"
                schema[keyword] = rng.choice([3, 10**400])
            case "enum" | "required":
                schema[keyword] = rng.choice([["a"], ["b", "a"], wrong if rng.random() < 0.1 else ["b"]])
            case _:
                schema[keyword] = below()
    return schema


def _values(rng: random.Random) -> Iterator[Any]:
    yield {}
    yield {"a": "a" * 5000 + "!", "b": {"a": ["a" * 40 + "b"] * 20}}
    deep: Any = "a"
    for _ in range(60):
        deep = {"a": deep, "b": deep} if rng.random() < 0.1 else {"a": deep}
    yield deep
    yield {"a" * 30 + str(number): number for number in range(500)}
    yield [{"a": [number % 400]} for number in range(500)]
    yield 10**400


@contextmanager
def _in_bounded_time(what: object) -> Iterator[None]:
    started_s = time.process_time()
    yield
    assert time.process_time() - started_s < 20.0, what  # about one second at most; without a bound, minutes


@pytest.mark.parametrize(
    "part",
    [
        0,
        pytest.param(1, marks=pytest.mark.system),
        *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 10)),
    ],
)
def test_of_a_thousand_malicious_schemas_and_patterns_none_hangs_or_breaks_a_check(part: int) -> None:
    usable = 0
    for seed in range(part * 100, part * 100 + 100):
        rng = random.Random(seed)
        schema = _schemas(rng)
        schema["$defs"] = {"a": _schemas(rng, 3), "b": _schemas(rng, 3)}
        with _in_bounded_time((seed, schema)):
            problem = schema_problem(schema)
        if problem is None:
            usable += 1
            with _in_bounded_time((seed, schema)):
                pattern_notes(schema)
                harmless_arguments(schema, text="probe")
            spec = ToolSpec(server="s", name="t", description="", input_schema=schema)
            (tool,) = offer({"t": spec}, None, task_id="x").tools
            for value in _values(rng):
                with _in_bounded_time((seed, schema)):
                    tool.check.fault(value)
        pattern = _patterns(rng)
        for text in ("a" * 30 + "!", "ab" * 20_000):
            with _in_bounded_time((seed, pattern)), suppress(PatternError):
                pattern_found(pattern, text)
    assert usable >= 20


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        # Each definition asks for the next one twice: 2**40 checks.
        (
            {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
                | {"d40": {}},
            },
            {},
        ),
        ({"anyOf": [{"type": "null"}] * 2000}, {"text": "x" * 4_000_000}),  # a message quotes the value
        ({"items": {"required": [f"r{n}" for n in range(2000)]}}, [{}] * 20_000),
        ({"uniqueItems": True}, [{"a": {"b": n}} for n in range(100_000)]),
        ({"items": {"enum": [[n] * 200 for n in range(200)]}}, [[0] * 199 + [1]] * 2000),
        ({"items": {"pattern": "(.*)a.{900}z"}}, ["ab" * 5000] * 1000),
    ],
    ids=["bomb", "messages", "required", "unique", "enum", "patterns"],
)
def test_a_check_without_end_ends_without_a_verdict(schema: dict[str, Any], value: Any) -> None:
    with _in_bounded_time(schema):
        SchemaCheck(schema).fault(value)
