"""What makes a task impossible to grade, found before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mcpagent.core.matching import match_rules, pattern_problem, rule_problems
from mcpagent.core.numbers import as_number
from mcpagent.core.placeholders import PlaceholderError, references
from mcpagent.core.tasks import AnswerCheck, GroundTruth, Task
from mcpagent.reward.assignment import depends_on


def task_problems(task: Task) -> list[str]:
    """Why the reward could not judge `task` as it stands, one sentence each; empty where it can."""
    truth = task.truth
    return [
        *_purpose_problems(truth),
        *_plan_problems(truth),
        *(_answer_problems(truth.final_answer, truth) if truth.final_answer is not None else ()),
        *_state_problems(truth),
        *_offer_problems(task),
    ]


def _purpose_problems(truth: GroundTruth) -> Iterator[str]:
    judged_by = (truth.tool_sequence, truth.final_answer, truth.state, truth.success.must_call_tool)
    if truth.abstain:
        if truth.tool_sequence or truth.success.must_call_tool:
            yield "abstain says that no call is right, but tool_sequence or must_call_tool asks for one"
    elif not any(judged_by):
        yield (
            "nothing says what success is: give it a tool_sequence, a final_answer, a state, "
            "success.must_call_tool or abstain"
        )


def _plan_problems(truth: GroundTruth) -> Iterator[str]:
    known: set[int] = set()
    for step in sorted(truth.tool_sequence, key=lambda step: (step.user_turn, step.step)):
        where = f"tool_sequence step {step.step}"
        if step.step in known:
            yield f"{where} occurs twice; steps are numbered 1, 2, ..."
        if not 0 <= step.user_turn <= len(truth.user_turns):
            yield f"{where} has user_turn {step.user_turn}, but the last one is {len(truth.user_turns)}"
        for gold in (step, *step.alternatives):
            yield from (f"{where}: {problem}" for problem in rule_problems(match_rules(step, gold)))
        yield from _reference_problems(where, step, depends_on, known)
        known.add(step.step)
    limits = truth.limits
    if limits.max_tools is not None and len(truth.tool_sequence) > limits.max_tools:
        yield f"tool_sequence has {len(truth.tool_sequence)} calls, limits.max_tools is {limits.max_tools}"
    servers = {step.server for step in truth.tool_sequence}
    if limits.max_servers is not None and len(servers) > limits.max_servers:
        yield f"tool_sequence uses {len(servers)} servers, limits.max_servers is {limits.max_servers}"


def _answer_problems(check: AnswerCheck, truth: GroundTruth) -> Iterator[str]:
    where = "final_answer.value"
    steps = {step.step for step in truth.tool_sequence}
    problem_count = 0
    for problem in _reference_problems(where, check.value, references, steps):
        problem_count += 1
        yield problem
    is_literal = problem_count == 0 and not references(check.value)
    if check.type == "number" and is_literal and as_number(check.value) is None:
        yield f"{where} is {check.value!r}, but type number needs a number or a step reference"
    if check.type == "regex" and is_literal and (flaw := pattern_problem(check.value)):
        yield f"{where} {flaw}"
    if check.type == "must_include" and check.value in ([], "", None):
        yield f"{where} is empty, so every answer would pass"


def _state_problems(truth: GroundTruth) -> Iterator[str]:
    steps = {step.step for step in truth.tool_sequence}
    for server, checks in truth.state.items():
        for check in checks:
            where = f"state.{server} ({check.call.tool})"
            if not check.expect:
                yield f"{where} expects nothing, so every end state would pass"
            if check.user_turn is not None and check.user_turn > len(truth.user_turns):
                yield f"{where} has user_turn {check.user_turn}, but the last one is {len(truth.user_turns)}"
            yield from _reference_problems(where, check.expect, references, steps)


def _offer_problems(task: Task) -> Iterator[str]:
    later, last = task.truth.tools_added, len(task.truth.user_turns)
    everything = task.offered_in(last)
    if everything is None:
        if later:
            yield "tools_added adds to extra_info.tools, which the task lacks: it offers every tool"
        return
    if strange := [turn for turn in later if not 1 <= turn <= last]:
        yield f"tools_added has user_turn {strange[0]}, but later user turns are 1 to {last}"
    if len(set(everything)) < len(everything):
        yield "tools_added offers a tool that was offered before"
    for step in task.truth.tool_sequence:
        if f"{step.server}.{step.tool}" not in (task.offered_in(step.user_turn) or ()):
            yield f"tool_sequence step {step.step} calls {step.server}.{step.tool}, which is not offered"
    offered = set(everything)
    wanted = task.truth.success.must_call_tool
    names = offered | {part for name in offered for part in name.split(".", 1)}
    if wanted is not None and wanted not in names:
        yield f"success.must_call_tool is {wanted!r}, but no offered tool has that name or server"


def _reference_problems(
    where: str, value: Any, find: Callable[[Any], set[int]], known: set[int]
) -> Iterator[str]:
    try:
        unknown = sorted(find(value) - known)
    except PlaceholderError as error:
        yield f"{where}: {error}"
        return
    if unknown:
        yield f"{where} refers to step{unknown[0]}, which is not an earlier step of tool_sequence"
