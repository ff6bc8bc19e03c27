"""Resume: a run that was killed and continued equals the run that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from mcpagent.config.resources import resource_path
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories

STEPS = 5
# A process that trains and, where it is told to, kills itself: at the end of a step, or at an episode's end
# in the middle of one. Nothing of the trainer knows about it.
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from mcpagent.config.loader import load_train_config
from mcpagent.workflows.train import Watch, train

job = json.loads(sys.argv[1])
config = load_train_config([job["config"]], job["overrides"]).config
episodes = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def on_step(record):
    if record["step"] == job["kill_step"]:
        die()

def on_episode(trajectory):
    global episodes
    episodes += 1
    if episodes == job["kill_episode"]:
        die()

train(config, run_dir=Path(job["run"]), resume=job["resume"], ledger=Path(job["ledger"]),
      watch=Watch(on_step=on_step, on_episode=on_episode))
"""


def _run(
    folder: Path, checkpoint: Path, *, resume: bool = False, kill_step: int = 0, kill_episode: int = 0
) -> int:
    job = {
        "config": str(resource_path("configs/quickstart.yaml")),
        "overrides": [
            f"model.name={checkpoint}",
            f"data.train={resource_path('data/samples/train.jsonl')}",
            f"training.max_steps={STEPS}",
            "training.save_frequency=2",
            "training.batch_size=2",
            "rollout.group_size=3",
            "rollout.max_new_tokens=12",
            "lora.dropout=0.1",  # so that torch's own random state must be restored too
            "reward.control=random",  # so that weights move from the first step on
        ],
        "run": str(folder),
        "ledger": str(folder.with_suffix(".ledger")),
        "resume": resume,
        "kill_step": kill_step,
        "kill_episode": kill_episode,
    }
    return subprocess.run([sys.executable, "-c", DRIVER, json.dumps(job)], check=False).returncode


def _metrics(folder: Path) -> list[dict[str, Any]]:
    """Everything but times and memory; what servers' calls came to is counted from their start on."""
    return [
        {k: v for k, v in record.items() if not k.endswith("_s") and k not in ("rss_mb", "tool_metrics")}
        for record in RunFolder.open(folder).metrics()
    ]


def _tokens(folder: Path) -> list[tuple[str, list[tuple[int, ...]], list[tuple[float, ...]]]]:
    return [
        (
            trajectory.id,
            [turn.completion.token_ids for turn in trajectory.turns],
            [turn.completion.logprobs for turn in trajectory.turns],
        )
        for path in sorted((folder / "trajectories").glob("step-*.jsonl.zst"))
        for trajectory in read_trajectories(path)
    ]


def _assert_same(broken: Path, whole: Path) -> None:
    assert _metrics(broken) == _metrics(whole)
    assert len(_metrics(whole)) == STEPS
    assert _tokens(broken) == _tokens(whole)
    last = f"checkpoints/step-{STEPS:06d}"
    for name in ("adapter_model.safetensors", "trainer_state/optimizer.safetensors"):
        ours, theirs = load_file(broken / last / name), load_file(whole / last / name)
        assert ours.keys() == theirs.keys()
        assert all((ours[key] == theirs[key]).all() for key in ours), name


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert _run(folder, tiny_checkpoint) == 0
    return folder


def _killed_and_resumed(tmp_path: Path, checkpoint: Path, **kill: int) -> Path:
    folder = tmp_path / "broken"
    assert _run(folder, checkpoint, **kill) == -signal.SIGKILL
    assert _run(folder, checkpoint, resume=True) == 0
    return folder


def test_a_run_killed_between_checkpoints_resumes_to_the_same_tokens_metrics_and_weights(
    tmp_path: Path, tiny_checkpoint: Path, unbroken: Path
) -> None:
    broken = _killed_and_resumed(tmp_path, tiny_checkpoint, kill_step=3)
    _assert_same(broken, unbroken)
    calls = sum(len(t.tool_results) for p in broken.glob("trajectories/*.zst") for t in read_trajectories(p))
    reached = broken.with_suffix(".ledger")
    assert calls == (len(reached.read_text().splitlines()) if reached.exists() else 0)


@pytest.mark.slow
def test_the_same_seed_twice_gives_the_same_run(
    tmp_path: Path, tiny_checkpoint: Path, unbroken: Path
) -> None:
    folder = tmp_path / "again"
    assert _run(folder, tiny_checkpoint) == 0
    _assert_same(folder, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_run_killed_at_any_step_resumes_to_the_same_run(
    step: int, tmp_path: Path, tiny_checkpoint: Path, unbroken: Path
) -> None:
    _assert_same(_killed_and_resumed(tmp_path, tiny_checkpoint, kill_step=step), unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("episode", [1, 8, 16, 27])
def test_a_run_killed_in_the_middle_of_a_step_resumes_to_the_same_run(
    episode: int, tmp_path: Path, tiny_checkpoint: Path, unbroken: Path
) -> None:
    _assert_same(_killed_and_resumed(tmp_path, tiny_checkpoint, kill_episode=episode), unbroken)
