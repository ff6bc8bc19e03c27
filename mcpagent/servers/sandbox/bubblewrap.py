"""The sandbox of Linux: bwrap(1) makes it, and a bare Python in it runs the code (`inside.py`).

Each call is a process of its own in namespaces of its own: no network, no processes but its own, the system's
files read-only, an empty folder in memory to write to. Ending the first process of the namespaces ends
everything in them.
"""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import platform
import select
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
from pydantic import JsonValue

from mcpagent.servers.sandbox.contract import (
    AT_ONCE,
    THREADS,
    SandboxBroken,
    SandboxLimits,
    SandboxOutcome,
    SandboxUnavailable,
)
from mcpagent.servers.sandbox.inside import READY, jsonable
from mcpagent.tools.wire import clean_text

_SCRATCH = "/work"
_DEVICES = ("/dev/null", "/dev/urandom")
# Where shared libraries, time zones and the system's own Python live: the same for all users of a machine.
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/ld.so.cache")
_INSIDE = Path(__file__).with_name("inside.py")
_PYTHON_OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")  # no site-packages, nothing from the cwd

_SETUP_S = 20.0  # until the code starts; on a loaded machine a process may wait for long
_END_S = 5.0  # for killed namespaces to be gone
_FIRST_LOOK_S, _LOOK_S = 0.5, 1.0  # at what a call uses
_IDLE_SHARE = 0.2  # of a processor: a call that uses less waits for something
_CHUNK_BYTES = 65536
_ERROR_OUTPUT_CHARS = 2000  # how much of the output goes with an error


class BubblewrapSandbox:
    """Raise SandboxUnavailable without bwrap; whether the kernel allows it, only trying shows."""

    name = "bubblewrap"
    language = "Python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    def __init__(self, limits: SandboxLimits) -> None:
        self._command = _command(limits)
        self._limits = limits
        # Threads, not asyncio's subprocesses: one sandbox serves clients on several event loops.
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="sandbox")
        self._slots = threading.BoundedSemaphore(AT_ONCE)

    async def run(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """Run the code with these variables set, in a process of its own."""
        call = self._call(code, names)
        try:
            return await asyncio.wrap_future(self._threads.submit(call.run))
        except asyncio.CancelledError:
            call.cancel()
            raise

    def run_blocking(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """Do what `run` does, if no event loop runs."""
        return self._call(code, names).run()

    def _call(self, code: str, names: Mapping[str, JsonValue]) -> _Call:
        request = {
            "code": code,
            "names": dict(names),
            "cpu_s": self._limits.cpu_s,
            "memory_bytes": self._limits.memory_bytes,
            "scratch_bytes": self._limits.scratch_bytes,
            "report_bytes": self._limits.result_bytes,
        }
        return _Call(
            command=self._command, request=marshal.dumps(request), limits=self._limits, slots=self._slots
        )


def _command(limits: SandboxLimits) -> list[str]:
    if platform.system() != "Linux":
        raise SandboxUnavailable(f"{platform.system()} has no namespaces")
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailable("bubblewrap (bwrap) is not installed")
    prefix = Path(sys.base_prefix).resolve()
    if prefix == Path("/") or Path.home().is_relative_to(prefix):
        raise SandboxUnavailable(f"Python is installed in {prefix}, which holds more than Python")
    # The interpreter that a virtual environment was made from: it starts faster, and sees no packages.
    interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    # Not --unshare-all: that does without a user namespace if there can be none.
    command = [program, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--new-session"]
    # The order of a set is the same in every run.
    command += ["--clearenv", "--setenv", "PYTHONHASHSEED", "0"]
    command += ["--hostname", "sandbox", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
    for path in _read_only(prefix):
        command += ["--ro-bind", path, path]
    for path in (path for path in _SYSTEM if Path(path).is_symlink()):
        command += ["--symlink", str(Path(path).readlink()), path]
    for path in _DEVICES:
        command += ["--dev-bind", path, path]
    command += ["--ro-bind", str(_INSIDE), "/inside.py"]
    command += ["--size", str(limits.scratch_bytes), "--tmpfs", _SCRATCH, "--chdir", _SCRATCH]
    return [*command, "--remount-ro", "/", "--", interpreter, *_PYTHON_OPTIONS, "/inside.py"]


def _read_only(prefix: Path) -> list[str]:
    """Return what of the host is visible, symbolic links apart."""
    system = [path for path in _SYSTEM if Path(path).exists() and not Path(path).is_symlink()]
    return system if any(prefix.is_relative_to(path) for path in system) else [*system, str(prefix)]


@dataclass(kw_only=True)
class _Call:
    """One child process. `stopped` is why it was killed, if it was."""

    command: Sequence[str]
    request: bytes
    limits: SandboxLimits
    slots: threading.BoundedSemaphore
    output: bytearray = field(default_factory=bytearray)
    report: bytearray = field(default_factory=bytearray)
    stopped: str | None = None
    _is_cancelled: threading.Event = field(default_factory=threading.Event)
    _holds_slot: bool = False
    _used_s: float = 0.0  # processor time, when it was last looked at

    def run(self) -> SandboxOutcome:
        """Wait for a slot, start the process and read what it says until it ends or passes a limit."""
        try:
            while not (self._holds_slot or self._is_cancelled.is_set()):
                self._holds_slot = self.slots.acquire(timeout=0.1)
            with self._started() as (process, first):
                self._exchange(process, first)
        except OSError as error:
            raise SandboxBroken(f"the sandbox's process does not start: {error}") from error
        finally:
            self._give_slot_back()
        return self._outcome(process.returncode)

    def cancel(self) -> None:
        """End the call, from another thread."""
        self._is_cancelled.set()

    def _give_slot_back(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self.slots.release()

    @contextmanager
    def _started(self) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process | None]]:
        """Return the process of bwrap, and the first one of its pid namespace; both have ended on leaving."""
        info, told = os.pipe()
        try:
            with os.fdopen(os.memfd_create("request"), "w+b") as request:
                request.write(self.request)
                request.seek(0)
                process = subprocess.Popen(
                    [self.command[0], "--info-fd", str(told), *self.command[1:]],
                    stdin=request,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(told,),
                )
        finally:
            os.close(told)
        first: psutil.Process | None = None
        with process:
            try:
                with os.fdopen(info, encoding="utf-8") as pipe, suppress(ValueError, KeyError, psutil.Error):
                    first = psutil.Process(json.load(pipe)["child-pid"])
                yield process, first
            finally:
                if first is not None:
                    _end(first)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_END_S)  # for its exit code
                process.kill()

    def _exchange(self, process: subprocess.Popen[bytes], first: psutil.Process | None) -> None:
        """Read both pipes to their ends, or until a limit is passed."""
        assert process.stdout and process.stderr
        deadline, is_running = time.monotonic() + _SETUP_S, False
        look = deadline
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stderr, selectors.EVENT_READ)
            while not (self.stopped or self._is_cancelled.is_set()):
                now = time.monotonic()
                if now >= deadline:
                    self.stopped = f"Stopped: it ran for more than {self.limits.wall_s:g} s."
                    return
                if now >= look and first is not None:
                    self._look_at(first)
                    look = now + _LOOK_S
                if not selector.get_map():
                    # All its pipes are closed: it has ended, or only waits.
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.1)
                        return
                for key, _ in selector.select(0.1) if selector.get_map() else ():
                    pipe: Any = key.fileobj
                    if not self._read_some(pipe, is_report=pipe is process.stderr):
                        selector.unregister(pipe)
                        pipe.close()
                if not is_running and self.report.startswith(READY):
                    is_running, now = True, time.monotonic()
                    deadline, look = now + self.limits.wall_s, now + _FIRST_LOOK_S

    def _look_at(self, first: psutil.Process) -> None:
        """Stop a call whose processes together use too much memory, and let another begin if this one only
        waits: forty calls that sleep delay no other by more than a moment."""
        memory, used_s = 0, 0.0
        with suppress(psutil.Error):
            for process in first.children(recursive=True):
                memory += process.memory_info().rss
                times = process.cpu_times()
                used_s += times.user + times.system
        if memory > self.limits.memory_bytes:
            self.stopped = f"Stopped: it used more than {self.limits.memory_bytes} bytes of memory."
        if used_s - self._used_s < _IDLE_SHARE * _LOOK_S:
            self._give_slot_back()
        self._used_s = used_s

    def _read_some(self, pipe: IO[bytes], *, is_report: bool) -> bool:
        """Read what has come; return False at the end of the pipe."""
        chunk = os.read(pipe.fileno(), _CHUNK_BYTES)
        kept, limit = (
            (self.report, self.limits.result_bytes + _CHUNK_BYTES)
            if is_report
            else (self.output, self.limits.output_bytes)
        )
        kept += chunk
        if len(kept) > limit:
            del kept[limit:]
            self.stopped = f"Stopped: it wrote more than {limit} bytes."
        return bool(chunk)

    def _outcome(self, exit_code: int) -> SandboxOutcome:
        if not self.report.startswith(READY):
            said = self.report.decode("utf-8", "replace").strip()[-500:]
            raise SandboxBroken(f"the sandbox did not start (exit code {exit_code}): {said}")
        output = clean_text(self.output.decode("utf-8", "replace"))
        if self.stopped:
            return _failed(self.stopped, output=output)
        try:
            answer = json.loads(self.report[len(READY) :])
            if answer.get("error") is None:
                return SandboxOutcome(output=output, value=jsonable(answer["value"], clean=clean_text))
            line = answer["line"] if isinstance(answer["line"], int) else None
            return _failed(clean_text(str(answer["error"])), output=output, line=line)
        # What stands there, the code may have written.
        except (ValueError, RecursionError, KeyError, AttributeError):
            return _failed(_unreported(exit_code, self.limits), output=output)


def _unreported(exit_code: int, limits: SandboxLimits) -> str:
    if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return f"Killed: it used more than {limits.cpu_s} s of CPU time, ran out of memory, or killed itself."
    if exit_code > 128:
        return f"Crashed with signal {exit_code - 128}."
    return f"The process ended by itself with exit code {exit_code}."


def _failed(error: str, *, output: str, line: int | None = None) -> SandboxOutcome:
    return SandboxOutcome(error=error, output=output[:_ERROR_OUTPUT_CHARS], line=line)


def _end(first: psutil.Process) -> None:
    """Kill the first process of the namespaces, which the kernel lets end after all the others in them."""
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        descriptor = os.pidfd_open(first.pid)  # readable once it has ended, though nothing has reaped it yet
        try:
            first.kill()
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            ended.poll(1000 * _END_S)
        finally:
            os.close(descriptor)
