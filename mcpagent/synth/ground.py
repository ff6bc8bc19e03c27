"""A task is kept only after its gold plan has run for real: it is solvable, checkable and not yet done."""

from __future__ import annotations

from typing import Any

from mcpagent.core.numbers import as_number
from mcpagent.core.placeholders import PlaceholderError, reference_texts
from mcpagent.core.tasks import AnswerCheck, Task
from mcpagent.reward.phrasing import PHRASE_WORDS
from mcpagent.reward.validate import task_problems
from mcpagent.synth.calls import CallCache
from mcpagent.synth.inspect_task import answer_in_prompt, argument_faults, limit_faults, unknown_tools
from mcpagent.synth.prove import prove
from mcpagent.synth.record import answer_sources, settle, with_verdicts
from mcpagent.synth.run import GoldRun, run_plan
from mcpagent.synth.stages import RejectCode as RejectCode
from mcpagent.synth.stages import Rejected, Rejection


async def ground(draft: Task, cache: CallCache, *, phrase_words: int = PHRASE_WORDS) -> Task | Rejection:
    """The settled task, or why there is none; `phrase_words` as in `prove`.

    The plan runs in a session of its own; what it found settles the checks, and then `prove` shows that the
    task is repeatable, solvable, necessary and minimal.
    """
    try:
        return await _ground(draft, cache, phrase_words)
    except Rejected as rejected:
        return rejected.rejection
    except PlaceholderError as error:
        return Rejection(RejectCode.REFERENCE_UNRESOLVED, str(error))


async def _ground(draft: Task, cache: CallCache, phrase_words: int) -> Task:
    _check_as_written(draft, cache)
    sources = answer_sources(draft)
    async with cache.session() as session:
        run = await run_plan(session, draft)
    task = settle(draft, run.results)
    _check_answer(task.truth.final_answer, task)
    _check_calls(run, cache)
    verdicts = await prove(task, run, cache, sources=sources, phrase_words=phrase_words)
    return with_verdicts(task, verdicts, sources=sources)


def _check_as_written(draft: Task, cache: CallCache) -> None:
    if unknown := unknown_tools(draft, cache):
        raise Rejected(RejectCode.UNKNOWN_TOOL, ", ".join(unknown))
    if problems := task_problems(draft):
        raise Rejected(RejectCode.GROUND_TRUTH, "; ".join(problems))
    if faults := argument_faults(draft, cache):
        raise Rejected(RejectCode.INVALID_ARGUMENTS, faults[0])
    if faults := limit_faults(draft):
        raise Rejected(RejectCode.LIMITS, faults[0])


def _check_calls(run: GoldRun, cache: CallCache) -> None:
    """Arguments that came out of earlier results are known only now."""
    for step, call, _ in run.calls:
        if not reference_texts(step.params):
            continue
        if fault := cache.argument_fault(call.server, call.tool, call.arguments):
            raise Rejected(RejectCode.INVALID_ARGUMENTS, f"step {step.step}: {fault}")


def _check_answer(check: AnswerCheck | None, task: Task) -> None:
    if check is None:
        return
    values: list[Any] = check.value if isinstance(check.value, list) else [check.value]
    is_empty = not values or any(value is None or value == "" for value in values)
    if is_empty or (check.type == "number" and as_number(check.value) is None):
        raise Rejected(RejectCode.ANSWER_INVALID, f"{check.type}: {check.value!r}")
    if (found := answer_in_prompt(task)) is not None:
        raise Rejected(RejectCode.ANSWER_IN_PROMPT, f"{found!r} stands in {task.prompt[-1].content!r}")
