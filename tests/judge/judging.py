"""A judge behind the loopback service: it reads what it is asked as a model would, and knows the truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpagent.config.schema import TrainConfig
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.run.rollout import collect_rollouts
from mcpagent.storage.trajectories import read_trajectories
from tests.llm.service import Received, Service, says, service
from tests.run.world import config


@dataclass(frozen=True)
class Asked:
    """`data` is the episode that stands between the lines with the `mark`."""

    mark: str
    data: dict[str, Any]

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]]) -> Asked:
        first, *lines = str(messages[1]["content"]).split("\n")
        mark = first.removeprefix("BEGIN ")
        return cls(mark, json.loads("\n".join(lines[: lines.index(f"END {mark}")])))

    def answer(self, fulfilled: bool) -> str:
        return json.dumps({"mark": self.mark, "reason": "so it is", "fulfilled": fulfilled})


Truth = Callable[[dict[str, Any]], bool]


@contextmanager
def judging(truth: Truth = lambda data: True) -> Iterator[Service]:
    """A judge that fulfils `truth` of the quoted episode."""

    def script(received: Received) -> Any:
        asked = Asked.of(received.messages)
        return says(received, asked.answer(truth(asked.data)))

    with service(script) as running:
        yield running


def judged(task: Task, method: str = "rule+judge") -> Task:
    """The task with its answer left to a judge."""
    spec = task.reward_spec
    truth = spec.ground_truth.model_copy(
        update={"final_answer": None, "judge_rubric": "The answer is what the tools say."}
    )
    return task.model_copy(
        update={"reward_spec": spec.model_copy(update={"method": method, "ground_truth": truth})}
    )


def with_judge(running: Service, *overrides: str) -> TrainConfig:
    return config("judge.model=scripted", f"judge.base_url={running.url}", "api.attempts=1", *overrides)


def played(chosen: TrainConfig, data: Path, name: str = "all.jsonl") -> list[Trajectory]:
    """The episodes of the gold plans, in a file of the working directory."""
    return list(read_trajectories(collect_rollouts(chosen, policy="gold", out=Path(name), data=data).path))
