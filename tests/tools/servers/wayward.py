"""A server that answers `echo`, and on `misbehave` does what `kind` says: `python wayward.py stdio|http`.

Kinds: `notify` and `odd` (notifications without end), `progress` (100 of them, then the answer), `ping`
(requests without end), `answers` (to calls that nobody made), `noise` (lines that are no messages), `blank`
(empty lines), `line` (one that never ends), `stderr`, `meta` (a megabyte of it), `hang`, `exit`. Standard
library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = 4096  # lines in one write

NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 50}}
# The same with its members in an order that nobody expects.
ODD_NOTE = {
    "params": {"level": "info", "data": "x" * 50},
    "method": "notifications/message",
    "jsonrpc": "2.0",
}
PING = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
ANSWER = {"jsonrpc": "2.0", "id": 999_999, "result": {"content": []}}

WITHOUT_END: dict[str, bytes] = {
    "notify": json.dumps(NOTE).encode(),
    "odd": json.dumps(ODD_NOTE).encode(),
    "ping": json.dumps(PING).encode(),
    "answers": json.dumps(ANSWER).encode(),
    "noise": b"this is no message",
    "blank": b"",
}


def result_of(request: dict[str, Any], write: Callable[[bytes], None]) -> dict[str, Any] | None:
    """The result of a request; None for an error. `write` sends a message of the server's own."""
    params = request.get("params", {})
    match request["method"]:
        case "initialize":
            info = {"name": "wayward", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            hints = {"annotations": {"readOnlyHint": True}}
            schema = {"inputSchema": {"type": "object"}}
            return {"tools": [{"name": "echo", **schema, **hints}, {"name": "misbehave", **schema}]}
        case "ping":
            return {}
        case "tools/call" if params["name"] == "misbehave":
            return misbehave(params["arguments"], write)
        case "tools/call":
            return {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
    return None


def misbehave(arguments: dict[str, Any], write: Callable[[bytes], None]) -> dict[str, Any]:
    done = {"content": [{"type": "text", "text": "done"}]}
    match arguments["kind"]:
        case "progress":
            for _ in range(100):
                write(json.dumps(NOTE).encode())
        case "line":
            while True:
                os.write(1, b"x" * 65536)
        case "stderr":
            for _ in range(arguments["mib"]):
                os.write(2, b"e" * 2**20)
            os.write(2, b"\nthe last words\n")
        case "meta":
            return done | {"_meta": {"small": "kept", "large": "m" * 2**20, "many": list(range(10**5))}}
        case "hang":
            time.sleep(1000)
        case "exit":
            os._exit(arguments.get("code", 0))
        case kind:
            while True:
                write(b"\n".join([WITHOUT_END[kind]] * CHUNK))
    return done


def serve_stdio() -> None:
    lock = threading.Lock()

    def write(data: bytes) -> None:
        with lock:
            data += b"\n"
            while data:
                data = data[os.write(1, data) :]

    def answer(request: dict[str, Any]) -> None:
        write(_reply(request, write))

    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()
    os._exit(0)


def _reply(request: dict[str, Any], write: Callable[[bytes], None]) -> bytes:
    head = {"jsonrpc": "2.0", "id": request["id"]}
    result = result_of(request, write)
    if result is None:
        return json.dumps(head | {"error": {"code": -32601, "message": "method not found"}}).encode()
    return json.dumps(head | {"result": result}).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message or "method" not in message:
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()

        def write(data: bytes) -> None:
            events = (b"data: " + line + b"\n\n" if line else b": nothing\n" for line in data.split(b"\n"))
            self.wfile.write(b"".join(events))

        with contextlib.suppress(OSError):  # the client had enough
            write(_reply(message, write))

    def do_DELETE(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        serve_stdio()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
