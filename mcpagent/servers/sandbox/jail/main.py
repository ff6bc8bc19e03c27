"""The child process, from its start to the code's end.

stdin: the request, `marshal` (it comes from the same interpreter); stdout: what the code prints; stderr: the
report. The report starts with READY once the process is locked in: what comes after it, the code may have
written, and what is wrong after it is the code's own fault.
"""

from __future__ import annotations

import _ast
import json
import marshal
import os
import resource
import signal
import sys
import types

from mcpagent.servers.sandbox.jail import confine as landlock
from mcpagent.servers.sandbox.jail import syscalls
from mcpagent.servers.sandbox.jail.confine import build_root, enter_namespaces, mount_scratch
from mcpagent.servers.sandbox.jail.settings import JailSettings, JailView, jsonable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

FILE = "<code>"  # how the code's own lines are called in a traceback
_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without importing ast


def execute(code: str, *, names: dict[str, Any], report: int, report_bytes: int) -> NoReturn:
    """Run `code` with `names` defined and end the process. The report is {"value": ...}, the value of the
    last statement where that is an expression, or {"error": ..., "line": ...}."""
    module = types.ModuleType("__main__")
    module.__dict__.update(names)
    sys.modules["__main__"] = module  # where dataclasses, typing and pickle look names up
    try:
        answer = {"value": _run(code, module.__dict__)}
        text = json.dumps(answer)
        if len(text) > report_bytes:
            text = json.dumps({"error": f"The result has more than {report_bytes} bytes.", "line": None})
    except BaseException as error:  # noqa: BLE001 - boundary: whatever the model's code raises is an answer
        module.__dict__.clear()  # after a MemoryError, room to say so
        text = json.dumps(_described(error))
    try:
        sys.stdout.flush()
    finally:
        _write_all(report, text.encode()[:report_bytes])
        os._exit(0)


def give_way_after(cpu_s: float) -> None:
    """Lower this process's priority once it has used so much CPU time: short calls overtake long ones."""
    signal.signal(signal.SIGPROF, lambda _signal, _frame: os.nice(10))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def stop_at_cpu_limit(seconds: int) -> None:
    """Raise in the code when its CPU time is used up: a second later the kernel kills it."""

    def stop(_signal: int, _frame: object) -> NoReturn:
        raise TimeoutError(f"used more than {seconds} s of CPU time")

    signal.signal(signal.SIGXCPU, stop)


def _run(code: str, names: dict[str, Any]) -> Any:
    tree: Any = compile(code, FILE, "exec", _ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
    exec(compile(tree, FILE, "exec"), names)
    if last is None:
        return None
    return jsonable(eval(compile(_ast.Expression(last.value), FILE, "eval"), names))


def _described(error: BaseException) -> dict[str, Any]:
    if isinstance(error, SystemExit) and not error.code:
        return {"value": None}
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == FILE else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    name, message = type(error).__name__, error.msg if isinstance(error, SyntaxError) else str(error)
    return {"error": f"{name}: {message[:2000]}" if message else name, "line": line}


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if TYPE_CHECKING:
    from typing import NoReturn

READY = b"ready\n"
_THREADS_MAX = 64
_COUNTED_BY_NAMESPACE = (5, 14)  # Linux; before, the threads of all of the user's processes count
_SHORT_S = 0.25  # CPU time after which a call is no longer a short one


def main() -> NoReturn:
    """Confine this process, then run the code that stdin holds."""
    try:
        request = marshal.loads(sys.stdin.buffer.read())
        view = JailView(**request["settings"].pop("view"))
        settings = JailSettings(view=view, **request["settings"])
        report = _lock_in(settings)
    except (OSError, ValueError, EOFError) as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)
    os.write(report, READY)
    execute(request["code"], names=request["names"], report=report, report_bytes=settings.report_bytes)


def _lock_in(settings: JailSettings) -> int:
    """Give up everything but the scratch directory and Python. Returns the descriptor of the report."""
    if settings.build_root:
        enter_namespaces(settings.parent)
        build_root(settings)
    else:
        mount_scratch(settings)
    syscalls.drop_capabilities()
    _limit_resources(settings)
    syscalls.forbid_inspection()
    syscalls.forbid_new_privileges()
    if settings.build_root:
        writable = [*settings.view.devices, settings.view.scratch]
        landlock.restrict(read_only=settings.view.read_only, writable=writable)
    report = os.dup(2)
    os.dup2(1, 2)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    sys.stderr = sys.stdout
    os.environ.clear()
    syscalls.filter_syscalls(settings.syscall_filter)
    return report


def _limit_resources(settings: JailSettings) -> None:
    give_way_after(_SHORT_S)
    stop_at_cpu_limit(settings.cpu_s)
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, settings.cpu_s, settings.cpu_s + 1),
        (resource.RLIMIT_AS, settings.memory_bytes, settings.memory_bytes),
        (resource.RLIMIT_FSIZE, settings.view.scratch_bytes, settings.view.scratch_bytes),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_SIGPENDING, 64, 64),
    ):
        resource.setrlimit(limit, (soft, hard))
    if tuple(map(int, os.uname().release.split(".")[:2])) >= _COUNTED_BY_NAMESPACE:
        resource.setrlimit(resource.RLIMIT_NPROC, (_THREADS_MAX, _THREADS_MAX))
