"""The acceptance of a GPU: an update, the samplers and a run on one CUDA device, judged row by row.

    python -m benchmarks.gpu [--only CHECK ...] [--out outputs/gpu] [--limit-s 570]
    python -m benchmarks.gpu --only run
    python -m benchmarks.gpu --device cpu --tiny

Each check is a process of its own and has its share of the limit. Weights are random and nothing is
downloaded; `run` alone, which is left out unless it is named, takes the pretrained model in the folder
MCPAGENT_REAL_MODEL from untrained to evaluated after GRPO, on a server of one's own. The table is printed and
written to `acceptance.md` in `--out`, its rows to `acceptance.jsonl`; the exit status is 1 where a judged
row is not as wanted. `--tiny` runs the same code on small shapes, on a CPU within minutes: its figures say
nothing, and those that only a GPU has are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.bench import Bench, Row
from benchmarks.gpu_checks import CHECKS

STANDARD = [name for name in CHECKS if name != "run"]  # which takes as long as all of them
ROWS_FILE, TABLE_FILE = "acceptance.jsonl", "acceptance.md"
_MARK = "acceptance row: "  # libraries write to standard output too


def run_check(
    name: str, *, device: str, is_tiny: bool, on_row: Callable[[Row], object] = lambda _: None
) -> list[Row]:
    """In this process; `on_row` gets each row as it is known. A check that breaks is a row."""
    rows: list[Row] = []

    def report(what: str, value: object, wanted: str = "", ok: bool | None = None) -> None:
        row = Row(name, what, str(value), wanted, None if ok is None else bool(ok))
        rows.append(row)
        on_row(row)

    with TemporaryDirectory(prefix="mcpagent-gpu-") as folder:
        try:
            CHECKS[name][0](Bench(torch.device(device), is_tiny, report, Path(folder)))
        except Exception as error:  # the table says of every check what came of it
            if is_tiny:
                raise
            report("broke", f"{type(error).__name__}: {error}"[:400], "ends", False)
    return rows


def accept(out: Path, *, names: Sequence[str], device: str, is_tiny: bool, limit_s: float) -> list[Row]:
    """Every check in a process of its own; the rows are in `out` as soon as they are known."""
    out.mkdir(parents=True, exist_ok=True)
    (out / ROWS_FILE).unlink(missing_ok=True)
    rows: list[Row] = []
    end = time.monotonic() + limit_s
    for name in names:
        left = min(CHECKS[name][1], end - time.monotonic())
        rows += _in_own_process(name, device=device, is_tiny=is_tiny, limit_s=left)
        (out / ROWS_FILE).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
        (out / TABLE_FILE).write_text(table(rows))
    return rows


def _in_own_process(name: str, *, device: str, is_tiny: bool, limit_s: float) -> list[Row]:
    if limit_s <= 0:
        return [Row(name, "time", "none was left", "some", False)]
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", name, "--device", device]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        [*command, *(["--tiny"] if is_tiny else [])],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[1],
        start_new_session=True,  # so that engines and servers end with it
    )
    output = ""
    with suppress(subprocess.TimeoutExpired):
        output, _ = process.communicate(timeout=limit_s)
    is_over = process.poll() is not None  # else it is late; what it started may hold the pipe open longer
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    output = output or process.communicate()[0]
    lines = [line.removeprefix(_MARK) for line in output.splitlines() if line.startswith(_MARK)]
    rows = [Row(**json.loads(line)) for line in lines]
    if not is_over:
        rows.append(Row(name, "time", f"stopped after {limit_s:.0f} s", "ends", False))
    elif process.returncode or not rows:
        rows.append(Row(name, "exit status", str(process.returncode), "0, with rows", False))
    return rows


def _print_row(row: Row) -> None:
    print(_MARK + json.dumps(asdict(row)), flush=True)


def table(rows: Sequence[Row]) -> str:
    """In Markdown, with the count of those that are not as wanted."""
    marks = {True: "ok", False: "FAIL", None: ""}
    lines = ["| check | what | | value | wanted |", "|---|---|---|---|---|"]
    lines += [f"| {r.check} | {r.what} | {marks[r.ok]} | {r.value} | {r.wanted} |" for r in rows]
    judged = [row for row in rows if row.ok is not None]
    failed = sum(not row.ok for row in judged)
    return "\n".join([*lines, "", f"{failed} of {len(judged)} judged figures are not as wanted."]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=CHECKS, action="append", help="this check alone; may be repeated")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu"))
    parser.add_argument("--limit-s", type=float, default=570.0, help="of all checks")
    parser.add_argument("--child", choices=CHECKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here (--device cpu --tiny runs the same code on small shapes)")
    if options.child:
        run_check(options.child, device=options.device, is_tiny=options.tiny, on_row=_print_row)
        return
    rows = accept(
        options.out,
        names=options.only or STANDARD,
        device=options.device,
        is_tiny=options.tiny,
        limit_s=options.limit_s,
    )
    print(table(rows), end="")
    sys.exit(any(row.ok is False for row in rows))


if __name__ == "__main__":
    main()
