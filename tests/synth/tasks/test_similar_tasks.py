"""Removing near-duplicates and dividing by what tasks name, over many tasks at once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from datasketch import MinHash, MinHashLSH

from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.datasets import read_tasks, write_jsonl
from mcpagent.synth.datasets.split import DedupeReport, distinct_tasks, split_dataset
from mcpagent.synth.templates.pools import SplitShares
from tests.env.world import make_task
from tests.run.world import with_id


def task(name: str, question: str, *named: str) -> Task:
    """A task whose plan calls one tool with these texts; without any, nothing is to be called."""
    params = {f"p{place}": text for place, text in enumerate(named)}
    steps = [{"step": 1, "server": "s", "tool": "t", "params": params}] if named else []
    made: Any = with_id(make_task(tool_sequence=steps, tools=["s.t"]), name)
    prompt = made.prompt[-1].model_copy(update={"content": question})
    return made.model_copy(update={"prompt": (prompt,)})


def written(path: Path, tasks: Iterable[Task]) -> Path:
    write_jsonl(path, tasks)
    return path


def pieces(text: str) -> list[bytes]:
    text = " ".join(text.casefold().split())
    return list({text[i : i + 5].encode() for i in range(max(1, len(text) - 4))})


def test_the_same_tasks_stay_as_with_the_librarys_own_index(tmp_path: Path) -> None:
    rng = random.Random(3)
    words = [f"word{i}" for i in range(60)]
    tasks: list[Task] = []
    asked: list[str] = []
    for number in range(400):
        asked = rng.sample(words, 25) if number % 4 == 0 else [*asked]
        for _ in range(number % 4):
            asked[rng.randrange(25)] = rng.choice(words)
        tasks.append(task(f"t{number}", " ".join(asked)))
    report = DedupeReport()
    path = written(tmp_path / "tasks.jsonl", tasks)
    stay = [t.id for t in distinct_tasks(path, threshold=0.8, report=report)]
    index, expected = MinHashLSH(threshold=0.8, num_perm=128), []
    for each in tasks:
        sketch = MinHash(num_perm=128, seed=1)
        sketch.update_batch(pieces(each.prompt[-1].content))
        if not index.query(sketch):
            index.insert(each.id, sketch)
            expected.append(each.id)
    assert stay == expected and 150 < len(stay) < 350
    assert (report.records, report.kept) == (400, len(stay))
    assert report.removed.total() == 400 - len(stay)


def test_a_duplicate_is_told_with_the_task_that_stays_for_it(tmp_path: Path) -> None:
    question = "What was the closing price of the ticker on the first trading day of the month of March?"
    tasks = [
        task("a", question, "AAPL"),
        task("b", "Something else entirely.", "AAPL"),  # the plan of a
        task("c", f"{question} \ud83d", "AAPL", "x"),
        task("d", f"{question} \ud83d", "x", "AAPL"),  # the words of c, on the same things
        task("e", question, "MSFT"),  # the words of a, on another thing
    ]
    report = DedupeReport()
    path = written(tmp_path / "tasks.jsonl", tasks)
    stay = [t.id for t in distinct_tasks(path, threshold=0.8, report=report)]
    assert stay == ["a", "c", "e"]
    assert report.removed == {"same_plan": 1, "similar": 1}
    assert [(e["task_id"], e["reason"]) for e in report.examples] == [("b", "same_plan"), ("d", "similar")]
    assert report.examples[0]["like"] == "a"
    assert report.examples[1]["like"].startswith("c: What was the closing price")


def test_tasks_that_hang_together_through_others_go_to_one_split(tmp_path: Path) -> None:
    # A-B, B-C and C-D are one group of 3 tasks, whatever stands between them; so are 40 pairs of their own.
    chain = [task("1", "q", "A", "B"), task("2", "q", "C", "D"), task("3", "q", "B", "C")]
    pairs = [task(f"{side}{n}", "q", f"E{n}", side) for n in range(40) for side in ("x", "y")]
    # "x" and "y" are named by nearly half of the tasks: a setting, which ties nothing together.
    path = written(tmp_path / "tasks.jsonl", [chain[0], *pairs, *chain[1:]])
    outcome = split_dataset(path, tmp_path / "out", shares=SplitShares(), seed=0)
    assert (outcome.groups, outcome.largest_group, outcome.crossing) == (41, 3, 0)
    where = {t.id: split for split, file in outcome.paths.items() for t in read_tasks(file)}
    assert len(where) == 83 and len(set(where.values())) == 3
    assert len({where[name] for name in "123"}) == 1
    assert all(where[f"x{n}"] == where[f"y{n}"] for n in range(40))


def test_a_dataset_that_hangs_together_is_not_divided(tmp_path: Path) -> None:
    path = written(tmp_path / "tasks.jsonl", [task(str(n), "q", f"A{n}", f"A{n + 1}") for n in range(10)])
    with pytest.raises(UserError, match="10 of 10 tasks are linked"):
        split_dataset(path, tmp_path / "out", shares=SplitShares(), seed=0)
    assert not (tmp_path / "out").exists()
