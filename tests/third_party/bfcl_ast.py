"""BFCL's single-turn rows as tasks, ways to damage their right calls, and both verdicts on them."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

from examples.bfcl.package import tool_of
from examples.bfcl.single_turn import SERVER, expanded, plan
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Message, RewardSpec, Task
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec, failed_result
from mcpagent.core.trajectory import StopReason
from mcpagent.env.offer import OfferedTools, offer
from mcpagent.reward.record import EpisodeRecord, RecordedTurn
from mcpagent.reward.rule import grade_by_rule

CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
_OTHER_TOOL = "no_such_function"


@dataclass(frozen=True)
class Row:
    """One row: its functions, and for each right call the acceptable values by parameter."""

    id: str
    category: str
    functions: list[JsonObject]
    answer: list[JsonObject]

    def types(self, tool: str) -> dict[str, str]:
        """BFCL's names of the parameters' types; of a list with that of its items."""
        parameters = next(f for f in self.functions if f["name"] == tool)["parameters"]["properties"]
        return {name: _type_of(schema) for name, schema in parameters.items()}


@dataclass(frozen=True)
class Damaged:
    """Calls as `{name: arguments}`. Where an argument was changed, `index` is its call's."""

    kind: str
    calls: list[JsonObject]
    index: int | None = None
    tool: str = ""
    parameter: str = ""
    was: Any = None
    now: Any = None


@dataclass
class Verdicts:
    """What both say of one damaged row."""

    row: Row
    damaged: Damaged
    ours: bool
    theirs: bool
    error: str | None = field(default=None)


def rows(package: Path) -> Iterator[Row]:
    """Every row whose functions are Python."""
    data = package / "bfcl_eval" / "data"
    for category in CATEGORIES:
        name = f"BFCL_v4_{category}.json"
        answers = {
            line["id"]: line["ground_truth"]
            for line in map(json.loads, (data / "possible_answer" / name).read_text().splitlines())
        }
        for row in map(json.loads, (data / name).read_text().splitlines()):
            yield Row(row["id"], category, row["function"], answers[row["id"]])


def first_calls(row: Row) -> list[JsonObject]:
    """Each right call with the first value that is acceptable for each parameter, which may be that it is
    left out."""
    calls: list[JsonObject] = []
    for right in row.answer:
        ((tool, acceptable),) = right.items()
        arguments = {}
        for name, values in acceptable.items():
            stated = expanded(values)
            if stated and values[0] != "":
                arguments[name] = stated[0]
        calls.append({tool: arguments})
    return calls


def task_of(row: Row) -> Task:
    """The row as a record of ours: the plan is one group whose order is free."""
    return Task(
        prompt=(Message(role="user", content=row.id),),
        reward_spec=RewardSpec.model_validate(
            {"ground_truth": {"task_id": row.id, "tool_sequence": plan(row.answer), "max_turns": 1}}
        ),
    )


def verdict(task: Task, offered: OfferedTools, calls: list[JsonObject]) -> bool:
    """Whether the calls are the plan, no more and no less, as episodes check and the reward grades them."""
    made: list[ToolCall] = []
    results: list[ToolResult] = []
    for number, written in enumerate(calls):
        ((name, arguments),) = written.items()
        call = ToolCall(id=f"c{number}", tool=name, arguments=arguments)
        tool = offered.find(name)
        if tool is None:
            result = failed_result(call, FailureKind.UNKNOWN_TOOL, "not offered")
        else:
            call = call.resolved(tool.spec)
            problem = tool.check.fault(arguments)
            result = (
                ToolResult(call_id=call.id, server=call.server, tool=call.tool, content="{}")
                if problem is None
                else failed_result(call, FailureKind.INVALID_ARGUMENTS, problem)
            )
        made.append(call)
        results.append(result)
    record = EpisodeRecord(
        turns=(RecordedTurn.of(made, results, user_turn=0),),
        final_answer="Done.",
        stop_reason=StopReason.ANSWERED,
    )
    return {term.name: term.value for term in grade_by_rule(task, record)}["sequence_exact"] == 1.0


def offered(row: Row) -> OfferedTools:
    """The functions of a row as tools, under names that no other row uses."""
    specs = {
        f["name"]: ToolSpec.model_validate({**tool_of(f), "server": SERVER, "description": row.id})
        for f in row.functions
    }
    return offer(specs, None, task_id=row.id)


def compare(package: Path, cases: Sequence[tuple[Row, Damaged]]) -> list[Verdicts]:
    """Both verdicts on each."""
    theirs = _asked(package, [(row, damaged.calls) for row, damaged in cases])
    tasks: dict[str, tuple[Task, OfferedTools]] = {}
    verdicts: list[Verdicts] = []
    for (row, damaged), said in zip(cases, theirs, strict=True):
        if row.id not in tasks:
            tasks[row.id] = (task_of(row), offered(row))
        ours = verdict(*tasks[row.id], damaged.calls)
        verdicts.append(Verdicts(row, damaged, ours, said["valid"], said["error"]))
    return verdicts


def valid_in_another_order(package: Path, case: Verdicts) -> bool:
    """Whether BFCL's checker, which matches greedily, finds the same calls right in some other order."""
    orders = [(case.row, list(calls)) for calls in permutations(case.damaged.calls)]
    return any(said["valid"] for said in _asked(package, orders))


def _asked(package: Path, cases: Sequence[tuple[Row, list[JsonObject]]]) -> list[JsonObject]:
    lines = [
        json.dumps(
            {"functions": row.functions, "calls": calls, "answer": row.answer, "category": row.category}
        )
        for row, calls in cases
    ]
    oracle = Path(__file__).with_name("bfcl_ast_oracle.py")
    done = subprocess.run(
        [sys.executable, str(oracle), str(package)], input="\n".join(lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def damages(row: Row) -> Iterator[Damaged]:
    """The right calls, right calls that are written otherwise, and calls with one thing wrong."""
    gold = first_calls(row)
    yield Damaged("right", gold)
    yield from _other_calls(row, gold)
    for index, call in enumerate(gold):
        ((tool, arguments),) = call.items()
        acceptable, types = row.answer[index][tool], row.types(tool)
        for kind, name, now in _other_arguments(row, tool, arguments, acceptable, types):
            calls = deepcopy(gold)
            was = calls[index][tool].get(name)
            if now is _GONE:
                del calls[index][tool][name]
            else:
                calls[index][tool][name] = now
            yield Damaged(kind, calls, index, tool, name, was, None if now is _GONE else now)


_GONE = object()


def _other_calls(row: Row, gold: list[JsonObject]) -> Iterator[Damaged]:
    rng = random.Random(row.id)
    at = rng.randrange(len(gold))
    yield Damaged("no call", [])
    yield Damaged("a call twice", [*gold, gold[at]])
    yield Damaged("an unknown call too", [*gold, {_OTHER_TOOL: {}}])
    named = [{_OTHER_TOOL: call} if n == at else {tool: call} for n, (tool, call) in _numbered(gold)]
    yield Damaged("another function", named)
    if len(gold) > 1:
        yield Damaged("a call fewer", [call for n, call in enumerate(gold) if n != at])
        yield Damaged("reversed", gold[::-1])
        twice = [gold[at - 1] if n == at else call for n, call in enumerate(gold)]
        yield Damaged("one call in place of another", twice)


def _numbered(gold: list[JsonObject]) -> Iterator[tuple[int, tuple[str, JsonObject]]]:
    for number, call in enumerate(gold):
        ((tool, arguments),) = call.items()
        yield number, (tool, arguments)


def _other_arguments(
    row: Row, tool: str, arguments: JsonObject, acceptable: JsonObject, types: dict[str, str]
) -> Iterator[tuple[str, str, Any]]:
    yield "an unexpected argument", "no_such_argument", 1
    for name, values in acceptable.items():
        for other in expanded(values)[1:4]:
            yield "another acceptable value", name, other
        if name in arguments:
            yield ("an optional argument left out" if "" in values else "an argument left out"), name, _GONE
            yield "null for an argument", name, None
            for kind, now in _other_values(arguments[name], random.Random(f"{row.id}{tool}{name}")):
                yield kind, name, now
        elif name in types:
            yield "null for an optional argument", name, None


def _other_values(value: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    match value:
        case bool():
            yield "a boolean flipped", not value
            yield "a boolean as text", str(value).lower()
            yield "a boolean as a number", int(value)
        case int() | float():
            yield "a number plus one", value + 1
            yield "a number as text", str(value)
            yield "a number off by a billionth", value * (1 + 1e-10) + 1e-12
            if isinstance(value, int):
                yield "an integer as a float", float(value)
            elif value.is_integer():
                yield "a float as an integer", int(value)
        case str():
            yield from _other_texts(value, rng)
        case list():
            yield "a list in brackets as text", json.dumps(value)
            yield "an item more", [*value, value[-1] if value else "x"]
            if value:
                yield "an item fewer", value[:-1]
                yield "a list for its item", value[0]
            if len(value) > 1:
                yield "items reversed", value[::-1]
            for n, item in enumerate(value[:1]):
                for kind, now in _other_values(item, rng):
                    yield f"in a list: {kind}", [*value[:n], now, *value[n + 1 :]]
        case dict():
            yield "a field more", {**value, "no_such_field": 1}
            for key in list(value)[:1]:
                yield "a field fewer", {k: v for k, v in value.items() if k != key}
                for kind, now in _other_values(value[key], rng):
                    yield f"in an object: {kind}", {**value, key: now}
        case _:
            pass


def _other_texts(value: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    yield "other text", value + " other"
    yield "a letter fewer", value[:-1]
    yield "upper case", value.upper()
    yield "a space around", f" {value} "
    yield "punctuation", value.replace(" ", ", ", 1) if " " in value else value + "."
    if "'" in value:
        yield "double quotes", value.replace("'", '"')
    if value.strip().lstrip("-").isdigit():
        yield "a number in place of text", int(value)  # type: ignore[misc]
    words = value.split()
    if len(words) > 1:
        yield "words together", "".join(words)
        rng.shuffle(words)
        yield "words shuffled", " ".join(words)


def _type_of(schema: JsonObject) -> str:
    items = schema.get("items")
    return f"{schema['type']} of {items.get('type')}" if isinstance(items, dict) else schema["type"]


def squeezed(text: str) -> str:
    """A text as BFCL compares it."""
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


def squeezed_values(value: Any) -> Any:
    """A value with its texts as BFCL compares them. Those in lists inside objects it leaves as they are."""
    if isinstance(value, str):
        return squeezed(value)
    if isinstance(value, list):
        return [squeezed_values(item) for item in value]
    if isinstance(value, dict):
        return {key: item if isinstance(item, list) else squeezed_values(item) for key, item in value.items()}
    return value


def explained(case: Verdicts) -> str | None:
    """Why the two differ; None where nothing that is known explains it. What is stricter is named first."""
    damaged = case.damaged
    values: list[Any] = []
    if damaged.index is not None:
        values = case.row.answer[damaged.index][damaged.tool].get(damaged.parameter, [])
    kind = damaged.kind.rpartition(": ")[2]
    return _theirs_only(case, values) if case.theirs else _ours_only(case, kind, values)


def _theirs_only(case: Verdicts, values: list[Any]) -> str | None:
    row, damaged = case.row, case.damaged
    if _breaks_schema(row, first_calls(row)):
        return "ours: the right call of the row breaks the schema of its own function"
    if None in values and damaged.now is None:
        return "ours: null is acceptable in the row, and no type of the schema"
    if damaged.now in ("", []) and "" in values:
        return "ours: the mark of an optional argument is no value that it may have"
    if squeezed_values(damaged.now) in [squeezed_values(value) for value in expanded(values)]:
        if _breaks_schema(row, damaged.calls):
            return "ours: the text is not one that the schema lists"
        return "ours: case, spaces, quotes and punctuation of a text count"
    return None


def _ours_only(case: Verdicts, kind: str, values: list[Any]) -> str | None:
    if kind in ("an integer as a float", "a float as an integer"):
        return "theirs: 5.0 is no integer, and in a list 5 is no float (they are in JSON Schema)"
    if kind == "a number off by a billionth":
        return "theirs: numbers are equal to the last digit"
    if kind == "a number as text":
        return "theirs: in an object without types a number as text is a text"
    if kind in ("an argument left out", "null for an argument") and None in values:
        return "theirs: null has to be written"
    if kind == "a space around":
        return "theirs: a space around a text in a list inside an object counts"
    return None


def _breaks_schema(row: Row, calls: list[JsonObject]) -> bool:
    tools = offered(row)
    made = [(tools.find(name), arguments) for call in calls for name, arguments in call.items()]
    return any(tool is not None and tool.check.fault(arguments) is not None for tool, arguments in made)
