"""`VllmServers` over connections that a server closes, as uvicorn does after an error or an idle while."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcpagent.errors import RunError
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.vllm.servers import VllmServers


class ClosingServer:
    """Speaks just enough HTTP. The second request of a connection is not answered but closed, as by a server
    that had decided to close it when the request came."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, object]] = {"/v1/models": (200, {"data": [{"id": "model"}]})}
        self.waits, self.goes_on = threading.Event(), threading.Event()  # a turn does; and until then
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
            path, length = requests.readline().split()[1].decode(), 0
            while (header := requests.readline().strip().lower()) != b"":
                if header.startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            requests.read(length)
            if path == "/v1/completions":
                self.waits.set()
                self.goes_on.wait(30)
            if path not in self.answers:
                return
            status, body = self.answers[path]
            payload = json.dumps(body).encode()
            head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
            connection.sendall(head.encode() + b"\r\n\r\n" + payload)
            requests.readline()  # of the next request, if the connection is kept

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


@pytest.fixture
def policy(server: ClosingServer) -> Iterator[VllmServers]:
    policy = VllmServers([server.url], decode=str, stop_ids=frozenset({0}), max_context=8, timeout_s=30)
    yield policy
    policy.close()


def test_a_refusal_is_reported_with_what_the_server_said(
    server: ClosingServer, policy: VllmServers, tmp_path: Path
) -> None:
    server.answers["/collective_rpc"] = (500, {"error": "no weights"})
    with pytest.raises(RunError, match=r"answers 500: .*no weights"):
        policy.load_folder(tmp_path)


def test_adapters_arrive_though_every_connection_is_closed_under_its_next_request(
    server: ClosingServer, policy: VllmServers, tmp_path: Path
) -> None:
    server.answers |= {"/v1/load_lora_adapter": (200, "ok"), "/v1/unload_lora_adapter": (200, "ok")}
    for version in (1, 2, 3):
        policy.load_adapter(tmp_path)
        assert policy.version == version


def test_a_server_that_is_gone_is_named_with_what_happened(
    server: ClosingServer, policy: VllmServers, tmp_path: Path
) -> None:
    server.answers["/v1/load_lora_adapter"] = (503, {})
    with pytest.raises(RunError, match=r"no vLLM server took the new weights: .*answers 503"):
        policy.load_adapter(tmp_path)
    server.close()


def test_weights_do_not_change_within_a_turn(
    server: ClosingServer, policy: VllmServers, tmp_path: Path
) -> None:
    """The server answers the turn only when it is told to go on."""
    server.answers |= {"/collective_rpc": (200, {}), "/reset_prefix_cache": (200, {})}
    choice = {"token_ids": [0], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "stop"}
    server.answers["/v1/completions"] = (200, {"choices": [choice]})
    asked = CompletionRequest(episode_id="e", token_ids=(1,), sampling=Sampling())
    with ThreadPoolExecutor(1) as thread:
        turn = thread.submit(asyncio.run, policy.complete([asked]))
        assert server.waits.wait(30)
        with pytest.raises(RuntimeError, match="while a turn is being sampled"):
            policy.load_folder(tmp_path)
        server.goes_on.set()
        assert turn.result(30)[0].policy_versions[0].version == 0
    policy.load_folder(tmp_path)
    assert policy.version == 1


def test_a_connection_that_always_breaks_is_named_by_its_error(
    server: ClosingServer, policy: VllmServers, tmp_path: Path
) -> None:
    server.answers.clear()  # each request ends its connection
    with pytest.raises(RunError, match=r"took the new weights: http://\S+: \S+"):
        policy.load_adapter(tmp_path)
