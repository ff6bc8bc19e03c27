"""A sandbox that is a child process: start it, feed it, stop it at its limits, read its report."""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from pydantic import JsonValue

from mcpagent.servers.sandbox.contract import AT_ONCE, Limits, Outcome, SandboxBroken
from mcpagent.servers.sandbox.jail.main import READY
from mcpagent.servers.sandbox.jail.settings import JailSettings
from mcpagent.servers.sandbox.jail.values import jsonable
from mcpagent.servers.text import clean_text

# Strings hash the same in every run, so that the order of a set is the same.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_SETUP_S = 20.0  # until the code starts; on a loaded machine a process may wait for long
_CHUNK_BYTES = 65536
_ERROR_OUTPUT_CHARS = 2000  # how much of the output goes with an error


class ProcessSandbox:
    """`command` starts the jail, with `settings` in its request."""

    language = "Python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    def __init__(self, name: str, *, command: Sequence[str], settings: JailSettings, limits: Limits) -> None:
        self.name = name
        self._command = tuple(command)
        self._settings = settings
        self._limits = limits
        # Threads, not asyncio's subprocesses: one sandbox serves clients on several event loops.
        self._threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix=f"sandbox-{name}")

    async def run(self, code: str, names: Mapping[str, JsonValue]) -> Outcome:
        call = self._call(code, names)
        try:
            return await asyncio.wrap_future(self._threads.submit(call.run))
        except asyncio.CancelledError:
            call.cancel()
            raise

    def run_blocking(self, code: str, names: Mapping[str, JsonValue]) -> Outcome:
        """As `run`, where no event loop runs."""
        return self._call(code, names).run()

    def _call(self, code: str, names: Mapping[str, JsonValue]) -> _Call:
        settings = vars(self._settings) | {"parent": os.getpid()}  # which may have been forked since
        request = {"settings": settings, "code": code, "names": dict(names)}
        return _Call(command=self._command, request=marshal.dumps(request), limits=self._limits)


@dataclass(kw_only=True)
class _Call:
    """One child process. `stopped` is why it was killed, if it was."""

    command: tuple[str, ...]
    request: bytes
    limits: Limits
    output: bytearray = field(default_factory=bytearray)
    report: bytearray = field(default_factory=bytearray)
    stopped: str | None = None
    _process: subprocess.Popen[bytes] | None = None
    _is_cancelled: bool = False

    def run(self) -> Outcome:
        try:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxBroken(f"the sandbox's process does not start: {error}") from error
        with process:
            self._process = process
            try:
                if not self._is_cancelled:
                    self._exchange(process)
            finally:
                _kill(process)
        return self._outcome(process.returncode)

    def cancel(self) -> None:
        """From another thread."""
        self._is_cancelled = True
        if self._process is not None:
            _kill(self._process)

    def _exchange(self, process: subprocess.Popen[bytes]) -> None:
        """Write the request and read both pipes to their ends, or until a limit is passed."""
        assert process.stdin and process.stdout and process.stderr
        deadline, is_running = time.monotonic() + _SETUP_S, False
        with selectors.DefaultSelector() as selector:
            for pipe, events in (
                (process.stdin, selectors.EVENT_WRITE),
                (process.stdout, selectors.EVENT_READ),
                (process.stderr, selectors.EVENT_READ),
            ):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, events)
            unsent = memoryview(self.request)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    self.stopped = f"Stopped: it ran for more than {self.limits.wall_s:g} s."
                    return
                for key, _ in ready:
                    pipe: Any = key.fileobj
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

    def _outcome(self, exit_code: int) -> Outcome:
        if not self.report.startswith(READY):
            said = self.report.decode("utf-8", "replace").strip()[-500:]
            raise SandboxBroken(f"the sandbox did not start (exit code {exit_code}): {said}")
        output = clean_text(self.output.decode("utf-8", "replace"))
        if self.stopped:
            return _failed(self.stopped, output=output)
        try:
            answer = json.loads(self.report[len(READY) :])
            if answer.get("error") is None:
                return Outcome(output=output, value=jsonable(answer["value"], clean=clean_text))
            line = answer["line"] if isinstance(answer["line"], int) else None
            return _failed(clean_text(str(answer["error"])), output=output, line=line)
        # What stands there, the code may have written.
        except (ValueError, RecursionError, KeyError, AttributeError):
            return _failed(_unreported(exit_code, self.limits), output=output)


def _unreported(exit_code: int, limits: Limits) -> str:
    if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return f"Killed: it used more than {limits.cpu_s} s of CPU time, ran out of memory, or killed itself."
    if exit_code > 128:
        return f"Crashed with signal {exit_code - 128}."
    return f"The process ended by itself with exit code {exit_code}."


def _failed(error: str, *, output: str, line: int | None = None) -> Outcome:
    return Outcome(error=error, output=output[:_ERROR_OUTPUT_CHARS], line=line)


def _write_some(pipe: IO[bytes], data: memoryview) -> memoryview:
    """What is left of `data`; nothing where the reader has gone."""
    try:
        return data[os.write(pipe.fileno(), data) :]
    except BrokenPipeError:
        return data[:0]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and what it started: it leads its own group, and its namespace dies with it."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
