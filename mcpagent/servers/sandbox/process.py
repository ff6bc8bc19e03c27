"""A sandbox that is a child process: start it, feed it, stop it at its limits, read its report."""

from __future__ import annotations

import asyncio
import fcntl
import json
import marshal
import os
import select
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from pydantic import JsonValue

from mcpagent.servers.builtin import clean_text
from mcpagent.servers.sandbox.contract import AT_ONCE, SandboxBroken, SandboxLimits, SandboxOutcome
from mcpagent.servers.sandbox.jail.main import READY
from mcpagent.servers.sandbox.jail.settings import JailSettings, jsonable
from mcpagent.servers.sandbox.kernel_limits import in_cgroup

_POLL_S = 0.01


@contextmanager
def slot(count: int, *, is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Hold one of `count` slots, waited for in the order of luck; without one where the call is cancelled."""
    folder = _folder(os.getuid())
    held: int | None = None
    try:
        while held is None and not is_cancelled():
            held = _any_free(folder, count)
            if held is None:
                time.sleep(_POLL_S)
        yield
    finally:
        if held is not None:
            fcntl.flock(held, fcntl.LOCK_UN)  # which closing does not do where a forked process has it too
            os.close(held)


def _any_free(folder: Path, count: int) -> int | None:
    for number in range(count):
        descriptor = os.open(folder / f"slot-{number}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return descriptor
    return None


@cache
def _folder(user: int) -> Path:
    """A folder of this user alone: another could hold every slot. Else a folder of this process alone."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"mcpagent-sandbox-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077:
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="mcpagent-sandbox-"))


# Strings hash the same in every run, so that the order of a set is the same.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_SETUP_S = 20.0  # until the code starts; on a loaded machine a process may wait for long
_END_S = 5.0  # for a killed namespace to be gone
_CHUNK_BYTES = 65536
_ERROR_OUTPUT_CHARS = 2000  # how much of the output goes with an error


class ProcessSandbox:
    """`command` starts the jail, with `settings` in its request."""

    language = "Python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    def __init__(
        self, name: str, *, command: Sequence[str], settings: JailSettings, limits: SandboxLimits
    ) -> None:
        self.name = name
        self._command = tuple(command)
        self.settings = settings
        self._limits = limits
        # Threads, not asyncio's subprocesses: one sandbox serves clients on several event loops.
        self._threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix=f"sandbox-{name}")

    async def run(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """Run the code with these variables set, in a process of its own."""
        call = self._call(code, names)
        try:
            return await asyncio.wrap_future(self._threads.submit(call.run))
        except asyncio.CancelledError:
            call.cancel()
            raise

    def run_blocking(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """As `run`, where no event loop runs."""
        return self._call(code, names).run()

    def _call(self, code: str, names: Mapping[str, JsonValue]) -> _Call:
        return _Call(
            command=self._command, settings=self.settings, code=code, names=dict(names), limits=self._limits
        )


@dataclass(kw_only=True)
class _Call:
    """One child process. `stopped` is why it was killed, if it was."""

    command: tuple[str, ...]
    settings: JailSettings
    code: str
    names: dict[str, JsonValue]
    limits: SandboxLimits
    output: bytearray = field(default_factory=bytearray)
    report: bytearray = field(default_factory=bytearray)
    stopped: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wakeup: int | None = None  # an eventfd while the process runs
    _is_cancelled: bool = False

    def run(self) -> SandboxOutcome:
        proc = None if self.settings.build_root else os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with (
                slot(AT_ONCE, is_cancelled=lambda: self._is_cancelled),
                self._woken_by_cancel() as wakeup,
                in_cgroup(self.command, self.limits) as command,
                self._start(command, proc) as process,
            ):
                try:
                    self._exchange(process, self._request(proc), wakeup)
                finally:
                    _end(process)
        except OSError as error:
            raise SandboxBroken(f"the sandbox's process does not start: {error}") from error
        finally:
            if proc is not None:
                os.close(proc)
        return self._outcome(process.returncode)

    def cancel(self) -> None:
        """From another thread."""
        with self._lock:
            self._is_cancelled = True
            if self._wakeup is not None:
                os.eventfd_write(self._wakeup, 1)

    @contextmanager
    def _woken_by_cancel(self) -> Iterator[int]:
        """A descriptor that is readable once the call is cancelled."""
        with self._lock:
            self._wakeup = os.eventfd(int(self._is_cancelled), os.EFD_CLOEXEC)
        try:
            yield self._wakeup
        finally:
            with self._lock:
                os.close(self._wakeup)
                self._wakeup = None

    def _start(self, command: Sequence[str], proc: int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            pass_fds=() if proc is None else (proc,),
        )

    def _request(self, proc: int | None) -> bytes:
        # This process may have been forked since the settings were made.
        settings = vars(self.settings) | {"parent": os.getpid(), "proc": proc}
        settings["view"] = vars(self.settings.view)
        return marshal.dumps({"settings": settings, "code": self.code, "names": self.names})

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes, wakeup: int) -> None:
        """Write the request and read both pipes to their ends, or until a limit is passed."""
        assert process.stdin and process.stdout and process.stderr
        deadline, is_running = time.monotonic() + _SETUP_S, False
        with selectors.DefaultSelector() as selector:
            selector.register(wakeup, selectors.EVENT_READ)
            for pipe, events in (
                (process.stdin, selectors.EVENT_WRITE),
                (process.stdout, selectors.EVENT_READ),
                (process.stderr, selectors.EVENT_READ),
            ):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, events)
            unsent = memoryview(request)
            while len(selector.get_map()) > 1:  # the other one is `wakeup`
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    self.stopped = f"Stopped: it ran for more than {self.limits.wall_s:g} s."
                    return
                for key, _ in ready:
                    pipe: Any = key.fileobj
                    if pipe == wakeup:
                        return
                    if pipe is process.stdin:
                        unsent = _write_some(pipe, unsent)
                        is_open = bool(unsent)
                    else:
                        is_open = self._read_some(pipe, is_report=pipe is process.stderr)
                    if not is_open:
                        selector.unregister(pipe)
                        pipe.close()
                if self.stopped:
                    return
                if not is_running and self.report.startswith(READY):
                    deadline, is_running = time.monotonic() + self.limits.wall_s, True
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.stopped = f"Stopped: it ran for more than {self.limits.wall_s:g} s."

    def _read_some(self, pipe: IO[bytes], *, is_report: bool) -> bool:
        """False at the end of the pipe."""
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


def _write_some(pipe: IO[bytes], data: memoryview) -> memoryview:
    """What is left of `data`; nothing where the reader has gone."""
    try:
        return data[os.write(pipe.fileno(), data) :]
    except BrokenPipeError:
        return data[:0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its namespaces; nothing of them runs any more when this returns.

    Its only child is process 1 of a pid namespace, with which the kernel ends all of the namespace, whatever
    sessions, parents and death signals its processes have given themselves. A stopped process neither reaps
    that child, whose id is therefore not given again, nor makes another.
    """
    if process.poll() is not None:
        return  # by itself: its child has ended, or is killed by its death signal
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    for child in _children(process.pid):
        _kill_and_wait(child)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _children(pid: int) -> list[int]:
    """None where this kernel does not say: then their death signals end them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _kill_and_wait(pid: int) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], _END_S)
        finally:
            os.close(descriptor)
