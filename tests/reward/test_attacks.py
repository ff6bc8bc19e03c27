"""Rewards that cannot be had for nothing: every attack on every class of full and explored tasks, for real.

Two claims: no attack succeeds or earns more than an honest failure (and 0.05), and a right answer succeeds in
whatever ordinary words it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import FinishReason
from mcpagent.policy.scripted import call_text
from mcpagent.synth.datasets.describe import task_class
from mcpagent.tools.pool import ToolPool
from tests.reward.attacks import (
    DENIALS,
    DUMPS,
    HONEST,
    INVENTIONS,
    NO_ANSWERS,
    REFUSALS,
    SPRAYS,
    UNEARNED,
    Script,
    Seen,
    honest,
    in_first_turn,
    plan,
    play,
    silent,
    spoken,
    with_answer,
)
from tests.reward.world import box_pool, explored_tasks, full_pool, full_tasks

CLASSES = {
    *("single", "sequential", "parallel", "multi_turn", "missing_parameter", "missing_function"),
    *("irrelevance", "error_recovery"),
}
MARGIN = 0.05
NO_IDEA = "I could not find it."


def attacks_on(task: Task, seen: Seen) -> dict[str, Callable[[Seen], Script]]:
    """Those that make sense on the task."""
    if task.truth.abstain:
        first = (task.offered_tools or ("x.x",))[0].partition(".")[2]
        return {
            **{f"abstain: {name}": silent(answer) for name, answer in INVENTIONS.items()},
            "abstain: a call, then the refusal": lambda s: spoken([[call_text(first, {})]], s.reference),
            "abstain: a broken call, then the refusal": lambda s: spoken([["<tool_call>{"]], s.reference),
        }
    found: dict[str, Callable[[Seen], Script]] = {**UNEARNED, **SPRAYS}
    steps = task.truth.tool_sequence
    if not all(step.params for step in steps):
        del found["right tools with junk arguments"]  # a tool that takes nothing answers to anything
    if len({step.tool for step in steps}) == len(steps):
        found["all calls but the last"] = lambda s: spoken(
            plan(s, lambda step: step.step != steps[-1].step), s.reference
        )
    if task.truth.user_turns:
        found["all calls in the first user turn"] = in_first_turn
        if steps[0].user_turn > 0:
            found["a guess before it is said"] = lambda s: spoken(
                [[move for turn in plan(s) for move in turn], *plan(s)[1:]], s.reference
            )
    if seen.facts:
        for group, answers in (("dump", DUMPS), ("denial", DENIALS), ("no answer", NO_ANSWERS)):
            found |= {f"{group}: {name}": with_answer(answer) for name, answer in answers.items()}
    return found


async def honest_failure(pool: ToolPool, task: Task, seen: Seen) -> float:
    """What one earns who does all but the last step, or all of it, and then does not know the answer."""
    if task.truth.abstain:
        return 0.0
    last = task.truth.tool_sequence[-1].step
    short = await play(pool, task, spoken(plan(seen, lambda step: step.step != last), NO_IDEA))
    whole = await play(pool, task, spoken(plan(seen), NO_IDEA))
    return max(reward for terms, reward, _ in (short, whole) if terms["success"] == 0.0)


async def broken_claims(pool: ToolPool, tasks: list[Task]) -> tuple[list[str], set[str], int]:
    """What does not hold, the names of the attacks that were made, and how many episodes were honest."""
    broken: list[str] = []
    made: set[str] = set()
    honest_count = 0
    for task in tasks:
        seen = await honest(pool, task)
        bound = await honest_failure(pool, task, seen) + MARGIN
        for name, script in attacks_on(task, seen).items():
            terms, reward, _ = await play(pool, task, script(seen))
            made.add(name)
            if terms["success"] != 0.0 or reward > bound:
                broken.append(f"{task.id}: {name} earns {reward:.2f}: {script(seen)}")
        if task.truth.abstain or seen.facts:  # elsewhere what was done counts, whatever is said of it
            end = spoken(plan(seen), seen.reference)
            cut, reward, _ = await play(pool, task, end, finish=FinishReason.LENGTH)
            made.add("cut off")
            if cut["success"] != 0.0 or reward > bound:
                broken.append(f"{task.id}: cut off earns {reward:.2f}")
        ways = HONEST if seen.facts else {"the reference": HONEST["the reference"]}
        answers = [answer(seen) for answer in ways.values()]
        check = task.truth.final_answer
        answers += REFUSALS if check is not None and check.value == "cannot" else ()
        for answer in answers:
            terms, reward, _ = await play(pool, task, spoken(plan(seen), answer))
            honest_count += 1
            if terms["success"] != 1.0:
                broken.append(f"{task.id}: {answer!r} fails: {terms}")
    return broken, made, honest_count


def test_no_attack_pays_on_any_class_of_full_tasks_and_right_answers_do() -> None:
    async def run() -> tuple[list[str], set[str], int]:
        async with full_pool() as pool:
            tasks = await full_tasks(pool, count=56, per_class=2, templates_per_class=2)
            assert {task_class(task) for task in tasks} == CLASSES
            return await broken_claims(pool, tasks)

    broken, made, honest_count = asyncio.run(run())
    assert broken == []
    assert len(made) >= 60 and honest_count > 100


def test_no_attack_pays_on_explored_tasks_and_right_answers_do() -> None:
    async def run() -> tuple[list[str], set[str], int]:
        async with box_pool() as pool:
            tasks = await explored_tasks(pool, count=40, per_class=1)
            assert {task_class(task) for task in tasks} == CLASSES - {"multi_turn", "error_recovery"}
            return await broken_claims(pool, tasks)

    broken, made, honest_count = asyncio.run(run())
    assert broken == []
    assert len(made) >= 60 and honest_count > 40


@pytest.mark.slow
def test_no_attack_pays_on_two_hundred_full_tasks() -> None:
    async def run() -> list[str]:
        async with full_pool() as pool:
            tasks = await full_tasks(pool, count=400, per_class=30)
            assert len(tasks) >= 80
            return (await broken_claims(pool, tasks))[0]

    assert asyncio.run(run()) == []
