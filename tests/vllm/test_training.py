"""Short GRPO runs with vLLM in the trainer's process: every step is proved, and a run can be continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.core.records import JsonObject
from mcpagent.demo.warm_start import EmbeddedShape, build_model
from mcpagent.errors import UserError
from mcpagent.models.load import load_tokenizer, save_model
from mcpagent.run.train import run_training
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the other tests, with heads as wide as vLLM's attention on CPU has them."""
    tokenizer = load_tokenizer(str(tiny_checkpoint))
    shape = EmbeddedShape(vocab_size=512, hidden_size=64, layers=1, heads=2, intermediate_size=64)
    folder = tmp_path_factory.mktemp("wide") / "checkpoint"
    save_model(build_model(tokenizer, shape=shape, seed=0), tokenizer, folder)
    return folder


def run(
    folder: Path, checkpoint: Path, *changes: str, steps: int = 2, resume: bool = False
) -> list[JsonObject]:
    settings = [
        f"model.name={checkpoint}",
        f"data.train={resource_path('data/samples/train.jsonl')}",
        f"training.max_steps={steps}",
        "training.batch_size=2",
        "rollout.group_size=3",
        "rollout.max_new_tokens=12",
        "rollout.backend=vllm",
        "optimization.learning_rate=0.05",  # far enough that a stale step would show
        "reward.control=random",  # so that weights move from the first step on
        *changes,
    ]
    config = load_train_config([resource_path("configs/quickstart.yaml")], settings).config
    run_training(config, run_dir=folder, resume=resume)
    return RunFolder.open(folder).metrics()


def assert_served_what_was_trained(metrics: list[JsonObject]) -> None:
    for record in metrics:
        assert record["canary_difference"] < 1e-5
        assert record["logprob_drift_max"] < 1e-2
        assert record["grad_norm"] > 0
        # Another engine samples: its tokens are weighted, and every record says how far apart the two are.
        assert abs(record["correction_mean"] - 1.0) < 1e-3
        assert 0.0 < record["logprob_drift_mean"] <= record["logprob_drift_p99"] < 1e-2
        assert abs(record["sampler_kl"]) < 1e-6
        assert record["canary_arrived"] > 0


def test_adapters_reach_the_engine_after_every_step_and_after_a_resume(
    checkpoint: Path, tmp_path: Path
) -> None:
    run(tmp_path / "run", checkpoint)
    metrics = run(tmp_path / "run", checkpoint, steps=3, resume=True)
    assert [record["step"] for record in metrics] == [1, 2, 3]
    assert_served_what_was_trained(metrics)
    assert not any(tmp_path.glob("run/weights/*"))


def test_full_weights_reach_the_engine_after_every_step_and_after_a_resume(
    checkpoint: Path, tmp_path: Path
) -> None:
    full = ("finetune.mode=full", "optimization.learning_rate=0.01")
    run(tmp_path / "run", checkpoint, *full)
    assert_served_what_was_trained(run(tmp_path / "run", checkpoint, *full, steps=3, resume=True))


def test_the_same_seed_gives_the_same_tokens_whoever_seeded_what_before(
    checkpoint: Path, tmp_path: Path
) -> None:
    def tokens(folder: Path) -> list[Any]:
        paths = sorted((folder / "trajectories").glob("step-*.jsonl.zst"))
        return [turn.completion.token_ids for p in paths for t in read_trajectories(p) for turn in t.turns]

    for name in ("a", "b"):
        run(tmp_path / name, checkpoint, "lora.dropout=0.1")
    assert tokens(tmp_path / "a") == tokens(tmp_path / "b") != []


def test_a_temperature_that_vllm_does_not_take_is_the_users_error(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vLLM takes"):
        run(tmp_path / "run", checkpoint, "rollout.temperature=2.5")
