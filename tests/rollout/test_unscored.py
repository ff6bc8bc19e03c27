"""Episodes that drop out raise no number: real policies, and a real server that dies under some of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mcpagent.core.records import Metric
from mcpagent.core.trajectory import Completion
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.run.evaluate import read_evaluation
from mcpagent.storage.trajectories import read_trajectories, write_trajectories
from mcpagent.tools.io_thread import IOThread
from mcpagent.tools.pool import ToolPool
from mcpagent.train.grpo import episode_metrics
from mcpagent.train.health import HealthMonitor
from tests.env.world import make_task
from tests.run.world import with_id
from tests.running import mcpagent
from tests.tools.wild import stdio_poison

pytestmark = pytest.mark.system

COUNT = 12
SERVER = replace(stdio_poison(), name="echo", isolation="episode")
TASKS = [
    with_id(
        make_task(
            tool_sequence=[{"step": 1, "server": "echo", "tool": "echo", "params": {"text": f"word {i}"}}],
            tools=["echo.echo", "echo.misbehave"],
        ),
        f"t{i:02d}",
    )
    for i in range(COUNT)
]


class Acts:
    """Makes the call that it is given for a task, then answers."""

    def __init__(self, calls: Mapping[str, str]) -> None:
        self._calls = calls

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        return [
            Completion(text=self._calls[r.episode_id.partition("#")[0]] if len(r.messages) == 2 else "Done.")
            for r in requests
        ]

    async def release(self, episode_id: str) -> None:
        pass


def policy(*, right: Collection[int], deadly: Collection[int]) -> Acts:
    def call(name: str, **arguments: str) -> str:
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    return Acts(
        {
            task.id: call("echo", text=f"word {i}")
            if i in right
            else call("misbehave", kind="exit")
            if i in deadly
            else call("echo", text="wrong")
            for i, task in enumerate(TASKS)
        }
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two policies that are right on half of the tasks; the second one's failures kill the server, mostly."""
    folder = tmp_path_factory.mktemp("played")
    found: list[Path] = []
    for name, deadly in (("honest", ()), ("deadly", range(6, 11))):
        with IOThread() as io:

            async def play(acting: Acts) -> list:  # type: ignore[type-arg]
                async with ToolPool([SERVER]) as pool:
                    settings = AgentSettings(sampling=Sampling(max_new_tokens=16))
                    planned = attempts(TASKS, per_task=1, seed=0, label="evaluation")
                    return await collect(planned, policy=acting, tools=pool, settings=settings)

            episodes = io.run(play(policy(right=range(6), deadly=deadly)))
        found.append(write_trajectories(folder / name, episodes))
    return found[0], found[1]


def test_the_policy_whose_failures_kill_the_server_is_not_called_better(played: tuple[Path, Path]) -> None:
    done = mcpagent("eval", "compare", *played[::-1], "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "no verdict" and "5 of the 12 episodes" in found["why_no_verdict"]
    assert found["difference"]["value"] == 0.0
    shown = mcpagent("eval", "compare", *played).stdout
    assert "a 0 of 12 episodes, b 5 of 12 episodes" in shown and "no verdict: " in shown
    assert "is better" not in shown


def test_a_step_of_training_says_both_numbers_and_its_health_sees_the_lower_one(
    played: tuple[Path, Path],
) -> None:
    record = episode_metrics(list(read_trajectories(played[1], with_tokens=False)))
    assert (record["episodes"], record["unscored"]) == (COUNT, 5)
    assert record["success_rate"] == pytest.approx(6 / 7)
    assert record["success_rate_all"] == 0.5
    notes: list[str] = []
    health = HealthMonitor({"success_fall": 0.5}, note=notes.append)
    well = {"success_rate": 0.8, "success_rate_all": 0.8}
    health.replay([{"step": i, **well} for i in range(4)])
    health._assess({"step": 4, "success_rate": 0.9, "success_rate_all": 0.1}, notes.append)
    assert len(notes) == 1 and "success is lost" in notes[0]


def test_every_metric_of_the_deadly_policy_has_its_count(played: tuple[Path, Path]) -> None:
    summary = read_evaluation(played[1])
    assert (summary.unscored, summary.n_episodes) == (5, COUNT)
    low = summary.metrics["task_success"]
    assert isinstance(low, Metric) and (low.value, low.n) == (0.5, COUNT)
    assert summary.metrics["task_success_scored"].value == pytest.approx(6 / 7)
