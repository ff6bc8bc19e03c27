"""Servers that keep notes in different places: `python -m tests.tools.servers.notes MODE [FILE]`.

MODE: `nowhere` forgets them, `kept` has them in this process or in FILE, which all instances share, `bare` is
the same without annotations, `filed` writes each to the path that it is given. With the variable WIPED there
are two more tools, which must not be called unasked and leave that file.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from tests.tools.servers.plain import ADDS, DESTROYS, MAILS, READS, PlainTool, serve


class Notes:
    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._kept: list[str] = []

    def add(self, note: str) -> None:
        self._kept.append(note)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(note + "\n")

    def all(self) -> str:
        if self._file is None:
            return "\n".join(self._kept)
        return self._file.read_text() if self._file.exists() else ""


def tools(mode: str, file: Path | None = None) -> list[PlainTool]:
    notes = Notes(file)
    ticks = itertools.count()

    def add_note(note: str) -> str:
        if mode != "nowhere":
            notes.add(note)
        return f"noted: {note}"

    def spoil(**_: str) -> str:
        Path(os.environ["WIPED"]).touch()
        return "done"

    def write_note(path: str) -> str:
        Path(path).write_text("a note")
        return "written"

    if mode == "filed":
        return [PlainTool("write_note", write_note, ("path",), ADDS)]
    adds, reads = ({}, {}) if mode == "bare" else (ADDS, READS)
    offered = [
        PlainTool("add_note", add_note, ("note",), adds),
        PlainTool("list_notes", notes.all, (), reads),
        PlainTool("find_note", lambda text: str(text in notes.all()), ("text",), reads),
        # Another answer at every call, and in every process.
        PlainTool("tick", lambda: f"{os.getpid()}.{next(ticks)}", (), reads),
    ]
    if "WIPED" in os.environ:
        offered += [
            PlainTool("wipe_notes", spoil, (), DESTROYS),
            PlainTool("mail_notes", spoil, ("to",), MAILS),
        ]
    return offered


if __name__ == "__main__":
    serve(tools(sys.argv[1], *map(Path, sys.argv[2:])))
