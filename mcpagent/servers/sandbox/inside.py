"""What runs in the sandbox: it takes limits upon itself, then runs the code. Standard library only.

A bare interpreter (no site-packages) runs this file alone, so nothing here may import the rest of mcpagent.
stdin: the request, `marshal` (it comes from the same interpreter); stdout: what the code prints; stderr: the
report. The report starts with READY once the limits are set: what comes after it, the code may have written,
and what is wrong after it is the code's own fault.
"""

from __future__ import annotations

import _ast
import json
import marshal
import math
import os
import resource
import signal
import sys
import types

TYPE_CHECKING = False  # importing typing would add a third to the cost of a call
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

READY = b"ready\n"
FILE = "<code>"  # how the code's own lines are called in a traceback
_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without importing ast
_SHORT_S = 0.25  # CPU time after which a call gives way to others
_PROCESSES_MAX = 64  # threads included; the kernel does not hold root to it
# What makes processes, and what calls the kernel past Python: not needed to compute.
_REFUSED = ("os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.", "pty.", "ctypes.")
_MAX_DEPTH = 20
_INT64 = range(-(2**63), 2**63)


def main() -> NoReturn:
    """Run the code that stdin holds, and end the process.

    The report is {"value": ...}, the value of the last statement if that is an expression, or
    {"error": ..., "line": ...}.
    """
    request = marshal.loads(sys.stdin.buffer.read())
    report = os.dup(2)
    os.dup2(1, 2)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    sys.stderr = sys.stdout
    os.environ.clear()
    _limit_resources(request["cpu_s"], request["memory_bytes"], request["scratch_bytes"])
    sys.addaudithook(_refuse_processes)
    os.write(report, READY)
    report_bytes = request["report_bytes"]
    module = types.ModuleType("__main__")
    module.__dict__.update(request["names"])
    sys.modules["__main__"] = module  # where dataclasses, typing and pickle look names up
    try:
        text = json.dumps({"value": _run(request["code"], module.__dict__)})
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


def _limit_resources(cpu_s: int, memory_bytes: int, scratch_bytes: int) -> None:
    def stop(_signal: int, _frame: object) -> NoReturn:
        raise TimeoutError(f"used more than {cpu_s} s of CPU time")

    signal.signal(signal.SIGXCPU, stop)  # a second later the kernel kills it
    signal.signal(signal.SIGPROF, lambda _signal, _frame: os.nice(10))  # short calls overtake long ones
    signal.setitimer(signal.ITIMER_PROF, _SHORT_S)
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory_bytes, memory_bytes),
        (resource.RLIMIT_FSIZE, scratch_bytes, scratch_bytes),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, _PROCESSES_MAX, _PROCESSES_MAX),
    ):
        resource.setrlimit(limit, (soft, hard))


def _refuse_processes(event: str, _arguments: object) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(f"{event} is not allowed here")


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


def jsonable(value: Any, *, clean: Callable[[str], str] = str, depth: int = 0) -> Any:
    """Return `value` as JSON with the same meaning if there is one, else its `repr` as text: an object, a
    number that is not a JSON number or needs more than 64 bits, what is nested more than 20 deep. Sets and
    tuples become lists. Every text goes through `clean`. Raise whatever a `repr` of the value raises."""
    kind = type(value)
    if value is None or kind is bool or (kind is int and value in _INT64):
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is str:
        return clean(value)
    if depth < _MAX_DEPTH:
        if kind in (list, tuple, set, frozenset):
            return [jsonable(item, clean=clean, depth=depth + 1) for item in value]
        if kind is dict:
            return {
                clean(key if type(key) is str else repr(key)): jsonable(item, clean=clean, depth=depth + 1)
                for key, item in value.items()
            }
    return clean(repr(value))


if __name__ == "__main__":
    main()
