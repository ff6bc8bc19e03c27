"""The launchers of others start a run in two processes, which share the weights as they ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mcpagent.config.environment import resource_path
from mcpagent.storage.run_folder import RunFolder
from tests.train.learner.test_lost_process import command, needs_deepspeed

pytestmark = [pytest.mark.system, pytest.mark.slow]

STEPS = 2


def accelerate(name: str) -> list[str]:
    config = str(resource_path(f"configs/accelerate/{name}.yaml"))
    return ["-m", "accelerate.commands.launch", "--config_file", config, "--num_processes", "2", "-m"]


DEEPSPEED = ["-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--no_local_rank", "--module"]


def trained(run: Path, checkpoint: Path, launcher: list[str], parallel: str) -> tuple[RunFolder, str]:
    """A run of two steps on the CPU, and what was said."""
    words = command(run, checkpoint, parallel=parallel, steps=STEPS, launcher=launcher or ["-m"])
    del words[words.index("mcpagent.cli.main") - 1]  # -m: the launcher's own option names the module
    done = subprocess.run(
        [*words, "--device", "cpu"],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return RunFolder.open(run), done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> RunFolder:
    return trained(tmp_path_factory.mktemp("one") / "alone", tiny_checkpoint, [], "auto")[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("launcher", "parallel", "said"),
    [
        pytest.param(accelerate("ddp"), "auto", "", id="accelerate"),
        pytest.param(
            accelerate("fsdp"), "auto", "auto: fsdp, as accelerate launch asks", id="accelerate fsdp"
        ),
        pytest.param(
            *(accelerate("zero3"), "auto", "auto: zero3, as accelerate launch asks"),
            marks=needs_deepspeed,
            id="accelerate zero3",
        ),
        pytest.param(DEEPSPEED, "zero3", "", marks=needs_deepspeed, id="deepspeed"),
    ],
)
def test_a_launcher_starts_two_processes_that_make_the_update_of_one(
    launcher: list[str], parallel: str, said: str, tmp_path: Path, tiny_checkpoint: Path, alone: RunFolder
) -> None:
    run, stderr = trained(tmp_path / "run", tiny_checkpoint, launcher, parallel)
    assert said in stderr and ("training.parallel auto" in stderr) is bool(said)
    assert [m["step"] for m in run.metrics()] == [1, 2]
    assert run.config_path.is_file()
    ours, theirs = (load_file(r.checkpoint_dir(STEPS) / "model.safetensors") for r in (run, alone))
    began = load_file(tiny_checkpoint / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert max(float((ours[n] - t).abs().max()) for n, t in theirs.items()) <= 1e-5
    assert any(not torch.equal(began[n], t) for n, t in theirs.items() if n in began), "something moved"
