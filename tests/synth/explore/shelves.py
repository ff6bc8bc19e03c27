"""A library over stdio whose answers depend on the shelf that was opened last, though every tool says that it
only reads. `python -S shelves.py STARTS`: each process that starts adds a line to STARTS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from stdio import serve, tool  # next to this script

OPEN = ["no shelf"]
TOOLS = [
    tool("open_shelf", "Open a shelf", reads=True, shelf="string"),
    tool("read_book", "Read a book", reads=True, title="string"),
    tool("weigh_book", "Weigh a book", reads=True, title="string"),
]


def _call(name: str, given: dict[str, Any]) -> Any:
    match name:
        case "open_shelf":
            OPEN[0] = given["shelf"]
            return {"done": True}
        case "read_book":
            return {"title": given["title"], "from": OPEN[0]}
    return {"grams": 100 + 7 * len(given["title"])}


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a") as starts:
        starts.write("started\n")
    serve("shelves", TOOLS, _call, refusal="the library has no such thing")
