"""Run a step over many tasks and print its peak MB: `python -m tests.slow.data_steps STEP FOLDER RECORDS`.

The dataset is RECORDS distinct records of 2.9 kB, made from the samples of this repository.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mcpagent.storage.datasets import TaskFile, read_tasks, write_jsonl
from mcpagent.synth.datasets.describe import count_tasks
from mcpagent.synth.datasets.split import DedupeReport, distinct_tasks, split_dataset
from mcpagent.synth.datasets.validate import validate_dataset
from mcpagent.synth.templates.pools import SplitShares

_SAMPLES = Path(__file__).parents[2] / "data" / "samples"
_NAMED = re.compile(r"\b(?:[A-Z]{4}|C[0-9]{3})\b")  # tickers and channels
_ID = re.compile(r'"task_id": "')
_BATCH = 100


def make(folder: Path, records: int) -> int:
    """The samples of this repository under new ids and about new things. One in twenty asks in the same words
    for what the task before it asks for, with another limit."""
    samples = (_SAMPLES / "train.jsonl").read_text().splitlines()
    shapes = [(line, sorted(set(_NAMED.findall(line)))) for line in samples]
    line = ""
    rng = random.Random(0)
    with _tasks(folder).open("w") as stream:
        for number in range(records):
            if number % 20 or not number:
                line, named = rng.choice(shapes)
                line = _renamed(line, {name: f"{name[0]}{number:07}{i}" for i, name in enumerate(named)})
            else:
                line = line.replace('"limit": 1', '"limit": 2')
            stream.write(_ID.sub(rf"\g<0>{number}-", line, count=1) + "\n")
    return records


def _renamed(line: str, new: Mapping[str, str]) -> str:
    return _NAMED.sub(lambda match: new[match[0]], line)


def validate(folder: Path, records: int) -> int:
    report = validate_dataset(_tasks(folder), catalog=None)
    assert report.valid == records, report.findings[:1]
    return records


def stats(folder: Path, records: int) -> int:
    return count_tasks(read_tasks(_tasks(folder)))["records"]


def split(folder: Path, records: int) -> int:
    split_dataset(_tasks(folder), folder / "split", shares=SplitShares(), seed=0, overwrite=True)
    return records


def dedupe(folder: Path, records: int) -> int:
    report = DedupeReport()
    write_jsonl(folder / "distinct.jsonl", distinct_tasks(_tasks(folder), threshold=0.8, report=report))
    return report.records


def iterate(folder: Path, records: int) -> int:
    return sum(1 for _ in read_tasks(_tasks(folder)))


def index(folder: Path, records: int) -> int:
    """Opened for the first time: every record is checked."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    with TaskFile(_tasks(folder)) as tasks:
        return len(tasks)


def epoch(folder: Path, records: int) -> int:
    """Every task once in the order of training, from a file that was opened before."""
    from mcpagent.train.task_order import TaskOrder  # and with it torch, which the other steps do without

    with TaskFile(_tasks(folder)) as tasks:
        order = TaskOrder(len(tasks), batch_size=_BATCH, seed=0)
        return sum(len([tasks[i] for i in order.batch(step)]) for step in range(1, len(tasks) // _BATCH + 1))


def _tasks(folder: Path) -> Path:
    return folder / "tasks.jsonl"


_STEPS: dict[str, Callable[[Path, int], int]] = {
    f.__name__: f for f in (make, validate, stats, split, dedupe, iterate, index, epoch)
}


def main() -> None:
    step, folder, records = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    _STEPS[step](folder, records)
    # Not ru_maxrss, which begins with what the parent held when it started this process.
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM:")))


if __name__ == "__main__":
    main()
