"""Whether the environment tells right from wrong on a dataset, and its servers keep episodes apart."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mcpagent.config.environment import resource_path, resource_root
from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import CheckResult, CheckStatus, JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.policy.contract import Policy
from mcpagent.policy.scripted import EmptyPolicy, GoldPolicy, OverEagerPolicy
from mcpagent.reward.validate import task_problems
from mcpagent.rollout.collector import Player, attempts, collect_on_disk
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.episodes import catalog_note, open_tasks
from mcpagent.storage.datasets import DiskList, read_tasks
from mcpagent.storage.packages import pip_install
from mcpagent.synth.templates.rules import generate_dataset
from mcpagent.synth.templates.template import load_templates
from mcpagent.tools.limits import ServerLimits
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.isolation import Basis, IsolationVerdict, State, probe_isolation, probe_start
from mcpagent.tools.probes.processes import InstanceCost
from mcpagent.tools.servers_config import Isolation, ServerConfig
from mcpagent.tools.setup import Tools, configured_servers, open_tools, server_limits, tool_pool

_SHOWN = 5  # offenders named in one line


def check_environment(
    tasks: Sequence[Task],
    *,
    gold: Sequence[Trajectory],
    empty: Sequence[Trajectory],
    over_eager: Sequence[Trajectory],
) -> list[CheckResult]:
    """One verdict for each claim, from at least one trajectory a task: `gold` of `GoldPolicy`; `empty` of
    `EmptyPolicy`, but where the right answer is to abstain, of a policy that says so; `over_eager`, of those
    tasks only, of `OverEagerPolicy`."""
    abstaining = DiskList(task for task in tasks if task.truth.abstain)
    acting = DiskList(task for task in tasks if not task.truth.abstain)
    return [
        _judgeable(tasks),
        _verdict("the gold plan scores 1.0", tasks, gold, _is_perfect, policy="gold"),
        _verdict("an empty policy fails", acting, empty, _failed, policy="empty"),
        _verdict("an abstention succeeds", abstaining, empty, _succeeded, policy="gold"),
        _verdict(
            "an over-eager policy fails where no call is right",
            abstaining,
            over_eager,
            _failed,
            policy="over-eager",
        ),
    ]


def check_signatures() -> CheckResult:
    """Whether `MCPToolEnv` can be called as SkyRL calls a `BaseTextEnv`; skipped without skyrl_gym."""
    name = "MCPToolEnv has SkyRL's init and step"
    try:
        from skyrl_gym.envs.base_text_env import BaseTextEnv
    except ImportError:
        return CheckResult(
            name=name,
            status=CheckStatus.SKIP,
            detail="skyrl_gym is not installed",
            remedy=pip_install("mcpagent[gym]"),
        )
    from mcpagent.env.skyrl import MCPToolEnv

    differing = [
        method
        for method in ("init", "step", "close", "get_metrics")
        if _parameters(getattr(MCPToolEnv, method)) != _parameters(getattr(BaseTextEnv, method))
    ]
    if differing:
        detail = f"{', '.join(differing)} differ from BaseTextEnv's"
        return CheckResult(
            name=name, status=CheckStatus.FAIL, detail=detail, remedy="pip install 'skyrl-gym>=0.4,<0.5'"
        )
    return CheckResult(name=name, status=CheckStatus.PASS, detail="init, step, close, get_metrics agree")


def _parameters(method: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]


def _judgeable(tasks: Sequence[Task]) -> CheckResult:
    name = "every task can be judged"
    problems = [f"{task.id}: {problem}" for task in tasks for problem in task_problems(task)]
    if problems or not tasks:
        detail = _some(problems) or "there are no tasks"
        return CheckResult(
            name=name, status=CheckStatus.FAIL, detail=detail, remedy="mcpagent data validate FILE"
        )
    return CheckResult(name=name, status=CheckStatus.PASS, detail=f"{len(tasks)} tasks")


def _verdict(
    name: str,
    tasks: Sequence[Task],
    trajectories: Sequence[Trajectory],
    holds: Callable[[Trajectory], bool],
    *,
    policy: str,
) -> CheckResult:
    """Pass if `holds` for every trajectory of every one of `tasks`; an unscored one proves nothing."""
    if not tasks:
        return CheckResult(name=name, status=CheckStatus.SKIP, detail="no task of this kind")
    played: Counter[str] = Counter()
    bad: defaultdict[str, list[tuple[bool, str]]] = defaultdict(list)
    for trajectory in trajectories:
        played[trajectory.task_id] += 1
        if trajectory.reward is None or not holds(trajectory):
            bad[trajectory.task_id].append((trajectory.reward is None, _described(trajectory)))
    names = [task.id for task in tasks]
    missing = [f"{name}: not run" for name in names if name not in played]
    mine = sum(played[name] for name in names)
    unscored = [text for name in names for is_unscored, text in bad.get(name, ()) if is_unscored]
    wrong = [text for name in names for is_unscored, text in bad.get(name, ()) if not is_unscored]
    if wrong or unscored or missing:
        counts = f"{len(wrong)} of {mine} do not, {len(unscored)} unscored, {len(missing)} not run"
        return CheckResult(
            name=name,
            status=CheckStatus.FAIL,
            detail=f"{counts}: {_some([*wrong, *unscored, *missing])}",
            remedy=f"mcpagent rollout --policy {policy} --data FILE --out FILE",
        )
    return CheckResult(name=name, status=CheckStatus.PASS, detail=f"{mine} episodes")


def _is_perfect(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and math.isclose(trajectory.reward, 1.0, abs_tol=1e-9)


def _succeeded(trajectory: Trajectory) -> bool:
    return trajectory.is_success is True


def _failed(trajectory: Trajectory) -> bool:
    return trajectory.is_success is False


def _described(trajectory: Trajectory) -> str:
    terms = ", ".join(
        f"{term.name}={term.value:g}" for term in trajectory.reward_terms if term.value is not None
    )
    why = "; ".join(trajectory.errors) or terms
    return f"{trajectory.task_id} ({trajectory.stop_reason}: {why})"


def _some(lines: Sequence[str]) -> str:
    rest = len(lines) - _SHOWN
    return "; ".join(lines[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, kw_only=True)
class ServerIsolation:
    """One server; `verdict` is None where it did not start."""

    check: CheckResult
    verdict: IsolationVerdict | None = None
    configured: Isolation | None = None
    forecast: str = ""

    def as_json(self) -> JsonObject:
        """The verdict on one server, as `env check --json` has it."""
        return {
            "check": self.check.model_dump(mode="json"),
            "configured": self.configured,
            "forecast": self.forecast,
            **({} if self.verdict is None else self.verdict.model_dump(mode="json")),
        }


def check_isolation(
    config: TrainConfig, *, allow_writes: bool = False, console: Console | None = None
) -> tuple[ServerIsolation, ...]:
    """Probe every server of `config`, one after the other: `probe_start` where its state is brought back,
    else `probe_isolation`."""
    console = console or Console()
    servers = configured_servers(config.tools, on_note=console.note)
    pool = tool_pool(config.tools, servers)  # never started: it says what is configured
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


def instance_forecast(cost: InstanceCost, *, episodes: int) -> str:
    """What an instance for each of `episodes` would take."""
    if cost.rss_bytes is None or cost.cpu_s is None:
        return f"{1000 * cost.start_s:.1f} ms an episode"
    total, each = cost.rss_bytes * episodes, cost.rss_bytes
    return (
        f"{episodes} x {each / 1e6:.0f} MB = {total / 1e9:.1f} GB, "
        f"{episodes} x {cost.cpu_s:.1f} CPU s = {episodes * cost.cpu_s:.0f} CPU s of starts"
    )


async def _check(
    server: ServerConfig,
    config: TrainConfig,
    pool: ToolPool,
    *,
    allow_writes: bool,
    on_note: Callable[[str], None],
) -> ServerIsolation:
    name = f"isolation of {server.name}"
    section = config.tools.per_server.get(server.name)
    if section is not None and (section.workspace is not None or section.reset is not None):
        return ServerIsolation(check=await _check_start(server, server_limits(section), on_note=on_note))
    try:
        verdict = await probe_isolation(
            server, allow=config.tools.allow_list, allow_writes=allow_writes, on_note=on_note
        )
    except UserError as error:
        failed = CheckResult(name=name, status=CheckStatus.FAIL, detail=error.message, remedy=error.remedy)
        return ServerIsolation(check=failed)
    configured = pool.isolation(server.name)
    episodes = config.rollout.num_envs
    return ServerIsolation(
        check=_judge(name, verdict, configured, episodes=episodes),
        verdict=verdict,
        configured=configured,
        forecast=instance_forecast(verdict.cost, episodes=episodes),
    )


async def _check_start(
    server: ServerConfig, limits: ServerLimits, *, on_note: Callable[[str], None]
) -> CheckResult:
    """Whether the state of a server is the same at every start, and how long that takes."""
    name = f"state of {server.name}"
    try:
        state = await probe_start(server, limits, on_note=on_note)
    except UserError as error:
        return CheckResult(name=name, status=CheckStatus.FAIL, detail=error.message, remedy=error.remedy)
    took = f"{1000 * state.seconds:.1f} ms for each"
    if state.differs is not None:
        detail = f"start {state.starts} differs from the first in {state.differs}; {took}"
        return CheckResult(name=name, status=CheckStatus.FAIL, detail=detail)
    shared = [] if state.digest is None else [f"the same bytes (sha256 {state.digest[:12]})"]
    shared += [f"the same answers of {', '.join(state.reads)}"] if state.reads else []
    if not shared:
        detail = "no tool that only reads and needs no argument, and no workspace: nothing to compare"
        return CheckResult(name=name, status=CheckStatus.WARN, detail=detail)
    detail = f"{state.starts} starts, each after writes, began with {' and '.join(shared)}; {took}"
    return CheckResult(name=name, status=CheckStatus.PASS, detail=detail)


def _judge(name: str, verdict: IsolationVerdict, configured: Isolation, *, episodes: int) -> CheckResult:
    because = _because(verdict)
    if verdict.state is State.OUTSIDE:
        return CheckResult(
            name=name,
            status=CheckStatus.WARN,
            detail=f"no isolation helps: {because}",
            remedy=f"give each episode a file or database of its own, or run one episode at a time, or leave "
            f"{', '.join(verdict.writes)} out of tools.allow_list",
        )
    if configured != verdict.recommended:
        return CheckResult(
            name=name,
            status=CheckStatus.WARN,
            detail=f"{configured} is configured, {verdict.recommended} is recommended: {because}",
            remedy=f"--set tools.isolation.{verdict.server}={verdict.recommended}{_or_look(verdict)}",
        )
    if configured == "episode" and (short := _shortage(verdict.cost, episodes=episodes)) is not None:
        return CheckResult(
            name=name,
            status=CheckStatus.WARN,
            detail=f"{short}: {because}",
            remedy="--set rollout.num_envs=N",
        )
    return CheckResult(name=name, status=CheckStatus.PASS, detail=f"{configured}: {because}")


def _because(verdict: IsolationVerdict) -> str:
    match verdict.basis:
        case Basis.OBSERVED:
            return verdict.evidence[0]
        case Basis.DECLARED if verdict.state is State.NONE:
            return "it declares all its tools read-only"
        case Basis.DECLARED:
            return "it declares tools that write and were not tried, or refused the probe"
        case Basis.NAMES:
            return "a hint from the names of its tools alone, which have no annotations and were not called"


def _or_look(verdict: IsolationVerdict) -> str:
    if verdict.basis is Basis.OBSERVED:
        return ""
    return ", or see what its tools do: mcpagent env check --servers FILE --allow-writes"


def _shortage(cost: InstanceCost, *, episodes: int) -> str | None:
    """Where the instances would not fit into this machine's memory."""
    if cost.rss_bytes is None or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    need_bytes = cost.rss_bytes * episodes
    if need_bytes <= memory:
        return None
    return f"{episodes} instances need {need_bytes / 1e9:.1f} GB, and this machine has {memory / 1e9:.1f} GB"


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
        """Whether no check failed."""
        checks = (*self.checks, *(server.check for server in self.isolation))
        return all(check.status is not CheckStatus.FAIL for check in checks)

    def as_json(self) -> JsonObject:
        """The document of `env check --json`."""
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
    open_player: Callable[[TrainConfig], AbstractContextManager[Player]] | None = None,
    console: Console | None = None,
) -> EnvCheckOutcome:
    """Check SkyRL's signatures, which isolation each server needs, and on every task that the gold plan
    scores 1.0, that silence fails where a call is due, and that calling fails where none is right.

    Without `data`: the sample tasks of the repository, or where mcpagent was installed without it, a few
    generated ones; none where the servers are the user's own. `allow_writes`: see `probe_isolation`.
    `open_player` gives what plays the episodes in place of mcpagent's own rollout. Raises UserError.
    """
    console = console or Console()
    with ExitStack() as stack:
        given = stack.enter_context(open_tasks(config, data)) if data is not None else None
        # Where a cassette answers, the servers are not what episodes meet.
        isolation: tuple[ServerIsolation, ...] = ()
        if not _plays_cassette(config):
            isolation = check_isolation(config, allow_writes=allow_writes, console=console)
        if given is None and config.tools.servers is not None:
            return EnvCheckOutcome(
                checks=(check_signatures(), _NO_TASKS),
                failing={},
                n_tasks=0,
                source=None,
                isolation=isolation,
            )
        player = None if open_player is None else stack.enter_context(open_player(config))
        tools = (
            player.tools if player else stack.enter_context(open_tools(config.tools, on_note=console.note))
        )
        tasks, source = (given, str(data)) if given is not None else _sample_tasks(config, tools)
        note = catalog_note(tasks, tools.pool)
        if note is not None:
            console.note(note)
        abstaining = DiskList(task for task in tasks if task.truth.abstain)
        acting = DiskList(task for task in tasks if not task.truth.abstain)
        with console.progress("Episodes", total=2 * len(tasks) + len(abstaining)) as advance:

            def play(policy: Policy, played: Sequence[Task]) -> Sequence[Trajectory]:
                if player is not None:
                    return player.play(policy, played, on_done=lambda _: advance())
                return _play(policy, played, config=config, tools=tools, on_done=lambda _: advance())

            runs = {
                "gold": play(GoldPolicy(tasks), tasks),
                "empty": DiskList(
                    chain(play(EmptyPolicy(), acting), play(GoldPolicy(abstaining), abstaining))
                ),
                "over_eager": play(OverEagerPolicy(), abstaining),
            }
            tool_metrics, cassette = tools.pool.metrics(), tools.take_cassette_counts()
        return EnvCheckOutcome(
            checks=(
                check_signatures(),
                *check_environment(tasks, **runs),
                *(() if player is None else player.checks()),
            ),
            failing=_failing(tasks, runs),
            n_tasks=len(tasks),
            source=source,
            isolation=isolation,
            tool_metrics=tool_metrics,
            cassette=cassette,
        )


def _plays_cassette(config: TrainConfig) -> bool:
    return config.tools.cassette is not None and config.tools.cassette_mode != "off"


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
) -> DiskList[Trajectory]:
    return tools.io.run(
        collect_on_disk(
            attempts(tasks, per_task=1, seed=config.seed, label="check"),
            policy=policy,
            tools=tools.pool,
            settings=agent_settings(config, max_context=None),
            concurrency=config.rollout.num_envs,
            deterministic=False,
            on_done=on_done,
        )
    )


def _failing(tasks: Sequence[Task], runs: Mapping[str, Sequence[Trajectory]]) -> dict[str, tuple[str, ...]]:
    """Every check is a claim about each task, so the checks of one task alone say whether it breaks them."""
    places: dict[str, defaultdict[str, array[int]]] = {}
    for name, trajectories in runs.items():
        places[name] = defaultdict(lambda: array("q"))
        for place, trajectory in enumerate(trajectories):
            places[name][trajectory.task_id].append(place)
    failing: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        mine = {
            name: [trajectories[place] for place in places[name].get(task.id, ())]
            for name, trajectories in runs.items()
        }
        verdicts = check_environment([task], **mine)
        broken = tuple(verdict.name for verdict in verdicts if verdict.status is CheckStatus.FAIL)
        if broken:
            failing[task.id] = broken
    return failing
