"""Does the environment tell right from wrong on a dataset, and do its servers keep episodes apart?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.resources import resource_path, resource_root
from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.metrics import CheckResult, CheckStatus
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.check import check_environment, check_signatures
from mcpagent.policy.contract import Policy
from mcpagent.policy.scripted import EmptyPolicy, GoldPolicy, OverEagerPolicy
from mcpagent.rollout.collector import attempts, collect
from mcpagent.rollout.setup import Tools, agent_settings, open_tools
from mcpagent.storage.jsonl import read_tasks
from mcpagent.synth.rules import generate_dataset
from mcpagent.synth.templates import load_templates
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.workflows.isolation import ServerIsolation, check_isolation
from mcpagent.workflows.stage import catalog_note, open_tasks

_SAMPLES = "data/samples"
_GENERATED = {"train": 12, "validation": 4, "heldout": 8}  # as many as the samples of the repository

_NO_TASKS = CheckResult(
    name="the environment tells right from wrong",
    status=CheckStatus.SKIP,
    detail="there are no tasks for these servers",
    remedy="mcpagent env check --servers FILE --data TASKS",
)


@dataclass(frozen=True, kw_only=True)
class EnvCheckOutcome:
    """`failing` has, for each task that breaks a claim, the names of the checks; `source` is None where no
    tasks were played; `tool_metrics` is what their calls came to, `cassette` what one did."""

    checks: tuple[CheckResult, ...]
    failing: dict[str, tuple[str, ...]]
    n_tasks: int
    source: str | None
    isolation: tuple[ServerIsolation, ...] = ()
    tool_metrics: PoolMetrics | None = None
    cassette: JsonObject | None = None

    @property
    def passed(self) -> bool:
        checks = (*self.checks, *(server.check for server in self.isolation))
        return all(check.status is not CheckStatus.FAIL for check in checks)

    def as_json(self) -> JsonObject:
        return {
            "passed": self.passed,
            "checks": [check.model_dump(mode="json") for check in self.checks],
            "failing_tasks": {task_id: list(names) for task_id, names in self.failing.items()},
            "n_tasks": self.n_tasks,
            "tasks_from": self.source,
            "isolation": [server.as_json() for server in self.isolation],
            "tool_metrics": None if self.tool_metrics is None else self.tool_metrics.model_dump(mode="json"),
            **({} if self.cassette is None else {"cassette": self.cassette}),
        }


def env_check(
    config: TrainConfig,
    *,
    data: Path | None = None,
    allow_writes: bool = False,
    console: Console | None = None,
) -> EnvCheckOutcome:
    """Check SkyRL's signatures, which isolation each server needs, and on every task that the gold plan
    scores 1.0, that silence fails where a call is due, and that calling fails where none is right.

    Without `data`: the sample tasks of the repository, or where mcpagent was installed without it, a few
    generated ones; none where the servers are the user's own. `allow_writes`: see `probe_isolation`. Raises
    UserError.
    """
    console = console or Console()
    given = _tasks_of(config, data) if data is not None else None
    # Where a cassette answers, the servers are not what episodes meet.
    isolation = (
        () if _plays_cassette(config) else check_isolation(config, allow_writes=allow_writes, console=console)
    )
    if given is None and config.tools.servers is not None:
        return EnvCheckOutcome(
            checks=(check_signatures(), _NO_TASKS), failing={}, n_tasks=0, source=None, isolation=isolation
        )
    with open_tools(config.tools, on_note=console.note) as tools:
        tasks, source = (given, str(data)) if given is not None else _sample_tasks(config, tools)
        note = catalog_note(tasks, tools.pool)
        if note is not None:
            console.note(note)
        abstaining = [task for task in tasks if task.truth.abstain]
        acting = [task for task in tasks if not task.truth.abstain]
        with console.progress("Episodes", total=2 * len(tasks) + len(abstaining)) as advance:

            def play(policy: Policy, chosen: Sequence[Task]) -> list[Trajectory]:
                return _play(policy, chosen, config=config, tools=tools, on_done=lambda _: advance())

            runs = {
                "gold": play(GoldPolicy(tasks), tasks),
                "empty": play(EmptyPolicy(), acting) + play(GoldPolicy(abstaining), abstaining),
                "over_eager": play(OverEagerPolicy(), abstaining),
            }
            tool_metrics, cassette = tools.pool.metrics(), tools.take_cassette_counts()
    return EnvCheckOutcome(
        checks=(check_signatures(), *check_environment(tasks, **runs)),
        failing=_failing(tasks, runs),
        n_tasks=len(tasks),
        source=source,
        isolation=isolation,
        tool_metrics=tool_metrics,
        cassette=cassette,
    )


def _plays_cassette(config: TrainConfig) -> bool:
    return config.tools.cassette is not None and config.tools.cassette_mode != "off"


def _tasks_of(config: TrainConfig, data: Path) -> list[Task]:
    with open_tasks(config, data) as tasks:
        return list(tasks)


def _sample_tasks(config: TrainConfig, tools: Tools) -> tuple[Sequence[Task], str]:
    """The tasks of the repository's samples, or a few generated ones; and where they are from."""
    files = sorted((resource_root() / _SAMPLES).glob("*.jsonl"))
    if files:
        tasks = [task for file in files for task in read_tasks(file)]
        return tasks[: config.data.max_tasks], _SAMPLES
    templates = load_templates(resource_path("templates/tasks"))
    data = tools.io.run(generate_dataset(tools.pool, templates, counts=_GENERATED, seed=config.seed))
    tasks = [task for split in data.tasks.values() for task in split]
    return tasks[: config.data.max_tasks], "generated"


def _play(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    config: TrainConfig,
    tools: Tools,
    on_done: Callable[[Trajectory], None],
) -> list[Trajectory]:
    return tools.io.run(
        collect(
            list(attempts(tasks, per_task=1, seed=config.seed, label="check")),
            policy=policy,
            tools=tools.pool,
            settings=agent_settings(config, max_context=None),
            concurrency=config.rollout.num_envs,
            deterministic=False,
            on_done=on_done,
        )
    )


def _failing(tasks: Sequence[Task], runs: dict[str, list[Trajectory]]) -> dict[str, tuple[str, ...]]:
    """Every check is a claim about each task, so the checks of one task alone say whether it breaks them."""
    by_task: dict[str, dict[str, list[Trajectory]]] = defaultdict(lambda: {name: [] for name in runs})
    for name, trajectories in runs.items():
        for trajectory in trajectories:
            by_task[trajectory.task_id][name].append(trajectory)
    failing: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        verdicts = check_environment([task], **by_task[task.id])
        broken = tuple(verdict.name for verdict in verdicts if verdict.status is CheckStatus.FAIL)
        if broken:
            failing[task.id] = broken
    return failing
