"""An evaluation that was killed, or whose servers failed, goes on where it was, to the same result."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.trajectory import StopReason
from mcpagent.storage.trajectories import read_trajectories, write_trajectories
from tests.run.world import SHORT, TRAIN
from tests.running import Command, mcpagent, wait_for

pytestmark = pytest.mark.system
TASKS, SAMPLES = 12, 4


@pytest.fixture(scope="module")
def command(tiny_checkpoint: Path) -> list[str]:
    """One episode at a time, so that an interruption finds some that ended and some that did not begin."""
    settings = (f"data.max_tasks={TASKS}", SHORT, "rollout.num_envs=1")
    return [
        *("eval", "checkpoint", str(tiny_checkpoint), "--data", str(TRAIN), "--samples", str(SAMPLES)),
        *(word for setting in settings for word in ("--set", setting)),
    ]


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The evaluation without an interruption."""
    out = tmp_path_factory.mktemp("whole") / "eval.json"
    done = mcpagent(*command, "--out", out)
    assert done.returncode == 0, done.stderr
    assert not out.with_suffix(".partial.jsonl").exists()
    return out


def test_an_evaluation_that_is_killed_and_resumed_is_that_without_a_kill(
    command: list[str], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "eval.json"
    partial = out.with_suffix(".partial.jsonl")
    with Command(*command, "--out", out, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: partial.exists() and partial.read_bytes().count(b"\n") >= 4, process)
        process.kill()
    kept = partial.read_bytes()
    assert 3 <= kept.count(b"\n") - 1 < TASKS * SAMPLES
    partial.write_bytes(kept + b'{"episode": {"id": "torn')
    refused = mcpagent(*command, "--out", out)
    assert (refused.returncode, "--resume" in refused.stderr) == (2, True), refused.stderr
    changed = mcpagent(*command, "--out", out, "--resume", "--temperature", "0.5")
    assert (changed.returncode, "the temperature" in changed.stderr) == (2, True), changed.stderr
    done = mcpagent(*command, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert not partial.exists()
    assert _document(out) == _document(whole)
    assert _episodes(out) == _episodes(whole)


def test_what_could_not_be_scored_is_played_again_and_nothing_else(
    command: list[str], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "eval.json"
    episodes = list(read_trajectories(whole.with_suffix(".jsonl.zst")))
    lost = [t.model_copy(update={"stop_reason": StopReason.FAILED, "reward_terms": ()}) for t in episodes[:2]]
    # What was scored is kept as it is: a mark on it is still there afterwards.
    marked = episodes[2].model_copy(update={"errors": ("kept",)})
    write_trajectories(tmp_path / "eval", [*lost, marked, *episodes[3:]])
    out.write_text(whole.read_text())
    done = mcpagent(*command, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert _document(out) == _document(whole)
    again = list(read_trajectories(out.with_suffix(".jsonl.zst")))
    assert again[2].errors == ("kept",)
    assert [t.is_success for t in again] == [t.is_success for t in episodes]
    assert [t.turns[0].completion.token_ids for t in again[:2]] == [
        t.turns[0].completion.token_ids for t in episodes[:2]
    ]


def test_there_must_be_something_to_go_on_with(command: list[str], tmp_path: Path) -> None:
    done = mcpagent(*command, "--out", tmp_path / "eval.json", "--resume")
    assert (done.returncode, "no evaluation to continue" in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def _document(path: Path) -> dict[str, Any]:
    """Without times, and without what the calls of the last process's servers came to."""
    document = json.loads(path.read_text())
    del document["tool_metrics"], document["breakdown"]["episode_latency"]
    del document["provenance"]["created_at"]
    return document


def _episodes(path: Path) -> list[Any]:
    return [
        [(turn.completion, turn.added_token_ids, turn.tool_calls) for turn in trajectory.turns]
        for trajectory in read_trajectories(path.with_suffix(".jsonl.zst"))
    ]
