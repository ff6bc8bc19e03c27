"""What makes a task impossible to grade, found before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mcpagent.core.answer_line import asked_before, form_of, form_problem, states_form
from mcpagent.core.matching import expect_problems, match_rules, rule_problems
from mcpagent.core.patterns import pattern_problem
from mcpagent.core.placeholders import PlaceholderError, references
from mcpagent.core.tasks import AnswerCheck, GroundTruth, Task
from mcpagent.core.values import as_number
from mcpagent.reward.answer import others
from mcpagent.reward.assignment import depends_on
from mcpagent.reward.judge import JUDGED_METHODS, rubric_text

_INVENTED_PASSES = (
    "abstain: any answer without a call succeeds, an invented one too; ask for an answer line "
    "(answer_line: true) and give it the final_answer {type: none}"
)
_ANY_WORDS_PASS = (
    "final_answer of type {kind} without an answer line sees neither a denial nor a second value next to the "
    "right one; ask for an answer line (`mcpagent data restate`), or use the method rule+judge"
)
_NO_CALL_REQUIRED = (
    "final_answer alone judges: who knows the answer passes without a call; give it a tool_sequence or "
    "success.must_call_tool"
)
_ANY_CALL_PASSES = (
    "final_answer is written out and success.must_call_tool names no tool: who knows the answer passes with "
    "any call; name the tools of tool_sequence there, or refer to their results (${step1.field})"
)


def task_problems(task: Task) -> list[str]:
    """Return why the reward could not judge `task` as it stands, one sentence each; empty if it can."""
    truth = task.truth
    check = truth.final_answer
    return [
        *_purpose_problems(task),
        *_plan_problems(truth),
        *([] if check is None else _answer_problems(check, truth)),
        *_evidence_problems(truth),
        *_state_problems(truth),
        *_offer_problems(task),
    ]


def _purpose_problems(task: Task) -> Iterator[str]:
    truth = task.truth
    judged_by = (truth.tool_sequence, truth.final_answer, truth.state, truth.success.must_call)
    if truth.abstain:
        if truth.tool_sequence or truth.success.must_call:
            yield "abstain says that no call is right, but tool_sequence or must_call_tool asks for one"
    elif task.reward_spec.method in JUDGED_METHODS:
        if not any(judged_by) and not rubric_text(task):
            yield "a judge alone decides, and judge_rubric does not say what about"
    elif not any(judged_by):
        yield (
            "nothing says what success is: give it a tool_sequence, a final_answer, a state, "
            "success.must_call_tool or abstain"
        )


def _plan_problems(truth: GroundTruth) -> Iterator[str]:
    earlier: set[int] = set()
    for step in sorted(truth.tool_sequence, key=lambda step: (step.user_turn, step.step)):
        where = f"tool_sequence step {step.step}"
        if step.step in earlier:
            yield f"{where} occurs twice; steps are numbered 1, 2, ..."
        if not 0 <= step.user_turn <= len(truth.user_turns):
            yield f"{where} has user_turn {step.user_turn}, but the last one is {len(truth.user_turns)}"
        for gold in (step, *step.alternatives):
            yield from (f"{where}: {problem}" for problem in rule_problems(match_rules(step, gold)))
        yield from _reference_problems(where, step, depends_on, earlier)
        earlier.add(step.step)
    for user_turn in truth.quiet_turns or ():
        if not 0 <= user_turn <= len(truth.user_turns):
            yield f"quiet_turns has {user_turn}, but the last user turn is {len(truth.user_turns)}"
        if any(step.user_turn == user_turn for step in truth.tool_sequence):
            yield f"quiet_turns has {user_turn}, in which tool_sequence has a call"
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
    if problem_count or references(check.value):
        return
    if check.type == "regex" and (flaw := pattern_problem(check.value)):
        yield f"{where} {flaw}"
    elif check.type == "must_include" and check.value in ([], "", None):
        yield f"{where} is empty, so every answer would pass"
    elif truth.answer_line and check.type in ("none", "abstention"):
        if check.form is not None and form_of(check) is None:
            yield f"final_answer.form is {check.form!r}, which no question can ask for"
    elif truth.answer_line and (flaw := _form_flaw(check)):
        yield flaw
    elif check.type == "number" and as_number(check.value) is None:
        yield f"{where} is {check.value!r}, but type number needs a number or a step reference"
    reference = truth.reference_answer
    if truth.answer_line or reference is None or check.type in ("regex", "none", "abstention"):
        return
    if not references(reference) and not others.holds(check, check.value, reference):
        yield f"reference_answer, {reference[:200]!r}, does not pass final_answer"


def task_warnings(task: Task) -> list[str]:
    """Return how `task` could be passed without doing it, one sentence each. It can be judged, but not
    trusted."""
    truth, check = task.truth, task.truth.final_answer
    if truth.abstain and (check is None or not truth.answer_line):
        return [_INVENTED_PASSES]
    if check is None or check.type in ("none", "abstention"):
        return []
    is_loose = not truth.answer_line and task.reward_spec.method not in JUDGED_METHODS
    warnings = [_ANY_WORDS_PASS.format(kind=check.type)] if is_loose and check.type != "string" else []
    if truth.state or truth.success.must_call or truth.evidence:
        return warnings
    if not truth.tool_sequence:
        return [*warnings, _NO_CALL_REQUIRED]
    # What generation proved of a task says that its answer is not known without its calls.
    is_proven = "minimal" in task.extra_info.get("verdicts", ())
    return warnings if is_proven or references(check.value) else [*warnings, _ANY_CALL_PASSES]


def unstated_answer(task: Task) -> str | None:
    """Return why no run may begin with `task`: its answer line can have no form that a question states. None
    if it can, and for a task of before questions stated forms, which is played as it is."""
    check = task.truth.final_answer
    if check is None or not task.truth.answer_line or asked_before(task):
        return None
    return _form_flaw(check)


def lacks_form(task: Task) -> bool:
    """Return whether a task was made before questions stated the form of their answer, and its own does not
    though it could: `mcpagent data restate` adds it."""
    check = task.truth.final_answer
    if check is None or not (task.truth.answer_line or task.is_generated):
        return False
    could = form_of(check) is not None and form_problem(check) is None
    return check.type == "abstention" or (could and not states_form(task))


def _form_flaw(check: AnswerCheck) -> str | None:
    flaw = form_problem(check)
    return flaw and f"final_answer.{'options' if check.type == 'choice' else 'value'}: {flaw}"


def _evidence_problems(truth: GroundTruth) -> Iterator[str]:
    steps = {step.step for step in truth.tool_sequence}
    for place, fact in enumerate(truth.evidence):
        where = f"evidence[{place}]"
        if fact.value in (None, "", [], {}):
            yield f"{where} has no value, so nothing could show it"
        if any(not name for name in fact.about):
            yield f"{where}.about has an empty name"
        taken = [fact.value, fact.about, fact.instead]
        yield from _reference_problems(where, taken, references, steps)


def _state_problems(truth: GroundTruth) -> Iterator[str]:
    steps = {step.step for step in truth.tool_sequence}
    for server, checks in truth.state.items():
        for check in checks:
            where = f"state.{server} ({check.call.tool})"
            if not (check.expect or check.nothing_else_changed):
                yield f"{where} expects nothing, so every end state would pass"
            if check.user_turn is not None and check.user_turn > len(truth.user_turns):
                yield f"{where} has user_turn {check.user_turn}, but the last one is {len(truth.user_turns)}"
            yield from (f"{where}: {problem}" for problem in expect_problems(check.expect))
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
    names = offered | {part for name in offered for part in name.split(".", 1)}
    for required in task.truth.success.must_call:
        if required not in names:
            yield f"success.must_call_tool is {required!r}, but no offered tool has that name or server"


def _reference_problems(
    where: str, value: Any, find: Callable[[Any], set[int]], earlier: set[int]
) -> Iterator[str]:
    try:
        unknown = sorted(find(value) - earlier)
    except PlaceholderError as error:
        yield f"{where}: {error}"
        return
    if unknown:
        yield f"{where} refers to step{unknown[0]}, which is not an earlier step of tool_sequence"
