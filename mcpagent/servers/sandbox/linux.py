"""The two sandboxes of Linux: bubblewrap, and namespaces made by the child itself."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from mcpagent.servers.sandbox.contract import Limits, SandboxUnavailable
from mcpagent.servers.sandbox.jail.settings import JailSettings
from mcpagent.servers.sandbox.process import ProcessSandbox
from mcpagent.servers.sandbox.seccomp import syscall_filter

_SCRATCH = "/work"
_DEVICES = ["/dev/null", "/dev/urandom"]
# Where shared libraries, time zones and the system's own Python live: the same for all users of a machine.
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/ld.so.cache")
_JAIL = "mcpagent/servers/sandbox/jail"
_PACKAGES = Path(__file__).parents[3]  # the folder that holds mcpagent/
_JAIL_AT = "/jail"  # the same, inside bubblewrap
_PYTHON_OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8")  # no site-packages, nothing from the cwd
_START = "import sys; sys.path.append({!r}); from mcpagent.servers.sandbox.jail.main import main; main()"


def namespaces(limits: Limits) -> ProcessSandbox:
    """All namespaces that there are, a root of its own, Landlock, seccomp and rlimits.

    Raises SandboxUnavailable off Linux; whether the kernel allows it, only trying shows.
    """
    interpreter = _interpreter()
    return _sandbox("namespaces", command=_python(interpreter, _PACKAGES), build_root=True, limits=limits)


def bubblewrap(limits: Limits) -> ProcessSandbox:
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


def _sandbox(name: str, *, command: list[str], build_root: bool, limits: Limits) -> ProcessSandbox:
    settings = JailSettings(
        build_root=build_root,
        parent=os.getpid(),
        read_only=_read_only(),
        devices=_DEVICES,
        links=_links(),
        scratch=_SCRATCH,
        scratch_bytes=limits.scratch_bytes,
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
