"""Does the right answer depend on when it is asked? Signs of it, read from the task and its tools."""

from __future__ import annotations

import re

from mcpagent.core.tasks import Task
from mcpagent.synth.calls import ToolShelf
from mcpagent.synth.similar import said

_NOW = re.compile(
    r"\b(today|now|currently?|latest|newest|recent|yesterday|tomorrow|this (week|month|year)|so far)\b", re.I
)
_CLOCK = re.compile(r"(status|time|clock|now|latest|gainers|losers|news|quote|price)", re.I)


def volatile_because(task: Task, shelf: ToolShelf | None) -> list[str]:
    """Why the stored answer may go stale, one phrase each; empty where nothing says so.

    Only tasks with a stored answer can. A tool that says openWorld reads what others change.
    """
    if task.truth.final_answer is None and not task.truth.state:
        return []
    reasons: list[str] = []
    if word := _NOW.search(said(task)):
        reasons.append(f"the question says {word[0]!r}")
    for name in sorted({f"{step.server}.{step.tool}" for step in task.truth.tool_sequence}):
        server, _, tool = name.partition(".")
        spec = shelf.spec(server, tool) if shelf is not None else None
        if spec is not None and spec.annotations.open_world and spec.annotations.read_only:
            reasons.append(f"{name} reads what others change (openWorld)")
        elif _CLOCK.search(tool):
            reasons.append(f"{name} is about the present by its name")
    return reasons
