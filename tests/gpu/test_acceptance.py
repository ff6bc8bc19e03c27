"""The acceptance table of a CUDA device: run by `make test-gpu`, and left out of every other run."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bench import Row
from benchmarks.gpu import ROWS_FILE, STANDARD, TABLE_FILE, accept, table
from tests.house import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="there is no CUDA device here, or torch is a build without CUDA"
    ),
]
LIMIT_S = 570.0


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    out = ROOT / "outputs" / "gpu"
    rows = accept(out, names=STANDARD, device="cuda", is_tiny=False, limit_s=LIMIT_S)
    print(f"\n{table(rows)}in {out / TABLE_FILE} and {ROWS_FILE}")
    return rows


@pytest.mark.parametrize("check", STANDARD)
def test_every_judged_figure_is_as_wanted(check: str, rows: list[Row]) -> None:
    reported = [row for row in rows if row.check == check]
    assert reported
    assert not [row for row in reported if row.ok is False]
