"""BFCL's tasks as records, and the mcp.json to play them; conversations are graded as BFCL grades them."""

from __future__ import annotations

import ast
import inspect
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from examples.bfcl.package import (
    BACKENDS,
    MULTI_TURN,
    STATELESS,
    VERSION,
    Backend,
    BfclPackage,
    JsonObject,
    load_tool,
    state_digest,
    state_tool,
    tool_of,
)
from examples.bfcl.single_turn import SERVER, question
from mcpagent import Task, UserError

_ROOT = Path(__file__).resolve().parents[2]  # where `examples` can be imported
_STEPS_PER_USER_TURN = 20  # BFCL ends an episode that takes more
_MAX_TURNS = 200  # no task allows itself more
_EPISODES_AT_ONCE = 8  # each has up to two processes of its own, of about 55 MB
# What BFCL says in the turn in which it adds the functions that were missing.
_FUNCTIONS_ADDED = "I have updated some more functions you can choose from. What about now?"


class CallSyntaxError(ValueError):
    """A right answer that is not a single call with literal arguments to a tool of the task."""


def write_dataset(
    package: BfclPackage, out: Path, *, categories: Sequence[str], max_tasks: int | None = None, seed: int = 0
) -> tuple[Path, Path]:
    """Write tasks of each category (`drawn`), the servers and the settings that play them, and return the
    files of tasks and settings. The categories are all of several turns, or all of a single one."""
    out.mkdir(parents=True, exist_ok=True)
    data, servers, settings = out / "tasks.jsonl", out / "mcp.json", out / "bfcl.yaml"
    rows = drawn(package, categories, max_tasks, seed=seed)
    with data.open("w", encoding="utf-8") as file:
        for category, of_category in rows.items():
            for task in _records(package, category, of_category):
                file.write(task.model_dump_json(exclude_unset=True) + "\n")
    if set(categories) <= set(MULTI_TURN):
        arguments = {name: [name, "--package", str(package.root)] for name in BACKENDS}
        isolation = ["  isolation:  # each episode has backends of its own"]
        isolation += [f"    {name}: episode" for name in BACKENDS]
        turns = _MAX_TURNS
    else:
        functions = out / "functions.json"
        tools = {f["name"]: tool_of(f) for of in rows.values() for row in of for f in row["function"]}
        functions.write_text(json.dumps([*tools.values()], indent=1) + "\n", encoding="utf-8")
        arguments, isolation, turns = {SERVER: ["--functions", str(functions.resolve())]}, [], 1
    entries = {
        name: {
            "command": sys.executable,
            "args": ["-m", "examples.bfcl.server", *given],
            "cwd": str(_ROOT),
        }
        for name, given in arguments.items()
    }
    servers.write_text(json.dumps({"mcpServers": entries}, indent=2) + "\n", encoding="utf-8")
    lines = [
        "rollout:",
        f"  max_steps_per_episode: {turns}",
        f"  num_envs: {_EPISODES_AT_ONCE}",
        "tools:",
        f"  servers: {json.dumps(str(servers.resolve()))}",
        *isolation,
    ]
    settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return data, settings


def drawn(
    package: BfclPackage, categories: Sequence[str], max_tasks: int | None, *, seed: int
) -> dict[str, list[JsonObject]]:
    """Return the rows of each category, or `max_tasks` of them by `seed`. A question is passed over if a
    function of it has been drawn with other parameters or words: one server has the functions of all."""
    functions: dict[str, JsonObject] = {}
    rows: dict[str, list[JsonObject]] = {}
    for category in categories:
        rows[category] = []
        shuffled = package.rows(category)
        random.Random(f"{seed}:{category}").shuffle(shuffled)
        for row in shuffled:
            own = {function["name"]: function for function in row.get("function", ())}
            is_new = all(functions.get(name, f) == f for name, f in own.items())
            if is_new and len(rows[category]) != max_tasks:
                functions |= own
                rows[category].append(row)
    return rows


def tasks(package: BfclPackage, category: str) -> Iterator[Task]:
    """Yield the tasks of a category. Raises UserError for one whose right answer cannot be read."""
    yield from _records(package, category, package.rows(category))


def _records(package: BfclPackage, category: str, rows: Iterable[JsonObject]) -> Iterator[Task]:
    answers = package.answers(category)
    for row in rows:
        answer = answers[row["id"]]
        try:
            if category in MULTI_TURN:
                yield _conversation(package, row, answer, category)
            else:
                yield question(row, answer, category)
        except CallSyntaxError as error:
            remedy = f"use bfcl-eval=={VERSION}"
            raise UserError(str(error), where=f"{category}, {row['id']}", remedy=remedy) from error


def parse_call(text: str, owners: Mapping[str, type[Any]]) -> JsonObject:
    """Return the server, tool and parameters of a call. `owners` maps each tool to the class of its backend,
    whose signature names positional arguments. Raises CallSyntaxError."""
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
    return {"server": owner.__name__, "tool": call.func.id, "params": json.loads(json.dumps(params))}


def _conversation(package: BfclPackage, row: JsonObject, answer: list[list[str]], category: str) -> Task:
    backends: list[str] = row["involved_classes"]
    described = {
        tool["name"]: (name, _description(tool)) for name in backends for tool in package.tools(name)
    }
    owners = {tool: package.backend_class(server) for tool, (server, _) in described.items()}
    plan = [
        {**parse_call(text, owners), "user_turn": user_turn}
        for user_turn, texts in enumerate(answer)
        for text in texts
    ]
    later = _later(row, plan)
    held = {tool for names in later.values() for tool in names}
    shown = {tool: server for tool, (server, _) in described.items() if tool not in held}
    listed = [f"{tool}: {described[tool][1].partition(chr(10))[0]}" for tool in shown]
    users = [turn[0]["content"] if turn else _FUNCTIONS_ADDED for turn in row["question"]]
    is_long = category == "long_context"
    truth = {
        "task_id": row["id"],
        "complexity": "simple" if len(plan) <= 3 else "moderate" if len(plan) <= 6 else "complex",
        "max_turns": len(plan) + _STEPS_PER_USER_TURN * len(users),  # some plans are longer than BFCL allows
        "tool_sequence": [{"step": n, **step} for n, step in enumerate(plan, start=1)],
        "user_turns": users[1:],
        "tools_added": {
            turn: [f"{described[tool][0]}.{tool}" for tool in names] for turn, names in later.items()
        },
        "setup": {
            name: [{"tool": load_tool(name), "arguments": _scenario(row, name, is_long=is_long)}]
            for name in backends
            if name not in STATELESS
        },
        "state": _states(package, row, plan, is_long=is_long),
    }
    return Task.model_validate(
        {
            "data_source": f"bfcl/multi_turn_{category}",
            "prompt": [
                {
                    "role": "system",
                    "content": "\n".join(["Answer with the help of these tools.", *listed]),
                },
                {"role": "user", "content": users[0]},
            ],
            "reward_spec": {"ground_truth": truth},
            "extra_info": {
                "tools": [f"{server}.{tool}" for tool, server in shown.items()],
                "generator": "examples/bfcl",
                "class": category,
                "bfcl_eval": VERSION,
            },
        }
    )


def _description(tool: JsonObject) -> str:
    """Return what is special about a tool: before it, BFCL repeats what all tools of a backend share."""
    return tool["description"].rpartition("Tool description: ")[2].strip()


def _states(
    package: BfclPackage, row: JsonObject, plan: Iterable[JsonObject], *, is_long: bool
) -> dict[str, list[JsonObject]]:
    """Return BFCL's checks by backend: after each user turn that has right calls the state is theirs, and
    each of their results was seen in this user turn or before."""
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


def _later(row: JsonObject, plan: Sequence[JsonObject]) -> dict[int, list[str]]:
    """Return the functions that are missing at first, by the user turn that brings them. One that the right
    calls need before (there is one such task) is not missing."""
    later: dict[int, list[str]] = {}
    for turn, names in row.get("missed_function", {}).items():
        needed = {step["tool"] for step in plan if step["user_turn"] < int(turn)}
        later[int(turn)] = [name for name in names if name not in needed]
    return later


def _scenario(row: JsonObject, backend: str, *, is_long: bool) -> JsonObject:
    return {
        "scenario": row["initial_config"].get(backend, {}),
        **({"long_context": True} if is_long else {}),
    }
