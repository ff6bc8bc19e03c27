"""The sandboxes: two of Linux, a portable one, and which of them this machine can really have."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from mcpagent.errors import UserError
from mcpagent.servers.builtin import clean_text
from mcpagent.servers.sandbox.contract import (
    AT_ONCE,
    Sandbox,
    SandboxBroken,
    SandboxKind,
    SandboxLimits,
    SandboxOutcome,
    SandboxUnavailable,
)
from mcpagent.servers.sandbox.jail.settings import JailSettings, JailView, jsonable
from mcpagent.servers.sandbox.kernel_limits import syscall_filter
from mcpagent.servers.sandbox.process import ProcessSandbox
from mcpagent.storage.packages import pip_install

_SCRATCH = "/work"
_DEVICES = ["/dev/null", "/dev/urandom"]
# Where shared libraries, time zones and the system's own Python live: the same for all users of a machine.
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/ld.so.cache")
_JAIL = "mcpagent/servers/sandbox/jail"
_PACKAGES = Path(__file__).parents[3]  # the folder that holds mcpagent/
_JAIL_AT = "/jail"  # the same, inside bubblewrap
_PYTHON_OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")  # no site-packages, nothing from the cwd
_START = "import sys; sys.path.append({!r}); from mcpagent.servers.sandbox.jail.main import main; main()"


def namespaces(limits: SandboxLimits) -> ProcessSandbox:
    """All namespaces that there are, a root of its own, Landlock, seccomp and rlimits.

    Raises SandboxUnavailable off Linux; whether the kernel allows it, only trying shows.
    """
    interpreter = _interpreter()
    return _sandbox("namespaces", command=_python(interpreter, _PACKAGES), build_root=True, limits=limits)


def bubblewrap(limits: SandboxLimits) -> ProcessSandbox:
    """bwrap(1) for namespaces and root, then seccomp and rlimits. Raises SandboxUnavailable without bwrap."""
    interpreter = _interpreter()
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailable("bubblewrap (bwrap) is not installed")
    # Not --unshare-all: that does without a user namespace where there can be none.
    command = [program, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--hostname", "sandbox", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
    command += ["--setenv", "PYTHONHASHSEED", "0"]
    for path in _read_only():
        command += ["--ro-bind", path, path]
    for path, target in _links().items():
        command += ["--symlink", target, path]
    for path in _DEVICES:
        command += ["--dev-bind", path, path]
    command += ["--ro-bind", str(_PACKAGES / _JAIL), f"{_JAIL_AT}/{_JAIL}"]
    command += ["--dir", _SCRATCH, "--remount-ro", "/", "--", *_python(interpreter, Path(_JAIL_AT))]
    return _sandbox("bubblewrap", command=command, build_root=False, limits=limits)


def _sandbox(name: str, *, command: list[str], build_root: bool, limits: SandboxLimits) -> ProcessSandbox:
    settings = JailSettings(
        build_root=build_root,
        parent=os.getpid(),
        view=JailView(
            read_only=_read_only(),
            devices=_DEVICES,
            links=_links(),
            scratch=_SCRATCH,
            scratch_bytes=limits.scratch_bytes,
        ),
        memory_bytes=limits.memory_bytes,
        cpu_s=limits.cpu_s,
        report_bytes=limits.result_bytes,
        syscall_filter=syscall_filter(),
    )
    return ProcessSandbox(name, command=command, settings=settings, limits=limits)


def _interpreter() -> str:
    """The interpreter that a virtual environment was made from: it starts faster, and sees no packages."""
    if platform.system() != "Linux":
        raise SandboxUnavailable(f"{platform.system()} has no namespaces")
    prefix = Path(sys.base_prefix).resolve()
    if prefix == Path("/") or Path.home().is_relative_to(prefix):
        raise SandboxUnavailable(f"Python is installed in {prefix}, which holds more than Python")
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _python(interpreter: str, packages: Path) -> list[str]:
    return [interpreter, *_PYTHON_OPTIONS, "-c", _START.format(str(packages))]


def _read_only() -> list[str]:
    """What of the host is visible, symbolic links apart."""
    prefix = Path(sys.base_prefix).resolve()
    system = [path for path in _SYSTEM if Path(path).exists() and not Path(path).is_symlink()]
    return system if any(prefix.is_relative_to(path) for path in system) else [*system, str(prefix)]


def _links() -> dict[str, str]:
    return {path: str(Path(path).readlink()) for path in _SYSTEM if Path(path).is_symlink()}


try:
    import pydantic_monty
except ImportError:
    pydantic_monty = None

_GRACE_S = 2.0  # after which a worker that does not stop by itself is killed


class MontySandbox:
    """Each call gets a worker process of its own, which starts in a few ms. Raises SandboxUnavailable where
    the package is missing."""

    name = "monty"
    language = "Monty, a subset of Python"

    def __init__(self, limits: SandboxLimits) -> None:
        if pydantic_monty is None:
            raise SandboxUnavailable(f"pydantic-monty is not installed ({pip_install('mcpagent[servers]')})")
        self.version = pydantic_monty.__version__
        self._limits = limits
        # Its asynchronous form was seen to abort the process as the interpreter ends.
        self._threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="sandbox-monty")

    async def run(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """Run the code with these variables set, in a thread."""
        return await asyncio.wrap_future(self._threads.submit(self.run_blocking, code, names))

    def run_blocking(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """As `run`, where no event loop runs."""
        assert pydantic_monty is not None
        limits = self._limits
        printed = pydantic_monty.CollectString(limits.output_bytes)
        try:
            with (
                pydantic_monty.Monty(max_processes=1, request_timeout=limits.wall_s + _GRACE_S) as pool,
                pool.checkout(
                    limits={
                        "max_feed_duration_secs": limits.cpu_s,
                        "max_total_sleep_secs": limits.wall_s - limits.cpu_s,
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
    """The sandbox of this kind, or the best one for `auto`, proved to work. One for each process.

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
            return _proved(bubblewrap(limits), _PROBE, [])
        case SandboxKind.NAMESPACES:
            return _proved(namespaces(limits), _PROBE, [])
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
