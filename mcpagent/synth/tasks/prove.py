"""Proof that a settled task is repeatable, solvable, necessary and minimal: each by running it."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any, TypeVar

from mcpagent.core.answer_line import form_problem, right_message
from mcpagent.core.placeholders import PlaceholderError, format_value, reference_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.shown_values import result_value
from mcpagent.core.tasks import Task
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult
from mcpagent.core.values import scalars
from mcpagent.reward.assignment import depends_on
from mcpagent.reward.record import RecordedTurn, state_readings
from mcpagent.reward.rule import is_optional
from mcpagent.reward.state import state_holds
from mcpagent.synth.tasks.inspect import (
    answer_in_prompt,
    answer_values,
    stands_in,
    written_faults,
)
from mcpagent.synth.tasks.record import answer_sources, settle, with_verdicts
from mcpagent.synth.tasks.run import (
    NO_NAME,
    CallCache,
    GoldRun,
    anonymous,
    gold_record,
    replaced_in,
    replay,
    says_no,
    score,
)
from mcpagent.synth.tasks.stages import RejectCode, RejectedTask, Rejection

T = TypeVar("T")

_INVENTED = 918.27  # a value that no server gives


def right_answers(task: Task, results: Mapping[str, Any]) -> list[str]:
    """Return the right last message, and for an answer line the same after other text and in Markdown."""
    right = right_message(task, results)
    if right is None or not task.truth.answer_line:
        return [] if right is None else [right]
    line = right.removeprefix("Answer: ")
    return [right, f"I looked it up for you: {_INVENTED}.\n\n**Answer:** {line}", f"answer: **{line}**"]


def wrong_answers(task: Task, contents: Sequence[str], results: Mapping[str, Any]) -> list[str]:
    """Return last messages that must not succeed after the right calls, whose results are `contents`."""
    check, invented = task.truth.final_answer, [f"It is {_INVENTED}.", f"Answer: {_INVENTED}"]
    if check is None:
        return []
    if check.type in ("none", "abstention"):
        return ["", "?!", *(invented if task.truth.answer_line else ())]
    wrong = ["", *(invented if check.type != "regex" else ())]
    if not task.truth.answer_line:
        return wrong
    right = right_message(task, results) or ""
    return [*wrong, "\n".join(contents), "Answer: none", f"{right}\n{right}", f"{right}\nOr {_INVENTED}."]


async def prove(
    task: Task,
    run: GoldRun,
    cache: CallCache,
    *,
    sources: Collection[int] | None,
) -> JsonObject:
    """Return the verdicts on a task that ran as `run`. `sources` are the steps that the final answer is made
    from; None if that is not known, and is looked for in the results. Raises RejectedTask."""
    await _repeats(task, run, cache, sources)
    await _is_unknown(task, run, cache)
    failing = await _fails_first(task, cache)
    _right_scores_one(task, run, cache, failing)
    _wrong_fails(task, run, cache)
    await _silence_fails(task, run, cache)
    await _every_step_counts(task, run, cache, sources)
    return {
        "executed_steps": len(run.calls),
        "gold_reward": 1.0,
        "replays": 1,  # next to the first run
        "no_op": "silence fails",
        "minimal": "every step is needed" if run.calls else "no steps",
        **({"first_error": failing[1].content[:200]} if failing else {}),
    }


async def _repeats(task: Task, run: GoldRun, cache: CallCache, sources: Collection[int] | None) -> None:
    """Check that what the plan, the answer and the evidence take from results is there a second time. The
    rest may differ: the number of a request, the time, the receipt of a change."""
    again = await replay(cache, task, generation=1)
    truth = task.truth
    reads = {s.step for s in truth.tool_sequence if cache.is_read_only(s.server, s.tool)}
    taken = set[int]()
    if truth.final_answer is not None and not truth.evidence:
        taken = reads if sources is None else reads & set(sources)
    for (step, call, one), (_, call_again, other) in zip(run.calls, again.calls, strict=True):
        if step.step in taken and result_value(one) != result_value(other):
            detail = f"step {step.step}: {one.content[:100]} and then {other.content[:100]}"
            raise RejectedTask(RejectCode.NOT_REPEATABLE, detail)
        if depends_on(step) <= reads and call.arguments != call_again.arguments:
            detail = f"step {step.step}: {call.arguments} and then {call_again.arguments}"[:200]
            raise RejectedTask(RejectCode.NOT_REPEATABLE, detail)
    for server, check, result, was in state_readings(task.truth, again.state, again.before) or ():
        if not state_holds(check, result, again.results, was):
            detail = f"the end state of {server} is not reached again: {result.content[:200]}"
            raise RejectedTask(RejectCode.NOT_REPEATABLE, detail)
    answer = right_message(task, run.results)
    if _terms(task, run, answer, cache)["success"] == 1.0 != _terms(task, again, answer, cache)["success"]:
        raise RejectedTask(RejectCode.NOT_REPEATABLE, f"the plan, played again, is not worth {answer!r}")


async def _is_unknown(task: Task, run: GoldRun, cache: CallCache) -> None:
    """Check that a step that finds nothing got what the tool says of any name that nothing has."""
    for step, call, result in run.calls:
        is_silent = result.is_error or says_no(result) or not _has_values(result_value(result))
        if not step.finds_nothing or is_silent:
            continue
        invented = str(task.extra_info.get("invented", ""))
        nothing = invented[: invented.rfind("/") + 1] + NO_NAME
        arguments = _renamed(replaced_in(call.arguments, invented, nothing), invented, nothing)
        others = list[ToolResult]()
        for generation in (0, 1):  # what differs between two calls for nothing, such as an id, says nothing
            is_read = cache.is_read_only(call.server, call.tool)
            async with cache.session(generation=generation, only_reads=is_read) as session:
                others.append(await session.call(server=call.server, tool=call.tool, arguments=arguments))
        said, one, again = (
            list(scalars(json.loads(anonymous(each, (invented, nothing))))) for each in (result, *others)
        )
        is_same = len(said) == len(one) == len(again) and all(
            leaf == first or first != second for leaf, first, second in zip(said, one, again, strict=True)
        )
        if not invented or arguments == call.arguments or not is_same:
            detail = f"{call.server}.{call.tool}({call.arguments}) gives {result.content[:200]}"
            raise RejectedTask(RejectCode.EXISTS, detail)


def _renamed(arguments: JsonObject, name: str, other: str) -> JsonObject:
    """Return arguments with another name inside their texts, as in SQL."""
    inside, instead = (json.dumps(each, ensure_ascii=False)[1:-1] for each in (name, other))
    text = json.dumps(arguments, ensure_ascii=False)
    return json.loads(text.replace(inside, instead)) if name else arguments


def _has_values(value: Any) -> bool:
    """Return True if a result holds a number or a text."""
    return any(item not in (None, "") and not isinstance(item, bool) for item in scalars(value))


async def _fails_first(task: Task, cache: CallCache) -> tuple[ToolCall, ToolResult] | None:
    """The call that an error-recovery task invites, which has to fail as a tool fails."""
    invited = task.extra_info.get("fails")
    if invited is None:
        return None
    async with cache.session() as session:
        result = await session.call(
            server=invited["server"], tool=invited["tool"], arguments=invited["params"]
        )
    if result.failure is not FailureKind.TOOL_ERROR:
        raise RejectedTask(RejectCode.NO_ERROR, f"{invited}: {result.content[:200]}")
    call = ToolCall(id="invited", server=invited["server"], tool=invited["tool"], arguments=invited["params"])
    return call, result


def _right_scores_one(
    task: Task, run: GoldRun, cache: CallCache, failing: tuple[ToolCall, ToolResult] | None = None
) -> None:
    """The plan is worth exactly 1.0 with the right answer in each of its forms, and so is the plan after the
    failure that it recovers from."""
    ways: list[tuple[RecordedTurn, ...]] = [()]
    if failing is not None:
        ways.append((RecordedTurn(user_turn=0, calls=(failing[0],), results=(failing[1],)),))
    for answer, extra in product(right_answers(task, run.results) or [None], ways):
        terms = _terms(task, run, answer, cache, extra=extra)
        if terms["reward"] is None or not math.isclose(terms["reward"], 1.0, abs_tol=1e-9):
            raise RejectedTask(RejectCode.GOLD_FAILS, f"with {str(answer)[:200]!r}: {terms}")


def _wrong_fails(task: Task, run: GoldRun, cache: CallCache) -> None:
    """Check that after the right calls silence, raw results, another value and two values do not succeed."""
    contents = [result.content for _, _, result in run.calls]
    for answer in wrong_answers(task, contents, run.results):
        if _terms(task, run, answer, cache)["success"] == 1.0:
            raise RejectedTask(RejectCode.WRONG_ANSWER_PASSES, repr(answer[:200]))


def _terms(
    task: Task,
    run: GoldRun,
    answer: str | None,
    cache: CallCache,
    *,
    extra: tuple[RecordedTurn, ...] = (),
) -> dict[str, float | None]:
    """Return the reward terms of an episode that makes the calls of `run`, after the turns of `extra`, and
    says `answer`."""
    plan = task.truth.tool_sequence
    read_only = frozenset(f"{s.server}.{s.tool}" for s in plan if cache.is_read_only(s.server, s.tool))
    return score(task, gold_record(task, run, answer=answer, read_only=read_only, extra=extra))


async def _silence_fails(task: Task, run: GoldRun, cache: CallCache) -> None:
    """An episode without a call and without an answer does not succeed."""
    untouched = GoldRun(results={}, calls=(), state=())
    if task.truth.state:
        everything = [step.step for step in task.truth.tool_sequence]
        untouched = await replay(cache, task, without=everything)
        readings = state_readings(task.truth, untouched.state, untouched.before) or ()
        holds = all(state_holds(check, result, run.results, was) for _, check, result, was in readings)
        if holds and any(check.expect for checks in task.truth.state.values() for check in checks):
            raise RejectedTask(RejectCode.STATE_ALREADY_HOLDS, str(task.truth.state))
    terms = _terms(task, untouched, "", cache)
    if terms["success"] != 0.0 or (task.truth.abstain and terms["answer"] == 1.0):
        raise RejectedTask(RejectCode.NO_OP_PASSES, f"an empty episode scores {terms}")


async def _every_step_counts(
    task: Task,
    run: GoldRun,
    cache: CallCache,
    sources: Collection[int] | None,
) -> None:
    """Leave each step out, with the steps that need its result: the rest must not succeed."""
    plan = task.truth.tool_sequence
    for step in plan:
        if is_optional(step):
            continue
        without = {step.step}
        for later in sorted(plan, key=lambda step: (step.user_turn, step.step)):
            without |= {later.step} if without & depends_on(later) else set()
        try:
            rest = await replay(cache, task, without=without)
        except (RejectedTask, PlaceholderError):
            rest = GoldRun(results={}, calls=(), state=())  # the rest cannot even be made
        answer = right_message(task, run.results) if _is_known(task, run, without, sources) else None
        terms = _terms(task, rest, answer, cache)
        if terms["success"] != 0.0:
            raise RejectedTask(
                RejectCode.NOT_MINIMAL,
                f"without step {step.step} ({step.server}.{step.tool}) the episode still succeeds",
            )


def _is_known(task: Task, run: GoldRun, without: Collection[int], sources: Collection[int] | None) -> bool:
    """Return True if an episode without these steps can know the final answer."""
    check = task.truth.final_answer
    if check is None:
        return True
    if sources is not None:
        return not set(sources) & set(without)
    values = [v if isinstance(v, int | float) else format_value(v) for v in answer_values(check)]
    left = [result.content for step, _, result in run.calls if step.step not in without]
    seen_text = "\n".join([*left, *(m.content for m in task.prompt), *task.truth.user_turns])
    return check.type != "regex" and all(stands_in(value, seen_text) for value in values)


async def _judged(work: Callable[[], Awaitable[T]], task: Task, cache: CallCache) -> T | Rejection:
    """Return what the work on a task gives, or the first thing that is wrong with the task."""
    async with nullcontext() if cache.only_reads(task) else cache.turn:
        try:
            return await work()
        except RejectedTask as rejected:
            return rejected.rejection
        except PlaceholderError as error:
            return Rejection(RejectCode.REFERENCE_UNRESOLVED, str(error))


async def examine(task: Task, cache: CallCache) -> JsonObject | Rejection:
    """Return the verdicts on a task of a dataset, or the first thing that is wrong with it."""

    async def proven() -> JsonObject:
        return await prove(task, await replay(cache, task), cache, sources=task.extra_info.get("answer_from"))

    return await _judged(proven, task, cache)


async def plays_alike(task: Task, cache: CallCache) -> Rejection | None:
    """Return why the plan of a task, whose answer is settled, is not worth 1.0 in a new session; None if it
    is. A plan that abstains has nothing to play."""

    async def played() -> None:
        _right_scores_one(task, await replay(cache, task), cache)

    return None if task.truth.abstain else await _judged(played, task, cache)


Completed = Callable[[Task, Task, GoldRun, CallCache], Task]


async def grounded(
    draft: Task, cache: CallCache, *, complete: Completed | None = None
) -> tuple[Task, GoldRun] | Rejection:
    """Return the settled task with the run of its plan, or why there is none.

    The plan runs in a session of its own; what it found settles the checks, and then `prove` shows that the
    task is repeatable, solvable, necessary and minimal. Before that `complete` may add what only the run
    tells: it is given the draft, the settled task and the run.
    """
    return await _judged(partial(_grounded, draft, cache, complete), draft, cache)


async def ground(draft: Task, cache: CallCache) -> Task | Rejection:
    """Return the settled task of templates or of exploring, or why there is none."""
    outcome = await grounded(draft, cache)
    return outcome if isinstance(outcome, Rejection) else outcome[0]


async def _grounded(draft: Task, cache: CallCache, complete: Completed | None) -> tuple[Task, GoldRun]:
    if (fault := next(written_faults(draft, cache), None)) is not None:
        raise RejectedTask(fault.code, fault.detail)
    sources = answer_sources(draft)
    run = await replay(cache, draft)
    task = settle(draft, run.results)
    task = complete(draft, task, run, cache) if complete else task
    _check_answer(task)
    _check_calls(run, cache)
    verdicts = await prove(task, run, cache, sources=sources)
    return with_verdicts(task, verdicts, sources=sources), run


def _check_calls(run: GoldRun, cache: CallCache) -> None:
    """Arguments that came out of earlier results are known only now."""
    for step, call, _ in run.calls:
        if not reference_texts(step.params):
            continue
        if fault := cache.argument_fault(call.server, call.tool, call.arguments):
            raise RejectedTask(RejectCode.INVALID_ARGUMENTS, f"step {step.step}: {fault}")


def _check_answer(task: Task) -> None:
    check = task.truth.final_answer
    if check is None:
        return
    values = [] if check.type in ("none", "abstention") else answer_values(check)
    if any(value is None or value == "" for value in values) or check.value in ([], {}):
        raise RejectedTask(RejectCode.ANSWER_INVALID, f"{check.type}: {check.value!r}")
    if task.truth.answer_line and (problem := form_problem(check)):
        raise RejectedTask(RejectCode.ANSWER_INVALID, problem)
    if (leaked := answer_in_prompt(task)) is not None:
        raise RejectedTask(RejectCode.ANSWER_IN_PROMPT, f"{leaked!r} stands in {task.prompt[-1].content!r}")
