"""Three servers that chats are about: `python -m tests.synth.chats.servers NAME LEDGER`. Each call is written
down in the file LEDGER. The library only reads, the to-do list has a state, the desk says nothing of what its
tools do."""

import itertools
import sys
from pathlib import Path
from typing import Any

from tests.synth.explore.stdio import serve, tool

AUTHORS = ("Ada Brook", "Bo Winter", "Cleo Marsh", "Dev Hollis", "Eva Stone", "Finn Garner")
BOOKS = {
    f"B-{10 * a + n}": {
        "title": f"{word} {author.split()[1]}",
        "author": author,
        "pages": 211 + 37 * a + 11 * n,
    }
    for a, author in enumerate(AUTHORS)
    for n, word in enumerate(("Under", "Beyond", "Against"))
}
TOOLS = {
    "library": [
        tool("search_books", "The books of an author", reads=True, author="string"),
        tool("get_book", "One book by its number", reads=True, number="string"),
        tool("find_shelf", "Where a book stands", reads=True, number="string"),
    ],
    "todo": [
        tool("list_todos", "Everything to do", reads=True),
        tool("add_todo", "Add something to do", title="string"),
    ],
    "desk": [
        tool("find_person", "The room of a person", person="string"),
        tool("send_mail", "Send a mail", to="string", text="string"),
    ],
}
TODOS = ["water the plants"]
REQUESTS = itertools.count(1000)


def answer(name: str, given: dict[str, Any]) -> Any:
    """What a tool says; None if it refuses."""
    match name:
        case "search_books":
            found = [number for number, book in BOOKS.items() if book["author"] == given["author"]]
            return {"numbers": found} if found else None
        case "get_book":
            return BOOKS.get(given["number"])
        case "find_shelf":
            return {"request": next(REQUESTS), "shelf": f"S{given['number'][2:]}"}
        case "list_todos":
            return {"todos": TODOS}
        case "add_todo":
            TODOS.append(given["title"])
            return {"added": given["title"]}
        case "find_person":
            return {"room": f"R{len(given['person'])}"}
        case _:
            return {"sent": True}


if __name__ == "__main__":
    server, ledger = sys.argv[1:]

    def call(name: str, given: dict[str, Any]) -> Any:
        with Path(ledger).open("a") as file:
            file.write(f"{server}.{name}\n")
        return answer(name, given)

    serve(server, TOOLS[server], call, refusal="There is nothing of that name.")
