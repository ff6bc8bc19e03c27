"""From a multi-turn task of BFCL to a dataset record, its right calls executed on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from mcpagent.core.hidden_text import without_marks
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Complexity, GroundTruth, Message, RewardSpec, Task
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.servers.bfcl.backend import Backend, digest
from mcpagent.servers.bfcl.names import STATELESS, load_tool, state_tool
from mcpagent.servers.bfcl.package import VERSION, BfclPackage
from mcpagent.synth.bfcl.calls import CallSyntaxError, parse_call
from mcpagent.synth.record import system_message

DATA_SOURCE = "bfcl/multi_turn"
_GENERATOR = "bfcl-import"
_STEPS_PER_USER_TURN = 20  # BFCL ends an episode that takes more
# What BFCL says in the turn in which it adds the functions that were missing.
_FUNCTIONS_ADDED = "I have updated some more functions you can choose from. What about now?"


@dataclass(frozen=True)
class Importer:
    """Converts the tasks of one copy of the package."""

    package: BfclPackage

    def tasks(self, category: str) -> Iterator[Task]:
        """Raises UserError for a task whose right answer cannot be read."""
        answers = self.package.answers(category)
        for row in self.package.rows(category):
            try:
                yield self._task(row, answers[row["id"]], category)
            except CallSyntaxError as error:
                raise UserError(
                    str(error), where=f"{category}, {row['id']}", remedy=f"use bfcl-eval=={VERSION}"
                ) from error

    def _task(self, row: JsonObject, answer: list[list[str]], category: str) -> Task:
        backends: list[str] = row["involved_classes"]
        tools = {name: self._tools(name) for name in backends}
        owners = {t.name: self.package.backend_class(t.server) for ts in tools.values() for t in ts}
        turns = [[parse_call(text, owners) for text in texts] for texts in answer]
        plan = [
            {**call.model_dump(), "user_turn": user_turn}
            for user_turn, calls in enumerate(turns)
            for call in calls
        ]
        is_long = category == "long_context"
        users = [without_marks(turn[0]["content"]) if turn else _FUNCTIONS_ADDED for turn in row["question"]]
        everything = {tool.name: tool for ts in tools.values() for tool in ts}
        later = _later(row, plan, everything)
        held = {dotted for names in later.values() for dotted in names}
        shown = {name: tool for name, tool in everything.items() if tool.dotted not in held}
        truth: JsonObject = {
            "task_id": row["id"],
            "complexity": _complexity(len(plan)),
            "max_turns": len(plan)
            + _STEPS_PER_USER_TURN * len(users),  # some plans are longer than BFCL allows
            "tool_sequence": [{"step": n, **step} for n, step in enumerate(plan, start=1)],
            "user_turns": users[1:],
            **({"tools_added": later} if later else {}),
            "setup": {
                name: [{"tool": load_tool(name), "arguments": _scenario(row, name, is_long=is_long)}]
                for name in backends
                if name not in STATELESS
            },
            "state": _states(self.package, row, plan, is_long=is_long),
        }
        return Task(
            data_source=f"{DATA_SOURCE}_{category}",
            prompt=(
                Message(role="system", content=system_message(shown)),
                Message(role="user", content=users[0]),
            ),
            reward_spec=RewardSpec(ground_truth=GroundTruth.model_validate(truth)),
            extra_info={
                "tools": [tool.dotted for tool in shown.values()],
                "generator": _GENERATOR,
                "class": category,
                "bfcl_eval": VERSION,
            },
        )

    def _tools(self, backend: str) -> list[ToolSpec]:
        return _listed(self.package, backend)


@cache
def _listed(package: BfclPackage, backend: str) -> list[ToolSpec]:
    """The tools with what is special about each as description: before it, BFCL repeats what all share."""
    return [
        ToolSpec(
            server=backend,
            name=tool["name"],
            description=tool["description"].rpartition("Tool description: ")[2],
            input_schema=tool["input_schema"],
        )
        for tool in package.tools(backend)
    ]


def _states(
    package: BfclPackage, row: JsonObject, plan: list[JsonObject], *, is_long: bool
) -> dict[str, list[JsonObject]]:
    """BFCL's checks, by backend: after each user turn that has right calls the state is theirs, and each of
    their results was seen, in this user turn or before."""
    backends = {name: Backend(package, name) for name in row["involved_classes"]}
    for name, backend in backends.items():
        backend.load(row["initial_config"].get(name, {}), long_context=is_long)
    checks: dict[str, list[JsonObject]] = {name: [] for name in backends}
    for user_turn, calls in groupby(plan, key=lambda step: step["user_turn"]):
        results: dict[str, list[str]] = {name: [] for name in backends}
        for call in calls:
            outcome = backends[call["server"]].call(call["tool"], call["params"])
            results[call["server"]].append(digest(outcome.text))
        for name, backend in backends.items():
            reading = {"tool": state_tool(name), "arguments": {"results": sorted(results[name])}}
            expected = {"digest": backend.state_digest(), "missing_results": []}
            checks[name].append({"call": reading, "expect": expected, "user_turn": user_turn})
    return checks


def _later(
    row: JsonObject, plan: list[JsonObject], everything: Mapping[str, ToolSpec]
) -> dict[int, list[str]]:
    """The functions that are missing at first, by the user turn that brings them. One that the right calls
    need before (there is one such task) is not missing."""
    later: dict[int, list[str]] = {}
    for turn, names in row.get("missed_function", {}).items():
        needed = {step["tool"] for step in plan if step["user_turn"] < int(turn)}
        later[int(turn)] = [everything[name].dotted for name in names if name not in needed]
    return later


def _scenario(row: JsonObject, backend: str, *, is_long: bool) -> JsonObject:
    return {
        "scenario": row["initial_config"].get(backend, {}),
        **({"long_context": True} if is_long else {}),
    }


def _complexity(call_count: int) -> Complexity:
    return "simple" if call_count <= 3 else "moderate" if call_count <= 6 else "complex"
