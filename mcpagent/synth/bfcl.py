"""BFCL's multi-turn tasks as dataset records, which are graded as BFCL grades them."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from mcpagent.config.dataset_servers import DatasetServers
from mcpagent.config.schema import ToolsConfig
from mcpagent.core.hidden_text import without_marks
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Complexity, GroundTruth, Message, PlanCall, RewardSpec, Task
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.servers.bfcl.package import (
    BACKENDS,
    STATELESS,
    VERSION,
    Backend,
    BfclPackage,
    load_tool,
    state_digest,
    state_tool,
)
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.datasets import write_jsonl
from mcpagent.synth.generate import check_dataset_servers, write_servers
from mcpagent.synth.tasks.record import system_message
from mcpagent.tools.setup import note_named


class CallSyntaxError(ValueError):
    """A right answer that is not a single call with literal arguments to a tool of the task."""


def parse_call(text: str, owners: Mapping[str, type[Any]]) -> PlanCall:
    """`owners` maps each tool to the class of its backend, whose signature names positional arguments; the
    class's name is the server's. Raises CallSyntaxError."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise CallSyntaxError(f"{text!r} is not Python: {error.msg}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise CallSyntaxError(f"{text!r} is not one call")
    owner = owners.get(call.func.id)
    if owner is None:
        raise CallSyntaxError(f"{text!r} calls no tool of its task")
    try:
        given = [ast.literal_eval(value) for value in call.args]
        named = {word.arg or "**": ast.literal_eval(word.value) for word in call.keywords}
        signature = inspect.signature(getattr(owner, call.func.id))
        arguments = signature.bind(None, *given, **named).arguments
    except (ValueError, TypeError) as error:
        raise CallSyntaxError(f"{text!r}: {error}") from error
    params = {name: value for name, value in arguments.items() if name != "self"}
    return PlanCall(server=owner.__name__, tool=call.func.id, params=json.loads(json.dumps(params)))


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
            results[call["server"]].append(state_digest(outcome.text))
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


_MAX_TURNS = 200  # no task allows itself more
_EPISODES_AT_ONCE = 8  # each has up to two processes of its own, of about 55 MB


@dataclass(frozen=True)
class Imported:
    """Tasks and right calls by category; `config` is for --config, and names the servers."""

    tasks: dict[str, int]
    calls: dict[str, int]
    paths: dict[str, Path]
    servers: Path
    config: Path

    def as_json(self) -> JsonObject:
        """The document of `data import --json`."""
        return {
            "tasks": self.tasks,
            "calls": self.calls,
            "paths": {name: str(path) for name, path in self.paths.items()},
            "servers": str(self.servers),
            "config": str(self.config),
        }


def import_bfcl(
    package: Path, out: Path, *, categories: Sequence[str], overwrite: bool, max_tasks: int | None = None
) -> Imported:
    """Write the tasks of `categories`, the first `max_tasks` of each, with servers and settings. Raises
    UserError where a file would be replaced without `overwrite`, or the package is not one."""
    importer = Importer(BfclPackage(package.resolve()))
    paths = {category: out / f"{category}.jsonl" for category in categories}
    servers, config = out / "mcp.json", out / "bfcl.yaml"
    there = [path for path in (*paths.values(), servers, config) if path.exists()]
    if there and not overwrite:
        raise UserError(
            f"{there[0].name} would be replaced",
            where=str(there[0]),
            remedy="add --overwrite, or name another folder",
        )
    imported = Imported({}, {}, paths, servers, config)
    remembered = DatasetServers.of(
        out,
        ToolsConfig(servers=str(servers), isolation=dict.fromkeys(BACKENDS, "episode")),
        rollout={"max_steps_per_episode": _MAX_TURNS, "num_envs": _EPISODES_AT_ONCE},
    )
    check_dataset_servers(remembered, overwrite=overwrite)
    entries = {
        name: {
            "command": sys.executable,
            "args": ["-m", "mcpagent.servers.bfcl", name, "--package", str(importer.package.root)],
        }
        for name in BACKENDS
    }
    _write(servers, json.dumps({"mcpServers": entries}, indent=2))
    _write(config, _settings(servers))
    note_named(servers)
    write_servers(remembered.at(out))  # now that there is a file to take the hash of
    for category, path in paths.items():
        tasks = islice(importer.tasks(category), max_tasks)
        imported.tasks[category] = write_jsonl(path, _counted(tasks, category, imported))
    return imported


def _counted(tasks: Iterator[Task], category: str, imported: Imported) -> Iterator[Task]:
    imported.calls[category] = 0
    for task in tasks:
        imported.calls[category] += len(task.truth.tool_sequence)
        yield task


def _settings(servers: Path) -> str:
    """YAML: each episode has backends of its own, and the model turns that its task allows."""
    lines = [
        "rollout:",
        f"  max_steps_per_episode: {_MAX_TURNS}",
        f"  num_envs: {_EPISODES_AT_ONCE}",
        "tools:",
        f"  servers: {json.dumps(str(servers.resolve()))}",
        "  isolation:",
        *(f"    {name}: episode" for name in BACKENDS),
    ]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
