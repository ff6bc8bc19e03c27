"""Run BFCL's own multi-turn checker in a process: `python -m examples.bfcl.checker PACKAGE`.

Standard input has one episode a line, `{"id", "turns"}`, where `turns[u][s]` are the calls of step s of user
turn u as `{"tool", "arguments"}`, `tool` null for what was refused before it reached a backend. Standard
output has one verdict a line in that order, `{"id", "valid", "error"}`. The checker keeps the backends of an
episode in its module and runs every call once more, so that each episode gets a process and CPU seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from examples.bfcl.package import BACKENDS, BfclPackage, JsonObject
from mcpagent import RunError

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
MAX_STEPS = 20  # model steps with calls in one user turn; BFCL ends an episode that takes more, as failed
_ROOT = Path(__file__).resolve().parents[2]  # where `examples` can be imported
_CPU_S = 60  # a call such as 9 ** 9 ** 9 would not come back
_REFUSED = "refused()"  # no backend has it: an error in the checker too, and nothing changes


def check(package: BfclPackage, episodes: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the checker's verdict on each episode. Raises RunError if it cannot be run."""
    command = [sys.executable, "-m", "examples.bfcl.checker", str(package.root)]
    lines = "".join(json.dumps(episode) + "\n" for episode in episodes)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, cwd=_ROOT)
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(verdicts) != len(episodes):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"BFCL's checker ended after {len(verdicts)} of {len(episodes)} episodes: {last}")
    return verdicts


def as_python(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as the source text that BFCL evaluates. Values are JSON, so nothing in them is code."""
    if all(name.isidentifier() for name in arguments):
        return f"{tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return f"{tool}(**{dict(arguments)!r})"


def _main(root: str) -> None:
    package = BfclPackage(Path(root))
    for backend in BACKENDS:
        package.backend_class(backend)  # imported once, before there is a process for each episode
    tools = {backend: {tool["name"] for tool in package.tools(backend)} for backend in BACKENDS}
    rows = {row["id"]: row for category in CATEGORIES for row in package.rows(category)}
    answers = {name: turns for c in CATEGORIES for name, turns in package.answers(c).items()}
    for line in sys.stdin:
        episode = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
            row = rows[episode["id"]]
            names = {name for backend in row["involved_classes"] for name in tools[backend]}
            verdict = _verdict(episode["turns"], row, answers[episode["id"]], names)
            print(json.dumps({"id": episode["id"], **verdict}), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print(json.dumps({"id": episode["id"], "valid": False, "error": "checker:did not end"}))


def _verdict(
    turns: list[list[list[JsonObject]]], row: JsonObject, answer: list[list[str]], names: set[str]
) -> JsonObject:
    checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    decoded = [
        [
            [
                as_python(call["tool"], call["arguments"]) if call["tool"] in names else _REFUSED
                for call in step
            ]
            for step in steps
        ]
        for steps in turns
    ]
    try:
        with redirect_stdout(sys.stderr):
            verdict = checker.multi_turn_checker(decoded, answer, row, "", "policy")
    except Exception as error:  # noqa: BLE001 - boundary: a backend may raise whatever it likes
        return {"valid": False, "error": f"checker:raised {type(error).__name__}"}
    return {"valid": bool(verdict["valid"]), "error": verdict.get("error_type")}


if __name__ == "__main__":
    _main(sys.argv[1])
