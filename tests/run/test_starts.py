"""A checkpoint is the model that was trained, whatever the run began with and whoever opens it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.run.evaluate import evaluate_model
from mcpagent.run.export import export
from mcpagent.run.train import run_training
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.train.batch.samples import sample_from_trajectory
from mcpagent.train.learner.build import build_learner
from mcpagent.train.load import load
from mcpagent.train.start import settle_start
from tests.run.world import short_run, three_splits

pytestmark = pytest.mark.system

MODES = {
    "lora": ("finetune.mode=lora",),
    "lora of another rank": ("finetune.mode=lora", "lora.r=4", "lora.alpha=8"),
    "full": ("finetune.mode=full", "optimization.learning_rate=0.005"),
    "value head": ("finetune.mode=lora", "grpo.advantage=gae"),
}
STARTS = ("base", "adapters", "adapters on adapters", "full checkpoint", "merged export")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_splits(tmp_path_factory.mktemp("data"))


def configured(model: Path | str, data: Path, *overrides: str) -> TrainConfig:
    settings = ("training.max_steps=1", "training.eval_samples=2", "rollout.max_steps_per_episode=2")
    return short_run(model, data / "train.jsonl", *settings, *overrides)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, data: Path) -> dict[str, Path]:
    """What a run may begin with, each as a person would make it."""
    folder = tmp_path_factory.mktemp("starts")
    sft = ("algorithm=sft", "training.eval_samples=0")
    run_training(configured(tiny_checkpoint, data, *sft), run_dir=folder / "warm")
    run_training(configured(tiny_checkpoint, data, *sft, *MODES["full"]), run_dir=folder / "full")
    run_training(
        configured(folder / "warm", data, "lora.r=8", "training.eval_samples=0"), run_dir=folder / "second"
    )
    export(folder / "warm", folder / "merged", merge=True)
    return {
        "base": tiny_checkpoint,
        "adapters": folder / "warm",
        "adapters on adapters": folder / "second",
        "full checkpoint": folder / "full",
        "merged export": folder / "merged",
    }


def furthest(model: Any, run: Path) -> float:
    """How far the model's logprobs are at most from those that the run's own process sampled its last
    evaluation with: nats, over every sampled token. The forward pass is that of transformers."""
    worst = 0.0
    for trajectory in read_trajectories(run / "trajectories" / "eval_best"):
        sample = sample_from_trajectory(trajectory)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([sample.token_ids_T]), use_cache=False).logits[0]
        logprobs = logits.double().log_softmax(-1)
        sampled = [i for i, is_sampled in enumerate(sample.loss_mask_T) if is_sampled]
        theirs = [float(logprobs[i - 1, sample.token_ids_T[i]]) for i in sampled]
        worst = max(worst, *(abs(a - b) for a, b in zip(theirs, sample.sampler_logprobs_N, strict=True)))
    return worst


def opened(model: Path | str) -> Any:
    """As `eval`, `rollout` and `certify` open it."""
    return load(load_train_config([], [f"model.name={model}"], for_training=False).config).model


def started(model: Path, data: Path, folder: Path, *mode: str) -> Any:
    """As another run begins with it."""
    config = configured(model, data, *mode)
    start = settle_start(config, folder)
    return build_learner(load(config, start=start), config, total_optimizer_steps=1).model.eval()


def exported(run: Path, folder: Path, *, merge: bool) -> Path:
    return export(run, folder, merge=merge).out


def moved(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder))


# The model as everything that reads a checkpoint has it; "resumed" is the run itself, gone on with.
READERS: dict[str, Callable[[Path, Path, Path, tuple[str, ...]], Any]] = {
    "eval": lambda run, data, out, mode: opened(run),
    "RUN@STEP": lambda run, data, out, mode: opened(f"{run}@1"),
    "export": lambda run, data, out, mode: opened(exported(run, out, merge=False)),
    "export --merge": lambda run, data, out, mode: AutoModelForCausalLM.from_pretrained(
        exported(run, out, merge=True)
    ),
    "train --model, same shape": lambda run, data, out, mode: started(run, data, out, *mode),
    "train --model, other rank": lambda run, data, out, mode: started(run, data, out, "lora.r=2"),
    "train --model, full": lambda run, data, out, mode: started(run, data, out, "finetune.mode=full"),
    "a moved run": lambda run, data, out, mode: opened(moved(run, out)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("start", STARTS)
def test_every_reader_has_the_logprobs_of_the_trainer(
    starts: dict[str, Path], data: Path, tmp_path: Path, start: str, mode: str
) -> None:
    run = run_training(configured(starts[start], data, *MODES[mode]), run_dir=tmp_path / "run").run_dir
    apart = {
        name: furthest(read(run, data, tmp_path / f"reader {i}", MODES[mode]), run)
        for i, (name, read) in enumerate(READERS.items())
    }
    assert all(far <= 1e-5 for far in apart.values()), apart
    assert furthest(opened(starts[start]), run) > 1e-2, "the run must have changed the model"


def test_every_reader_tells_the_model_to_call_tools_as_it_was_trained_to(
    tiny_checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    """The template of the base asks for tags; the run was told otherwise, and whoever goes on is not."""
    sft = ("algorithm=sft", "training.eval_samples=0")
    run = run_training(
        configured(tiny_checkpoint, data, *sft, "rollout.tool_format=json"), run_dir=tmp_path / "run"
    ).run_dir
    readers = {
        "run": run,
        "RUN@STEP": f"{run}@1",
        "moved": moved(run / "checkpoints" / "step-000001", tmp_path / "alone"),
        "export": exported(run, tmp_path / "adapters", merge=False),
        "export --merge": exported(run, tmp_path / "merged", merge=True),
    }

    def format_of(model: Path | str) -> str:
        config = load_train_config([], [f"model.name={model}"], for_training=False).config
        return load(config).renderer.tool_format

    assert {name: format_of(model) for name, model in readers.items()} == dict.fromkeys(readers, "json")
    assert format_of(tiny_checkpoint) == "auto"
    for i, model in enumerate(readers.values()):
        later = run_training(configured(model, data, *sft), run_dir=tmp_path / f"later {i}").run_dir
        assert load_train_config([later / "config.yaml"]).config.rollout.tool_format == "json"


@pytest.mark.parametrize("shape", ["lora.r=16", "lora.r=4"])
def test_an_evaluation_of_the_run_is_its_own_last_one_episode_by_episode(
    starts: dict[str, Path], data: Path, tmp_path: Path, shape: str
) -> None:
    config = configured(starts["adapters"], data, "training.eval_samples=1", "training.max_steps=2", shape)
    run = run_training(config, run_dir=tmp_path / "run").run_dir
    saved = load_train_config([run / "config.yaml"], ["rollout.temperature=0"], for_training=False).config
    out = tmp_path / "eval.json"
    evaluate_model(saved, model=str(run), data=data / "heldout.jsonl", out=out)

    def episodes(path: Path) -> dict[str, Any]:
        return {
            t.task_id: (t.reward, [turn.completion.token_ids for turn in t.turns])
            for t in read_trajectories(path)
        }

    theirs = episodes(run / "trajectories" / "eval_best")
    assert len(theirs) == 2 and episodes(tmp_path / "eval.jsonl.zst") == theirs


def test_the_kl_to_the_start_is_zero_before_the_first_update_and_grows_from_there(
    starts: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    config = configured(
        starts["adapters"], data, "training.max_steps=3", "training.eval_samples=0", "grpo.kl_coef=0.01"
    )
    whole = run_training(config, run_dir=tmp_path / "whole").run_dir
    first, second, third = RunFolder.open(whole).metrics()
    assert first["kl"] == 0.0  # the reference is the start, to the bit
    assert second["kl"] > 1e-6
    # A run that is gone on with has the same reference: that of the start, not of its checkpoint.
    half = tmp_path / "half"
    run_training(_with_steps(config, 2), run_dir=half)
    run_training(config, run_dir=half, resume=True)
    assert RunFolder.open(half).metrics()[-1]["kl"] == third["kl"]


def _with_steps(config: TrainConfig, steps: int) -> TrainConfig:
    return config.model_copy(update={"training": config.training.model_copy(update={"max_steps": steps})})
