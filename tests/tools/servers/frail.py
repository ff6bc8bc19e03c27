"""An MCP server on the standard library alone, so that it starts in a moment: `python frail.py MODE FILE`.

FILE gets the id of its process and every method that it is asked. MODE: `sound`; `once` does not start again;
`litter` starts a process that outlives it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

LITTER = "import time; time.sleep(600)"
TOOLS = [
    {
        "name": "wipe",
        "description": "Delete everything.",
        "inputSchema": {"type": "object", "properties": {}},
    }
]


def main(mode: str, file: Path) -> None:
    if mode == "once" and file.exists():
        sys.exit("no second start: the licence is spent")
    if mode == "litter":
        subprocess.Popen(
            [sys.executable, "-c", LITTER],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    with file.open("a") as log:
        print("pid", os.getpid(), file=log, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            print("method", request["method"], file=log, flush=True)
            if "id" in request:
                print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **_answer(request)}), flush=True)


def _answer(request: dict[str, object]) -> dict[str, object]:
    match request["method"]:
        case "initialize":
            info = {"name": "frail", "version": "1"}
            capabilities = {"tools": {}}
            return {
                "result": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": capabilities,
                    "serverInfo": info,
                }
            }
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "ping":
            return {"result": {}}
        case other:
            return {"error": {"code": -32601, "message": f"no method {other}"}}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
