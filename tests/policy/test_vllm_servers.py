"""`VllmServers` over connections that a server closes, as uvicorn does after an error or an idle while."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpagent.errors import RunError
from mcpagent.policy.vllm.servers import VllmServers


class ClosingServer:
    """Speaks just enough HTTP. After an answer to a path in `closes_after`, it leaves the connection's next
    request unanswered and closes, as a server does that had decided to close it when the request came."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, object]] = {"/v1/models": (200, {"data": [{"id": "model"}]})}
        self.closes_after: set[str] = set()
        self.handles_first = False  # the request that is left unanswered
        self.asked: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            is_closing = False
            while line := requests.readline():
                path, length = line.split()[1].decode(), 0
                while (header := requests.readline().strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                requests.read(length)
                if is_closing:
                    if self.handles_first:
                        self.asked.append(path)
                    return
                self.asked.append(path)
                if path not in self.answers:
                    return
                status, body = self.answers[path]
                if path == "/v1/load_lora_adapter" and self.asked.count(path) > 1:
                    status, body = (
                        400,
                        {"error": {"message": "The lora adapter 'x' has already been loaded."}},
                    )
                payload = json.dumps(body).encode()
                head = (
                    f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
                )
                connection.sendall(head.encode() + b"\r\n\r\n" + payload)
                is_closing = path in self.closes_after

    def close(self) -> None:
        """A thread that is left waiting at a closed socket may take the connections of the next one, which
        gets its number."""
        if self._accepting.is_alive():
            self._listening.shutdown(socket.SHUT_RDWR)
            self._accepting.join()
        self._listening.close()


@pytest.fixture
def server() -> Iterator[ClosingServer]:
    server = ClosingServer()
    yield server
    server.close()


def connected(server: ClosingServer) -> VllmServers:
    return VllmServers([server.url], decode=str, stop_ids=frozenset({0}), max_context=8, timeout_s=30)


def test_a_refusal_is_reported_though_its_connection_is_closed_under_the_next_request(
    server: ClosingServer, tmp_path: Path
) -> None:
    server.answers |= {
        "/collective_rpc": (500, {"error": "no weights"}),
        "/reset_prefix_cache": (200, None),
    }
    server.closes_after = {"/collective_rpc"}
    (tmp_path / "model.safetensors").write_bytes(b"")
    policy = connected(server)
    try:
        with pytest.raises(RunError, match=r"answers 500: .*no weights"):
            policy.load_folder(tmp_path)
        assert server.asked.count("/collective_rpc") == 2  # the weights, and whether the files are seen
    finally:
        policy.close()


@pytest.mark.parametrize("handles_first", [False, True])
def test_an_adapter_arrives_though_the_kept_connection_is_closed(
    server: ClosingServer, tmp_path: Path, handles_first: bool
) -> None:
    server.answers |= {"/v1/load_lora_adapter": (200, "ok"), "/v1/unload_lora_adapter": (200, "ok")}
    server.closes_after, server.handles_first = {"/v1/models"}, handles_first
    policy = connected(server)
    try:
        policy.load_adapter(tmp_path)
        assert policy.version == 1
    finally:
        policy.close()


def test_a_server_that_is_gone_is_named_with_what_happened(server: ClosingServer, tmp_path: Path) -> None:
    policy = connected(server)
    server.answers["/v1/load_lora_adapter"] = (503, {})
    try:
        with pytest.raises(RunError, match=r"no vLLM server took the new weights: .*answers 503"):
            policy.load_adapter(tmp_path)
        server.close()
    finally:
        policy.close()


def test_a_connection_that_always_breaks_is_named_by_its_error(server: ClosingServer, tmp_path: Path) -> None:
    policy = connected(server)
    server.answers.clear()  # each request ends its connection
    try:
        with pytest.raises(RunError, match=r"took the new weights: http://\S+: \S+"):
            policy.load_adapter(tmp_path)
    finally:
        policy.close()
