"""Run BFCL's own checkers in a process: `python -m examples.bfcl.checker PACKAGE`.

Standard input has one episode a line, `{"id", "turns"}`, where `turns[u][s]` are the calls of step s of user
turn u as `{"tool", "arguments", "refused"}`; `refused` is true of what did not reach a backend. Standard
output has one verdict a line in that order, `{"id", "valid", "error"}`. The checker of several turns keeps
the backends of an episode in its module and runs every call once more, so that each episode gets a process
and CPU seconds; that of a single turn compares calls, and runs none.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from examples.bfcl.package import (
    BACKENDS,
    IRRELEVANCE,
    MULTI_TURN,
    BfclPackage,
    JsonObject,
    category_of,
)
from mcpagent import RunError

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


_Verdict = Callable[[list[list[list[JsonObject]]], JsonObject, list[Any]], JsonObject]


def _main(root: str) -> None:
    package = BfclPackage(Path(root))
    episodes = [json.loads(line) for line in sys.stdin]
    categories = {category_of(episode["id"]) for episode in episodes}
    rows = {row["id"]: row for category in categories for row in package.rows(category)}
    answers = {name: right for category in categories for name, right in package.answers(category).items()}
    verdict_of = (_conversations if categories <= set(MULTI_TURN) else _questions)(package)
    for episode in episodes:
        name = episode["id"]
        sys.stdout.flush()
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
            try:
                with redirect_stdout(sys.stderr):
                    verdict = verdict_of(episode["turns"], rows[name], answers[name])
                said = {"valid": bool(verdict["valid"]), "error": verdict.get("error_type")}
            except Exception as error:  # noqa: BLE001 - boundary: a backend may raise whatever it likes
                said = {"valid": False, "error": f"checker:raised {type(error).__name__}"}
            print(json.dumps({"id": name, **said}), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print(json.dumps({"id": name, "valid": False, "error": "checker:did not end"}))


def _conversations(package: BfclPackage) -> _Verdict:
    for backend in BACKENDS:
        package.backend_class(backend)  # imported once, before there is a process for each episode
    tools = {backend: {tool["name"] for tool in package.tools(backend)} for backend in BACKENDS}
    checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")

    def verdict(turns: list[list[list[JsonObject]]], row: JsonObject, answer: list[Any]) -> JsonObject:
        names = {name for backend in row["involved_classes"] for name in tools[backend]}

        def written(call: JsonObject) -> str:
            is_run = call["tool"] in names and not call["refused"]
            return as_python(call["tool"], call["arguments"]) if is_run else _REFUSED

        decoded = [[[written(call) for call in step] for step in steps] for steps in turns]
        return checker.multi_turn_checker(decoded, answer, row, "", "policy")

    return verdict


def _questions(package: BfclPackage) -> _Verdict:
    package.add_to_path()
    # The checker asks the table of all models how each writes dots in names: here as BFCL does. The table
    # imports every vendor's client, so that one with a single model stands in for it.
    table = ModuleType("bfcl_eval.constants.model_config")
    vars(table)["MODEL_CONFIG_MAPPING"] = {"policy": SimpleNamespace(underscore_to_dot=False)}
    sys.modules[table.__name__] = table
    checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    python = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON

    def verdict(turns: list[list[list[JsonObject]]], row: JsonObject, answer: list[Any]) -> JsonObject:
        calls = [{call["tool"]: call["arguments"]} for steps in turns for step in steps for call in step]
        category = category_of(row["id"])
        if category == IRRELEVANCE:
            return {"valid": not calls, "error_type": "irrelevance_error:decoder_success" if calls else None}
        return checker.ast_checker(row["function"], calls, answer, python, category, "policy")

    return verdict


if __name__ == "__main__":
    _main(sys.argv[1])
