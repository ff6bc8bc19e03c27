"""`openai:NAME` where a policy is named: rollouts and evaluations against a service on a loopback socket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpagent.core.trajectory import StopReason
from mcpagent.run.evaluate import evaluate_model
from mcpagent.run.rollout import collect_rollouts
from mcpagent.storage.trajectories import read_trajectories
from tests.llm.service import API_KEY, Answer, Received, error, says, service
from tests.run.world import TRAIN, config


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # no .env
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)


def test_a_rollout_and_an_evaluation_say_what_was_used_and_hold_no_key(tmp_path: Path) -> None:
    with service(lambda received: says(received, f"I don't know. {API_KEY}")) as running:
        chosen = config(
            f"api.base_url={running.url}", "data.max_tasks=3", "api.price_in=1", "api.price_out=10"
        )
        out = tmp_path / "all.jsonl"
        outcome = collect_rollouts(chosen, policy="openai:m", out=out, data=TRAIN, samples=2)
        result = tmp_path / "result.json"
        evaluated = evaluate_model(chosen, model="openai:m", data=TRAIN, out=result)
    assert {r.body["model"] for r in running.received} == {"m"}
    assert {r.authorization for r in running.received} == {f"Bearer {API_KEY}"}
    trajectories = list(read_trajectories(outcome.path))
    assert [t.stop_reason for t in trajectories] == [StopReason.ANSWERED] * 6
    # 100 tokens in and 20 out a request: 300 millionths of a dollar.
    assert outcome.result.provenance["api"] == {
        "requests": 6,
        "uncertain_requests": 0,
        "input_tokens": 600,
        "output_tokens": 120,
        "cost_usd": pytest.approx(0.0018),
    }
    assert outcome.result.provenance["policy"] == {"name": "openai:m", "base_url": running.url}
    assert evaluated.failure is None
    written = out.read_text() + result.read_text() + json.dumps(outcome.as_json())
    assert API_KEY not in written


def test_an_evaluation_during_an_outage_scores_nothing_and_says_why(tmp_path: Path) -> None:
    def script(received: Received) -> Answer:
        return error(500, "down")

    with service(script) as running:
        chosen = config(f"api.base_url={running.url}", "data.max_tasks=2", "api.attempts=1")
        evaluated = evaluate_model(chosen, model="openai:m", data=TRAIN)
    assert evaluated.result.unscored == 2
    assert "500" in (evaluated.failure or "")
