"""The process of `tests.running` whose forks are commands: `python -m tests.warm SOCKET`.

It asks for no more than a socket can carry: the job as JSON, the command's three streams, and a socket on
which its process id and, when it has ended, its exit status are told.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import select
import socket
import struct
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import mcpagent
from mcpagent.cli.main import run

# What commands import only when they need it.
LATER = (
    "openai",
    "peft",
    "plotly.graph_objects",
    "scipy.stats",
    "transformers.models.qwen3.modeling_qwen3",
    "typer.rich_utils",
)


def serve(wire: socket.socket) -> dict[str, Any]:
    """Forks for each job; returns in the child alone, which then is the command. Ends with who asks."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by a descriptor of the process
    while True:
        for ready in select.select([wire, *running], [], [])[0]:
            if ready is not wire:
                pid, answer = running.pop(ready)
                os.close(ready)
                _tell(answer, os.waitpid(pid, 0)[1])
                answer.close()
                continue
            head, descriptors, _, _ = socket.recv_fds(wire, 8, 4)
            if not head:
                os._exit(0)
            job = json.loads(wire.recv(struct.unpack("Q", head)[0], socket.MSG_WAITALL))
            pid = os.fork()
            if not pid:
                for number, descriptor in enumerate(descriptors[:3]):
                    os.dup2(descriptor, number)
                return job
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            answer = socket.socket(fileno=descriptors[3])
            _tell(answer, pid)
            running[os.pidfd_open(pid)] = pid, answer


def _tell(answer: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        answer.sendall(struct.pack("q", number))


def become(job: dict[str, Any]) -> None:
    """The command's own place, in a process that has it all from who forked."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if job["starts_session"]:
        os.setsid()
        if os.isatty(0):  # its keys are this session's signals
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for name, limit in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())


def execute(option: str, program: str, *arguments: str) -> None:
    """`python -m PROGRAM` or `python -c PROGRAM`; of the command itself, what its console script does."""
    sys.modules["__main__"].__package__ = None  # or usage lines would name it
    if program == "mcpagent.cli.main":
        sys.argv = ["mcpagent", *arguments]
        run()
    elif option == "-m":
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [option, *arguments]
        exec(program, {"__name__": "__main__"})


def end(code: Any) -> None:
    """As the interpreter ends, without taking apart all that it holds."""
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    sys.stderr.flush()
    os._exit(code or 0)


def main() -> None:
    names = [module.name for module in pkgutil.walk_packages(mcpagent.__path__, "mcpagent.")]
    for name in (*LATER, *names):
        if not name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # of an extra that is not installed here
                importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has only the thread that made it"
    gc.collect()
    gc.freeze()  # so that no collection in a child touches, and thereby copies, what is imported
    job = serve(socket.socket(fileno=int(sys.argv[1])))
    become(job)
    try:
        execute(*job["words"])
    except SystemExit as ended:
        end(ended.code)
    except BaseException:  # noqa: BLE001 - what the interpreter does with it
        sys.excepthook(*sys.exc_info())
        end(1)
    end(0)


if __name__ == "__main__":
    main()
