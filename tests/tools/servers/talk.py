"""The echo server as a process, `python talk.py`, on the standard library alone so that a start costs little.
Each call has a thread of its own."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from plain import READS, answer_with

notes: list[str] = []


def echo(text: str) -> str:
    return text


def pid() -> int:
    return os.getpid()


def variable(name: str) -> str:
    """The value of an environment variable."""
    return os.environ.get(name, "unset")


def noise(size: int) -> str:
    """`size` characters on stderr."""
    sys.stderr.write("n" * size)
    return "done"


def garbage() -> str:
    """Bytes on the protocol's stdout that are neither JSON nor UTF-8."""
    os.write(1, b"\xff\xfe not a message\n")
    return "done"


def die_once(marker: str) -> str:
    """Exit at the first call; `marker` is the file that remembers it."""
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(3)
    return "alive"


def die_after_writing(ledger: str) -> str:
    """An effect, then a crash: the call must not be made twice."""
    with Path(ledger).open("a") as file:
        file.write("effect\n")
    os._exit(3)


def write_down(note: str) -> list[str]:
    notes.append(note)
    return notes


def refuse() -> str:
    raise PermissionError("not today")


def hang() -> str:
    time.sleep(1000)
    return "never"


READERS = (echo, pid, variable, noise, garbage, die_once)
TOOLS = {tool.__name__: tool for tool in (*READERS, die_after_writing, write_down, refuse, hang)}


def listed(name: str) -> dict[str, Any]:
    takes = inspect.signature(TOOLS[name]).parameters
    types = {taken: {"type": "integer" if taken == "size" else "string"} for taken in takes}
    schema = {"type": "object", "properties": types, "required": list(takes)}
    return {"name": name, "inputSchema": schema, **({"annotations": READS} if TOOLS[name] in READERS else {})}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "tools/list":
            return {"tools": [listed(name) for name in TOOLS]}
        case "tools/call":
            try:
                value = TOOLS[params["name"]](**params["arguments"])
            except (PermissionError, TypeError) as error:
                return {"content": [{"type": "text", "text": str(error)}], "isError": True}
            text = value if isinstance(value, str) else json.dumps(value)
            return {"content": [{"type": "text", "text": text}], "structuredContent": {"result": value}}
    return None


if __name__ == "__main__":
    answer_with(result_of, at_once=True)
