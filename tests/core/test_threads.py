"""Threads of real processes, as the kernel counts them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mcpagent.core.threads import VARIABLES, limit_threads
from tests.house import ROOT

pytestmark = pytest.mark.system

# Runs a command as the console script does, computes with each library, and counts the threads of this
# process that are not Python's own: a pool of OpenMP, MKL, OpenBLAS or rayon starts its threads at first use.
_PROGRAM = """
import json, os, sys, threading
sys.argv = sys.argv[1:]
from mcpagent.cli.main import run
try:
    run()
except SystemExit as ended:
    code = ended.code or 0
else:
    code = 0
import numpy, torch
left = torch.rand(700, 700)
(left @ left).sum().item(), (left + left).sum().item(), left.exp().sum().item()
numpy.linalg.svd(numpy.ones((300, 300)))
native = len(os.listdir("/proc/self/task")) - threading.active_count()
threads = {"torch": torch.get_num_threads(), "inter": torch.get_num_interop_threads()}
with open(sys.argv[0], "w") as out:
    json.dump({"code": code, "native": native, **threads}, out)
"""


def _threads(tmp_path: Path, *arguments: str, **variables: str) -> dict[str, int]:
    out = tmp_path / "threads.json"
    environment = {k: v for k, v in os.environ.items() if k not in (*VARIABLES, "TOKENIZERS_PARALLELISM")}
    subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(out), *arguments],
        check=True,
        cwd=ROOT,
        env={**environment, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return json.loads(out.read_text())


def _sft(tmp_path: Path, *settings: str) -> list[str]:
    chosen = (
        f"output_dir={tmp_path}",
        "name=run",
        "data.train=data/samples/train.jsonl",
        "data.max_tasks=8",
        "training.max_steps=2",
        "sft.curriculum_steps=1",
        "training.eval_samples=0",
        *settings,
    )
    pairs = [word for setting in chosen for word in ("--set", setting)]
    return ["train", "--algo", "sft", "--config", "configs/warm_start.yaml", *pairs]


def test_training_the_embedded_model_starts_no_threads_of_libraries(tmp_path: Path) -> None:
    assert _threads(tmp_path, *_sft(tmp_path)) == {"code": 0, "native": 0, "torch": 1, "inter": 1}


def test_the_number_in_the_environment_holds_for_every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what `limit_threads` sets is taken away in the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    monkeypatch.setenv("RAYON_NUM_THREADS", "5")
    had = torch.get_num_threads()
    try:
        assert limit_threads() == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(had)
    assert {name: os.environ[name] for name in VARIABLES} == {
        **dict.fromkeys(VARIABLES, "2"),
        "OMP_NUM_THREADS": "2,1",
        "RAYON_NUM_THREADS": "5",
    }


def test_the_cores_of_a_process_are_those_of_its_affinity_mask() -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from mcpagent.core.threads import available_cores, limit_threads;"
        "print(available_cores(), limit_threads(), limit_threads(4))"
    )
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    seen = subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert seen.stdout.split() == ["1", "1", "4"]
