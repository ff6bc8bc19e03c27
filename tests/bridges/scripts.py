"""What every bridge plays: four scripted policies on tasks of which some have servers that fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mcpagent.core.tasks import Task
from mcpagent.env.parsing import parse_action
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.scripted import GoldPolicy, call_text

SCRIPTS = ("gold", "wrong argument", "silent", "abstains")
EVERY = 10  # every tenth task cannot be set up: its episodes are unscored
_FAILS = {"slack": [{"tool": "send_slack_message", "arguments": {}}]}  # lacks what the tool needs
_OFFSETS = {"Asia/Tokyo": 9, "America/Lima": -5, "Asia/Dubai": 4, "Africa/Lagos": 1, "Africa/Nairobi": 3}


def script(name: str, tasks: Sequence[Task]) -> Callable[[CompletionRequest], str]:
    """What a policy writes. Episode ids must be `{task_id}#{attempt}`."""
    if name in ("silent", "abstains"):
        return lambda _: "" if name == "silent" else "No tool can tell.\nAnswer: none"
    gold = GoldPolicy(tasks)

    def play(request: CompletionRequest) -> str:
        text = gold._text(request)
        calls = parse_action(text).calls
        if name == "gold" or not calls:
            return text
        return "".join(
            call_text(call.written_as or call.tool, {k: _other(v) for k, v in call.arguments.items()})
            for call in calls
        )

    return play


def _other(value: object) -> object:
    return f"{value}X" if isinstance(value, str) else value


def write_data(folder: Path, made: Path) -> Path:
    """Copy the training split of a dataset, with servers that fail in every tenth task. Of tasks that begin
    with the same question one is kept: that is how a model that is asked over a wire knows its task."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (made / "train.jsonl").read_text().splitlines()
    records = list({json.loads(line)["prompt"][-1]["content"]: json.loads(line) for line in lines}.values())
    for record in records[::EVERY]:
        record["reward_spec"]["ground_truth"]["setup"] = _FAILS
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "servers.yaml").write_text((made / "servers.yaml").read_text())
    return folder


def write_time_data(folder: Path, server: dict[str, Any]) -> Path:
    """Write 20 tasks for mcp-server-time, which others wrote, between places without summer time; in two of
    them the server fails. `server` is its entry in an mcp.json."""
    pairs = [(here, there) for here in _OFFSETS for there in _OFFSETS if here != there]
    records = [_time_record(*pair, fails=not number % EVERY) for number, pair in enumerate(pairs)]
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"time": server}}))
    (folder / "servers.yaml").write_text("tools:\n  servers: mcp.json\n")
    return folder


def _time_record(here: str, there: str, *, fails: bool) -> dict[str, Any]:
    asked = f"How far is {there} ahead of {here} when it is 14:30 there? Say it as the tool does."
    params = {"source_timezone": here, "time": "14:30", "target_timezone": there}
    truth = {
        "task_id": f"{here}-{there}".replace("/", "-"),
        "max_turns": 4,
        "success": {"must_call_tool": "time.convert_time"},
        "tool_sequence": [{"step": 1, "server": "time", "tool": "convert_time", "params": params}],
        "final_answer": {"type": "string", "value": f"{_OFFSETS[there] - _OFFSETS[here]:+.1f}h"},
        **({"setup": {"time": [{"tool": "convert_time", "arguments": {}}]}} if fails else {}),
    }
    return {
        "prompt": [{"role": "system", "content": "Use the tools."}, {"role": "user", "content": asked}],
        "reward_spec": {"ground_truth": truth},
        "extra_info": {"tools": ["time.convert_time", "time.get_current_time"]},
    }
