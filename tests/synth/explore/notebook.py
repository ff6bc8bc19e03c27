"""A notebook over stdio, in memory or in a file, without an SDK: python -S notebook.py LOG [FILE].

It says nothing of what its tools may do, but for those that only read. What changes something is logged, and
in LOG.starts each process that starts, and each that changes something.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from stdio import serve, tool  # next to this script

LOG = Path(sys.argv[1])
STARTS = LOG.with_suffix(".starts")
FILE = Path(sys.argv[2]) if len(sys.argv) > 2 else None
FIRST = ["Amber", "Bronze", "Copper", "Damson", "Ebony", "Flint", "Garnet", "Hazel", "Indigo", "Jasper"]
LAST = ["Anchor", "Basket", "Candle", "Drawer", "Engine", "Feather", "Garden", "Hammer", "Island", "Jacket"]
NOTES: dict[str, dict[str, Any]] = {
    f"{one} {other}": {"text": f"{one} goes with {other.lower()} {n + 3} times", "stars": 11 + n}
    for n, (one, other) in enumerate(zip(FIRST, LAST, strict=True))
}


def _note_process(what: str = "") -> None:
    with STARTS.open("a") as lines:
        lines.write(f"{os.getpid()}{what}\n")


def _notes() -> dict[str, dict[str, Any]]:
    if FILE is None:
        return NOTES
    if not FILE.exists():
        FILE.write_text(json.dumps(NOTES))
    return json.loads(FILE.read_text())


def _keep(changed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if FILE is None:
        NOTES.clear()
        NOTES.update(changed)
    else:
        FILE.write_text(json.dumps(changed))
    return {"ok": True}


def _call(tool: str, given: dict[str, Any]) -> Any:
    if tool not in ("list_notes", "read_note"):
        with LOG.open("a") as lines:
            lines.write(f"{tool} {json.dumps(given)}\n")
        _note_process(f" {tool}")
    match tool:
        case "list_notes":
            return {"notes": [{"title": t, "stars": note["stars"]} for t, note in _notes().items()]}
        case "read_note":
            return _notes().get(given["title"])
        case "add_note" if given["title"] not in _notes():
            note = {"text": given["text"], "stars": given["stars"]}
            return _keep({**_notes(), given["title"]: note})
        case "delete_note":
            return _keep({title: note for title, note in _notes().items() if title != given["title"]})
        case "add_secret" | "send_letter":
            return {"ok": True}
    return None


TOOLS = [
    tool("list_notes", "All notes of the notebook", reads=True),
    tool("read_note", "What is written in it", reads=True, title="string"),
    tool("add_note", "Put one in", title="string", text="string", stars="integer"),
    tool("add_secret", "Keep a word that nothing reads", word="string"),
    tool("send_letter", "Mail a letter", text="string"),
    tool("delete_note", "Tear one out", title="string"),
]


if __name__ == "__main__":
    _note_process()
    serve("notebook", TOOLS, _call, refusal="the notebook has no such thing")
