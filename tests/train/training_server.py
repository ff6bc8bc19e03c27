"""A process that has imported everything once and forks a child for each training run it is asked for: so
that a storm of kills costs training, not imports. One JSON job a line on stdin, one JSON answer a line on
stdout.

Nothing of the trainer knows that it will die: the child kills itself from a callback or from an audit hook
that sees what is written, or it is killed from here after some time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from mcpagent.config.loader import load_train_config
from mcpagent.run.train import Watch, run_training

_WRITES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _train(job: dict[str, Any]) -> None:
    episodes = writes = 0

    def on_step(record: dict[str, Any]) -> None:
        if record["step"] == job.get("kill_step"):
            _die()

    def on_part(what: str, done: int, _total: int) -> None:
        nonlocal episodes
        episodes += what == "episodes" and done > 0
        if episodes == job.get("kill_episode"):
            _die()

    def on_event(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal writes
        if event in _WRITES and "/checkpoints/" in str(arguments[0]):
            writes += 1
            if writes == job["kill_write"]:
                _die()

    if "kill_write" in job:
        sys.addaudithook(on_event)
    config = load_train_config([job["config"]], job["overrides"]).config
    run_training(
        config,
        run_dir=Path(job["run"]),
        resume=job["resume"],
        ledger=Path(job["ledger"]),
        watch=Watch(on_step=on_step, on_part=on_part),
    )


def _serve(job: dict[str, Any]) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _train(job)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    descriptor = os.pidfd_open(child)
    ended, _, _ = select.select([descriptor], [], [], job.get("kill_after_s"))
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(descriptor)
    return {"code": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}


for line in sys.stdin:
    print(json.dumps(_serve(json.loads(line))), flush=True)
