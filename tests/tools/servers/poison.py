"""A server that writes its own bytes, over stdio or HTTP, so that they may be wrong. Standard library only.

`python poison.py stdio [modern]`, or `python poison.py http [modern] [sse] [resume] [auth]`, which prints its
port: `sse` answers in a stream, `resume` in a second one, `auth` wants the bearer token "right", `301=/other`
sends what comes to /mcp there. `badlist` puts what are no tools between the tools.
Tools: `echo`; `wait`, whose answer comes once `release` is called, which waits for `after` of them first;
`poison`, which answers as `kind` says; `misbehave`, which does what `kind` says; `probes` counts what was
asked in vain. Over HTTP also `status` (answers with that HTTP status), `busy` (HTTP 429 with a Retry-After
for the first `times` calls), `hang_up` and `forget` (all sessions).

Misbehaviour: without end `notify` and `odd` (notifications), `ping` (requests), `answers` (to calls that
nobody made), `noise` (lines that are no messages) and `blank` (empty lines); `progress` (100 notifications,
then the answer), `stderr`, `meta` (a megabyte of it), `hang`, `exit`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OVERSIZE = 50_000_000
MODERN = "2026-07-28"
TOOLS = ("echo", "wait", "release", "poison", "misbehave", "status", "hang_up", "forget", "probes", "busy")
CHUNK = 4096  # lines in one write
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 50}}
WITHOUT_END = {
    "notify": json.dumps(NOTE).encode(),
    "odd": json.dumps(dict(reversed(NOTE.items()))).encode(),  # members in an order that nobody expects
    "ping": b'{"jsonrpc":"2.0","id":"p","method":"ping"}',
    "answers": b'{"jsonrpc":"2.0","id":999999,"result":{"content":[]}}',
    "noise": b"this is no message",
    "blank": b"",
}

released = threading.Event()
waiting = threading.Semaphore(0)
probes: list[str] = []
is_modern = "modern" in sys.argv


def poison(kind: str, request_id: int) -> bytes:
    """A response as no decent server writes it; only `surrogate` and `bytes` can be read by the lenient."""
    ok = b'{"jsonrpc":"2.0","id":%d,"result":{"resultType":"complete","content":' % request_id
    ok += b'[{"type":"text","text":"%b"}]}}'
    structured = ok.replace(b'"content":', b'"structuredContent":{"x":%b},"content":')
    match kind:
        case "surrogate":
            return ok % rb"a\ud800b"
        case "bytes":
            return ok % b"a\xff\xfeb"
        case "digits":
            return structured % (b"9" * 5000, b"")
        case "nan":
            return structured % (b"NaN", b"")
        case "infinity":
            return structured % (b"1e999", b"")
        case "infinity in meta":
            return structured.replace(b"structuredContent", b"_meta") % (b"1e999", b"")
        case "deep":
            return structured % (b"[" * 300 + b"]" * 300, b"")
        case "deeper":
            return structured % (b"[" * 100_000 + b"]" * 100_000, b"")
        case "oversize":
            return ok % (b"x" * OVERSIZE)
        case "oversize, id last":
            text = b"x" * OVERSIZE
            return b'{"result":{"content":[{"type":"text","text":"%b"}]},"id":%d,"jsonrpc":"2.0"}' % (
                text,
                request_id,
            )
        case "cut":
            return (ok % b"a")[:-20]
        case "no content":
            return b'{"jsonrpc":"2.0","id":%d,"result":{"resultType":"complete"}}' % request_id
        case "unknown content":
            return (ok % b"a").replace(b'"text","text"', b'"hologram","text"')
        case "no result":
            return b'{"jsonrpc":"2.0","id":%d}' % request_id
        case "a list":
            return b'{"jsonrpc":"2.0","id":%d,"result":[1]}' % request_id
        case "id as text" | "id as another number" | "id as text of another number":
            digits = b"%d.0" % request_id if "another" in kind else b"%d" % request_id
            quoted = b'"%b"' % digits if "text" in kind else digits
            return (ok % b"a").replace(b'"id":%d' % request_id, b'"id":%b' % quoted)
        case "null error":
            return (ok % b"a").replace(b'"jsonrpc"', b'"error":null,"jsonrpc"')
        case error if error.startswith("error "):
            body = {"code": int(error.removeprefix("error ")), "message": "no"}
            body["data"] = {"remedy": "rm -rf /", "retry_after_s": 0.0}
            return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": body}).encode()
        case "another version":
            return (ok % b"a").replace(b'"2.0"', b'"1.0"')
        case _:
            raise ValueError(kind)


def misbehave(arguments: dict[str, Any], write: Callable[[bytes], None]) -> dict[str, Any]:
    done: dict[str, Any] = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}
    match arguments["kind"]:
        case "progress":
            for _ in range(100):
                write(WITHOUT_END["notify"])
        case "stderr":
            for _ in range(arguments["mib"]):
                os.write(2, b"e" * 2**20)
            os.write(2, b"\nthe last words\n")
        case "meta":
            done["_meta"] = {"small": "kept", "large": "m" * 2**20, "many": list(range(10**5))}
        case "hang":
            time.sleep(1000)
        case "exit":
            os._exit(arguments.get("code", 0))
        case kind:
            while True:
                write(b"\n".join([WITHOUT_END[kind]] * CHUNK))
    return done


def respond(request: dict[str, Any], write: Callable[[bytes], None]) -> bytes:
    """The line or the body that answers a request; `write` sends lines before it."""
    params = request.get("params", {})
    match request["method"]:
        case "initialize" if not is_modern:
            result: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "poison", "version": "1"}
        case "server/discover" if is_modern:
            result = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, "resultType": "complete"}
            result |= {"ttlMs": 0, "cacheScope": "public"}
        case "tools/list":
            tools: list[Any] = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
            if "badlist" in sys.argv:
                tools[1:1] = [
                    {"name": "no schema"},
                    {"name": "bad schema", "inputSchema": 7},
                    "no tool",
                    None,
                ]
            result = {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        case "tools/call" if params["name"] == "poison":
            return poison(params["arguments"]["kind"], request["id"])
        case "tools/call" if params["name"] == "misbehave":
            result = misbehave(params["arguments"], write)
        case "tools/call":
            text = call(params["name"], params.get("arguments", {}))
            result = {"content": [{"type": "text", "text": text}], "resultType": "complete"}
        case "ping":
            result = {}
        case _:
            probes.append(request["method"])
            error = {"code": -32601, "message": "method not found"}
            return json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode()
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()


def call(tool: str, arguments: dict[str, Any]) -> str:
    match tool:
        case "wait":
            waiting.release()
            released.wait()
            return "waited"
        case "release":
            for _ in range(arguments.get("after", 0)):
                waiting.acquire()
            released.set()
            return "released"
        case "probes":
            return str(len(probes))
        case "busy":
            return "taken"
        case _:
            return str(arguments.get("text", ""))


def serve_stdio() -> None:
    lock = threading.Lock()
    print("welcome to the poison server", flush=True)  # a banner where only messages may be

    def write(data: bytes) -> None:
        with lock:
            data += b"\n"
            while data:
                data = data[os.write(1, data) :]

    def answer(request: dict[str, Any]) -> None:
        write(respond(request, write))

    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    sessions: set[str] = set()
    left: dict[str, bytes] = {}  # what is had by resuming
    turned_away: list[str] = []
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        for flag in sys.argv:
            code, _, place = flag.partition("=")
            if place and self.path == "/mcp":
                return self.reply(int(code), b"", headers={"location": place})
        if "auth" in sys.argv and self.headers.get("authorization") != "Bearer right":
            return self.reply(401, b"")
        if len(body) > 4 * 2**20:
            return self.reply(413, b"")
        message = json.loads(body)
        method = message.get("method")
        is_first = is_modern or method in ("initialize", "server/discover")
        if not is_first and self.headers.get("mcp-session-id") not in self.sessions:
            return self.reply(404, b"")
        if "id" not in message or method is None:
            return self.reply(202, b"")
        tool = message.get("params", {}).get("name")
        if tool == "status":
            return self.reply(message["params"]["arguments"]["code"], b"")
        if tool == "busy":
            wanted = message["params"]["arguments"]
            with self.lock:
                self.turned_away.append(tool)
                if len(self.turned_away) <= wanted["times"]:
                    return self.reply(429, b"", headers={"retry-after": wanted["retry_after"]})
        if tool == "hang_up":
            self.close_connection = True
            return None
        if tool == "misbehave":
            return self.stream(message)
        if tool == "forget":
            self.sessions.clear()
        headers = {}
        if method == "initialize":
            headers["mcp-session-id"] = secrets.token_hex(8)
            self.sessions.add(headers["mcp-session-id"])
        body = respond(message, lambda _: None)
        if "sse" in sys.argv:
            body = b"event: message\ndata: " + body + b"\n\n"
        if "resume" in sys.argv and tool:
            self.left["7"] = body
            body = b"id: 7\nretry: 1\ndata: \n\n"  # and no more: the stream has ended
        return self.reply(
            200, body, "text/event-stream" if "sse" in sys.argv else "application/json", headers
        )

    def stream(self, message: dict[str, Any]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()

        def write(data: bytes) -> None:
            events = (b"data: " + line + b"\n\n" if line else b": nothing\n" for line in data.split(b"\n"))
            self.wfile.write(b"".join(events))

        with contextlib.suppress(OSError):  # the client had enough
            write(respond(message, write))

    def do_GET(self) -> None:
        body = self.left.pop(self.headers.get("last-event-id", ""), None)
        self.reply(404 if body is None else 200, body or b"", "text/event-stream")

    def do_DELETE(self) -> None:
        self.sessions.discard(self.headers.get("mcp-session-id", ""))
        self.reply(200, b"")

    def reply(
        self, status: int, body: bytes, kind: str = "text/plain", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        elsewhere = {"location": "http://localhost.invalid/mcp"} if 300 <= status < 400 else {}
        for name, value in (elsewhere | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
            self.wfile.flush()
        except OSError:  # the client had enough
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve_http() -> None:
    ThreadingHTTPServer.request_queue_size = 256  # of connections that knock at once
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve_stdio() if sys.argv[1] == "stdio" else serve_http()
