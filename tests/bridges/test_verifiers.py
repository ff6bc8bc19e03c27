"""vf-eval of verifiers v1 plays our episodes over HTTP, from an environment of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from mcpagent.reward.terms import DEFAULT_REWARD, regraded
from tests.bridges.chat_model import chat_model
from tests.bridges.ors_client import served
from tests.bridges.scripts import SCRIPTS

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("MCPAGENT_VERIFIERS_BIN", ROOT / ".venv-verifiers" / "bin"))
pytestmark = [
    pytest.mark.registry,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (BIN / "vf-eval").is_file(), reason=f"verifiers is not installed in {BIN}: make test-bridges"
    ),
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_rewards_in_verifiers_are_those_of_the_episodes(name: str, bridge_data: Path, tmp_path: Path) -> None:
    rewards = assert_rewards_of_episodes(bridge_data, tmp_path, name, "--env.agent.harness.id", "in_process")
    assert len(rewards) >= 250 and rewards.count(None) >= 20


def test_rewards_in_verifiers_hold_for_a_server_that_others_wrote(time_data: Path, tmp_path: Path) -> None:
    rewards = assert_rewards_of_episodes(time_data, tmp_path, "gold", "--env.agent.harness.id", "in_process")
    assert rewards.count(None) == 2 and rewards.count(1.0) == 18


def test_vf_eval_plays_episodes_as_the_docs_have_it(bridge_data: Path, tmp_path: Path) -> None:
    (command,) = re.findall(
        r"^PYTHONPATH=.* vf-eval .*$", (ROOT / "docs/bridges.md").read_text(), re.MULTILINE
    )
    assert f"# {command}\n" in (ROOT / "examples/bridges/verifiers.toml").read_text()
    for name in ("mcpagent_tasks.py", "verifiers.toml"):
        shutil.copy(ROOT / "examples/bridges" / name, tmp_path)
    command = command.replace(" -m MODEL", "")
    rewards = assert_rewards_of_episodes(bridge_data, tmp_path, "gold", "-n", "12", command=command)
    assert rewards.count(1.0) >= 9 and rewards.count(None) >= 1


_IN_THE_REPOSITORY = f"vf-eval @ {ROOT / 'examples/bridges/verifiers.toml'}"


def assert_rewards_of_episodes(
    data: Path, folder: Path, name: str, *options: str, command: str = _IN_THE_REPOSITORY
) -> list[float | None]:
    """Compare the rewards in vf-eval's traces with those of grading the recorded episodes again."""
    with served(data) as server, chat_model(list(server.host.tasks("train"))) as model_url:
        more = [
            *(*options, "-m", name.replace(" ", "-"), "--client.base-url", model_url),
            *("--env.taskset.task.url", server.url, "--env.taskset.split", "train"),
            *("--no-rich", "--clean", "-o", str(folder), "-c", "8"),
        ]
        done = subprocess.run(
            f"{command} {shlex.join(more)}",
            shell=True,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'examples/bridges'}:{Path(__file__).parent}",
                "PRIME_API_KEY": "unused",
                "PATH": f"{BIN}:{os.environ['PATH']}",
            },
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        tasks = {task.id: task for task in server.host.tasks("train")}
        expected = {
            trajectory.task_id: regraded(tasks[trajectory.task_id], trajectory, DEFAULT_REWARD).reward
            for trajectory in server.graded.values()
        }
    (file,) = folder.glob("*/traces.jsonl")
    traces = [json.loads(line)["traces"][0] for line in file.read_text().splitlines()]
    rewards = {trace["task"]["data"]["name"]: _reward(trace) for trace in traces}
    graded = {name: rewards[name] for name in expected}
    assert graded == {name: pytest.approx(reward, abs=1e-9) for name, reward in expected.items()}
    # A rollout that verifiers gave up before it had an episode, as after 60 s, is an error without a reward.
    assert all(rewards[name] is None for name in rewards.keys() - expected.keys())
    return list(graded.values())


def _reward(trace: dict) -> float | None:
    return None if trace["errors"] else trace["rewards"]["mcpagent"]["score"]
