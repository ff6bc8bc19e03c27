"""BFCL's multi-turn tasks from its own package: conversion, its backends over MCP, its verdicts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.bfcl.package import BfclPackage
from examples.bfcl.tasks import tasks as tasks_of
from examples.bfcl.tasks import write_dataset
from mcpagent.core.tasks import Task
from mcpagent.reward.record import attempted_turns
from mcpagent.reward.validate import task_problems
from tests.third_party.bfcl import Oracle, fetch_package, gold_turns, memory_pool, play, variants

# Tasks and calls as counted in the package.
COUNTS = {
    "base": (200, 1142),
    "miss_func": (200, 1140),
    "miss_param": (200, 1140),
    "long_context": (200, 1203),
}


pytestmark = pytest.mark.bfcl


@pytest.fixture(scope="module")
def package(pytestconfig: pytest.Config) -> BfclPackage:
    assert pytestconfig.cache is not None
    return BfclPackage(fetch_package(pytestconfig.cache.mkdir("third_party") / "bfcl"))


@pytest.mark.registry
@pytest.mark.parametrize("category", COUNTS)
def test_every_task_converts_and_can_be_graded(package: BfclPackage, category: str) -> None:
    tasks = list(tasks_of(package, category))
    assert (len(tasks), sum(len(task.truth.tool_sequence) for task in tasks)) == COUNTS[category]
    assert {task.id: problems for task in tasks if (problems := task_problems(task))} == {}


@pytest.mark.registry
@pytest.mark.parametrize("category", ["base", "miss_func"])
async def test_gold_calls_over_mcp_answer_as_direct_execution_does_and_succeed(
    package: BfclPackage, category: str
) -> None:
    tasks = list(tasks_of(package, category))
    oracle = Oracle(package, category)
    calls = 0
    async with memory_pool(package) as pool:
        for task in tasks:
            episode = await play(task, gold_turns(task), pool)
            made = episode.record.calls
            expected = oracle.results(task)
            assert len(made) == len(expected)
            for call, text in zip(made, expected, strict=True):
                assert text == call.result.content or call.result.truncated_chars, task.id
            assert (await episode.grade())[0].value == 1.0, task.id
            calls += len(made)
    assert calls == COUNTS[category][1]
    assert sum(bool(task.truth.tools_added) for task in tasks) == (200 if category == "miss_func" else 0)


@pytest.mark.registry
def test_success_is_what_bfcl_says_of_gold_and_perturbed_episodes(package: BfclPackage) -> None:
    tasks = [t for category in COUNTS for t in list(tasks_of(package, category))[::20]]
    agreement = compare(package, tasks)
    assert agreement.total() > 500
    assert set(agreement) == {"agreed: valid", "agreed: invalid"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("category", COUNTS)
def test_success_is_what_bfcl_says_of_every_task(package: BfclPackage, category: str) -> None:
    agreement = compare(package, list(tasks_of(package, category)))
    assert agreement.total() > 2500
    assert set(agreement) == {"agreed: valid", "agreed: invalid"}


@pytest.mark.registry
def test_imported_tasks_are_played_over_stdio_by_our_own_command(
    package: BfclPackage, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "mcpagent.cli.main"]
    data, settings = write_dataset(package, tmp_path, categories=["base"])
    played = ["rollout", "--policy", "gold", "--config", str(settings), "--set", "data.max_tasks=4"]
    files = ["--data", str(data), "--out", str(tmp_path / "gold.jsonl"), "--json"]
    done = subprocess.run([*command, *played, *files], check=True, capture_output=True, text=True)
    success = json.loads(done.stdout)["metrics"]["task_success"]
    assert (success["value"], success["n"]) == (1.0, 4)


def all_offered(task: Task) -> Task:
    """The task with every tool from the start: BFCL's checker runs what is called, offered by then or not."""
    truth = task.truth.model_copy(update={"tools_added": {}})
    tools = task.offered_in(len(truth.user_turns))
    return task.model_copy(
        update={
            "reward_spec": task.reward_spec.model_copy(update={"ground_truth": truth}),
            "extra_info": {**task.extra_info, "tools": tools},
        }
    )


def compare(package: BfclPackage, tasks: list[Task]) -> Counter[str]:
    """Episodes by whether success is what BFCL's checker says, and so is whether nothing was called in a user
    turn in which no call is right, which S asks for (BFCL's second checker; its score leaves it out)."""
    oracles = {category: Oracle(package, category) for category in COUNTS}

    async def run() -> Counter[str]:
        counted: Counter[str] = Counter()
        async with memory_pool(package) as pool:
            for task in tasks:
                oracle = oracles[task.extra_info["class"]]
                for kind, turns in variants(task, seed=0):
                    episode = await play(all_offered(task), turns, pool)
                    success = (await episode.grade())[0].value
                    filled = {step.user_turn for step in task.truth.tool_sequence}
                    ours = (success == 1.0, attempted_turns(episode.record) <= filled)
                    theirs = oracle.verdict(task, turns)
                    word = "valid" if theirs[0] else "invalid"
                    agreed = success is not None and ours == theirs
                    counted[f"agreed: {word}" if agreed else f"{kind} of {task.id}: {ours}, {theirs}"] += 1
        return counted

    return asyncio.run(run())
