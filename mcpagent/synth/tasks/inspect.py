"""What can be said of a task without running it: against the catalog, over time, next to another task."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from mcpagent.core.answer_line import without_form
from mcpagent.core.placeholders import format_value, reference_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import AnswerCheck, Complexity, Task
from mcpagent.core.values import as_number, numbers_in, scalars
from mcpagent.reward.record import user_messages
from mcpagent.reward.validate import task_problems
from mcpagent.synth.tasks.run import ToolShelf
from mcpagent.synth.tasks.stages import RejectCode, Rejection
from mcpagent.tools.catalog import near_match

_LEVELS: dict[str, Complexity] = {
    "easy": "simple",
    "medium": "moderate",
    "difficult": "complex",
    "hard": "complex",
    "simple": "simple",
    "moderate": "moderate",
    "complex": "complex",
}


def complexity_of(level: str) -> Complexity | None:
    """Read it from a word of ours or of other datasets (easy, medium, difficult); None for another word."""
    return _LEVELS.get(level.strip().lower())


# A field that takes either.
FamiliarComplexity = Annotated[Complexity, BeforeValidator(lambda level: complexity_of(str(level)) or level)]


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


def written_faults(task: Task, shelf: ToolShelf | None) -> Iterator[Rejection]:
    """Yield what is wrong with a task as it is written. `shelf` None does not compare it with servers."""
    if shelf is not None:
        names = {name for spec in shelf.specs for name in (spec.dotted, spec.name, spec.server)}
        if unknown := sorted(_tools_named(task) - names):
            hint = near_match(unknown[0], names) or ""
            text = f"no server in use has {', '.join(unknown)}. {hint}".strip()
            yield Rejection(RejectCode.UNKNOWN_TOOL, text)
            return  # the rest follows from it
    if problems := task_problems(task):
        # A plan that is longer than the limits is found with the rest of what cannot be graded.
        is_limit = all("limits.max_" in problem for problem in problems)
        code = RejectCode.LIMITS if is_limit else RejectCode.GROUND_TRUTH
        yield Rejection(code, "; ".join(problems))
    if shelf is not None:
        faults = [
            f"{where}, {server}.{tool}: {fault}"
            for where, server, tool, arguments in calls_of(task)
            if (fault := shelf.argument_fault(server, tool, arguments)) is not None
        ]
        if faults:
            yield Rejection(RejectCode.INVALID_ARGUMENTS, "; ".join(faults))
    needed = len(task.truth.tool_sequence) + len(task.truth.user_turns) + 1
    if needed > task.truth.max_turns:  # one call a turn, and a turn for each answer
        yield Rejection(
            RejectCode.LIMITS, f"the plan needs {needed} turns, max_turns is {task.truth.max_turns}"
        )


def _tools_named(task: Task) -> set[str]:
    """Return every tool that an episode of the task would call or offer, as written."""
    truth = task.truth
    names = {f"{server}.{tool}" for _, server, tool, _ in calls_of(task)}
    return names | set(truth.success.must_call) | set(task.offered_in(len(truth.user_turns)) or ())


def answer_in_prompt(task: Task) -> str | None:
    """Return the part of the answer that a question says itself; None if nothing of it does. Of an answer
    with several facts, and of a pattern, only the whole counts."""
    check = task.truth.final_answer
    if check is None or check.type in ("regex", "none", "abstention", "choice", "yes_no"):
        return None
    values, text = answer_values(check), user_text(task)
    if values and all(stands_in(value, text) for value in values):
        return str(values[0])
    return None


def answer_values(check: AnswerCheck) -> list[Any]:
    """Return what an answer has to say: the items of a list, the values of pairs, else the value."""
    if isinstance(check.value, dict):
        return list(check.value.values())
    return list(check.value) if isinstance(check.value, list | tuple) else [check.value]


def answer_facts(task: Task) -> list[Any]:
    """Return what the answer of a solvable task has to say; empty if it cannot be told from the check."""
    check = task.truth.final_answer
    return [] if check is None or check.type in ("regex", "none", "abstention") else answer_values(check)


def stands_in(value: Any, text: str) -> bool:
    """Return whether a fact is in a text: a number as a number, anything else as whole words."""
    number = as_number(value)
    if number is not None and not isinstance(value, str):
        return any(abs(candidate - number) < 1e-9 * max(1.0, abs(number)) for candidate in numbers_in(text))
    words = " ".join(str(value).split()).casefold()
    return bool(words) and (
        re.search(rf"(?<!\w){re.escape(words)}(?!\w)", " ".join(text.split()).casefold()) is not None
    )


_SHINGLE = 5  # characters


def plan_signature(task: Task) -> str:
    """Equal for tasks that ask for the same calls on the same things; the wording is not in it. If nothing
    is to be called, what is said is all there is."""
    truth = task.truth
    calls = [[step.server, step.tool, step.params, step.user_turn] for step in truth.tool_sequence]
    subject = calls or [user_text(task), task.extra_info.get("withheld")]
    return json.dumps(subject, sort_keys=True, ensure_ascii=False, default=str)


def task_entities(task: Task) -> set[str]:
    """Return the things that a task is about: the texts that its gold calls name; if there are none, its
    slots; else its own words."""
    plan = [step.params for step in task.truth.tool_sequence]
    would = [call.get("params", {}) for call in task.extra_info.get("would_call", ())]
    slots = task.extra_info.get("slots") or {}
    texts = (value for value in scalars([plan, would, slots]) if isinstance(value, str))
    return {text for text in texts if not reference_texts(text)} or {user_text(task)}


def groups_by(keys: Iterable[Iterable[Hashable]]) -> array[int]:
    """Return for each record the number of its group: the first record in it. Records are of one group if
    they have a key in common, directly or through others (union-find)."""
    parent = array("q")

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first_with: dict[Hashable, int] = {}
    for index, of_record in enumerate(keys):
        parent.append(index)
        for key in of_record:
            one, other = root(first_with.setdefault(key, index)), root(index)
            parent[max(one, other)] = min(one, other)
    return array("q", (root(index) for index in range(len(parent))))


def user_text(task: Task) -> str:
    """Return what the user says, in all turns, without the form of the answer."""
    return "\n".join(map(without_form, user_messages(task)))


def shingles(task: Task) -> set[bytes]:
    """Return the question in pieces of a few characters, for a comparison of its words."""
    text = " ".join(user_text(task).casefold().split())
    pieces = {text[i : i + _SHINGLE] for i in range(max(1, len(text) - _SHINGLE + 1))}
    return {piece.encode(errors="surrogatepass") for piece in pieces}


def values_of(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, set[str]]]:
    """Return the values that each parameter of each tool has in the calls; tools without any are left out."""
    values: dict[str, dict[str, set[str]]] = {}
    for tool, arguments in calls:
        for name, value in arguments.items():
            values.setdefault(tool, {}).setdefault(name, set()).add(format_value(value))
    return values


def widest(of_tool: Mapping[str, set[str]]) -> str:
    """Return the parameter that has the most values."""
    return max(of_tool, key=lambda name: len(of_tool[name]))
