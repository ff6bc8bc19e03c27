"""The memory of every step over a dataset does not follow its size. Each runs in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SMALL, LARGE = 10_000, 100_000  # records of 2.9 kB: 290 MB of text, several times that as objects
# The tables on disk may cache 16 MB each, of which dedupe has four.
GROWTH_MB = 80


def peaks(records: int) -> dict[str, int]:
    """Peak memory in MB by step."""
    steps = ["make", "validate", "stats", "split", "dedupe", "iterate", "index", "epoch"]
    command = ["-m", "benchmarks.data", "--records", str(records), "--steps", *steps]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    found = re.findall(r"^(\w+) .* ([\d,]+) MB at most$", done.stderr, re.M)
    assert [step for step, _ in found] == steps, done.stderr
    return {step: int(peak.replace(",", "")) for step, peak in found}


def test_ten_times_the_records_need_no_more_memory() -> None:
    small, large = peaks(SMALL), peaks(LARGE)
    # The order of training comes with torch, whose import alone takes more.
    assert max(peak for step, peak in large.items() if step != "epoch") < 300
    assert {step: large[step] - small[step] for step in small if large[step] - small[step] > GROWTH_MB} == {}
