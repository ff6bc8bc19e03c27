"""Evaluations and rollouts on servers: a real HTTP server with the paths of vLLM's that takes weights and
samples one token a turn from them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mcpagent.models.load import load_tokenizer
from mcpagent.run.evaluate import evaluate_model
from mcpagent.run.rollout import collect_rollouts
from mcpagent.storage.checkpoints import weights_sha256
from mcpagent.storage.trajectories import read_trajectories
from tests.run.world import SHORT, TRAIN, config


class _Sampling(BaseHTTPRequestHandler):
    token: int
    loaded: list[str]
    turns: list[list[int]]

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "served", "max_model_len": 100_000}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "null")
        if self.path == "/collective_rpc":
            self.loaded.append(str(weights_sha256(Path(body["args"][0]))))
            self._answer({})
        elif self.path == "/v1/completions":
            self.turns.append(body["prompt"])
            logprobs = {"token_logprobs": [-0.5]}
            self._answer(
                {"choices": [{"token_ids": [self.token], "logprobs": logprobs, "finish_reason": "stop"}]}
            )
        else:
            self._answer({})

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not on stderr, which tests read."""


@pytest.fixture
def sampling(tiny_checkpoint: Path) -> Iterator[tuple[str, type[_Sampling]]]:
    stop = load_tokenizer(str(tiny_checkpoint)).eos_token_id
    handler = type("Sampling", (_Sampling,), {"token": stop, "loaded": [], "turns": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()


def settings(url: str, folder: Path) -> list[str]:
    return [SHORT, "data.max_tasks=3", f"vllm.servers=[{url}]", f"output_dir={folder}"]


def test_an_evaluation_is_sampled_on_the_servers_with_the_weights_of_the_checkpoint(
    sampling: tuple[str, type[_Sampling]], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    url, server = sampling
    outcome = evaluate_model(
        config(*settings(url, tmp_path), "rollout.temperature=0", "rollout.backend=vllm"),
        model=str(tiny_checkpoint),
        data=TRAIN,
        out=tmp_path / "result.json",
    )
    assert outcome.trajectories is not None
    trajectories = list(read_trajectories(outcome.trajectories))
    assert server.loaded == [weights_sha256(tiny_checkpoint)]
    sampled = [turn.completion.logprobs for t in trajectories for turn in t.turns]
    assert sampled == [(-0.5,)] * 3 == [(-0.5,)] * len(server.turns)
    assert list(tmp_path.glob(".weights*")) == [], "what was handed over is gone"


def test_a_rollout_uses_the_servers_where_the_backend_is_chosen_by_itself(
    sampling: tuple[str, type[_Sampling]], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    url, server = sampling
    collect_rollouts(
        config(*settings(url, tmp_path)),
        policy=str(tiny_checkpoint),
        out=tmp_path / "episodes.jsonl.zst",
        data=TRAIN,
    )
    assert len(server.turns) == 3 and len(server.loaded) == 1
