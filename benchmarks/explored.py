"""What tasks of `gen-data --explore` are worth, on newly started servers.

    python -m benchmarks.explored FOLDER... [--seed N] [--sample N] [--json]

Each folder is a dataset; its servers are those of its `servers.yaml`. Counted are, of tasks with a plan
(played in an order of `--seed`), those whose facts stand in what the model is shown, those whose plan is
worth 1.0, and, of those that calls of other tools tell too, those that such calls solve. `--sample` prints
questions, for a reader who says which a person could have asked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from mcpagent.core.tasks import EvidenceFact, Task
from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.core.trajectory import StopReason
from mcpagent.reward.record import EpisodeRecord, RecordedTurn
from mcpagent.run.episodes import load_for_dataset
from mcpagent.storage.datasets import read_tasks
from mcpagent.synth.explore.graph import Fact, scalars
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.explore.leaves import Leaf
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.synth.tasks.prove import plays_alike
from mcpagent.synth.tasks.run import CallCache, final_words, replay, score
from mcpagent.tools.setup import open_tools


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for folder in options.folders:
        row = measured(folder, options.seed)
        print(json.dumps({"dataset": folder.name, **row}) if options.json else _line(folder.name, row))
        tasks = _tasks(folder)
        Random(options.seed).shuffle(tasks)
        for task in tasks[: options.sample]:
            print("   ", " | ".join([task.prompt[-1].content, *task.truth.user_turns]))


def _line(name: str, row: dict[str, int]) -> str:
    shown, fresh, second = (f"{row[key]} of {row[of]}" for key, of in _SHARES)
    return f"{name:<14} {row['tasks']:>4} tasks, shown {shown}, fresh start {fresh}, second route {second}"


_SHARES = (("shown", "told"), ("fresh", "planned"), ("second", "twice_told"))


def _tasks(folder: Path) -> list[Task]:
    return [task for path in sorted(folder.glob("*.jsonl")) for task in read_tasks(path)]


def measured(folder: Path, seed: int) -> dict[str, int]:
    """Counts of tasks, by what is true of them."""
    tasks = _tasks(folder)
    Random(seed).shuffle(tasks)
    config = load_for_dataset(data=folder, split=None, note=lambda _: None, for_training=False)
    with open_tools(config.tools) as opened:
        cache = CallCache(opened.pool)
        facts = opened.io.run(learn(cache, seed=seed)).facts
        counts = dict.fromkeys(("planned", "fresh", "told", "shown", "twice_told", "second"), 0)
        for task in tasks:
            for name in opened.io.run(_examined(task, cache, facts)):
                counts[name] += 1
    return {"tasks": len(tasks), **counts}


async def _examined(task: Task, cache: CallCache, facts: Iterable[Fact]) -> list[str]:
    if task.truth.abstain:
        return []
    evidence, fault = task.truth.evidence, await plays_alike(task, cache)
    true = ["planned"] + ["fresh"] * (fault is None)
    if fault is not None or not evidence:
        return true + ["told"] * bool(evidence)
    run = await replay(cache, task)
    shown = "\n".join(result.content for _, _, result in run.calls)
    true += ["told"] + ["shown"] * all(stands_in(fact.value, shown) for fact in evidence)
    route = await _second_route(task, cache, facts)
    if route is None:
        return true
    record = EpisodeRecord(
        turns=(
            *(RecordedTurn(user_turn=n, calls=(), results=()) for n in range(len(task.truth.user_turns))),
            *(RecordedTurn(user_turn=len(task.truth.user_turns), calls=(c,), results=(r,)) for c, r in route),
            RecordedTurn(user_turn=len(task.truth.user_turns)),
        ),
        final_answer=final_words(task, run.results),
        stop_reason=StopReason.ANSWERED,
        read_only=frozenset(spec.dotted for spec in cache.specs if spec.annotations.read_only),
    )
    return [*true, "twice_told", *(["second"] if score(task, record)["success"] == 1.0 else [])]


async def _second_route(
    task: Task, cache: CallCache, facts: Iterable[Fact]
) -> list[tuple[ToolCall, ToolResult]] | None:
    """Calls of tools that the plan does not use, which tell each fact of the thing that it is about."""
    planned = {f"{step.server}.{step.tool}" for step in task.truth.tool_sequence}
    offered = set(task.offered_tools or (spec.dotted for spec in cache.specs))
    others = [fact for fact in facts if fact.spec.dotted in offered - planned]
    route: dict[str, tuple[ToolCall, ToolResult]] = {}
    async with cache.session(only_reads=True) as session:
        for wanted in task.truth.evidence:
            telling = next((fact for fact in others if _tells(fact, wanted)), None)
            if telling is None:
                return None
            spec, given = telling.spec, telling.arguments
            result = await session.call(server=spec.server, tool=spec.name, arguments=given)
            call = ToolCall(id=result.call_id, server=spec.server, tool=spec.name, arguments=given)
            route[json.dumps([spec.dotted, given], sort_keys=True)] = (call, result)
    return list(route.values())


def _tells(fact: Fact, wanted: EvidenceFact) -> bool:
    """Whether a call tells a value in a field of the thing: named in the arguments, or with the value in its
    record."""
    asked = {str(value) for value in scalars(fact.arguments)}
    for leaf in fact.leaves:
        if not leaf.name or str(leaf.value) != str(wanted.value):
            continue
        record = {str(other.value) for other in fact.leaves if _item(other) == _item(leaf)} | asked
        names: list[Any] = [{name} if isinstance(name, str) else set(name) for name in wanted.about]
        if names and all(record & each for each in names):
            return True
    return False


def _item(leaf: Leaf) -> str:
    """The expression of the item that a value is a field of."""
    return f"{leaf.levels[-1].rows}[{leaf.levels[-1].index}]" if leaf.levels else "@"


if __name__ == "__main__":
    main()
