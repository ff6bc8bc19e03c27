"""Collect trajectories with any policy, for analysis."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.report.episodes import NonceCount
from mcpagent.evaluate.summary import EvalSummary, summarise
from mcpagent.run.episodes import EpisodeSetup, open_episodes
from mcpagent.storage.locks import locked_file
from mcpagent.storage.trajectories import (
    RECORDS_SUFFIXES,
    token_file,
    write_trajectories,
)
from mcpagent.tools.metrics import PoolMetrics


@dataclass(frozen=True, kw_only=True)
class RolloutOutcome:
    """What was collected and where it lies. `tokens` is None for a policy that works on text. `nonces` counts
    the results that servers gave, and those that carry the stamp of a built-in server. `tool_metrics` is what
    the calls came to, `cassette` what one did, if there was one."""

    path: Path
    tokens: Path | None
    summary: EvalSummary
    nonces: NonceCount
    provenance: JsonObject
    tool_metrics: PoolMetrics
    cassette: JsonObject | None = None

    def as_json(self) -> JsonObject:
        """Return the document of `rollout --json`."""
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
    """Play `samples` attempts at each task and write the trajectories to `out` and the tokens next to it; how
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


def play(setup: EpisodeSetup, *, samples: int, label: str, console: Console) -> Sequence[Trajectory]:
    """Play `samples` attempts at each task of the setup, with a bar."""
    with episode_progress(console, "Episodes", total=len(setup.tasks) * samples) as on_done:
        return setup.play(samples=samples, label=label, on_done=on_done)


def count_nonces(trajectories: Sequence[Trajectory]) -> NonceCount:
    """Count the results that came from servers, and those with a server's stamp."""
    count = NonceCount()
    for trajectory in trajectories:
        count.add(trajectory)
    return count


@contextmanager
def episode_progress(console: Console, title: str, *, total: int) -> Iterator[Callable[[Trajectory], None]]:
    """Show a bar over episodes with the share of successes so far; an unscored one is not a success, and is
    counted."""
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
