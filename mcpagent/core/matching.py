"""Comparison of arguments of calls and of fields of end states with what is expected of them.

Both speak one language of rules. An argument's rules are named by parameter (`PlanStep.match`; an alternative
may carry a `match` of its own), those of an end state stand in `StateCheck.expect` in place of a value:

    {"any_of": [...]}       one of these values
    {"tolerance": x}        numbers may differ by x (absolute)
    {"regex": "..."}        the pattern is found in the value (core/patterns.py); of a list, every pattern
    {"contains": v}         a text has v in it, a list has v, or what a rule says, among its items; of an
                            object, v may name some fields only, each with a value or a rule
    {"case": true}          with `contains`: letter case counts in texts
    {"unordered": [...]}    a list of these items, in any order; true: of those of the gold value
    {"length": n}           a text, a list or an object has n characters, items or fields

`match` only:

    {"optional": true}      may be left out; if given, it must be acceptable (any value if none is stated)
    {"ignore": true}        neither asked for nor counted

`expect` only:

    {"equals": v}           the value itself: for a tolerance, or for an object that looks like a rule
    {"increased_by": n}     n more than before the episode, as a number or in items; 1 is one more
    {"unchanged": true}     as it was before the episode
    {"absent": true}        there is nothing at the path; false: there is something, whatever it is

Of several rules all must hold; `regex`, `contains` and `length` replace the gold value of an argument,
`any_of` adds to it. Without a rule the value must equal the gold value, and a parameter that the gold call
lacks is wrong. A null argument is the same as a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum, auto
from typing import Any, Final

from mcpagent.core.patterns import PatternError, pattern_found, pattern_problem
from mcpagent.core.placeholders import (
    PlaceholderError,
    format_value,
    lookup_path,
    reference_texts,
    references,
    resolve_references,
)
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import PlanCall, PlanStep
from mcpagent.core.tools import ToolCall
from mcpagent.core.values import as_number, is_json_array, is_json_object, numbers_equal

_SHARED: Final = frozenset({"any_of", "tolerance", "regex", "contains", "unordered", "length", "case"})
RULE_NAMES: Final = _SHARED | {"optional", "ignore"}
STATE_RULE_NAMES: Final = _SHARED | {"equals", "increased_by", "unchanged", "absent"}
_REPLACING = ("regex", "contains", "length")  # they say what a value is like, not what it is
_BEFORE = frozenset({"increased_by", "unchanged"})


class Absent(Enum):
    """Stands for a gold value whose step reference has no result yet, which equals no argument, and for a
    value that does not exist at its path."""

    UNRESOLVED = auto()
    MISSING = auto()


UNRESOLVED: Final = Absent.UNRESOLVED
MISSING: Final = Absent.MISSING
_PART = re.compile(r"""\[\s*(?:"([^"]*)"|'([^']*)'|(-?[0-9]+))\s*\]|([^.\[\]]+)""")


def match_rules(step: PlanStep, gold: PlanCall) -> Mapping[str, JsonObject]:
    """Return the rules for `gold`, which is `step` itself or one of its alternatives."""
    rules = (gold.model_extra or {}).get("match")
    return rules if is_json_object(rules) else step.match


def resolve_params(params: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with step references replaced, each on its own: UNRESOLVED if that is not possible."""
    return {name: _resolved(value, results) for name, value in params.items()}


def resolve_rules(rules: Mapping[str, JsonObject], results: Mapping[str, Any]) -> dict[str, JsonObject]:
    """`rules` with the references in them replaced, as `resolve_params` does."""
    resolved: dict[str, JsonObject] = {}
    for name, rule in rules.items():
        resolved[name] = dict(rule)
        for key in rule.keys() & {"regex", "contains", "length", "tolerance"}:
            resolved[name][key] = _resolved(rule[key], results)
        for key in rule.keys() & {"any_of", "unordered"}:
            if isinstance(rule[key], list):
                resolved[name][key] = [_resolved(value, results) for value in rule[key]]
    return resolved


def inputs_are_known(gold: PlanCall, results: Mapping[str, Any]) -> bool:
    """Return whether `results` has every step that the parameters of `gold` refer to."""
    try:
        return all(f"step{number}" in results for number in references(gold.params))
    except PlaceholderError:
        return False


def values_equal(gold: Any, given: Any, *, tolerance: float = 0.0) -> bool:
    """Equality of two JSON values as a person would see it.

    Numbers are equal across int, float and (against a number) numeric strings; strings after trimming, and
    without regard to case unless they are free text (hold whitespace); lists in order; objects by key.
    """
    if gold is UNRESOLVED:
        return False
    if isinstance(gold, str) and isinstance(given, str):
        return _strings_equal(gold, given, tolerance)
    if is_json_array(gold) and is_json_array(given):
        return len(gold) == len(given) and all(
            values_equal(a, b, tolerance=tolerance) for a, b in zip(gold, given, strict=True)
        )
    if is_json_object(gold) and is_json_object(given):
        return gold.keys() == given.keys() and all(
            values_equal(gold[key], given[key], tolerance=tolerance) for key in gold
        )
    if type(gold) is int and type(given) is int:  # a float would not tell large ones apart
        return numbers_equal(gold, given, tolerance=tolerance)
    left, right = as_number(gold), as_number(given)
    if left is not None and right is not None:
        return numbers_equal(left, right, tolerance=tolerance)
    return type(gold) is type(given) and gold == given


def argument_score(
    params: Mapping[str, Any], rules: Mapping[str, JsonObject], arguments: Mapping[str, Any]
) -> float:
    """Share of right arguments over the union of gold and given names, in 0..1; 1 if nothing is asked for.

    `params` and `rules` are resolved (`resolve_params`, `resolve_rules`).
    """
    gold = {name: value for name, value in params.items() if value is not None}
    given = {name: value for name, value in arguments.items() if value is not None}
    right = total = 0
    for name in gold.keys() | given.keys():
        rule = rules.get(name, {})
        if rule.get("ignore") or (rule.get("optional") and name not in given):
            continue
        total += 1
        right += name in given and _acceptable(name, gold, rule, given[name])
    return right / total if total else 1.0


def same_tool(gold: PlanCall, call: ToolCall) -> bool:
    """Server and tool agree; a call that the catalog did not resolve has no server and never agrees."""
    return call.server == gold.server and call.tool == gold.tool


def call_matches(
    gold: PlanCall, params: Mapping[str, Any], rules: Mapping[str, JsonObject], call: ToolCall
) -> bool:
    """Return whether `call` is the gold call: same tool, every argument acceptable, none superfluous."""
    return same_tool(gold, call) and argument_score(params, rules, call.arguments) == 1.0


def is_rule(expected: Any) -> bool:
    """Return whether a value of `expect` is a rule: an object all of whose names are those of rules."""
    return is_json_object(expected) and bool(expected) and expected.keys() <= STATE_RULE_NAMES


def needs_before(expect: Mapping[str, Any]) -> bool:
    """Return whether a rule of `expect` compares with the state before the episode."""
    return any(is_rule(expected) and not _BEFORE.isdisjoint(expected) for expected in expect.values())


def expect_holds(expect: Mapping[str, Any], now: Any, before: Any | None) -> bool:
    """Return whether the state `now` has at every path of `expect` (resolved) its value, or what its rule
    says. `before` is the state before the episode, None if it was not read."""
    return all(_expected(expected, _at(now, path), _at(before, path)) for path, expected in expect.items())


def others_unchanged(expect: Mapping[str, Any], now: Any, before: Any) -> bool:
    """Return whether everything that no path of `expect` names is as it was `before`. Items that are named
    by their place and are more than before were put in there; the others keep their order."""
    paths = [_path_parts(path) for path in expect]
    return values_equal(*_without_paths(before, now, paths))


def rule_problems(rules: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the acceptance rules of a gold call, one sentence each."""
    problems: list[str] = []
    for name, rule in rules.items():
        unknown = sorted(set(rule) - RULE_NAMES) if is_json_object(rule) else []
        if unknown:
            problems.append(f"match.{name} has unknown rules {unknown}; known are {sorted(RULE_NAMES)}")
        if not is_json_object(rule):
            problems.append(f"match.{name} is {rule!r}, but a rule is an object")
            continue
        problems += [f"match.{name}.{problem}" for problem in _faults(rule)]
    return problems


def expect_problems(expect: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the paths and rules of a state check, one sentence each."""
    problems: list[str] = []
    for path, expected in expect.items():
        try:
            references(f"${{step1{path if path.startswith('[') else f'.{path}'}}}")
        except PlaceholderError:
            problems.append(f"expect has the path {path!r}, which is not one like messages[0].text")
        problems += [f"expect[{path!r}]{problem}" for problem in _expected_problems(expected)]
    return problems


def _expected_problems(expected: Any) -> list[str]:
    if not is_json_object(expected):
        return []
    if is_rule(expected):
        problems = [f".{problem}" for problem in _faults(expected)]
        item = expected.get("contains")
        fields = item.values() if is_json_object(item) and not is_rule(item) else [item]
        return problems + [f".contains{problem}" for field in fields for problem in _expected_problems(field)]
    likely = sorted(name for name in expected if get_close_matches(str(name), STATE_RULE_NAMES, 1, 0.8))
    if likely:
        return [
            f" has {likely} among other names, so it is not a rule; rules are {sorted(STATE_RULE_NAMES)}, "
            "and an object that is expected as it stands is written {'equals': ...}"
        ]
    return []


def _faults(rule: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the values of a rule."""
    requirements: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "any_of": ("a list", lambda v: is_json_array(v) and bool(v)),
        "tolerance": (
            "a number, 0 or more",
            lambda v: (as_number(v) or 0.0) >= 0 and as_number(v) is not None,
        ),
        "unordered": (
            "a list, or true for the items of the gold value",
            lambda v: isinstance(v, list) or v is True,
        ),
        "length": ("a whole number, 0 or more", lambda v: type(v) is int and v >= 0),
        "increased_by": ("a number", lambda v: as_number(v) is not None and not isinstance(v, str)),
        "unchanged": ("true", lambda v: v is True),
        "absent": ("true or false", lambda v: isinstance(v, bool)),
        "case": ("true or false", lambda v: isinstance(v, bool)),
        "contains": ("a value", lambda v: v not in (None, "", {}, [])),
    }
    problems = [
        f"{name} is {rule[name]!r}, but must be {what}"
        for name, (what, is_right) in requirements.items()
        if name in rule and not reference_texts(rule[name]) and not is_right(rule[name])
    ]
    patterns = _patterns_of(rule["regex"]) if "regex" in rule else []
    problems += [f"regex {flaw}" for pattern in patterns if (flaw := pattern_problem(pattern))]
    return problems


def _patterns_of(rule: Any) -> list[Any]:
    return list(rule) if is_json_array(rule) else [rule]


def _acceptable(name: str, gold: Mapping[str, Any], rule: JsonObject, given: Any) -> bool:
    replacing = [key for key in _REPLACING if key in rule]
    if replacing:
        return all(_is_like(key, rule, given) for key in replacing)
    accepted = ([gold[name]] if name in gold else []) + list(rule.get("any_of", ()))
    if isinstance(rule.get("unordered"), list):
        accepted.append(rule["unordered"])
    if not accepted:
        return bool(rule.get("optional"))
    return _is_one_of(accepted, rule, given)


def _expected(expected: Any, given: Any, before: Any) -> bool:
    """Return whether a value of a state is the expected one; MISSING stands for what is not there."""
    if not is_rule(expected):
        return given is not MISSING and values_equal(expected, given)
    if "absent" in expected:
        return (given is MISSING) is expected["absent"] and (expected["absent"] or len(expected) == 1)
    if given is MISSING:
        return False
    accepted = [expected["equals"]] if "equals" in expected else []
    accepted += expected.get("any_of", ())
    if isinstance(expected.get("unordered"), list):
        accepted.append(expected["unordered"])
    return (
        (not accepted or _is_one_of(accepted, expected, given))
        and all(_is_like(key, expected, given) for key in _REPLACING if key in expected)
        and ("increased_by" not in expected or _has_grown(before, given, expected["increased_by"], expected))
        and ("unchanged" not in expected or (before is not MISSING and values_equal(before, given)))
    )


def _is_one_of(accepted: Iterable[Any], rule: Mapping[str, Any], given: Any) -> bool:
    tolerance = as_number(rule.get("tolerance")) or 0.0
    if rule.get("unordered"):
        return any(_same_items(value, given, tolerance) for value in accepted)
    return any(values_equal(value, given, tolerance=tolerance) for value in accepted)


def _is_like(key: str, rule: Mapping[str, Any], given: Any) -> bool:
    expected = rule[key]
    match key:
        case "regex":
            return all(_is_found(pattern, format_value(given)) for pattern in _patterns_of(expected))
        case "length":
            length = len(given) if isinstance(given, str) else _length(given)
            return length is not None and length == as_number(expected)
        case _:
            return _contains(expected, given, case=rule.get("case") is True)


def _is_found(pattern: Any, text: str) -> bool:
    try:
        return isinstance(pattern, str) and pattern_found(pattern, text)
    except PatternError:
        return False


def _contains(expected: Any, given: Any, *, case: bool) -> bool:
    if expected is UNRESOLVED:
        return False
    if isinstance(given, str):
        text = format_value(expected)
        return text in given if case else text.casefold() in given.casefold()
    if is_json_object(given):
        return _has_fields(expected, given)
    if is_json_array(given):
        if is_rule(expected):
            return any(_expected(expected, item, MISSING) for item in given)
        same = (format_value(item) == format_value(expected) for item in given)
        likes = (_has_fields(expected, item) or values_equal(expected, item) for item in given)
        return any(likes if not case or is_json_object(expected) else same)
    return False


def _has_fields(expected: Any, given: Any) -> bool:
    """Return whether `given` has the fields that `expected` names, each with its value or as its rule
    says."""
    return (
        is_json_object(expected)
        and is_json_object(given)
        and all(_expected(value, given.get(name, MISSING), MISSING) for name, value in expected.items())
    )


def _same_items(gold: Any, given: Any, tolerance: float) -> bool:
    if not is_json_array(gold) or not is_json_array(given) or len(gold) != len(given):
        return False
    left = list(given)
    for item in gold:
        place = next(
            (i for i, other in enumerate(left) if values_equal(item, other, tolerance=tolerance)), None
        )
        if place is None:
            return False
        left.pop(place)
    return True


def _has_grown(before: Any, given: Any, by: Any, rule: Mapping[str, Any]) -> bool:
    step, was, now = as_number(by), _size(before), _size(given)
    if step is None or was is None or now is None:
        return False
    return numbers_equal(was + step, now, tolerance=as_number(rule.get("tolerance")) or 0.0)


def _size(value: Any) -> float | None:
    length = _length(value)
    return as_number(value) if length is None else float(length)


def _length(value: Any) -> int | None:
    """Return the number of items of an array or fields of an object; None for what is neither."""
    return len(value) if is_json_array(value) or is_json_object(value) else None


def _at(value: Any, path: str) -> Any:
    if value is None:
        return MISSING
    try:
        return lookup_path(value, path)
    except PlaceholderError:
        return MISSING


def _path_parts(path: str) -> tuple[str | int, ...]:
    parts = _PART.findall(path)
    return tuple(int(index) if index else double or single or name for double, single, index, name in parts)


def _without_paths(before: Any, now: Any, paths: Sequence[tuple[str | int, ...]]) -> tuple[Any, Any]:
    """Both states without what `paths` name."""
    whole = {path[0] for path in paths if len(path) == 1}
    deeper: dict[str | int, list[tuple[str | int, ...]]] = {}
    for path in paths:
        if len(path) > 1:
            deeper.setdefault(path[0], []).append(path[1:])
    if is_json_object(before) and is_json_object(now):
        left = {name: item for name, item in before.items() if name not in whole}
        # An object of which a path names a field is new as a whole, or gone as a whole.
        right = {
            name: item
            for name, item in now.items()
            if name not in whole and not (name in deeper and name not in before)
        }
        left = {name: item for name, item in left.items() if name in now or name not in deeper}
        for name in left.keys() & right.keys() & deeper.keys():
            left[name], right[name] = _without_paths(left[name], right[name], deeper[name])
        return left, right
    if is_json_array(before) and is_json_array(now):
        places = {place for place in whole | deeper.keys() if isinstance(place, int)}
        rest = [item for place, item in enumerate(now) if place not in places]
        if len(now) - len(before) == len(places):
            return before, rest
        if len(now) == len(before):
            pairs = [
                _without_paths(was, item, deeper.get(place, []))
                for place, (was, item) in enumerate(zip(before, now, strict=True))
                if place not in whole
            ]
            return [was for was, _ in pairs], [item for _, item in pairs]
        return [item for place, item in enumerate(before) if place not in places], rest
    return before, now


def _resolved(value: Any, results: Mapping[str, Any]) -> Any:
    try:
        return resolve_references(value, results)
    except PlaceholderError:
        return UNRESOLVED


def _strings_equal(gold: str, given: str, tolerance: float) -> bool:
    gold, given = gold.strip(), given.strip()
    if gold == given:
        return True
    if tolerance > 0:  # numeric strings are identifiers ("007") unless a tolerance says that they are amounts
        left, right = as_number(gold), as_number(given)
        return left is not None and right is not None and numbers_equal(left, right, tolerance=tolerance)
    is_free_text = len(gold.split()) > 1
    return not is_free_text and gold.casefold() == given.casefold()
