"""The memory of every step over a dataset does not follow its size. Each runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SMALL, LARGE = 10_000, 100_000  # records of 2.9 kB: 290 MB of text, several times that as objects
# The tables on disk may cache 16 MB each, of which dedupe has four.
GROWTH_MB = 80


def peaks(folder: Path, records: int) -> dict[str, int]:
    """Peak memory in MB by step."""
    steps = ["make", "validate", "stats", "split", "dedupe", "iterate", "index", "epoch"]
    peak: dict[str, int] = {}
    for step in steps:
        command = [sys.executable, "-m", "tests.slow.data_steps", step, str(folder), str(records)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak[step] = int(done.stdout)
    return peak


def test_ten_times_the_records_need_no_more_memory(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    small, large = peaks(tmp_path / "small", SMALL), peaks(tmp_path / "large", LARGE)
    # The order of training comes with torch, whose import alone takes more.
    assert max(peak for step, peak in large.items() if step != "epoch") < 300
    assert {step: large[step] - small[step] for step in small if large[step] - small[step] > GROWTH_MB} == {}
