"""Which sandbox this machine can really have: each candidate is tried before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mcpagent.errors import UserError
from mcpagent.servers.sandbox import linux
from mcpagent.servers.sandbox.contract import Limits, Sandbox, SandboxBroken, SandboxUnavailable
from mcpagent.servers.sandbox.kinds import SandboxKind
from mcpagent.servers.sandbox.monty import MontySandbox
from mcpagent.servers.sandbox.process import ProcessSandbox
from mcpagent.storage.packages import pip_install

# What `auto` tries, strongest and most complete first.
_ORDER = (SandboxKind.BUBBLEWRAP, SandboxKind.NAMESPACES, SandboxKind.MONTY)

# Names what is not locked; nothing is what it must name. It reaches for nothing outside this machine.
_PROBE = """
import os, socket
def reaches(action):
    try:
        action()
    except OSError:
        return False
    return True
[name for name, action in {
    "files of the host": lambda: open("/etc/passwd").close(),
    "processes of the host": lambda: os.listdir("/proc"),
    "writing outside": lambda: open("/usr/probe", "w").close(),
    "sockets": lambda: socket.socket().close(),
    "new processes": lambda: os.fork() or os._exit(0),
}.items() if reaches(action)]
"""


@dataclass(frozen=True)
class Choice:
    """`passed_over` says of each better backend why it is not used here."""

    sandbox: Sandbox
    passed_over: tuple[str, ...]

    def __str__(self) -> str:
        reasons = f" ({'; '.join(self.passed_over)})" if self.passed_over else ""
        sandbox = self.sandbox
        return f"code runs in the {sandbox.name} sandbox: {sandbox.language} {sandbox.version}{reasons}"


@cache
def choose_sandbox(kind: SandboxKind, limits: Limits = Limits()) -> Choice:
    """The sandbox of this kind, or the best one for `auto`, proved to work. One for each process.

    Raises `UserError` with the reasons if there is none; another is never taken for one asked for by name.
    """
    reasons: list[str] = []
    for candidate in _ORDER if kind is SandboxKind.AUTO else (kind,):
        try:
            return Choice(_tried(candidate, limits), tuple(reasons))
        except SandboxUnavailable as error:
            reasons.append(f"{candidate.value}: {error}")
    raise UserError(
        f"no sandbox to run code in: {'; '.join(reasons)}",
        where="--sandbox",
        remedy=f"install bubblewrap (apt install bubblewrap), or monty: {pip_install('mcpagent[servers]')}",
    )


def _tried(kind: SandboxKind, limits: Limits) -> Sandbox:
    match kind:
        case SandboxKind.BUBBLEWRAP:
            return _proved(linux.bubblewrap(limits), _PROBE, [])
        case SandboxKind.NAMESPACES:
            return _proved(linux.namespaces(limits), _PROBE, [])
        case SandboxKind.MONTY | SandboxKind.AUTO:
            return _proved(MontySandbox(limits), "1 + 1", 2)


def _proved(sandbox: ProcessSandbox | MontySandbox, probe: str, expected: object) -> Sandbox:
    try:
        outcome = sandbox.run_blocking(probe, {})
    except SandboxBroken as error:
        raise SandboxUnavailable(str(error)) from error
    if outcome.error is not None or outcome.value != expected:
        raise SandboxUnavailable(f"it does not isolate: {outcome.error or outcome.value}")
    return sandbox
