"""SIGTERM ends a command that a malicious server, or a record with a pattern without end, keeps busy."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.running import BOUND_S, Command, wait_for

SERVER = Path(__file__).with_name("slow_server.py")
ENDLESS = "^(" + "(a+)+|" * 50 + "b)+$"
RECORD = {
    "prompt": [
        {"role": "system", "content": "Answer with the help of these tools.\nslow: Slow"},
        {"role": "user", "content": "What is slow of aaa?"},
    ],
    "reward_spec": {
        "ground_truth": {
            "task_id": "t",
            "max_turns": 5,
            "tool_sequence": [{"step": 1, "server": "bad", "tool": "slow", "params": {"text": "aaa"}}],
            "final_answer": {"type": "regex", "value": ENDLESS},
            "reference_answer": "a" * 200,
        }
    },
    "extra_info": {"tools": ["bad.slow"]},
}

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    "words",
    [
        ("rollout", "--policy", "gold", "--data", "tasks.jsonl", "--out", "out.jsonl"),
        ("gen-data", "--out", "made", "--train", "5", "--validation", "0", "--yes-read-only"),
        ("data", "validate", "tasks.jsonl", "--execute"),
    ],
    ids=lambda words: words[0],
)
def test_sigterm_ends_a_command_whose_server_never_answers(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps(RECORD) + "\n")
    called = tmp_path / "called"
    server = {"command": sys.executable, "args": [str(SERVER), str(called)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"bad": server}}))
    with (
        (tmp_path / "said").open("w+") as said,
        Command(*words, "--servers", "mcp.json", cwd=tmp_path, stdout=said, stderr=said) as process,
    ):
        wait_for(called.exists, process)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=BOUND_S)
        said.seek(0)
        assert process.returncode == 130, said.read()
        assert "Traceback" not in said.read()
    assert not (tmp_path / "out.jsonl").exists() and not (tmp_path / "made").exists()
