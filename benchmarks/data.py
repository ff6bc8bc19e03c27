"""Records a second and peak memory of each step over many tasks: python -m benchmarks.data [--records N].

Each step runs in a process of its own, so that its peak is its own. The dataset is one of generated tasks,
repeated under new ids until there are N records; --generate is how many of them are really generated.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mcpagent.storage.jsonl import read_tasks
from mcpagent.storage.task_file import TaskFile
from mcpagent.synth.pools import SplitShares
from mcpagent.synth.split import split_dataset
from mcpagent.synth.validate import validate_dataset

_SHUFFLED = 100_000  # records read in random order


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


def repeat(folder: Path, records: int) -> int:
    """Other tickers' worth of records is not the point here, their number and size are."""
    lines = (folder / "generated/train.jsonl").read_text().splitlines()
    with (folder / "tasks.jsonl").open("w") as stream:
        for number in range(records):
            record = json.loads(lines[number % len(lines)])
            truth = record["reward_spec"]["ground_truth"]
            truth["task_id"] = f"{truth['task_id']}-{number}"
            record["extra_info"]["slots"] = {"ticker": f"T{number // 3}"}
            for step in truth["tool_sequence"]:
                step["params"] = {**step["params"], "note": f"T{number // 3}"}
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    return records


def validate(folder: Path, records: int) -> int:
    report = validate_dataset(folder / "tasks.jsonl", catalog=None)
    assert report.valid == records, report.findings[:1]
    return records


def split(folder: Path, records: int) -> int:
    split_dataset(
        folder / "tasks.jsonl",
        folder / "split",
        shares=SplitShares(),
        seed=0,
        drop_crossing=True,
        overwrite=True,
    )
    return records


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
    return sum(1 for _ in read_tasks(folder / "tasks.jsonl"))


def index(folder: Path, records: int) -> int:
    with TaskFile(folder / "tasks.jsonl") as tasks:
        return len(tasks)


def shuffled(folder: Path, records: int) -> int:
    with TaskFile(folder / "tasks.jsonl") as tasks:
        order = random.Random(0)
        started = time.process_time()
        for _ in range(min(_SHUFFLED, records)):
            tasks[order.randrange(len(tasks))]
        each = 1e6 * (time.process_time() - started) / min(_SHUFFLED, records)
    print(f"          {each:.0f} us of CPU for a record in random order", file=sys.stderr)
    return records


_STEPS: dict[str, Callable[[Path, int], int]] = {
    f.__name__: f for f in (generate, repeat, validate, convert, split, iterate, index, shuffled)
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
            subprocess.run([*command, "--records", str(records)], check=True, stdout=subprocess.DEVNULL)


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
