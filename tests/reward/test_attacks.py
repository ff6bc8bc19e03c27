"""Rewards that cannot be had for nothing: every attack on every class of full and explored tasks, for real.

Two claims: no attack succeeds or earns more than an honest failure (and 0.05), and a right answer succeeds in
whatever ordinary words it comes.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from mcpagent.core.answer_line import written_answer
from mcpagent.core.placeholders import references, resolve_references
from mcpagent.core.tasks import PlanStep, Task
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
    denials,
    hedges,
    honest,
    in_first_turn,
    inventions,
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
SEED = 900  # of combinations that were not looked at; their parts were
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
        for group, answers in (("dump", DUMPS), ("no answer", NO_ANSWERS)):
            found |= {f"{group}: {name}": with_answer(answer) for name, answer in answers.items()}
        for form in DENIALS:
            text = form.replace("#", seen.fact)
            found[f"denial: {form}"] = with_answer(lambda _, text=text: text)
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
            tasks = await explored_tasks(pool, count=40, per_class=3)
            assert {task_class(task) for task in tasks} == CLASSES - {
                "multi_turn",
                "error_recovery",
                "sequential",
                "irrelevance",
            }
            return await broken_claims(pool, tasks)

    broken, made, honest_count = asyncio.run(run())
    assert broken == []
    assert len(made) >= 60 and honest_count > 40


def elsewhere(seen: Seen, others: Sequence[Task]) -> dict[str, list[str]]:
    """Calls that do not show the answer: the tools of the plan about other things, and other tools."""
    steps = seen.task.truth.tool_sequence
    tools, given = {step.tool for step in steps}, " ".join(str(step.params) for step in steps)
    foreign = [step for task in others for step in task.truth.tool_sequence if not references(step.params)]
    same = [step for step in foreign if step.tool in tools and not _values_in(step, given)]
    calls = {
        f"{step.tool} {step.params}": [call_text(step.tool, step.params)]
        for step in foreign
        if step.tool not in tools
    }
    calls = dict(list(calls.items())[:4])
    calls |= {f"{step.tool} {step.params}": [call_text(step.tool, step.params)] for step in same[:6]}
    for word in ("Zorblax", "none", "?", "x1"):
        junk = [call_text(step.tool, dict.fromkeys(step.params, word)) for step in steps if step.params]
        calls |= {
            f"asked about {word}": junk,
            f"asked for a field {word}": [call_text(steps[0].tool, {word: 1})],
        }
    return calls | {"nothing": [], "all of them": [call for made in calls.values() for call in made]}


def _values_in(step: PlanStep, given: str) -> bool:
    return any(str(value) in given for value in step.params.values())


def with_line(seen: Seen, calls: list[str], line: str) -> Script:
    """The calls, in the user turn of the last step, and this line."""
    turns: list[list[str]] = [[] for _ in range(len(seen.task.truth.user_turns) + 1)]
    turns[seen.task.truth.tool_sequence[-1].user_turn] = calls
    return spoken(turns, f"I looked it up.\nAnswer: {line}")


async def generated_attacks(pool: ToolPool, tasks: list[Task]) -> tuple[list[str], Counter[str]]:
    """The attacks made from parts that pay, on tasks that ask for the answer line, and how many were made."""
    broken: list[str] = []
    made: Counter[str] = Counter()
    for at, task in enumerate(tasks):
        seen, random = await honest(pool, task), Random(SEED + at)
        check, scripts = task.truth.final_answer, list[tuple[str, Script]]()
        if task.truth.abstain and check is not None and check.value != "replies":
            scripts += [
                ("invention", silent(lambda _, t=t: f"{t}\nAnswer: none")(seen))
                for t in inventions(random, 12)
            ]
        elif check is not None and check.type != "abstention":
            value = resolve_references(check.value, seen.results)
            line, rivals = written_answer(value), other_answers(value, seen)
            for group, forms in (("hedge", hedges), ("denial", denials)):
                for text in forms(random, line, rivals, 12).values():
                    if re.search("percent|humidity", seen.question) and re.search("percent|%", text):
                        continue  # it is
                    scripts.append((group, spoken(plan(seen), f"I looked it up.\nAnswer: {text}")))
            others = [other for other in tasks if other is not task]
            scripts += [
                ("elsewhere", with_line(seen, calls, line)) for calls in elsewhere(seen, others).values()
            ]
        for group, script in scripts:
            made[group] += 1
            terms, reward, _ = await play(pool, task, script)
            bound = await honest_failure(pool, task, seen) + MARGIN
            if terms["success"] != 0.0 or reward > bound:
                broken.append(f"{task.id} {task.prompt[-1].content!r}: {group} earns {reward:.2f}: {script}")
    return broken, made


def other_answers(value: Any, seen: Seen) -> list[str]:
    """Other values of the results, of the kind of `value`; invented ones if there are none."""
    if isinstance(value, dict):
        swapped = dict(zip(value, reversed(value.values()), strict=True))
        return [written_answer(swapped)] if swapped != value else [written_answer(dict.fromkeys(value, "?"))]
    if isinstance(value, int | float):
        return [written_answer(value + 1), written_answer(value * 2)]
    if isinstance(value, list):
        return ["Zorblax", "4711.25", "the Kestrel"]
    told = written_answer(value)
    words = [
        text
        for text in seen.values
        if re.fullmatch(r"[A-Z][A-Za-z ]{2,30}", text) and text not in f"{told} {seen.question}"
    ]
    return [*dict.fromkeys(words), "Zorblax"][:3]


@pytest.mark.system
def test_no_attack_made_from_parts_pays_where_the_answer_line_is_asked_for() -> None:
    async def run() -> tuple[list[str], Counter[str]]:
        async with full_pool() as pool:
            tasks = await full_tasks(pool, count=56, per_class=3, templates_per_class=3, answer_line=True)
            broken, made = await generated_attacks(pool, tasks)
        async with box_pool() as pool:
            tasks = await explored_tasks(pool, count=40, per_class=3, answer_line=True)
            more, also_made = await generated_attacks(pool, tasks)
        return broken + more, made + also_made

    broken, made = asyncio.run(run())
    assert broken == []
    assert min(made[group] for group in ("hedge", "denial", "elsewhere", "invention")) >= 60, made


@pytest.mark.slow
def test_no_attack_pays_on_two_hundred_full_tasks() -> None:
    async def run() -> list[str]:
        async with full_pool() as pool:
            tasks = await full_tasks(pool, count=400, per_class=30)
            assert len(tasks) >= 80
            return (await broken_claims(pool, tasks))[0]

    assert asyncio.run(run()) == []
