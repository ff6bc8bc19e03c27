"""Does a call do what a gold call asks for?

Acceptance rules by parameter name (`PlanStep.match`; an alternative may carry a `match` of its own):

    {"any_of": [...]}    one of these values, besides the gold value itself
    {"tolerance": x}     numbers may differ by x (absolute)
    {"regex": "..."}     the pattern is found in the value; replaces the gold value
    {"optional": true}   may be left out; if given, it must be acceptable (any value where none is stated)
    {"ignore": true}     neither asked for nor counted

Without a rule the value must equal the gold value, and a parameter that the gold call lacks is wrong. A null
argument is the same as a missing one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from mcpagent.core.numbers import as_number
from mcpagent.core.placeholders import PlaceholderError, format_value, references, resolve
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import PlanCall, PlanStep
from mcpagent.core.tools import ToolCall

RULE_NAMES: Final = frozenset({"any_of", "tolerance", "regex", "optional", "ignore"})
_FLOAT_NOISE = 1e-9


class Unresolved:
    """Stands for a gold value whose step reference has no result yet; equal to no argument."""

    def __repr__(self) -> str:
        return "UNRESOLVED"


UNRESOLVED: Final = Unresolved()


def match_rules(step: PlanStep, gold: PlanCall) -> Mapping[str, JsonObject]:
    """The rules for `gold`, which is `step` itself or one of its alternatives."""
    own = (gold.model_extra or {}).get("match")
    return own if isinstance(own, dict) else step.match


def resolve_params(params: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with step references replaced, each on its own: UNRESOLVED where that is not possible."""
    return {name: _resolved(value, results) for name, value in params.items()}


def resolve_rules(rules: Mapping[str, JsonObject], results: Mapping[str, Any]) -> dict[str, JsonObject]:
    """`rules` with the references of `any_of` and `regex` replaced, as `resolve_params` does."""
    resolved: dict[str, JsonObject] = {}
    for name, rule in rules.items():
        resolved[name] = dict(rule)
        if "any_of" in rule:
            resolved[name]["any_of"] = [_resolved(value, results) for value in rule["any_of"]]
        if "regex" in rule:
            resolved[name]["regex"] = _resolved(rule["regex"], results)
    return resolved


def inputs_are_known(gold: PlanCall, results: Mapping[str, Any]) -> bool:
    """Whether `results` has every step that the parameters of `gold` refer to."""
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
    if isinstance(gold, list | tuple) and isinstance(given, list | tuple):
        return len(gold) == len(given) and all(
            values_equal(a, b, tolerance=tolerance) for a, b in zip(gold, given, strict=True)
        )
    if isinstance(gold, Mapping) and isinstance(given, Mapping):
        return gold.keys() == given.keys() and all(
            values_equal(gold[key], given[key], tolerance=tolerance) for key in gold
        )
    left, right = as_number(gold), as_number(given)
    if left is not None and right is not None:
        return _close(left, right, tolerance)
    return type(gold) is type(given) and gold == given


def argument_score(
    params: Mapping[str, Any], rules: Mapping[str, JsonObject], arguments: Mapping[str, Any]
) -> float:
    """Share of right arguments over the union of gold and given names, in 0..1; 1 where nothing is asked for.

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
    """Whether `call` is the gold call: same tool, every argument acceptable, none superfluous."""
    return same_tool(gold, call) and argument_score(params, rules, call.arguments) == 1.0


def rule_problems(rules: Mapping[str, Any]) -> list[str]:
    """What is wrong with the acceptance rules of a gold call, one sentence each."""
    problems: list[str] = []
    for name, rule in rules.items():
        unknown = sorted(set(rule) - RULE_NAMES) if isinstance(rule, dict) else []
        if unknown:
            problems.append(f"match.{name} has unknown rules {unknown}; known are {sorted(RULE_NAMES)}")
        if not isinstance(rule, dict):
            problems.append(f"match.{name} is {rule!r}, but a rule is an object")
            continue
        if "any_of" in rule and not isinstance(rule["any_of"], list):
            problems.append(f"match.{name}.any_of is {rule['any_of']!r}, but must be a list")
        if "tolerance" in rule and as_number(rule["tolerance"]) is None:
            problems.append(f"match.{name}.tolerance is {rule['tolerance']!r}, but must be a number")
        if "regex" in rule and (flaw := pattern_problem(rule["regex"])):
            problems.append(f"match.{name}.regex {flaw}")
    return problems


def pattern_problem(pattern: object) -> str | None:
    """Why `pattern` is not a regular expression; None where it is one."""
    if not isinstance(pattern, str):
        return f"is {pattern!r}, but must be a string"
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is not a regular expression: {error}"
    return None


def _acceptable(name: str, gold: Mapping[str, Any], rule: JsonObject, given: Any) -> bool:
    if "regex" in rule:
        pattern = rule["regex"]
        return isinstance(pattern, str) and re.search(pattern, format_value(given)) is not None
    accepted = ([gold[name]] if name in gold else []) + list(rule.get("any_of", ()))
    if not accepted:
        return bool(rule.get("optional"))
    tolerance = float(rule.get("tolerance", 0.0))
    return any(values_equal(value, given, tolerance=tolerance) for value in accepted)


def _resolved(value: Any, results: Mapping[str, Any]) -> Any:
    try:
        return resolve(value, results)
    except PlaceholderError:
        return UNRESOLVED


def _strings_equal(gold: str, given: str, tolerance: float) -> bool:
    gold, given = gold.strip(), given.strip()
    if gold == given:
        return True
    if tolerance > 0:  # numeric strings are identifiers ("007") unless a tolerance says that they are amounts
        left, right = as_number(gold), as_number(given)
        return left is not None and right is not None and _close(left, right, tolerance)
    is_free_text = len(gold.split()) > 1
    return not is_free_text and gold.casefold() == given.casefold()


def _close(left: float, right: float, tolerance: float) -> bool:
    return abs(left - right) <= tolerance or math.isclose(
        left, right, rel_tol=_FLOAT_NOISE, abs_tol=_FLOAT_NOISE
    )
