"""A server that knows `initialize` as its first message only: `python picky.py TRAIT FILE`, which writes a
line into FILE at each start. TRAIT is what it does at another one: an exit code, `signal`, `refuse` (it
answers with an error, then ends), `close` (its output), or `silent`: it waits for the next. With `broken` it
ends at `initialize` too. Its tool `first` answers with the first message that it got."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

TRAIT, FILE = sys.argv[1], Path(sys.argv[2])


def write(request: dict[str, Any], body: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}), flush=True)


def end(request: dict[str, Any]) -> None:
    match TRAIT:
        case "signal":
            os.kill(os.getpid(), signal.SIGABRT)
        case "refuse":
            write(request, {"error": {"code": -32600, "message": "initialize first"}})
            os._exit(0)
        case "close":
            os.close(1)
            time.sleep(600)
        case "silent":
            return
        case code:
            sys.exit(f"expected initialize, not {request['method']}" if code == "1" else int(code))


with FILE.open("a") as file:
    file.write("started\n")
first = ""
for line in sys.stdin:
    message = json.loads(line)
    first = first or message["method"]
    if TRAIT == "broken":
        sys.exit("no key\n")
    if first != "initialize" and message["method"] == first:
        end(message)
        continue
    match message["method"]:
        case "initialize":
            known = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            write(message, {"result": {**known, "serverInfo": {"name": "picky", "version": "1"}}})
        case "tools/list":
            tools = [{"name": "first", "inputSchema": {"type": "object"}}]
            write(message, {"result": {"tools": tools}})
        case "tools/call":
            write(message, {"result": {"content": [{"type": "text", "text": first}]}})
