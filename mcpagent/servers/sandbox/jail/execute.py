"""Run the code and report how it ended: one JSON document on the report's descriptor."""

from __future__ import annotations

import _ast
import json
import os
import signal
import sys
import types

from mcpagent.servers.sandbox.jail.values import jsonable

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
