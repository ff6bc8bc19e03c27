"""Whether the environment tells right from wrong on a dataset, and its servers keep episodes apart."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from mcpagent.checks import FAIL, PASS, SKIP, WARN, result
from mcpagent.config.environment import resource_path
from mcpagent.config.schema import TrainConfig
from mcpagent.config.source import set_option
from mcpagent.console import Console
from mcpagent.core.records import CheckResult, JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.policy.contract import Policy
from mcpagent.policy.scripted import GoldPolicy, ScriptedPolicy, over_eager
from mcpagent.reward.validate import task_problems
from mcpagent.rollout.collector import attempts, collect
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.episodes import check_catalog, open_tasks, some_of
from mcpagent.storage.datasets import DiskList, read_tasks, split_files
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.isolation import (
    IsolationVerdict,
    StartState,
    State,
    probe_isolation,
    probe_start,
)
from mcpagent.tools.servers_config import Isolation, ServerConfig
from mcpagent.tools.setup import configured_servers, open_tools

Claim = tuple[CheckResult, Collection[str]]  # a verdict, and the ids of the tasks that break it


def check_environment(
    tasks: Sequence[Task],
    *,
    gold: Sequence[Trajectory],
    empty: Sequence[Trajectory],
    over_eager: Sequence[Trajectory],
) -> list[Claim]:
    """Return one verdict for each claim, from at least one trajectory a task: `gold` of `GoldPolicy`, which
    abstains if that is right; `over_eager`, of these tasks only, of the policy of that name; `empty`, of the
    others, of one that says nothing."""
    every = [task.id for task in tasks]
    abstaining = [task.id for task in tasks if task.truth.is_refusal]
    acting = [task.id for task in tasks if not task.truth.is_refusal]
    eager = "an over-eager policy fails if no call is right"

    def is_perfect(t: Trajectory) -> bool:
        return t.reward is not None and math.isclose(t.reward, 1.0, abs_tol=1e-9)

    def failed(t: Trajectory) -> bool:
        return t.is_success is False

    return [
        _judgeable(tasks),
        _verdict("the gold plan scores 1.0", every, gold, is_perfect, policy="gold"),
        _verdict("an empty policy fails", acting, empty, failed, policy="empty"),
        _verdict("an abstention succeeds", abstaining, gold, lambda t: t.is_success is True, policy="gold"),
        _verdict(eager, abstaining, over_eager, failed, policy="over-eager"),
    ]


def _judgeable(tasks: Sequence[Task]) -> Claim:
    name = "every task can be judged"
    problems = {task.id: why for task in tasks if (why := task_problems(task))}
    if problems or not tasks:
        told = [f"{task_id}: {problem}" for task_id, why in problems.items() for problem in why]
        detail = some_of(told, "; ") or "there are no tasks"
        return result(name, FAIL, detail, "mcpagent data validate FILE"), problems
    return result(name, PASS, f"{len(tasks)} tasks"), ()


def _verdict(
    name: str,
    task_ids: Sequence[str],
    trajectories: Sequence[Trajectory],
    holds: Callable[[Trajectory], bool],
    *,
    policy: str,
) -> Claim:
    """Pass if `holds` for every trajectory of every one of the tasks; an unscored one proves nothing."""
    if not task_ids:
        return result(name, SKIP, "no task of this kind"), ()
    played = Counter(dict.fromkeys(task_ids, 0))
    wrong: list[tuple[str, str]] = []  # the ids of tasks, and what came of them
    unscored: list[tuple[str, str]] = []
    for trajectory in trajectories:
        if trajectory.task_id not in played:
            continue
        played[trajectory.task_id] += 1
        if trajectory.reward is None:
            unscored.append((trajectory.task_id, _described(trajectory)))
        elif not holds(trajectory):
            wrong.append((trajectory.task_id, _described(trajectory)))
    missing = [(task_id, f"{task_id}: not run") for task_id, count in played.items() if not count]
    bad = [*wrong, *unscored, *missing]
    if not bad:
        return result(name, PASS, f"{played.total()} episodes"), ()
    counts = f"{len(wrong)} of {played.total()} do not, {len(unscored)} unscored, {len(missing)} not run"
    remedy = f"mcpagent rollout --policy {policy} --data FILE --out FILE"
    told = some_of([text for _, text in bad], "; ")
    return result(name, FAIL, f"{counts}: {told}", remedy), {task_id for task_id, _ in bad}


def _described(trajectory: Trajectory) -> str:
    terms = ", ".join(
        f"{term.name}={term.value:g}" for term in trajectory.reward_terms if term.value is not None
    )
    why = "; ".join(trajectory.errors) or terms
    return f"{trajectory.task_id} ({trajectory.stop_reason}: {why})"


@dataclass(frozen=True, kw_only=True)
class ServerIsolation:
    """One server; `verdict` is None if it did not start."""

    check: CheckResult
    verdict: IsolationVerdict | None = None
    configured: Isolation | None = None

    def as_json(self) -> JsonObject:
        """Return the verdict on one server, as `env check --json` has it."""
        return {
            "check": self.check.model_dump(mode="json"),
            "configured": self.configured,
            **({} if self.verdict is None else self.verdict.model_dump(mode="json")),
        }


def check_isolation(
    config: TrainConfig, *, allow_writes: bool, console: Console
) -> tuple[ServerIsolation, ...]:
    """Probe every server of `config`, one after the other: `probe_start` if its state is brought back,
    else `probe_isolation`."""
    servers = configured_servers(config.tools, on_note=console.note)
    pool = ToolPool(servers, config.tools)  # never started: it says what is configured
    with console.progress("Isolation", total=len(servers)) as advance:

        async def probe_all() -> list[ServerIsolation]:
            isolations: list[ServerIsolation] = []
            for server in servers:
                isolations.append(
                    await _check(server, config, pool, allow_writes=allow_writes, on_note=console.note)
                )
                advance(note=server.name)
            return isolations

        return tuple(asyncio.run(probe_all()))


async def _check(
    server: ServerConfig,
    config: TrainConfig,
    pool: ToolPool,
    *,
    allow_writes: bool,
    on_note: Callable[[str], None],
) -> ServerIsolation:
    name = f"isolation of {server.name}"
    section, read_only = config.tools.per_server.get(server.name), config.tools.read_only
    try:
        if section is not None and (section.workspace is not None or section.reset is not None):
            name = f"state of {server.name}"
            state = await probe_start(server, section, read_only=read_only, on_note=on_note)
            return ServerIsolation(check=_same_start(name, state))
        verdict = await probe_isolation(
            server,
            allow=config.tools.allow_list,
            read_only=read_only,
            allow_writes=allow_writes,
            on_note=on_note,
        )
    except UserError as error:
        return ServerIsolation(check=result(name, FAIL, error.message, error.remedy))
    configured = pool.isolation(server.name)
    return ServerIsolation(
        check=_judge(name, verdict, configured),
        verdict=verdict,
        configured=configured,
    )


def _same_start(name: str, state: StartState) -> CheckResult:
    """Say whether the state of a server is the same at every start, and how long that takes."""
    took = f"{1000 * state.seconds:.1f} ms for each"
    if state.differs is not None:
        return result(name, FAIL, f"start {state.starts} differs from the first in {state.differs}; {took}")
    shared = [] if state.digest is None else [f"the same bytes (sha256 {state.digest[:12]})"]
    shared += [f"the same answers of {', '.join(state.reads)}"] if state.reads else []
    if not shared:
        detail = "no tool that only reads and needs no argument, and no workspace: nothing to compare"
        return result(name, WARN, detail)
    began = f"{state.starts} starts, each after writes, began with {' and '.join(shared)}"
    return result(name, PASS, f"{began}; {took}")


def _judge(name: str, verdict: IsolationVerdict, configured: Isolation) -> CheckResult:
    because = verdict.evidence[0]
    if verdict.state is State.OUTSIDE:
        remedy = (
            "give each episode a file or database of its own, or run one episode at a time, or leave "
            f"{', '.join(verdict.writes)} out of tools.allow_list"
        )
        return result(name, WARN, f"no isolation helps: {because}", remedy)
    if configured != verdict.recommended:
        detail = f"{configured} is configured, {verdict.recommended} is recommended: {because}"
        remedy = set_option("tools", "isolation", verdict.server, value=verdict.recommended)
        if verdict.state is State.UNKNOWN:
            remedy += ", or see what its tools do: mcpagent env check --servers FILE --allow-writes"
        return result(name, WARN, detail, remedy)
    return result(name, PASS, f"{configured}: {because}")


_SAMPLES = "data/samples"

_NO_TASKS = result(
    "the environment tells right from wrong",
    SKIP,
    "there are no tasks for these servers",
    "mcpagent env check --servers FILE --data TASKS",
)


@dataclass(frozen=True, kw_only=True)
class EnvCheckOutcome:
    """`failing` has, for each task that breaks a claim, the names of the checks; `source` is None if no
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
        """Return True if no check failed."""
        checks = (*self.checks, *(server.check for server in self.isolation))
        return all(check.status is not FAIL for check in checks)

    def as_json(self) -> JsonObject:
        """Return the document of `env check --json`."""
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
    """Check which isolation each server needs, and on every task that the gold plan scores 1.0, that silence
    fails if a call is due, and that calling fails if none is right.

    Without `data`: the sample tasks; none if the servers are the user's own. `allow_writes`: see
    `probe_isolation`. Raises UserError.
    """
    console = console or Console()
    with ExitStack() as stack:
        given = None
        if data is not None:
            files = split_files(data)
            opened = [
                stack.enter_context(open_tasks(config, file, on_note=console.note)) for file in files.values()
            ]
            given = opened[0] if len(opened) == 1 else DiskList(islice(chain(*opened), config.data.max_tasks))
        isolation: tuple[ServerIsolation, ...] = ()
        # If a cassette answers, the servers are not what episodes meet.
        if config.tools.cassette is None or config.tools.cassette_mode == "off":
            isolation = check_isolation(config, allow_writes=allow_writes, console=console)
        if given is None and config.tools.servers is not None:
            return EnvCheckOutcome(
                checks=(_NO_TASKS,), failing={}, n_tasks=0, source=None, isolation=isolation
            )
        tools = stack.enter_context(open_tools(config.tools, on_note=console.note))
        tasks, source = (given, str(data)) if given is not None else (_sample_tasks(config), _SAMPLES)
        check_catalog(tasks, tools.pool, on_change=config.tools.on_catalog_change, on_note=console.note)
        abstaining = DiskList(task for task in tasks if task.truth.is_refusal)
        acting = DiskList(task for task in tasks if not task.truth.is_refusal)
        with console.progress("Episodes", total=2 * len(tasks)) as advance:

            def play(policy: Policy, played: Sequence[Task]) -> Sequence[Trajectory]:
                return tools.io.run(
                    collect(
                        attempts(played, per_task=1, seed=config.seed, label="check"),
                        policy=policy,
                        tools=tools.pool,
                        settings=agent_settings(config, max_context=None),
                        concurrency=config.rollout.num_envs,
                        deterministic=False,
                        on_done=lambda _: advance(),
                    )
                )

            runs = {
                "gold": play(GoldPolicy(tasks), tasks),
                "empty": play(ScriptedPolicy(lambda _: ""), acting),
                "over_eager": play(ScriptedPolicy(over_eager), abstaining),
            }
            tool_metrics, cassette = tools.pool.metrics(), tools.take_cassette_counts()
        claims = check_environment(tasks, **runs)
        broken = ((task.id, tuple(c.name for c, ids in claims if task.id in ids)) for task in tasks)
        return EnvCheckOutcome(
            checks=tuple(check for check, _ in claims),
            failing={task_id: names for task_id, names in broken if names},
            n_tasks=len(tasks),
            source=source,
            isolation=isolation,
            tool_metrics=tool_metrics,
            cassette=cassette,
        )


def _sample_tasks(config: TrainConfig) -> Sequence[Task]:
    files = sorted(resource_path(_SAMPLES).glob("*.jsonl"))
    return [task for file in files for task in read_tasks(file)][: config.data.max_tasks]
