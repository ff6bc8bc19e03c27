"""TRL's GRPOTrainer plays our episodes: its tokens, mask, logprobs and rewards are those of the episodes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.bridges.conftest import bridge_data as bridge_data
from tests.bridges.conftest import environment as environment
from tests.bridges.conftest import installed as installed
from tests.bridges.conftest import time_data as time_data
from tests.trl.test_equality import PYTHON, ROOT

_NEEDS = "import mcp, openai, trl"
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not PYTHON.is_file() or subprocess.run([PYTHON, "-c", _NEEDS], capture_output=True).returncode != 0,
        reason=f"TRL and mcpagent are not installed in one environment ({PYTHON}): make test-trl",
    ),
    pytest.mark.timeout(900),
]


def test_three_steps_of_grpo_trainer_train_on_episodes_with_their_rewards(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [PYTHON, ROOT / "tests/trl/bridge_run.py", tiny_checkpoint, ROOT / "data/samples", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "seen.json").read_text())
    episodes = result["episodes"]
    assert len(episodes) == 3 * 8 and result["moved"]
    for episode in episodes:
        assert 0 < episode["sampled"] <= episode["tokens"]
        assert episode["off"] < 1e-4  # nats, between our sampler and the model that TRL trains
    assert result["rewards"] == [episode["reward"] for episode in episodes]


def test_a_thousand_scripted_episodes_have_their_rewards_and_masks_in_trl(
    tiny_checkpoint: Path, bridge_data: Path, tmp_path: Path
) -> None:
    rewards = assert_rows_are_episodes(tiny_checkpoint, bridge_data, tmp_path)
    assert len(rewards) >= 1000 and rewards.count(None) >= 4 * 20


@pytest.mark.registry
def test_rewards_and_masks_in_trl_hold_for_a_server_that_others_wrote(
    tiny_checkpoint: Path, time_data: Path, tmp_path: Path
) -> None:
    rewards = assert_rows_are_episodes(tiny_checkpoint, time_data, tmp_path)
    assert len(rewards) == 80 and rewards.count(None) == 4 * 2 and rewards.count(1.0) == 18


def assert_rows_are_episodes(model: Path, data: Path, folder: Path) -> list[float | None]:
    """Compare what TRL gets of the scripted policies with episodes that are played without it."""
    done = subprocess.run(
        [PYTHON, ROOT / "tests/trl/bridge_rows.py", model, data, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [row for rows in json.loads((folder / "rows.json").read_text()).values() for row in rows]
    for row in rows:
        expected = row["expected"]
        assert row["reward"] == (None if expected is None else pytest.approx(expected, abs=1e-9))
        assert row["sampled"] == ([] if expected is None else row["wrote"])
    return [row["reward"] for row in rows]
