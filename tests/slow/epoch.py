"""Play an epoch, and print what it leaves behind: `python -m tests.slow.epoch TASKS EVERY [--stdio]`.

Distinct tasks in the order of training, their gold plans played on the built-in servers, a hundred at a time,
and the episodes written, as a run does step by step. With `--stdio` each server is a process. Prints a JSON
line every EVERY tasks, and one at the end; memory is in MiB after `malloc_trim`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil

from mcpagent.config.loader import load_train_config
from mcpagent.console import Console
from mcpagent.policy.scripted import GoldPolicy
from mcpagent.rollout.collector import attempts, collect
from mcpagent.run.episodes import open_episodes
from mcpagent.servers.names import DATA_SERVERS
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.train.budget import resident_mib
from mcpagent.train.task_order import TaskOrder
from tests.slow.data_steps import make

GROWTH_MIB = 50.0  # at most, after the first WARM tasks
WARM = 5000


@dataclass(frozen=True, kw_only=True)
class Held:
    """What this process holds after so many tasks of an epoch; `others` are MiB of the processes below it."""

    tasks: int
    success: float
    cpu_s: float
    resident: float
    others: float
    files: int
    processes: int
    threads: int


def measure(
    *,
    tasks: int,
    every: int,
    is_stdio: bool,
    batch: int = 100,
    on_row: Callable[[Held], None],
) -> Held:
    """Play them all, and tell `on_row` how it stands after each `every`; what is left when all is closed."""
    succeeded, played = 0, 0
    with TemporaryDirectory(prefix="mcpagent-epoch-") as scratch:
        folder = Path(scratch)
        make(folder, tasks)
        settings = ["rollout.num_envs=32"]
        if is_stdio:
            settings.append(f"tools.servers={_servers(folder)}")
        config = load_train_config([], settings, for_training=False).config
        with open_episodes(
            config, policy="empty", samples=1, console=Console(is_json=True), data=folder / "tasks.jsonl"
        ) as setup:
            order = TaskOrder(len(setup.tasks), batch_size=batch, seed=0)
            for step in range(1, tasks // batch + 1):
                chosen = [setup.tasks[index] for index in order.batch(step)]
                episodes = setup.tools.io.run(
                    collect(
                        list(attempts(chosen, per_task=1, seed=0, label=f"step {step}")),
                        policy=GoldPolicy(chosen),
                        tools=setup.tools.pool,
                        settings=setup.settings,
                        concurrency=config.rollout.num_envs,
                    )
                )
                played += len(episodes)
                succeeded += sum(bool(episode.is_success) for episode in episodes)
                write_trajectories(folder / f"step-{step % 10}", episodes)
                if played % every == 0:
                    on_row(_held(played, succeeded))
    return _held(played, succeeded)


def _held(tasks: int, succeeded: int) -> Held:
    gc.collect()
    process = psutil.Process()
    below = process.children(recursive=True)
    return Held(
        tasks=tasks,
        success=round(succeeded / tasks, 4),
        cpu_s=round(time.process_time(), 1),
        resident=round(resident_mib(trimmed=True), 1),
        others=round(sum(child.memory_info().rss for child in below) / 2**20, 1),
        files=process.num_fds(),
        processes=len(below),
        threads=process.num_threads(),
    )


def _servers(folder: Path) -> Path:
    """The servers of the samples, each as a process."""
    entries = {
        name: {"command": sys.executable, "args": ["-m", "mcpagent.cli.main", "serve", name, "--limited"]}
        for name in DATA_SERVERS
    }
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    return path


def main() -> None:
    def show(row: Held) -> None:
        print(json.dumps(asdict(row)), flush=True)

    tasks, every, *others = sys.argv[1:]
    show(measure(tasks=int(tasks), every=int(every), is_stdio=others == ["--stdio"], on_row=show))


if __name__ == "__main__":
    main()
