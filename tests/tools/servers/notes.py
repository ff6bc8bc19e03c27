"""Servers that keep notes in different places; `python notes.py MODE [FILE]` serves one over stdio.

MODE: `nowhere` forgets them, `kept` has them in this process or in FILE, which all instances share, `silent`
is the same with no tool that only reads, `bare` the same without annotations.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
MAILS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)


class Notes:
    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.kept: list[str] = []

    def add(self, note: str) -> None:
        self.kept.append(note)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(note + "\n")

    def all(self) -> list[str]:
        if self.file is None:
            return self.kept
        return self.file.read_text().splitlines() if self.file.exists() else []


def build(mode: str, file: Path | None = None) -> MCPServer[object]:
    notes = Notes(file)
    ticks = itertools.count()
    server = MCPServer("notes", log_level="ERROR")

    def add_note(note: str) -> str:
        if mode != "nowhere":
            notes.add(note)
        return f"noted: {note}"

    def list_notes() -> list[str]:
        return notes.all()

    def find_note(text: str) -> bool:
        return any(text in note for note in notes.all())

    def tick() -> str:
        """Another answer at every call, and in every process."""
        return f"{os.getpid()}.{next(ticks)}"

    def append_note(note: str) -> list[str]:
        notes.add(note)
        return list(notes.all())

    def wipe_notes() -> str:
        Path(os.environ["WIPED"]).touch()
        return "wiped"

    def mail_notes(to: str) -> str:
        Path(os.environ["WIPED"]).touch()
        return f"mailed to {to}"

    if mode == "silent":
        server.add_tool(append_note, annotations=ADDS)
        return server
    is_bare = mode == "bare"
    server.add_tool(add_note, annotations=None if is_bare else ADDS)
    for reader in (list_notes, find_note, tick):
        server.add_tool(reader, annotations=None if is_bare else READS)
    if "WIPED" in os.environ:
        server.add_tool(wipe_notes, annotations=DESTROYS)
        server.add_tool(mail_notes, annotations=MAILS)
    return server


if __name__ == "__main__":
    build(sys.argv[1], *map(Path, sys.argv[2:])).run()
