"""Resume: a run that was killed, wherever and however often, and continued equals the run that was not."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from mcpagent.config.environment import resource_path
from mcpagent.storage.checkpoints import damage
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import read_trajectories
from tests.running import Python

pytestmark = pytest.mark.system

STEPS = 5
EPISODES = 6 * STEPS
WRITES = 90  # about what a whole run opens, makes, renames and removes in its folder of checkpoints


class TrainingServer:
    """`training_server.py`, which forks the runs."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._process = Python(
            *("-m", "tests.train.training_server"),
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, folder: Path, *, keep: int | None = 2, **kill: float) -> int:
        """Run or, where there is something, resume; returns the exit code."""
        job = {
            "config": str(resource_path("configs/quickstart.yaml")),
            "overrides": [
                f"model.name={self._checkpoint}",
                f"data.train={resource_path('data/samples/train.jsonl')}",
                f"training.max_steps={STEPS}",
                "training.save_frequency=1",
                f"training.keep_checkpoints={'null' if keep is None else keep}",
                "training.batch_size=2",
                "rollout.group_size=3",
                "rollout.max_new_tokens=8",
                "lora.dropout=0.1",  # so that torch's own random state must be restored too
                "reward.control=random",  # so that weights move from the first step on
            ],
            "run": str(folder),
            "ledger": str(folder.with_suffix(".ledger")),
            "resume": (folder / "config.yaml").is_file(),
            **kill,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())["code"]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[TrainingServer]:
    server = TrainingServer(tiny_checkpoint)
    yield server
    server.close()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, server: TrainingServer) -> Path:
    """A run that nobody killed, with all of its checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert server.train(folder, keep=None) == 0
    assert len(RunFolder(folder).all_checkpoints()) == STEPS + 1
    return folder


def _metrics(folder: Path) -> list[dict[str, Any]]:
    """Everything but times and memory."""
    return [
        {k: v for k, v in record.items() if not k.endswith("_s") and k not in ("rss_mb", "tool_metrics")}
        for record in RunFolder.open(folder).metrics()
    ]


def _tokens(folder: Path, step: int) -> list[tuple[str, list[Any], list[Any], float | None]]:
    """Of a step's episodes; read back with the file's own checks."""
    path = RunFolder(folder).trajectory_stem(step).with_suffix(".jsonl.zst")
    return [
        (
            trajectory.id,
            [turn.completion.token_ids for turn in trajectory.turns],
            [turn.completion.logprobs for turn in trajectory.turns],
            trajectory.reward,
        )
        for trajectory in read_trajectories(path)
    ]


def _assert_same_until_now(broken: Path, whole: Path) -> int:
    """What a killed run would resume from equals the unbroken run up to there; returns that step."""
    checkpoints = RunFolder(broken).all_checkpoints()
    for checkpoint in checkpoints:
        assert damage(checkpoint) is None
        theirs = whole / "checkpoints" / checkpoint.name
        for name in (
            "adapter_model.safetensors",
            "trainer_state/optimizer.safetensors",
            "trainer_state/rng.safetensors",
        ):
            ours, wanted = load_file(checkpoint / name), load_file(theirs / name)
            assert ours.keys() == wanted.keys()
            wanted.pop("python", None)  # the pauses of retries draw from this one: it follows the clock
            assert all((ours[key] == wanted[key]).all() for key in wanted), (checkpoint.name, name)
    last = (step_of(checkpoints[-1]) or 0) if checkpoints else 0
    if (broken / "config.yaml").is_file():
        assert _metrics(broken)[:last] == _metrics(whole)[:last]
    for step in range(1, last + 1):
        assert _tokens(broken, step) == _tokens(whole, step)
    return last


def _assert_finished(broken: Path, whole: Path) -> None:
    assert _assert_same_until_now(broken, whole) == STEPS
    assert len(_metrics(broken)) == STEPS
    calls = sum(len(t.tool_results) for p in broken.glob("trajectories/*.zst") for t in read_trajectories(p))
    reached = broken.with_suffix(".ledger")
    assert calls == (len(reached.read_text().splitlines()) if reached.exists() else 0)
    left = [path.name for path in (broken / "checkpoints").iterdir()]
    assert sorted(left) == [f"step-{step:06d}" for step in (STEPS - 1, STEPS)]


def test_a_run_killed_in_a_write_in_an_episode_and_after_a_step_resumes_to_the_same_run(
    tmp_path: Path, server: TrainingServer, unbroken: Path
) -> None:
    folder = tmp_path / "broken"
    for kill in ({"kill_write": 20}, {"kill_episode": 9}, {"kill_step": 4}):
        assert server.train(folder, **kill) == -signal.SIGKILL
        assert _assert_same_until_now(folder, unbroken) < STEPS
    assert server.train(folder) == 0
    _assert_finished(folder, unbroken)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills_at_random_moments_change_nothing(
    tmp_path: Path, server: TrainingServer, unbroken: Path
) -> None:
    """Run after run is killed again and again until it is done: from outside at any time, within what is
    written to the folder of checkpoints, in episodes, after steps."""
    rng = random.Random(0)
    started = time.monotonic()
    assert server.train(tmp_path / "timed") == 0
    whole_s = time.monotonic() - started
    kills: dict[str, int] = {}
    finished = attempts = resumed_at = 0
    folder = tmp_path / "broken-0"
    while sum(kills.values()) < 50:
        attempts += 1
        assert attempts < 400, "the storm does not end"
        kind = rng.choice(("kill_after_s", "kill_write", "kill_episode", "kill_step"))
        moment: float = {
            "kill_after_s": rng.uniform(0.0, whole_s),
            "kill_write": rng.randrange(1, WRITES),
            "kill_episode": rng.randrange(1, EPISODES),
            "kill_step": rng.randrange(1, STEPS + 1),
        }[kind]
        code = server.train(folder, **{kind: moment})
        if code == -signal.SIGKILL:
            kills[kind] = kills.get(kind, 0) + 1
            reached = _assert_same_until_now(folder, unbroken)
            resumed_at = max(resumed_at, reached)
        else:
            assert code == 0
            _assert_finished(folder, unbroken)
            finished += 1
            folder = tmp_path / f"broken-{finished}"
    assert server.train(folder) == 0
    _assert_finished(folder, unbroken)
    print(f"{sum(kills.values())} kills ({kills}), {finished + 1} runs finished after them")
    assert min(kills.values()) >= 5 and resumed_at >= 3, kills


@pytest.mark.slow
def test_the_same_seed_twice_gives_the_same_run_in_another_process(
    tmp_path: Path, tiny_checkpoint: Path, unbroken: Path
) -> None:
    other = TrainingServer(tiny_checkpoint)  # with its own seed of string hashes
    try:
        assert other.train(tmp_path / "again") == 0
    finally:
        other.close()
    _assert_finished(tmp_path / "again", unbroken)
