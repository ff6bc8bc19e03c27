"""Training beside rollouts: a real run of the embedded model with `rollout.max_staleness`, and its resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.errors import UserError
from mcpagent.run.train import train
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.train.actor import refuse_pipeline
from mcpagent.train.learner.processes import Processes
from mcpagent.train.run_state import TaskOrder

STEPS, BATCH, GROUP, STALENESS = 5, 2, 2, 2


def _config(checkpoint: Path, *overrides: str) -> TrainConfig:
    return load_train_config(
        [resource_path("configs/quickstart.yaml")],
        [
            f"model.name={checkpoint}",
            f"data.train={resource_path('data/samples/train.jsonl')}",
            "data.max_tasks=6",  # some tasks come a second time while their first group may be in flight
            f"training.max_steps={STEPS}",
            f"training.batch_size={BATCH}",
            f"rollout.group_size={GROUP}",
            "rollout.max_new_tokens=12",
            f"rollout.max_staleness={STALENESS}",
            "rollout.deterministic=false",
            "grpo.tis_cap=2.0",
            "reward.control=random",
            "training.eval_every=0",
            *overrides,
        ],
    ).config


def _trained(folder: Path) -> list[list[str]]:
    """The groups of each step."""
    run = RunFolder.open(folder)
    return [
        [t.group_id for t in read_trajectories(run.trajectory_stem(step), with_tokens=False)][::GROUP]
        for step in range(1, STEPS + 1)
    ]


def _planned() -> set[str]:
    config = TaskOrder(6, batch_size=BATCH, seed=0)
    return {f"{place}@{step}" for step in range(1, STEPS + 1) for place in config.batch(step)}


def test_a_pipelined_run_trains_every_planned_group_once_within_its_staleness_also_over_a_resume(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    folder = tmp_path / "run"
    outcome = train(_config(tiny_checkpoint, "training.max_steps=2"), run_dir=folder)
    assert outcome.steps == 2
    outcome = train(_config(tiny_checkpoint), run_dir=folder, resume=True)
    assert outcome.steps == STEPS
    groups = [group for step in _trained(folder) for group in step]
    assert len(groups) == len(set(groups)) == STEPS * BATCH == len(_planned())
    assert sorted(g.rpartition("@")[2] for g in groups) == sorted(p.partition("@")[2] for p in _planned())
    records = RunFolder.open(folder).metrics()
    assert all(0 <= record["staleness_max"] <= STALENESS for record in records)
    assert max(record["staleness_max"] for record in records) > 0  # it did run ahead
    # The proof of the weights was made beside running episodes, after each update.
    assert all(record["canary_difference"] < 1e-4 for record in records)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.deterministic=true", "rollout.deterministic is true"),
        ("grpo.tis_cap=null", "nothing corrects"),
        ("training.dynamic_sampling=1", "begins no others"),
    ],
)
def test_settings_that_a_pipeline_cannot_keep_are_refused(
    override: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        _config(tmp_path, override)


@pytest.mark.parametrize(
    "override",
    [
        "rollout.deterministic=null",
        "finetune.mode=full",
        "model.dtype=bfloat16",  # adapters are computed beside such weights, not in a copy
    ],
)
def test_a_machine_or_model_that_a_pipeline_cannot_run_on_is_refused(override: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_staleness is 2") as caught:
        refuse_pipeline(_config(tmp_path, override), torch.device("cpu"), Processes())
    assert caught.value.remedy
