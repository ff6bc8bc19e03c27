"""A server that answers `initialize` with the JSON of its argument in place of its own result."""

from __future__ import annotations

import json
import sys

for line in sys.stdin:
    message = json.loads(line)
    body = {"error": {"code": -32601, "message": "no such method"}}
    if message["method"] == "initialize":
        body = {"result": json.loads(sys.argv[1])}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
