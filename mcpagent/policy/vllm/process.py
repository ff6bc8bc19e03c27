"""A vLLM engine in a process of its own that mcpagent starts: steps are scheduled ahead, the trainer's thread
holds up no process, and each process of a run has one on its own device.

It listens on a Unix socket in a folder that this user alone can enter, so its development routes are for
no other user and no port can be taken. It ends with its parent, however that ends.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import httpx

from mcpagent.errors import RunError

_START_S, _END_S, _LOOK_S = 1200.0, 20.0, 0.5
_LAST = 2000  # characters of the log that an error shows
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads are on this machine too
}
# What a launcher says to the trainer is not meant for an engine of one process.
_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def own_engine(options: Mapping[str, Any], *, device: int | None) -> Iterator[str]:
    """Start an engine with vLLM's `options` on the CUDA device of that index (None: those that are visible)
    and give its address for `VllmServers`. Raises RunError with the end of its log if it does not
    start."""
    with TemporaryDirectory(prefix="mcpagent-engine-") as folder:
        socket, log = Path(folder) / "socket", Path(folder) / "log"
        command = [sys.executable, "-m", __name__, str(os.getpid()), "--uds", str(socket), *flags(options)]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                env=_environment(device),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_until_it_answers(process, socket, log)
            yield f"unix:{socket}"
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def flags(options: Mapping[str, Any]) -> list[str]:
    """Return the options of `EngineArgs` as a command line of vLLM's server."""
    written: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            written.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            written += [f"--{flag}", str(value)]
    return written


def _environment(device: int | None) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_LAUNCHERS and not name.startswith(("TORCHELASTIC_", "ACCELERATE_"))
    }
    inherited |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    if device is not None:
        visible = [name for name in inherited.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        inherited["CUDA_VISIBLE_DEVICES"] = visible[device] if visible else str(device)
    return {**ENVIRONMENT, **inherited}


def _wait_until_it_answers(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    until = time.monotonic() + _START_S
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://engine") as http:
        while time.monotonic() < until and process.poll() is None:
            with suppress(httpx.TransportError):
                if http.get("/health").is_success:
                    return
            time.sleep(_LOOK_S)
    said = log.read_text(encoding="utf-8", errors="replace")[-_LAST:]
    ended = "did not answer" if process.poll() is None else f"ended with exit code {process.returncode}"
    raise RunError(
        f"the vLLM engine {ended} instead of starting; the end of its log:\n{said}",
        where="rollout.backend",
        remedy="`mcpagent smoke --backend vllm` tries the same in this process; `--backend hf` samples "
        "without vllm",
    )


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Serve as vLLM's own command does, for as long as the parent lives: its id is the first argument."""
    parent = int(sys.argv.pop(1))
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


if __name__ == "__main__":
    main()
