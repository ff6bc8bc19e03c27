"""Collect trajectories with any policy, for analysis."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.report.episodes import NonceCount
from mcpagent.evaluate.summary import EvalResult
from mcpagent.run.episodes import EpisodeSetup, open_episodes
from mcpagent.storage.locks import locked_file
from mcpagent.storage.trajectories import RECORDS_SUFFIXES, token_file, write_trajectories


@dataclass(frozen=True, kw_only=True)
class RolloutOutcome:
    """The episodes that were collected, and where they lie. `tokens` is None for a policy that works on text;
    `nonces` counts the results that servers gave, and those that carry the stamp of a built-in server."""

    path: Path
    tokens: Path | None
    result: EvalResult
    nonces: NonceCount

    def as_json(self) -> JsonObject:
        """Return the document of `rollout --json`."""
        return {
            "path": str(self.path),
            "tokens": None if self.tokens is None else str(self.tokens),
            **self.result.model_dump(mode="json", exclude={"tasks", "breakdown"}),
            "tool_calls": {
                "from_servers": self.nonces.results.total(),
                "with_nonce": self.nonces.stamped.total(),
                "by_server": dict(sorted(self.nonces.results.items())),
                "replayed": self.nonces.replayed.total(),
            },
        }


def collect_rollouts(
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
    check_out(out, *(RECORDS_SUFFIXES if out.suffix else [""]))  # without one `write_trajectories` adds it
    with locked_file(out):
        with open_episodes(
            config, policy=policy, samples=samples, console=console, data=data, shard=shard
        ) as setup:
            trajectories = play(setup, samples=samples, label="rollout", console=console)
            result = setup.result(trajectories, setup.provenance(samples=samples))
        path = write_trajectories(out, trajectories)
    return RolloutOutcome(
        path=path,
        tokens=tokens if (tokens := token_file(path)).exists() else None,
        result=result,
        nonces=count_nonces(trajectories),
    )


def play(setup: EpisodeSetup, *, samples: int, label: str, console: Console) -> Sequence[Trajectory]:
    """Play `samples` attempts at each task of the setup, with a bar."""
    with episode_progress(console, "Episodes", total=len(setup.tasks) * samples) as on_done:
        return setup.play(samples=samples, label=label, on_done=on_done)


def count_nonces(trajectories: Iterable[Trajectory]) -> NonceCount:
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


def check_out(out: Path, *suffixes: str) -> None:
    """Refuse, before any work is done, a path that is a folder, whose folder cannot be made, or whose name
    has another ending than one of `suffixes`. Raises UserError."""
    where = f"--out {out}"
    if out.is_dir():
        raise UserError("is a folder", where=where, remedy=f"name a file in it: --out {out / 'NAME'}")
    existing = next(folder for folder in out.absolute().parents if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        why = "may not be written to" if existing.is_dir() else "is a file, not a folder"
        raise UserError(f"{existing} {why}", where=where, remedy="name another place with --out")
    if not out.name.endswith(suffixes):
        named = f"--out {out.with_suffix(suffixes[0])}"
        raise UserError(f"is not a {', '.join(suffixes)} file", where=where, remedy=named)
