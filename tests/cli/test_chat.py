"""A conversation with an agent behind a loopback API, on the built-in servers, which count their calls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.run.chat import asks_for_line
from tests.llm.service import API_KEY, Answer, Received, says, service
from tests.running import mcpagent, refused

pytestmark = pytest.mark.system
CALLS = (
    '<tool_call>{"name": "fmp_get_quote", "arguments": {"symbol": "QLBH"}}</tool_call>'
    '<tool_call>{"name": "send_slack_message", "arguments": {"channel": "C1", "message": "hi"}}</tool_call>'
)


def agent(received: Received) -> Answer:
    """Calls two tools after each question, then says how many results it has seen and the last of them."""
    messages = received.messages
    if messages[-1]["role"] == "user" and "<tool_response>" not in str(messages[-1]["content"]):
        return says(received, CALLS)
    return says(received, f"done after {sum(m['role'] == 'user' for m in messages)} user messages")


def talked(
    folder: Path, *words: str, stdin: str | None = None
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The command, and the tools that the servers were called for."""
    ledger = folder / "ledger.jsonl"
    with service(agent) as running:
        done = mcpagent(
            *("chat", "openai:m", "--set", f"api.base_url={running.url}", *words),
            cwd=folder,
            env={"OPENAI_API_KEY": API_KEY, "MCPAGENT_CALL_LEDGER": str(ledger)},
            stdin=stdin,
        )
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return done, [json.loads(line)["tool"] for line in lines]


def test_once_answers_and_makes_no_call_that_may_write(tmp_path: Path) -> None:
    done, called = talked(tmp_path, "--once", "What is the price of QLBH?", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["answer"].startswith("done after ")
    read, write = document["calls"]
    assert read["tool"] == "fmp.fmp_get_quote" and "311.6" in read["result"] and read["failure"] is None
    assert write["tool"] == "slack.send_slack_message" and write["failure"] == "denied"
    assert called == ["fmp_get_quote"]


def test_yes_allows_every_call(tmp_path: Path) -> None:
    done, called = talked(tmp_path, "--once", "Post it.", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done after ")
    assert called == ["fmp_get_quote", "send_slack_message"]


def test_questions_come_line_by_line_and_the_conversation_goes_on(tmp_path: Path) -> None:
    done, called = talked(tmp_path, stdin="first\n\nsecond\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 and called == ["fmp_get_quote"] * 2
    assert "slack.send_slack_message" in done.stderr and "did not allow" in done.stderr


def test_no_answer_is_exit_1_and_says_why(tmp_path: Path) -> None:
    done, _ = talked(tmp_path, "--once", "Go on.", "--set", "rollout.max_steps_per_episode=1")
    assert done.returncode == 1 and done.stdout == ""
    assert "there is no answer: it called tools in 1 turns" in done.stderr


@pytest.mark.parametrize("answer_line", [True, False])
def test_a_run_is_told_to_end_as_it_was_trained_to(tmp_path: Path, answer_line: bool) -> None:
    record = json.loads(Path("data/samples/train.jsonl").read_text().splitlines()[0])
    record["reward_spec"]["ground_truth"]["answer_line"] = answer_line
    (tmp_path / "train.jsonl").write_text(json.dumps(record) + "\n")
    weights = tmp_path / "run" / "checkpoints" / "step-000001"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    (weights / "model.safetensors").touch()
    (tmp_path / "run" / "config.yaml").write_text(f"data: {{train: {tmp_path / 'train.jsonl'}}}")
    config = load_train_config([tmp_path / "run" / "config.yaml"], for_training=False).config
    assert asks_for_line(str(tmp_path / "run"), config) is answer_line
    assert not asks_for_line("openai:m", config)
    (tmp_path / "train.jsonl").unlink()
    assert not asks_for_line(str(tmp_path / "run"), config)


def test_what_cannot_talk_is_refused(tmp_path: Path) -> None:
    assert "cannot be talked to" in refused(mcpagent("chat", "gold", cwd=tmp_path))
    asked = mcpagent("chat", "gold", "--json", cwd=tmp_path)
    assert asked.returncode == 2 and "--json is for one question" in asked.stderr
    assert "there is no such checkpoint" in refused(mcpagent("chat", "absent", cwd=tmp_path))
