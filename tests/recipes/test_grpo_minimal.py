"""The loop on one page makes the updates of the whole trainer, and it is one page."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError
from mcpagent.run.train import run_training
from recipes import grpo_minimal
from tests.house import ROOT, own_imports
from tests.running import Python

pytestmark = pytest.mark.system

STEPS = 3


def test_its_updates_are_those_of_the_trainer(tiny_checkpoint: Path, tmp_path: Path) -> None:
    overrides = [
        f"model.name={tiny_checkpoint}",
        f"data.train={resource_path('data/samples/train.jsonl')}",
        f"training.max_steps={STEPS}",
        "training.eval_samples=0",
        "training.batch_size=2",
        "training.micro_batch_tokens=1500",  # a step takes several micro-batches
        "rollout.group_size=3",
        "rollout.max_new_tokens=8",
        "grpo.kl_coef=0.5",
        "lora.dropout=0.1",
        "reward.control=random",  # an untrained model earns nothing that sets attempts apart
    ]
    config = load_train_config([resource_path("configs/quickstart.yaml")], overrides).config
    outcome = run_training(config, run_dir=tmp_path / "run")
    theirs = load_file(outcome.last_checkpoint / "adapter_model.safetensors")

    weights = []
    for learner, _ in grpo_minimal.train(config, steps=STEPS):
        learner.save(tmp_path / f"recipe-{len(weights)}", state={})
        weights.append(load_file(tmp_path / f"recipe-{len(weights)}" / "adapter_model.safetensors"))
    mine = weights[-1]
    assert outcome.steps == len(weights) == STEPS
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    for earlier, later in pairwise(weights):
        assert any(not torch.equal(earlier[name], later[name]) for name in later), "every step moved them"


@pytest.mark.parametrize(
    "setting", ["advantage=gae", "minibatches=2", "epochs_per_batch=2", "reference=ema", "entropy_coef=0.1"]
)
def test_what_the_page_leaves_out_is_refused(setting: str) -> None:
    config = load_train_config([resource_path("configs/quickstart.yaml")], [f"grpo.{setting}"]).config
    with pytest.raises(UserError, match="the page leaves"):
        next(grpo_minimal.train(config, steps=1))


def test_it_runs_as_a_program_and_prints_the_success_of_each_step(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(
        (ROOT / "configs" / "quickstart.yaml")
        .read_text()
        .replace("batch_size: 12", "batch_size: 2")
        .replace("max_new_tokens: 48", "max_new_tokens: 8")
        .replace("group_size: 8", "group_size: 2")
    )
    named = ("--model", tiny_checkpoint, "--data", ROOT / "data" / "samples", "--config", config)
    words = ("-m", "recipes.grpo_minimal", "--steps", "2", *named)
    with Python(*words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        said, failed = program.communicate()
    assert program.returncode == 0, failed
    lines = said.splitlines()
    assert [line.split()[:2] for line in lines] == [["step", "1"], ["step", "2"]]
    assert all("success" in line and "%" in line for line in lines)


def test_without_a_quickstart_it_says_what_to_run(tmp_path: Path) -> None:
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Python("-m", "recipes.grpo_minimal", cwd=tmp_path, **piped) as program:
        _, failed = program.communicate()
    assert program.returncode == 2
    assert "run mcpagent quickstart" in failed and "Traceback" not in failed


def test_it_is_one_page_that_imports_at_most_eight_modules_of_ours() -> None:
    page = ROOT / "recipes" / "grpo_minimal.py"
    assert len(page.read_text().splitlines()) < 150
    assert 1 < len(own_imports(page)) <= 8
