"""A process between a client and a stdio server. It lets everything pass but the faults that it is told of.

`python stdio_proxy.py CONTROL COMMAND [ARGUMENT...]`. Standard library only: it starts in a moment, and needs
nothing of the environment that the server gets.

It adds two tools of its own to the server's list, one declared read-only and one not. Calling either makes
the real server list its tools, and nothing else: so a server is known to answer without one of its own tools
being called, and a call that writes can be lost without harm. Faults are files in the folder CONTROL:

- `call-*`: its text is the fault of one call of those tools, the first file by name (`CallFault`);
- `start`: the next start waits so many seconds;
- `drift`: while it is there, the tools that the server lists have other descriptions and arguments.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

READ_TOOL = "mcpagent_chaos_read"
WRITE_TOOL = "mcpagent_chaos_write"

_RESERVED = "io.modelcontextprotocol/"  # the `_meta` keys that every request of protocol 2026-07-28 must have
_NOISE = b'\xff\xfe not a message\n{"jsonrpc": "2.0", "id"\n[1, 2]\nWarning: something was printed here\n'


class CallFault(StrEnum):
    """Faults of one call."""

    HANG = "hang"  # no answer, ever
    OVERSIZE = "oversize"  # an answer of `oversize:BYTES`
    GARBAGE = "garbage"  # noise, then an answer that is not JSON


class Proxy:
    """Passes lines both ways. `serve` returns the server's exit status."""

    def __init__(self, control: Path, command: list[str]) -> None:
        self._control = control
        self._wait_for_start()
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._to_client = _Writer(sys.stdout.buffer)
        self._lists: set[Any] = set()  # ids of the client's requests for the tools
        self._calls: dict[str, Any] = {}  # our request for the tools -> the client's call that waits for it

    def serve(self) -> int:
        """Pass lines until the server ends; its exit status."""
        signal.signal(signal.SIGTERM, lambda *_: self._server.terminate())
        threading.Thread(target=self._from_client, daemon=True).start()
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self._from_server(line)
        return self._server.wait()

    def _from_client(self) -> None:
        assert self._server.stdin is not None
        to_server = _Writer(self._server.stdin)
        for line in sys.stdin.buffer:
            replaced = self._own_call(line)
            if replaced is None and b'"tools/list"' in line:
                self._lists.add(as_message(line).get("id"))
            to_server.write(line if replaced is None else replaced)
        to_server.close()

    def _own_call(self, line: bytes) -> bytes | None:
        """For a call of our own tools: the request that goes to the server in its place (empty: none)."""
        if b'"tools/call"' not in line or b'"mcpagent_chaos_' not in line:
            return None
        message = as_message(line)
        if not is_own_call(message):
            return None
        fault, _, size = self._next_fault().partition(":")
        match fault:
            case CallFault.HANG:
                return b""
            case CallFault.OVERSIZE:
                self._to_client.write(_line(answer(message["id"], "x" * int(size))))
                return b""
            case CallFault.GARBAGE:
                broken = f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{{,\n'
                self._to_client.write(_NOISE + broken.encode())
                return b""
        own_id = f"mcpagent-chaos-{message['id']}"
        self._calls[own_id] = message["id"]
        return _line({**list_request(message), "id": own_id})

    def _from_server(self, line: bytes) -> None:
        """Pass it on, unless it answers a request for the tools."""
        if self._lists or self._calls:
            message = as_message(line)
            request_id = message.get("id")
            if request_id in self._calls and "method" not in message:
                self._to_client.write(_line(answer(self._calls.pop(request_id))))
                return
            if request_id in self._lists and "tools" in message.get("result", {}):
                self._lists.discard(request_id)
                page = with_own_tools(message["result"], has_drifted=(self._control / "drift").exists())
                line = _line({**message, "result": page})
        self._to_client.write(line)

    def _next_fault(self) -> str:
        for path in sorted(self._control.glob("call-*")):
            fault = path.read_text()
            path.unlink()
            return fault
        return ""

    def _wait_for_start(self) -> None:
        path = self._control / "start"
        if path.exists():
            seconds = float(path.read_text())
            path.unlink()
            time.sleep(seconds)


class _Writer:
    """A pipe that several threads write whole lines to; one that is closed takes nothing more."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        if not data:
            return
        with self._lock, suppress(BrokenPipeError):
            self._pipe.write(data)
            self._pipe.flush()

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._pipe.close()


def is_own_call(message: dict[str, Any]) -> bool:
    """Whether a message calls one of our tools."""
    return message.get("method") == "tools/call" and message.get("params", {}).get("name") in (
        READ_TOOL,
        WRITE_TOOL,
    )


def list_request(call: dict[str, Any]) -> dict[str, Any]:
    """What goes to the server in place of a call of our tools; it has the same id."""
    meta = call.get("params", {}).get("_meta", {})
    kept = {key: value for key, value in meta.items() if key.startswith(_RESERVED)}
    params = {"_meta": kept} if kept else {}
    return {"jsonrpc": "2.0", "id": call["id"], "method": "tools/list", "params": params}


def answer(request_id: Any, text: str = "the server answers") -> dict[str, Any]:
    """The response to a call of our tools."""
    content = [{"type": "text", "text": text}]
    # `resultType` is of protocol 2026-07-28; before it, what is not known is ignored.
    result = {"content": content, "isError": False, "resultType": "complete"}
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def with_own_tools(page: dict[str, Any], *, has_drifted: bool) -> dict[str, Any]:
    """A page of the server's tools; with ours, if it is the last one."""
    tools = page["tools"]
    if "nextCursor" not in page:
        tools = [*tools, _own_tool(READ_TOOL, reads=True), _own_tool(WRITE_TOOL, reads=False)]
    return {**page, "tools": [_drifted(tool) for tool in tools] if has_drifted else tools}


def _own_tool(name: str, *, reads: bool) -> dict[str, Any]:
    return {
        "name": name,
        "description": "Asks the server for its tools.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": reads, "destructiveHint": False, "openWorldHint": False},
    }


def _drifted(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("inputSchema", {})
    properties = {**schema.get("properties", {}), "mcpagent_chaos_drift": {"type": "string"}}
    return {
        **tool,
        "description": f"{tool.get('description', '')} (changed)",
        "inputSchema": {**schema, "properties": properties},
    }


def as_message(line: bytes) -> dict[str, Any]:
    """The JSON object of a line or a body; empty where it is not one."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def main() -> None:
    """Run as a program, in place of the server's command."""
    control, *command = sys.argv[1:]
    try:
        proxy = Proxy(Path(control), command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    status = proxy.serve()
    sys.stdout.flush()
    os._exit(status if status >= 0 else 128 - status)  # a reader of stdin may still be blocked in a read


if __name__ == "__main__":
    main()
