"""A library as a plain JSON-RPC program over stdio, without an SDK: six tools that only read.

The number of books is its first argument, of random words about each thing the second, by default none.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

RANDOM = random.Random(3)
ADJECTIVES = [
    "silent",
    "golden",
    "broken",
    "hidden",
    "distant",
    "crimson",
    "hollow",
    "winter",
    "burning",
    "little",
    "endless",
    "paper",
]
NOUNS = [
    "river",
    "garden",
    "letter",
    "mirror",
    "harbor",
    "mountain",
    "clock",
    "orchard",
    "stranger",
    "bridge",
    "island",
    "candle",
]
FIRST = ["Agnes", "Bertrand", "Cecilia", "Dmitri", "Edith", "Fyodor", "Gunnar", "Hilda", "Ivo", "Judith"]
LAST = ["Ashby", "Borges", "Calvino", "Dorn", "Ekman", "Fuentes", "Grimm", "Hesse", "Ishikawa", "Joyce"]
COUNTRIES = ["Norway", "Chile", "Japan", "Kenya", "Italy", "Canada"]

Table = dict[str, dict[str, Any]]


def some_authors() -> Table:
    """Twenty-four, by an id of a letter and two digits."""
    return {
        f"a{number}": {
            "name": f"{RANDOM.choice(FIRST)} {RANDOM.choice(LAST)}",
            "born": RANDOM.randint(1820, 1985),
            "country": RANDOM.choice(COUNTRIES),
        }
        for number in RANDOM.sample(range(10, 100), 24)
    }


def some_books(count: int, authors: Table, shelves: list[str]) -> Table:
    """`count` with titles of their own."""
    pairs = [(adjective, noun) for adjective in ADJECTIVES for noun in NOUNS]
    titles = [f"the {adjective} {noun}" for adjective, noun in RANDOM.sample(pairs, count)]
    return {
        f"bk-{number}": {
            "title": title,
            "author_id": RANDOM.choice(list(authors)),
            "pages": RANDOM.randint(80, 900),
            "shelf": RANDOM.choice(shelves),
        }
        for number, title in zip(RANDOM.sample(range(1000, 10_000), count), titles, strict=True)
    }


def some_cards(count: int, books: Table) -> Table:
    """`count` library cards, by five digits."""
    return {
        str(number): {
            "reader": f"{RANDOM.choice(FIRST).lower()}.{RANDOM.choice(LAST).lower()}@mail.example",
            "loan": RANDOM.choice(list(books)),
            "due": f"2026-{RANDOM.randint(1, 12):02d}-{RANDOM.randint(1, 28):02d}",
        }
        for number in RANDOM.sample(range(20_000, 100_000), count)
    }


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """A tool that says that it only reads; its parameters are texts."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    return {
        "name": name,
        "description": description,
        "annotations": {"readOnlyHint": True},
        "inputSchema": {"type": "object", "properties": properties, "required": list(parameters)},
    }


def tools_of(n_books: int, n_words: int) -> dict[str, tuple[dict[str, Any], Callable[..., Any]]]:
    """Schema and function of each tool."""
    shelves = [f"{letter}{number}" for letter in "PQR" for number in (1, 2, 3, 4)]
    authors = some_authors()
    books = some_books(n_books, authors, shelves)
    cards = some_cards(max(4, n_books // 2), books)
    for row in (*authors.values(), *books.values(), *cards.values()) if n_words else ():
        row["about"] = " ".join(f"{RANDOM.randrange(16**6):x}" for _ in range(n_words))

    def contents(shelf: str) -> list[dict[str, str]]:
        return [
            {"book_id": key, "title": book["title"]} for key, book in books.items() if book["shelf"] == shelf
        ]

    listed = [
        (tool("list_shelves", "Lists every shelf of the library."), lambda: {"shelves": shelves}),
        (tool("shelf_contents", "Lists the books that stand on a shelf.", shelf="shelf mark"), contents),
        (
            tool("book_details", "Title, author, pages and shelf of a book.", book_id="book id"),
            lambda book_id: books[book_id],
        ),
        (
            tool("author_details", "Name, year of birth and country of an author.", author_id="author id"),
            lambda author_id: authors[author_id],
        ),
        (tool("list_cards", "Lists all library cards."), lambda: {"cards": list(cards)}),
        (
            tool("card_details", "Reader, loan and due date of a library card.", card="card number"),
            lambda card: cards[card],
        ),
    ]
    return {schema["name"]: (schema, function) for schema, function in listed}


def answered(message: Mapping[str, Any], tools: Mapping[str, Any]) -> dict[str, Any]:
    """The result or error of a request."""
    parameters = message.get("params") or {}
    match message["method"]:
        case "initialize":
            return {
                "result": {
                    "protocolVersion": parameters["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "library", "version": "1"},
                }
            }
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": [schema for schema, _ in tools.values()]}}
        case "tools/call":
            _, function = tools[parameters["name"]]
            try:
                text, is_error = json.dumps(function(**parameters.get("arguments", {}))), False
            except KeyError as error:
                text, is_error = f"there is no {error}", True
            return {"result": {"content": [{"type": "text", "text": text}], "isError": is_error}}
        case _:
            return {"error": {"code": -32601, "message": "unknown method"}}


def main() -> None:
    """Serve until the input ends."""
    n_books, n_words = (*map(int, sys.argv[1:]), *(70, 0)[len(sys.argv) - 1 :])
    tools = tools_of(n_books, n_words)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            body = {"jsonrpc": "2.0", "id": message["id"], **answered(message, tools)}
            print(json.dumps(body), flush=True)


if __name__ == "__main__":
    main()
