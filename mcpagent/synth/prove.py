"""Proof that a settled task is repeatable, solvable, necessary and minimal: each by running it."""

from __future__ import annotations

import math
from collections.abc import Collection

from mcpagent.core.placeholders import PlaceholderError, format_value
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import PlanStep, Task
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult
from mcpagent.core.trajectory import StopReason
from mcpagent.reward.answer import state_holds
from mcpagent.reward.assignment import depends_on
from mcpagent.reward.record import EpisodeRecord, RecordedTurn, state_checks
from mcpagent.reward.registry import grade
from mcpagent.synth.calls import CallCache
from mcpagent.synth.inspect_task import stands_in
from mcpagent.synth.run import GoldRun, final_words, replay, score
from mcpagent.synth.stages import RejectCode, Rejected, Rejection

REPLAYS = 1  # beside the first run: everything is run twice


async def prove(task: Task, run: GoldRun, cache: CallCache, *, sources: Collection[int] | None) -> JsonObject:
    """The verdicts on a task that ran as `run`. `sources` are the steps that the final answer is made from;
    None where that is not known, and is looked for in the results. Raises Rejected."""
    await _repeats(task, run, cache)
    failing = await _fails_first(task, cache)
    _gold_scores_one(task, run, failing)
    untouched = await _silence_fails(task, run, cache)
    if task.truth.abstain:
        _calling_fails(task)
    left_out = await _every_step_counts(task, run, cache, sources, untouched)
    return {
        "executed_steps": len(run.calls),
        "gold_reward": 1.0,
        "replays": REPLAYS,
        "no_op": "calling fails" if task.truth.abstain else "silence fails",
        "minimal": left_out,
        **({"first_error": failing[1].content[:200]} if failing else {}),
    }


async def _repeats(task: Task, run: GoldRun, cache: CallCache) -> None:
    first = run.answers(cache.is_read_only)
    for generation in range(1, REPLAYS + 1):
        again = await replay(cache, task, generation=generation)
        for number, (one, other) in enumerate(zip(first, again.answers(cache.is_read_only), strict=True), 1):
            if one != other:
                detail = f"call {number}: {str(one)[:100]} and then {str(other)[:100]}"
                raise Rejected(RejectCode.NOT_REPEATABLE, detail)
        for (server, check), result in zip(state_checks(task.truth), again.state, strict=True):
            if not state_holds(check, result, again.results):
                detail = f"the end state of {server} is not reached again: {result.content[:200]}"
                raise Rejected(RejectCode.NOT_REPEATABLE, detail)


async def _fails_first(task: Task, cache: CallCache) -> tuple[ToolCall, ToolResult] | None:
    """The call that an error-recovery task invites, which has to fail as a tool fails."""
    invited = task.extra_info.get("fails")
    if invited is None:
        return None
    async with cache.session() as session:
        result = await session.call(
            server=invited["server"], tool=invited["tool"], arguments=invited["params"]
        )
    if not result.is_error or result.failure is not FailureKind.TOOL_ERROR:
        raise Rejected(RejectCode.NO_ERROR, f"{invited}: {result.content[:200]}")
    call = ToolCall(id="invited", server=invited["server"], tool=invited["tool"], arguments=invited["params"])
    return call, result


def _gold_scores_one(task: Task, run: GoldRun, failing: tuple[ToolCall, ToolResult] | None) -> None:
    """The plan is worth exactly 1.0, and so is the plan after the failure that it recovers from."""
    answer = final_words(task, run.results)
    ways: list[tuple[RecordedTurn, ...]] = [()]
    if failing is not None:
        ways.append((RecordedTurn(user_turn=0, calls=(failing[0],), results=(failing[1],)),))
    for extra in ways:
        terms = score(task, run.calls, state=run.state, answer=answer, extra=extra)
        if terms["reward"] is None or not math.isclose(terms["reward"], 1.0, abs_tol=1e-9):
            raise Rejected(RejectCode.GOLD_FAILS, str(terms))


async def _silence_fails(task: Task, run: GoldRun, cache: CallCache) -> tuple[ToolResult, ...]:
    """An episode without a call and without an answer. For an abstain task silence is right, unless it has
    to say something. Returns the state checks of a session in which nothing was done."""
    if task.truth.abstain and task.truth.final_answer is None:
        return ()
    before: tuple[ToolResult, ...] = ()
    if task.truth.state:
        everything = [step.step for step in task.truth.tool_sequence]
        before = (await replay(cache, task, without=everything)).state
        checks = [check for _, check in state_checks(task.truth)]
        if all(state_holds(c, r, run.results) for c, r in zip(checks, before, strict=True)):
            raise Rejected(RejectCode.STATE_ALREADY_HOLDS, str(task.truth.state))
    terms = score(task, (), state=before, answer="")
    if terms["success"] != 0.0:
        raise Rejected(RejectCode.NO_OP_PASSES, f"an empty episode scores {terms}")
    return before


def _calling_fails(task: Task) -> None:
    offered = task.offered_tools or ("any.tool",)
    server, _, tool = offered[0].partition(".")
    call = ToolCall(id="no_op", server=server, tool=tool, arguments={})
    result = ToolResult(call_id="no_op", server=server, tool=tool, content="{}", structured={})
    turns = (
        RecordedTurn(user_turn=0, calls=(call,), results=(result,)),
        RecordedTurn(user_turn=0),
    )
    record = EpisodeRecord(
        turns=turns, final_answer=task.truth.reference_answer, stop_reason=StopReason.ANSWERED
    )
    success = {term.name: term.value for term in grade(task, record)}["success"]
    if success != 0.0:
        raise Rejected(RejectCode.NO_OP_PASSES, f"an episode with a call has success {success}")


async def _every_step_counts(
    task: Task,
    run: GoldRun,
    cache: CallCache,
    sources: Collection[int] | None,
    untouched: tuple[ToolResult, ...],
) -> str:
    """Leave each step out, with the steps that need its result: the rest must not succeed."""
    plan = task.truth.tool_sequence
    for step in plan:
        if (step.model_extra or {}).get("optional"):
            continue
        without = _with_dependants(step.step, plan)
        rest = await _run_without(task, run, cache, without, untouched)
        answer = final_words(task, run.results) if _is_known(task, run, without, sources) else None
        terms = score(task, rest.calls, state=rest.state, answer=answer)
        if terms["success"] != 0.0:
            raise Rejected(
                RejectCode.NOT_MINIMAL,
                f"without step {step.step} ({step.server}.{step.tool}) the episode still succeeds",
            )
    return "every step is needed" if plan else "no steps"


async def _run_without(
    task: Task,
    run: GoldRun,
    cache: CallCache,
    without: Collection[int],
    untouched: tuple[ToolResult, ...],
) -> GoldRun:
    """What is left of a run. Where nothing that is left or left out changes anything, it is not run again:
    the calls answer as they did, and the state is as it was."""
    calls = tuple(made for made in run.calls if made[0].step not in without)
    is_quiet = all(cache.is_read_only(call.server, call.tool) for _, call, _ in calls)
    was_quiet = all(cache.is_read_only(call.server, call.tool) for _, call, _ in run.calls)
    if is_quiet and (was_quiet or task.truth.state):
        return GoldRun(results=run.results, calls=calls, state=untouched)
    try:
        return await replay(cache, task, without=without)
    except (Rejected, PlaceholderError):
        return GoldRun(results={}, calls=(), state=())  # the rest cannot even be made


def _with_dependants(number: int, plan: tuple[PlanStep, ...]) -> set[int]:
    """The step, and every later one that uses what it gives."""
    gone = {number}
    for step in sorted(plan, key=lambda step: (step.user_turn, step.step)):
        if gone & depends_on(step):
            gone.add(step.step)
    return gone


def _is_known(task: Task, run: GoldRun, without: Collection[int], sources: Collection[int] | None) -> bool:
    """Whether an episode without these steps can know the final answer."""
    check = task.truth.final_answer
    if check is None:
        return True
    if sources is not None:
        return not set(sources) & set(without)
    values = check.value if isinstance(check.value, list) else [check.value]
    left = [result.content for step, _, result in run.calls if step.step not in without]
    known = "\n".join([*left, *(m.content for m in task.prompt), *task.truth.user_turns])
    return check.type != "regex" and all(stands_in(value, known) for value in map(_plain, values))


def _plain(value: object) -> object:
    return value if isinstance(value, int | float) else format_value(value)


async def examine(task: Task, cache: CallCache) -> JsonObject | Rejection:
    """The verdicts on a task of a dataset, or the first thing that is wrong with it."""
    try:
        return await prove(task, await replay(cache, task), cache, sources=task.extra_info.get("answer_from"))
    except Rejected as rejected:
        return rejected.rejection
    except PlaceholderError as error:
        return Rejection(RejectCode.REFERENCE_UNRESOLVED, str(error))
