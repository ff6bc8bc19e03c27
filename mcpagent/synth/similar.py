"""What makes two tasks the same in substance: their plan, the things that they are about, their words."""

from __future__ import annotations

import json

from mcpagent.core.placeholders import reference_texts
from mcpagent.core.tasks import Task

_SHINGLE = 5  # characters


def plan_signature(task: Task) -> str:
    """Equal for tasks that ask for the same calls on the same things; the wording is not in it. Where nothing
    is to be called, what is said is all there is."""
    truth = task.truth
    calls = [[step.server, step.tool, step.params, step.user_turn] for step in truth.tool_sequence]
    subject = calls or [said(task), task.extra_info.get("withheld")]
    return json.dumps(subject, sort_keys=True, ensure_ascii=False, default=str)


def entities(task: Task) -> set[str]:
    """The things that a task is about: the texts that its gold calls name; where there are none, its slots;
    else its own words."""
    plan = [step.params for step in task.truth.tool_sequence]
    would = [call.get("params", {}) for call in task.extra_info.get("would_call", ())]
    slots = task.extra_info.get("slots") or {}
    found = _texts([plan, would, list(slots.values())])
    return found or {said(task)}


def said(task: Task) -> str:
    """What the user says, in all turns."""
    return "\n".join([*(m.content for m in task.prompt if m.role == "user"), *task.truth.user_turns])


def shingles(task: Task) -> set[bytes]:
    """The question in pieces of a few characters, for a comparison of its words."""
    text = " ".join(said(task).casefold().split())
    pieces = {text[i : i + _SHINGLE] for i in range(max(1, len(text) - _SHINGLE + 1))}
    return {piece.encode(errors="surrogatepass") for piece in pieces}


def _texts(value: object) -> set[str]:
    if isinstance(value, str):
        return set() if reference_texts(value) else {value}
    if isinstance(value, dict):
        value = list(value.values())
    return set().union(*(_texts(item) for item in value)) if isinstance(value, list | tuple) else set()
