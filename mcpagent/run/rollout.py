"""Collect trajectories with any policy, for analysis."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.report.episodes import NonceCount
from mcpagent.evaluate.summary import EvalSummary, summarise
from mcpagent.rollout.collector import attempts, collect_on_disk
from mcpagent.run.episodes import EpisodeSetup, open_episodes
from mcpagent.storage.datasets import TaskFile, write_jsonl
from mcpagent.storage.locks import locked_file
from mcpagent.storage.trajectories import (
    RECORDS_SUFFIXES,
    ById,
    read_trajectories,
    token_file,
    write_trajectories,
)
from mcpagent.tools.metrics import PoolMetrics


@dataclass(frozen=True, kw_only=True)
class RolloutOutcome:
    """What was collected and where it lies. `tokens` is None for a policy that works on text. `nonces` counts
    the results that servers gave, and those that carry the stamp of a built-in server. `tool_metrics` is what
    the calls came to, `cassette` what one did, where there was one."""

    path: Path
    tokens: Path | None
    summary: EvalSummary
    nonces: NonceCount
    provenance: JsonObject
    tool_metrics: PoolMetrics
    cassette: JsonObject | None = None

    def as_json(self) -> JsonObject:
        """The document of `rollout --json`."""
        summary = self.summary.model_dump(mode="json", exclude={"tasks"})
        return {
            "path": str(self.path),
            "tokens": None if self.tokens is None else str(self.tokens),
            **summary,
            "tool_calls": {
                "from_servers": self.nonces.results.total(),
                "with_nonce": self.nonces.stamped.total(),
                "by_server": dict(sorted(self.nonces.results.items())),
                "replayed": self.nonces.replayed.total(),
            },
            **({} if self.cassette is None else {"cassette": self.cassette}),
            "tool_metrics": self.tool_metrics.model_dump(mode="json"),
            "provenance": self.provenance,
        }


def rollout(
    config: TrainConfig,
    *,
    policy: str,
    out: Path,
    data: Path | None = None,
    samples: int = 1,
    shard: tuple[int, int] = (1, 1),
    console: Console | None = None,
) -> RolloutOutcome:
    """Play `samples` attempts at each task and write the trajectories to `out` and the tokens beside it; how
    they are sampled is the `rollout` section of `config`. `shard` (I, N) plays every N-th task from the I-th
    on: seeds come from task and attempt, so that all shards make the episodes of one run. Raises UserError;
    then nothing is written."""
    console = console or Console()
    check_trajectory_path(out)
    with locked_file(out):
        with open_episodes(
            config, policy=policy, samples=samples, console=console, data=data, shard=shard
        ) as setup:
            trajectories = play(setup, samples=samples, label="rollout", console=console)
            provenance = setup.provenance(samples=samples)
            tool_metrics, cassette = setup.tools.pool.metrics(), setup.tools.take_cassette_counts()
        path = write_trajectories(out, trajectories)
    return RolloutOutcome(
        path=path,
        tokens=tokens if (tokens := token_file(path)).exists() else None,
        summary=summarise(trajectories),
        nonces=count_nonces(trajectories),
        provenance=provenance,
        tool_metrics=tool_metrics,
        cassette=cassette,
    )


def merge_shards(parts: Sequence[Path], out: Path, *, data: Path, samples: int) -> EvalSummary:
    """Write the episodes of all `parts` to `out`, and sum them up: `samples` attempts at each task of `data`,
    each once. Raises UserError where one is doubled, lost or of no task; then nothing is written."""
    check_trajectory_path(out)
    with TaskFile(data) as tasks:
        planned = [f"{task.id}#{attempt}" for task in tasks for attempt in range(samples)]
    first: dict[str, Path] = {}
    trajectories = ById[Trajectory]()
    for part in parts:
        for trajectory in read_trajectories(part):
            if trajectory.id in first:
                raise UserError(
                    f"has episode {trajectory.id}, which {first[trajectory.id]} has too",
                    where=str(part),
                    remedy="name each shard once, and play each with its own --shard I/N",
                )
            first[trajectory.id] = part
            trajectories.add(trajectory)
    strange = sorted(first.keys() - set(planned))
    if strange:
        raise UserError(
            f"has episode {strange[0]}, which is none of {samples} attempts at the tasks of {data}",
            where=str(first[strange[0]]),
            remedy="give the --data and --samples that the shards were played with",
        )
    lost = [name for name in planned if name not in trajectories]
    if lost:
        raise UserError(
            f"{len(lost)} of {len(planned)} episodes are missing, such as {lost[0]}",
            where=str(data),
            remedy="name every shard, and play again those that did not end",
        )
    with locked_file(out):
        write_trajectories(out, (trajectories[name] for name in planned))
    return summarise(trajectories[name] for name in planned)


def play(setup: EpisodeSetup, *, samples: int, label: str, console: Console) -> Sequence[Trajectory]:
    """`samples` attempts at each task of the setup; `label` tells their random streams from others'."""
    with episode_progress(console, "Episodes", total=len(setup.tasks) * samples) as on_done:
        return setup.tools.io.run(
            collect_on_disk(
                attempts(setup.tasks, per_task=samples, seed=setup.config.seed, label=label),
                policy=setup.ready.policy,
                tools=setup.tools.pool,
                settings=setup.settings,
                renderer=setup.ready.renderer,
                concurrency=setup.concurrency,
                deterministic=setup.ready.is_deterministic,
                on_done=on_done,
            )
        )


def count_nonces(trajectories: Sequence[Trajectory]) -> NonceCount:
    """Results that came from servers, against results with a server's stamp."""
    count = NonceCount()
    for trajectory in trajectories:
        count.add(trajectory)
    return count


@contextmanager
def episode_progress(console: Console, title: str, *, total: int) -> Iterator[Callable[[Trajectory], None]]:
    """A bar over episodes that shows the share of successes so far; an unscored one is not a
    success, and is counted."""
    outcomes: Counter[bool | None] = Counter()
    with console.progress(title, total=total) as advance:

        def on_done(trajectory: Trajectory) -> None:
            outcomes[trajectory.is_success] += 1
            unscored = outcomes[None]
            success = outcomes[True] / outcomes.total()
            advance(note=f"success {success:.0%}" + (f", {unscored} unscored" if unscored else ""))

        yield on_done


def check_trajectory_path(out: Path) -> None:
    """Refuse, before any work is done, a path that trajectories cannot be written to. Raises UserError."""
    check_writable(out)
    if out.suffix and not out.name.endswith(RECORDS_SUFFIXES):
        raise UserError(
            f"trajectories are written as {', '.join(RECORDS_SUFFIXES)}",
            where=f"--out {out}",
            remedy=f"--out {out.with_suffix(RECORDS_SUFFIXES[0])}",
        )


def check_writable(out: Path) -> None:
    """Refuse a path that is a folder, or whose folder cannot be made. Raises UserError."""
    if out.is_dir():
        raise UserError(
            "is a folder", where=f"--out {out}", remedy=f"name a file in it: --out {out / 'NAME'}"
        )
    existing = next(folder for folder in out.absolute().parents if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        why = "may not be written to" if existing.is_dir() else "is a file, not a folder"
        raise UserError(f"{existing} {why}", where=f"--out {out}", remedy="name another place with --out")


def calibrate_file(
    path: Path, *, config: TrainConfig, policy: str, samples: int, console: Console
) -> JsonObject:
    """Play each task of `path` `samples` times and leave those that were solved sometimes but not always: the
    others give no gradient. Each record kept says in `extra_info.difficulty` how often it was solved.

    An attempt that could not be scored does not count; a task without a scored attempt is not kept."""
    with open_episodes(config, policy=policy, samples=samples, console=console, data=path) as setup:
        outcomes: defaultdict[str, list[bool]] = defaultdict(list)
        for trajectory in play(setup, samples=samples, label="calibrate", console=console):
            if trajectory.is_success is not None:
                outcomes[trajectory.task_id].append(trajectory.is_success)
        tasks = len(setup.tasks)
        kept = write_jsonl(
            path,
            (
                _with_difficulty(task, done, policy)
                for task in setup.tasks
                if 0 < sum(done := outcomes[task.id]) < len(done)
            ),
        )
    scored = [done for done in outcomes.values() if done]
    return {
        "path": str(path),
        "policy": policy,
        "samples": samples,
        "tasks": tasks,
        "kept": kept,
        "always": sum(all(done) for done in scored),
        "never": sum(not any(done) for done in scored),
        "unscored": tasks - len(scored),
    }


def _with_difficulty(task: Task, outcomes: list[bool], policy: str) -> Task:
    solved = sum(outcomes)
    difficulty = {
        "policy": policy,
        "successes": solved,
        "attempts": len(outcomes),
        "p": round(solved / len(outcomes), 4),
    }
    return task.model_copy(update={"extra_info": {**task.extra_info, "difficulty": difficulty}})
