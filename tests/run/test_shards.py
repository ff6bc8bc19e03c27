"""Shards of a rollout: together the episodes of one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError
from mcpagent.run.rollout import collect_rollouts
from mcpagent.storage.trajectories import read_trajectories

DATA = Path(__file__).parents[2] / "data" / "samples" / "validation.jsonl"
SAMPLES = 2


def played(out: Path, shard: tuple[int, int]) -> Path:
    config = load_train_config([], [], for_training=False).config
    collect_rollouts(config, policy="gold", out=out, data=DATA, samples=SAMPLES, shard=shard)
    return out


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("shards")
    return [played(folder / f"part-{i}.jsonl.zst", (i, 3)) for i in (1, 2, 3)]


def test_the_shards_together_are_the_whole(parts: list[Path], tmp_path: Path) -> None:
    whole = {t.id: t for t in read_trajectories(played(tmp_path / "whole.jsonl", (1, 1)))}
    joined = tmp_path / "all.jsonl.zst"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    merged = list(read_trajectories(joined))
    assert {t.id for t in merged} == set(whole) and len(merged) == len(whole)
    for trajectory in merged:
        same = whole[trajectory.id]
        assert (trajectory.seed, trajectory.reward) == (same.seed, same.reward)
        assert [t.completion.text for t in trajectory.turns] == [t.completion.text for t in same.turns]


def test_more_shards_than_tasks_leave_one_without_a_task(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fewer than shards"):
        played(tmp_path / "part.jsonl", (999, 999))
