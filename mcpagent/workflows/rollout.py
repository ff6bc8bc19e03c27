"""Collect trajectories with any policy, for analysis."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.report_run import NonceCount
from mcpagent.evaluate.summary import EvalSummary, summarise
from mcpagent.rollout.collector import attempts, collect
from mcpagent.storage.locks import locked_file
from mcpagent.storage.trajectories import RECORDS_SUFFIXES, token_file, write_trajectories
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.workflows.stage import Stage, open_stage


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
    console: Console | None = None,
) -> RolloutOutcome:
    """Play `samples` attempts at each task and write the trajectories to `out` and the tokens beside it; how
    they are sampled is the `rollout` section of `config`. Raises UserError; then nothing is written."""
    console = console or Console()
    check_trajectory_path(out)
    with locked_file(out):
        with open_stage(config, policy=policy, samples=samples, console=console, data=data) as stage:
            trajectories = play(stage, samples=samples, label="rollout", console=console)
            provenance = stage.provenance(samples=samples)
            tool_metrics, cassette = stage.tools.pool.metrics(), stage.tools.take_cassette_counts()
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


def play(stage: Stage, *, samples: int, label: str, console: Console) -> list[Trajectory]:
    """`samples` attempts at each task of the stage; `label` tells their random streams from others'."""
    wanted = list(attempts(stage.tasks, per_task=samples, seed=stage.config.seed, label=label))
    with episode_progress(console, "Episodes", total=len(wanted)) as on_done:
        return stage.tools.io.run(
            collect(
                wanted,
                policy=stage.ready.policy,
                tools=stage.tools.pool,
                settings=stage.settings,
                renderer=stage.ready.renderer,
                concurrency=stage.concurrency,
                deterministic=stage.ready.is_deterministic,
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
    """A bar over episodes that shows the share of successes so far; an unscored one is none, and is
    counted."""
    outcomes: list[bool | None] = []
    with console.progress(title, total=total) as advance:

        def on_done(trajectory: Trajectory) -> None:
            outcomes.append(trajectory.is_success)
            unscored = outcomes.count(None)
            success = outcomes.count(True) / len(outcomes)
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
