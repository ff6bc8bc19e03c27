"""A server that keeps carts under handles: `python carts.py HOW [FILE]`, in its process or in FILE, which all
instances share. `open_cart` gives a handle; `add_item` and `list_items` take it, and refuse others. HOW: it
is a `field` of JSON that is called as the parameter is, an `id`, the `number` of the cart, or a word of a
`sentence`; `leaky` carts show the items of all."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any

from plain import ADDS, READS, answer_with

HOW = sys.argv[1]
FILE = Path(sys.argv[2]) if len(sys.argv) > 2 else None
carts: dict[str, list[str]] = {}


def tool(name: str, hints: dict[str, bool], **properties: str) -> dict[str, Any]:
    typed = {key: {"type": kind} for key, kind in properties.items()}
    schema = {"type": "object", "properties": typed, "required": list(properties)}
    return {"name": name, "inputSchema": schema, "annotations": hints}


KIND = "integer" if HOW == "number" else "string"
TOOLS = [
    tool("open_cart", ADDS),
    tool("add_item", ADDS, cart=KIND, item="string"),
    tool("list_items", READS, cart=KIND),
]


def shown(text: str, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def run(name: str, given: dict[str, Any]) -> dict[str, Any]:
    if FILE is not None and FILE.exists():
        carts.update(json.loads(FILE.read_text()))
    if name == "open_cart":
        handle = str(1000 + len(carts)) if HOW == "number" else f"c-{secrets.token_hex(4)}"
        carts[handle] = []
        said = {
            "number": f'{{"id": {handle}}}',
            "id": f'{{"id": "{handle}"}}',
            "sentence": f"Opened {handle} for you.",
        }
        answer = shown(said.get(HOW, json.dumps({"cart": handle})))
    elif str(given["cart"]) not in carts:
        answer = shown("there is no such cart", True)
    elif name == "add_item":
        carts[str(given["cart"])].append(given["item"])
        answer = shown("added")
    else:
        own = carts[str(given["cart"])]
        listed = [item for items in carts.values() for item in items] if HOW == "leaky" else own
        answer = shown(json.dumps(listed))
    if FILE is not None:
        FILE.write_text(json.dumps(carts))
    return answer


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return run(params["name"], params.get("arguments") or {})
    return None


answer_with(result_of)
