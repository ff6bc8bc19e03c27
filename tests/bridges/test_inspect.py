"""Inspect evaluates models on our tasks, with our verdict, in an environment of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from mcpagent.bridges.host import open_host
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import ScriptedPolicy
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.storage.datasets import read_tasks
from tests.bridges.chat_model import chat_model
from tests.bridges.scripts import SCRIPTS, script

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("MCPAGENT_INSPECT_PYTHON", ROOT / ".venv-inspect" / "bin" / "python"))
pytestmark = [
    pytest.mark.registry,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not PYTHON.is_file(), reason=f"Inspect's environment is not there ({PYTHON}): make test-bridges"
    ),
]


def test_scores_in_inspect_are_the_rewards_of_the_same_episodes_in_mcpagent(
    bridge_data: Path, tmp_path: Path
) -> None:
    rewards = assert_scores_are_rewards(bridge_data, tmp_path)
    assert len(rewards) >= 1000 and rewards.count(None) >= 4 * 20


def test_scores_in_inspect_hold_for_a_server_that_others_wrote(time_data: Path, tmp_path: Path) -> None:
    rewards = assert_scores_are_rewards(time_data, tmp_path)
    assert len(rewards) == 80 and rewards.count(None) == 4 * 2 and rewards.count(1.0) == 18


def assert_scores_are_rewards(data: Path, folder: Path) -> list[float | None]:
    """Compare what Inspect gives the scripted policies with episodes that are played here."""
    done = subprocess.run(
        [PYTHON, ROOT / "tests/bridges/inspect_run.py", data, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    scores = json.loads((folder / "scores.json").read_text())
    with open_host(data) as host:
        tasks = list(host.tasks("train"))
        for name in SCRIPTS:
            played = host.tools.io.run(
                collect(
                    list(attempts(tasks, per_task=1, seed=0)),
                    policy=ScriptedPolicy(script(name, tasks)),
                    tools=host.tools.pool,
                    settings=AgentSettings(sampling=Sampling()),
                )
            )
            expected = {trajectory.task_id: trajectory for trajectory in played}
            assert {row["id"] for row in scores[name]} == expected.keys()
            for row in scores[name]:
                trajectory = expected[row["id"]]
                assert row.get("reward") == pytest.approx(trajectory.reward, abs=1e-9), row
                success = trajectory.is_success
                assert math.isnan(row["value"]) if success is None else row["value"] == float(success)
    return [row.get("reward") for rows in scores.values() for row in rows]


def inspect_eval(data: Path, logs: Path, *options: str) -> list[dict]:
    """Evaluate a model with the example, as the docs have it; the samples of Inspect's log."""
    command = [PYTHON.with_name("inspect"), "eval", "examples/bridges/inspect_eval.py", "-T", f"data={data}"]
    how = ("--display", "none", "--log-format", "json", "--log-dir", str(logs))
    done = subprocess.run([*command, *options, *how], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    (file,) = logs.glob("*.json")
    log = json.loads(file.read_text())
    assert log["status"] == "success"
    return log["samples"]


def test_the_example_evaluates_a_model_behind_an_api_on_the_tasks_of_a_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = list(read_tasks(ROOT / "data/samples/train.jsonl"))
    with chat_model(tasks) as url:
        monkeypatch.setenv("SCRIPTED_BASE_URL", url)
        monkeypatch.setenv("SCRIPTED_API_KEY", "unused")
        samples = inspect_eval(
            ROOT / "data/samples", tmp_path, "-T", "split=train", "--model", "openai-api/scripted/gold"
        )
    assert [sample["scores"]["verdict"]["value"] for sample in samples] == [1.0] * len(tasks)
