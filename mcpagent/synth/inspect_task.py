"""What can be said of a task against the catalog without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mcpagent.core.numbers import as_number, numbers_in
from mcpagent.core.placeholders import reference_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.synth.calls import ToolShelf


def calls_of(task: Task) -> Iterator[tuple[str, str, str, JsonObject]]:
    """(where, server, tool, arguments) for every call that an episode or its environment may make."""
    truth = task.truth
    for step in truth.tool_sequence:
        for gold in (step, *step.alternatives):
            yield f"tool_sequence step {step.step}", gold.server, gold.tool, gold.params
    for server, calls in truth.setup.items():
        for call in calls:
            yield f"setup of {server}", server, call.tool, call.arguments
    for server, checks in truth.state.items():
        for check in checks:
            yield f"state of {server}", server, check.call.tool, check.call.arguments


def unknown_tools(task: Task, shelf: ToolShelf) -> list[str]:
    """`server.tool` of the calls that no server in use offers."""
    named = {f"{s}.{t}" for _, s, t, _ in calls_of(task) if shelf.spec(s, t) is None}
    return sorted(named)


def argument_faults(task: Task, shelf: ToolShelf) -> list[str]:
    """Gold calls that break their tool's input schema. A call with a reference is judged when it is known,
    and a tool that does not exist not at all."""
    return [
        f"{where}, {server}.{tool}: {fault}"
        for where, server, tool, arguments in calls_of(task)
        if shelf.spec(server, tool) is not None
        and not reference_texts(arguments)
        and (fault := shelf.argument_fault(server, tool, arguments)) is not None
    ]


def limit_faults(task: Task) -> list[str]:
    """Limits that the plan does not fit into: one call a turn, and a turn for each answer."""
    truth = task.truth
    needed = len(truth.tool_sequence) + len(truth.user_turns) + 1
    return [f"the plan needs {needed} turns, max_turns is {truth.max_turns}"] * (needed > truth.max_turns)


def answer_in_prompt(task: Task) -> str | None:
    """The part of the answer that a question says itself; None where nothing of it does. Of an answer with
    several facts, and of a pattern, only the whole counts."""
    check = task.truth.final_answer
    if check is None or check.type == "regex" or task.truth.abstain:
        return None
    said = "\n".join([*(m.content for m in task.prompt if m.role == "user"), *task.truth.user_turns])
    values: list[Any] = check.value if isinstance(check.value, list) else [check.value]
    if values and all(stands_in(value, said) for value in values):
        return str(values[0])
    return None


def stands_in(value: Any, text: str) -> bool:
    """Whether a fact is in a text: a number as a number, anything else as whole words."""
    number = as_number(value)
    if number is not None and not isinstance(value, str):
        return any(abs(found - number) < 1e-9 * max(1.0, abs(number)) for found in numbers_in(text))
    words = " ".join(str(value).split()).casefold()
    return bool(words) and (
        re.search(rf"(?<!\w){re.escape(words)}(?!\w)", " ".join(text.split()).casefold()) is not None
    )
