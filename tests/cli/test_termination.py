"""SIGTERM ends a command that a malicious server, or a record with a pattern without end, keeps busy."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path

import pytest

from tests.running import BOUND_S, Command

# Answers no call, and says in the named pipe that one has come.
SERVER = r"""
import json, sys
schema = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
reads = {"readOnlyHint": True}
tools = [
    {"name": "slow", "inputSchema": schema, "annotations": reads},
    {"name": "list_all", "inputSchema": {"type": "object", "properties": {}}, "annotations": reads},
]
for line in sys.stdin:
    asked = json.loads(line)
    result = {"tools": tools}
    if asked.get("method") == "initialize":
        info = {"name": "m", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif asked.get("method") == "tools/call":
        open(sys.argv[1], "w").write("called")
        continue
    elif asked.get("method") != "tools/list":
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
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
    os.mkfifo(tmp_path / "called")
    server = {"command": sys.executable, "args": ["-c", SERVER, str(tmp_path / "called")]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"bad": server}}))
    called = os.open(tmp_path / "called", os.O_RDONLY | os.O_NONBLOCK)
    said = (tmp_path / "said").open("w+")
    try:
        with Command(*words, "--servers", "mcp.json", cwd=tmp_path, stdout=said, stderr=said) as process:
            ready: list[int] = []
            while not ready and process.poll() is None:
                ready = select.select([called], [], [], 1)[0]
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=BOUND_S)
        said.seek(0)
        assert ready, said.read()
        assert process.returncode != 0
    finally:
        os.close(called)
        said.close()
