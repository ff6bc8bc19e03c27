"""GRPO of the embedded task with vLLM as the sampler: the band of success that transformers reach."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpagent.storage.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def _document(*arguments: str | Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "mcpagent.cli.main", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def test_grpo_on_vllm_learns_what_it_learns_on_transformers(tmp_path: Path) -> None:
    on_hf = _document("quickstart", "--out", tmp_path / "hf", "--seed", "0")
    warm = max((tmp_path / "hf" / "warm_start" / "checkpoints").glob("step-*"))
    run = _document(
        *("train", "--config", "configs/quickstart.yaml", "--backend", "vllm"),
        *("--set", f"model.name={warm}", "--set", f"data.train={tmp_path / 'hf' / 'data' / 'train.jsonl'}"),
        *("--set", f"output_dir={tmp_path / 'vllm'}"),
    )
    heldout = tmp_path / "hf" / "data" / "heldout.jsonl"
    on_vllm = _document("eval", "checkpoint", run["last_checkpoint"], "--data", heldout, "--samples", "1")
    before = on_hf["warm_start"]["metrics"]["task_success"]["value"]
    hf, vllm = on_hf["trained"]["metrics"]["task_success"], on_vllm["metrics"]["task_success"]
    assert vllm["n"] >= 200
    assert vllm["value"] >= 0.70
    assert vllm["value"] - before >= 0.30
    assert vllm["ci_high"] > hf["ci_low"]
    steps = RunFolder.open(Path(run["run_dir"])).metrics()
    assert len(steps) == 24
    assert max(step["canary_difference"] for step in steps) < 1e-4
    # Sampler and trainer agree about the tokens that are trained on, too.
    assert max(step["logprob_drift_max"] for step in steps) < 1e-2
