"""A server that works on a folder: `python -m tests.tools.servers.desk FOLDER [DATABASE]`. `put` writes a
file by its whole path, `show` reads one, `names` lists the folder it was given, `clear` empties it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from tests.tools.servers.plain import ADDS, DESTROYS, READS, PlainTool, serve

FOLDER = Path(sys.argv[1])


def names() -> str:
    return "\n".join(sorted(str(path) for path in FOLDER.rglob("*")))


def put(path: str, text: str) -> str:
    Path(path).write_text(text)
    return f"wrote {path}"


def count() -> str:
    with closing(sqlite3.connect(sys.argv[2])) as database:
        return str(database.execute("select count(*) from rows").fetchone()[0])


def insert() -> str:
    with closing(sqlite3.connect(sys.argv[2])) as database, database:
        database.execute("insert into rows values (1)")
    return "inserted"


def clear() -> str:
    for path in FOLDER.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return "cleared"


DATABASE_TOOLS = [PlainTool("count", count, (), READS), PlainTool("insert", insert, (), ADDS)]

if __name__ == "__main__":
    serve(
        [
            PlainTool("names", names, (), READS),
            PlainTool("show", lambda path: Path(path).read_text(), ("path",), READS),
            PlainTool("here", lambda: str(Path.cwd()), (), READS),
            PlainTool("variable", lambda: os.environ.get("PLACE", ""), (), READS),
            PlainTool("put", put, ("path", "text"), ADDS),
            PlainTool("jot", lambda text: put(str(FOLDER / "jot.txt"), text), ("text",), ADDS),
            PlainTool("clear", clear, (), DESTROYS),
            *(DATABASE_TOOLS if len(sys.argv) > 2 else []),
        ]
    )
