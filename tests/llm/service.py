"""An OpenAI-compatible service on a loopback socket that does what a script says, misbehaviour included."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

API_KEY = "sk-loopback-0123456789abcdef"


@dataclass(frozen=True)
class Received:
    """`number` counts the requests with this key, from 1."""

    path: str
    key: str
    number: int
    body: dict[str, Any]
    authorization: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]


@dataclass(frozen=True)
class Answer:
    """`hangs`: nothing is sent until the service ends; `breaks`: the connection is closed instead."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    breaks: bool = False


Script = Callable[[Received], Answer]


@dataclass(kw_only=True)
class Service:
    url: str
    log: list[tuple[float, Received]] = field(default_factory=list)
    most_at_once: int = 0
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, count: int, process: subprocess.Popen[str]) -> None:
        """Until `count` requests have come; the process that makes them must live."""
        with self.arrived:
            while len(self.log) < count:
                assert self.arrived.wait(60) or process.poll() is None
                assert process.poll() is None, "the generator ended before its kill"

    @property
    def received(self) -> list[Received]:
        return [received for _, received in self.log]


def says(
    received: Received, text: str, *, refuses: bool = False, is_cut: bool = False, is_metered: bool = True
) -> Answer:
    """`text` as the answer; 100 tokens in and 20 out."""
    message = {"role": "assistant", "content": None if refuses else text}
    message |= {"refusal": text} if refuses else {}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choice = {"index": 0, "message": message, "finish_reason": "length" if is_cut else "stop"}
    body: dict[str, Any] = {"id": "c", "object": "chat.completion", "choices": [choice]}
    return Answer(body={**body, "model": received.body["model"], **({"usage": usage} if is_metered else {})})


def error(status: int, message: str, *, code: str | None = None, **headers: str) -> Answer:
    told = {"error": {"message": message, "type": "error", "param": None, "code": code}}
    return Answer(status=status, body=told, headers={k.replace("_", "-"): v for k, v in headers.items()})


@contextmanager
def service(script: Script) -> Iterator[Service]:
    ended = threading.Event()
    lock = threading.Lock()
    numbers: Counter[str] = Counter()
    open_now: list[int] = [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            raw_body = self.rfile.read(length)
            if len(raw_body) < length:
                self.close_connection = True  # the client was killed while it wrote
                return
            body = json.loads(raw_body)
            key = self.headers.get("Idempotency-Key", "")
            with lock:
                numbers[key] += 1
                received = Received(self.path, key, numbers[key], body, self.headers.get("Authorization", ""))
                running.log.append((time.monotonic(), received))
                open_now[0] += 1
                running.most_at_once = max(running.most_at_once, open_now[0])
            with running.arrived:
                running.arrived.notify_all()
            answer = script(received)
            if answer.hangs:
                ended.wait(60)
            with lock:
                open_now[0] -= 1  # before a byte is sent: the client may ask again at once
            if answer.hangs or answer.breaks:
                self.close_connection = True
                return
            raw = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            try:
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
            except OSError:
                self.close_connection = True  # the client was killed

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError):  # a killed client resets its connections
                super().handle()

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        running = Service(url=f"http://127.0.0.1:{server.server_address[1]}/v1")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield running
        finally:
            ended.set()
            server.shutdown()
            thread.join()
