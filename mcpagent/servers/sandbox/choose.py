"""The portable sandbox, and which sandbox this machine can really have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from pydantic import JsonValue

from mcpagent.errors import UserError
from mcpagent.servers.sandbox.bubblewrap import BubblewrapSandbox
from mcpagent.servers.sandbox.contract import (
    THREADS,
    Sandbox,
    SandboxBroken,
    SandboxKind,
    SandboxLimits,
    SandboxOutcome,
    SandboxUnavailable,
)
from mcpagent.servers.sandbox.inside import jsonable
from mcpagent.storage.packages import pip_install
from mcpagent.tools.wire import clean_text

try:
    import pydantic_monty
except ImportError:
    pydantic_monty = None

_GRACE_S = 2.0  # after which a worker that does not stop by itself is killed


class MontySandbox:
    """A sandbox in which each call gets a worker process of its own, which starts in a few ms. Raises
    SandboxUnavailable if the package is missing."""

    name = "monty"
    language = "Python (subset)"

    def __init__(self, limits: SandboxLimits) -> None:
        if pydantic_monty is None:
            raise SandboxUnavailable(f"pydantic-monty is not installed ({pip_install('mcpagent[servers]')})")
        self.version = pydantic_monty.__version__
        self._limits = limits
        # Its asynchronous form was seen to abort the process as the interpreter ends.
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="sandbox-monty")

    async def run(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """Run the code with these variables set, in a thread."""
        return await asyncio.wrap_future(self._threads.submit(self.run_blocking, code, names))

    def run_blocking(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """Do what `run` does, if no event loop runs."""
        assert pydantic_monty is not None
        limits = self._limits
        printed = pydantic_monty.CollectString(limits.output_bytes)
        try:
            with (
                pydantic_monty.Monty(max_processes=1, request_timeout=limits.wall_s + _GRACE_S) as pool,
                pool.checkout(
                    limits={
                        "max_feed_duration_secs": limits.cpu_s,
                        "max_total_sleep_secs": max(0.0, limits.wall_s - limits.cpu_s),
                        "max_memory": limits.memory_bytes,
                    },
                ) as session,
            ):
                value = session.feed_run(clean_text(code), inputs=dict(names), print_callback=printed)
                return self._finished(value, output=printed.output)
        except (pydantic_monty.MontyRuntimeError, pydantic_monty.MontySyntaxError) as error:
            frames = error.traceback()
            line = frames[-1].line if frames else None
            return self._failed(error.display("type-msg"), output=printed.output, line=line)
        except pydantic_monty.MontyCrashedError as error:
            return self._failed(f"The interpreter ended: {error}", output=printed.output)
        except (pydantic_monty.MontyConversionError, ValueError, RecursionError) as error:
            return self._failed(f"The result cannot be shown: {error}", output=printed.output)
        except OSError as error:
            raise SandboxBroken(f"Monty does not start: {error}") from error

    def _finished(self, value: object, *, output: str) -> SandboxOutcome:
        shown = jsonable(value, clean=clean_text)
        if len(repr(shown)) > self._limits.result_bytes:
            return self._failed(f"The result has more than {self._limits.result_bytes} bytes.", output=output)
        return SandboxOutcome(output=clean_text(output), value=shown)

    def _failed(self, error: str, *, output: str, line: int | None = None) -> SandboxOutcome:
        text = f"{error} [{self.language}]"
        return SandboxOutcome(error=clean_text(text), output=clean_text(output[:2000]), line=line)


# What `auto` tries, strongest and most complete first.
_ORDER = (SandboxKind.BUBBLEWRAP, SandboxKind.MONTY)

# Names what is not locked; nothing is what it must name. It reaches for nothing outside this machine.
_PROBE = """
import os, socket
def reaches(action):
    try:
        action()
    except (OSError, ZeroDivisionError):
        return False
    return True
[name for name, action in {
    "files of the host": lambda: open("/etc/passwd").close(),
    "processes of the host": lambda: os.listdir("/proc"),
    "writing outside": lambda: open("/usr/probe", "w").close(),
    "the network": lambda: socket.if_nameindex()[1:] or 1 / 0,
    "new processes": lambda: os.fork() or os._exit(0),
}.items() if reaches(action)]
"""


@dataclass(frozen=True)
class SandboxChoice:
    """`passed_over` says of each better backend why it is not used here."""

    sandbox: Sandbox
    passed_over: tuple[str, ...]

    def __str__(self) -> str:
        reasons = f" ({'; '.join(self.passed_over)})" if self.passed_over else ""
        sandbox = self.sandbox
        return f"code runs in the {sandbox.name} sandbox: {sandbox.language} {sandbox.version}{reasons}"


@cache
def choose_sandbox(kind: SandboxKind, limits: SandboxLimits = SandboxLimits()) -> SandboxChoice:
    """Return the sandbox of this kind, or the best one for `auto`, proved to work. One for each process.

    Raises `UserError` with the reasons if there is none; another is never taken for one asked for by name.
    """
    reasons: list[str] = []
    for candidate in _ORDER if kind is SandboxKind.AUTO else (kind,):
        try:
            return SandboxChoice(_tried(candidate, limits), tuple(reasons))
        except SandboxUnavailable as error:
            reasons.append(f"{candidate.value}: {error}")
    raise UserError(
        f"no sandbox to run code in: {'; '.join(reasons)}",
        where="--sandbox",
        remedy=f"install bubblewrap (apt install bubblewrap), or monty: {pip_install('mcpagent[servers]')}",
    )


def _tried(kind: SandboxKind, limits: SandboxLimits) -> Sandbox:
    match kind:
        case SandboxKind.BUBBLEWRAP:
            return _proved(BubblewrapSandbox(limits), _PROBE, [])
        case SandboxKind.MONTY | SandboxKind.AUTO:
            return _proved(MontySandbox(limits), "1 + 1", 2)


def _proved(sandbox: BubblewrapSandbox | MontySandbox, probe: str, expected: object) -> Sandbox:
    try:
        outcome = sandbox.run_blocking(probe, {})
    except SandboxBroken as error:
        raise SandboxUnavailable(str(error)) from error
    if outcome.error is not None or outcome.value != expected:
        raise SandboxUnavailable(f"it does not isolate: {outcome.error or outcome.value}")
    return sandbox
