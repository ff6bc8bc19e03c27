"""Records a second and peak memory of each step over many tasks: python -m benchmarks.data [--records N].

Each step runs in a process of its own, so that its peak is its own. The dataset is N distinct records of
2.9 kB, made from the samples of this repository; --generate is how many tasks are really generated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mcpagent.storage.datasets import TaskFile, read_tasks, write_jsonl
from mcpagent.synth.datasets.describe import count_tasks
from mcpagent.synth.datasets.split import DedupeReport, distinct_tasks, split_dataset
from mcpagent.synth.datasets.validate import validate_dataset
from mcpagent.synth.templates.pools import SplitShares

_SAMPLES = Path(__file__).parents[1] / "data" / "samples"
_NAMED = re.compile(r"\b(?:[A-Z]{4}|C[0-9]{3})\b")  # tickers and channels
_ID = re.compile(r'"task_id": "')
_BATCH = 100


def generate(folder: Path, records: int) -> int:
    command = ["gen-data", "--templates", "full", "--validation", "0", "--heldout", "0", "--overwrite"]
    arguments = [*command, "--train", str(records), "--out", str(folder / "generated"), "--json"]
    from mcpagent.cli.main import run

    sys.argv = ["mcpagent", *arguments]
    try:
        run()
    except SystemExit as end:
        assert not end.code, end.code
    return records


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
    return count_tasks(read_tasks(_tasks(folder))).records


def split(folder: Path, records: int) -> int:
    split_dataset(_tasks(folder), folder / "split", shares=SplitShares(), seed=0, overwrite=True)
    return records


def dedupe(folder: Path, records: int) -> int:
    report = DedupeReport()
    write_jsonl(folder / "distinct.jsonl", distinct_tasks(_tasks(folder), threshold=0.8, report=report))
    print(f"          {report.as_json()['removed']}", file=sys.stderr)
    return report.records


def convert(folder: Path, records: int) -> int:
    tool = {"server": "fmp", "tool": "fmp_get_quote", "params": {"symbol": "T"}}
    tasks = [
        {
            "task_id": f"t{number}",
            "complexity": "simple",
            "conversation": [{"role": "user", "content": f"Quote number {number}."}],
            "solution": {"tool_sequence": [{"step": 1, **tool}]},
        }
        for number in range(records)
    ]
    scenario = {"scenario": "s", "turns": 4, "limits": {"max_servers": 1, "max_tools": 2}, "tasks": tasks}
    (folder / "spec.json").write_text(json.dumps({"dependent_dataset": [scenario]}))
    from mcpagent.cli.main import run

    sys.argv = ["mcpagent", "convert", str(folder / "spec.json"), "--out", str(folder / "converted.jsonl")]
    sys.argv += ["--overwrite", "--json"]
    try:
        run()
    except SystemExit as end:
        assert not end.code, end.code
    return records


def iterate(folder: Path, records: int) -> int:
    return sum(1 for _ in read_tasks(_tasks(folder)))


def index(folder: Path, records: int) -> int:
    """Opened for the first time: every record is checked."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    with TaskFile(_tasks(folder)) as tasks:
        return len(tasks)


def reopen(folder: Path, records: int) -> int:
    with TaskFile(_tasks(folder)) as tasks:
        return len(tasks)


def epoch(folder: Path, records: int) -> int:
    """Every task once in the order of training, from a file that was opened before."""
    from mcpagent.train.run_state import TaskOrder  # and with it torch, which the other steps do without

    with TaskFile(_tasks(folder)) as tasks:
        order = TaskOrder(len(tasks), batch_size=_BATCH, seed=0)
        return sum(len([tasks[i] for i in order.batch(step)]) for step in range(1, len(tasks) // _BATCH + 1))


def _tasks(folder: Path) -> Path:
    return folder / "tasks.jsonl"


_STEPS: dict[str, Callable[[Path, int], int]] = {
    f.__name__: f
    for f in (generate, make, validate, stats, split, dedupe, convert, iterate, index, reopen, epoch)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--generate", type=int, default=2_000)
    parser.add_argument("--steps", nargs="*", default=list(_STEPS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="Keep the files here.")
    given = parser.parse_args()
    if given.one:
        _measure(given.one, given.folder, given.records)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        for step in given.steps:
            records = given.generate if step == "generate" else given.records
            command = [sys.executable, "-m", "benchmarks.data", "--one", step, "--folder", str(folder)]
            subprocess.run(
                [*command, "--records", str(records)],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
            )


def _measure(step: str, folder: Path, records: int) -> None:
    started = time.process_time()
    count = _STEPS[step](folder, records)
    cpu = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{step:9} {count:>9,} records {count / cpu:>9,.0f} a CPU second {peak:>6,.0f} MB at most",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()
