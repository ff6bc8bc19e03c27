"""A library over stdio whose books are lent, without an SDK: python -S library_server.py LOG [--stale].

Every process starts with the same books. It shows one thing and returns more as structured content, tells
the same by two tools, and gives its list in pages. What changes something is logged. With --stale the
order of its list is that of no other process.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from stdio import serve, tool  # next to this script

LOG = Path(sys.argv[1])
TITLES = (
    "Emma",
    "Dracula",
    "Ivanhoe",
    "Middlemarch",
    "Ulysses",
    "Walden",
    "Silas Marner",
    "Kim",
    "Nostromo",
    "Utopia",
)
BOOKS: dict[str, dict[str, Any]] = {
    f"B-{211 + 13 * n}": {
        "title": title,
        "pages": 180 + 37 * n,
        "status": "on loan" if n % 4 == 1 else "in",
        "notes": [],
    }
    for n, title in enumerate(TITLES)
}
READERS = {
    f"R-{50 + 7 * n}": {"name": f"{name} Berg", "shelf mark": 40 + n}
    for n, name in enumerate(("Ada", "Bo", "Cy", "Di", "Ed", "Flo"))
}
PAGE = 4


def _rows() -> list[str]:
    names = list(BOOKS)
    if "--stale" in sys.argv:
        random.shuffle(names)
    return names


def _call(tool: str, given: dict[str, Any]) -> Any:
    book = BOOKS.get(str(given.get("book_id")))
    if tool in ("set_status", "add_note", "withdraw", "email_reader"):
        with LOG.open("a") as lines:
            lines.write(f"{tool} {json.dumps(given)}\n")
    match tool:
        case "list_books":
            first = PAGE * (int(given.get("page", 1)) - 1)
            rows = [{"book_id": key, "title": BOOKS[key]["title"]} for key in _rows()]
            return {"books": rows[first : first + PAGE], "total": len(rows)}
        case "list_readers":
            return {"readers": [{"reader_id": key, "name": of["name"]} for key, of in READERS.items()]}
        case "get_reader":
            return READERS.get(str(given.get("reader_id")), "None")
        case "get_book" if book is not None:
            return {**{k: v for k, v in book.items() if k != "notes"}, "branch": "main"}
        case "describe_book" if book is not None:
            return f"Title: {book['title']}\nPages: {book['pages']}\nStatus: {book['status']}"
        case "list_notes" if book is not None:
            return {"notes": book["notes"]}
        case "find_shelf":
            return "Error: the shelves are being counted"
        case "set_status" if book is not None and given["status"] in ("in", "on loan", "lost"):
            book["status"] = given["status"]
            return {"ok": True}
        case "add_note" if book is not None:
            book["notes"].append({"text": given["text"]})
            return {"ok": True}
        case "withdraw" if book is not None:
            del BOOKS[given["book_id"]]
            return {"ok": True}
        case "email_reader":
            return {"ok": True}
    return None


_BRANCH = {"type": "string", "default": "main"}
_STATUS = {"type": "string", "enum": ["in", "on loan", "lost"]}
TOOLS = [
    tool(
        "list_books",
        "List the books, in pages",
        reads=True,
        optional=("page",),
        page={"type": "integer", "default": 1},
    ),
    tool("list_readers", "List the readers", reads=True),
    tool("get_reader", "What is known of a reader", reads=True, reader_id="string"),
    tool(
        "get_book",
        "What is known of a book",
        reads=True,
        optional=("branch",),
        book_id="string",
        branch=_BRANCH,
    ),
    tool("describe_book", "Describe a book", reads=True, book_id="string"),
    tool("list_notes", "List the notes on a book", reads=True, book_id="string"),
    tool("find_shelf", "Find the shelf of a book", reads=True, book_id="string"),
    tool("set_status", "Set the status of a book", book_id="string", status=_STATUS),
    tool("add_note", "Add a note to a book", book_id="string", text="string"),
    tool("withdraw", "Take a book out of the library", book_id="string"),
    tool("email_reader", "Send an email to a reader", reader_id="string", text="string"),
]


if __name__ == "__main__":
    serve(
        "library",
        TOOLS,
        _call,
        refusal="there is no such book",
        hidden={"weight_g": 411, "acquired": "1987-04-05"},
    )
