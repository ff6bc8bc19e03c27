"""A dependent spec of one task."""

from __future__ import annotations

from typing import Any


def spec_of(server: str, tool: str, params: dict[str, Any]) -> dict[str, Any]:
    """A question whose plan is this one call."""
    step = {"step": 1, "server": server, "tool": tool, "params": params}
    task = {
        "task_id": "one",
        "complexity": "simple",
        "conversation": [{"role": "user", "content": "What does it say?"}],
        "solution": {"tool_sequence": [step]},
    }
    scenario = {"scenario": "s", "turns": 1, "limits": {"max_servers": 1, "max_tools": 1}, "tasks": [task]}
    return {"dependent_dataset": [scenario]}
