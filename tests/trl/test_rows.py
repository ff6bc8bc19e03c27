"""Exported rows are what TRL's SFTTrainer reads: it takes a step on them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mcpagent.core.values import scalars
from tests.trl.test_bridge import pytestmark as pytestmark
from tests.trl.test_equality import PYTHON, ROOT


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_sft_trainer_takes_a_step_on_exported_rows(tiny_checkpoint: Path, tmp_path: Path, form: str) -> None:
    export = ("-m", "mcpagent", "data", "export", ROOT / "data/samples/train.jsonl", "--out")
    for name in {"rows.jsonl", f"rows.{form}"}:
        run(*export, tmp_path / name)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    run(ROOT / "tests/trl/sft_step.py", tiny_checkpoint, tmp_path / f"rows.{form}", tmp_path)
    step = json.loads((tmp_path / "step.json").read_text())
    # No call was given the arguments of others as empty ones.
    assert step["read"] == rows and None not in scalars(step["read"])
    assert step["moved"] and step["loss"] > 0 and step["tokens"] > 100


def run(*words: str | Path) -> None:
    done = subprocess.run(
        [PYTHON, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
