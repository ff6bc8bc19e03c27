"""BFCL's own executor and checker as the oracle, and the ways in which an episode goes wrong."""

from __future__ import annotations

import random
import sys
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.bfcl.package import BACKENDS, VERSION, BfclPackage
from examples.bfcl.server import build_bfcl_server
from mcpagent.core.tasks import Task
from mcpagent.env.episode import Episode
from mcpagent.policy.scripted import call_text
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.third_party.registries import install

KINDS = (
    *("identity", "drop_call", "duplicate", "swap", "mutate_argument", "drop_argument"),
    *("unexpected_argument", "failed_then_right", "add_hallucinated", "replace_by_hallucinated"),
    *("move_to_next_turn", "move_to_previous_turn", "call_in_empty_turn", "all_in_first_turn", "empty"),
)


_INSTALLED = Path(__file__).resolve().parents[2] / ".venv-bfcl"


@dataclass(frozen=True)
class Call:
    tool: str
    arguments: dict[str, Any]

    @property
    def python(self) -> str:
        return f"{self.tool}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


Turns = list[list[Call]]
_JUNK = Call("consult_the_oracle", {"question": "why"})


def fetch_package(cache: Path) -> Path:
    """The package of `make test-bfcl`, else the unzipped wheel, downloaded once. Skips the test where the
    registry cannot be reached."""
    if installed := sorted(_INSTALLED.glob("lib/python3*/site-packages/bfcl_eval")):
        return installed[-1].parent
    root = cache / "package"
    if not root.is_dir():
        wanted = [f"bfcl-eval=={VERSION}", "--no-deps", "-q", "-d", str(cache)]
        install([sys.executable, "-m", "pip", "download", *wanted])
        with zipfile.ZipFile(next(cache.glob("bfcl_eval-*.whl"))) as wheel:
            wheel.extractall(root)
    return root


def memory_pool(package: BfclPackage) -> ToolPool:
    return ToolPool(
        [
            InProcessServer(name=name, server=build_bfcl_server(package, name), isolation="episode")
            for name in BACKENDS
        ]
    )


def gold_turns(task: Task) -> Turns:
    turns: Turns = [[] for _ in range(1 + len(task.truth.user_turns))]
    for step in task.truth.tool_sequence:
        turns[step.user_turn].append(Call(step.tool, step.params))
    return turns


def variants(task: Task, *, seed: int) -> Iterator[tuple[str, Turns]]:
    """The gold episode, and one of each kind that the task allows."""
    for kind in KINDS:
        rng = random.Random(f"{seed}:{task.id}:{kind}")
        turns = _perturbed(kind, deepcopy(gold_turns(task)), rng)
        if turns is not None:
            yield kind, turns


async def play(task: Task, turns: Turns, tools: ToolProvider) -> Episode:
    """The calls of an episode one a model turn, graded; the servers that it had are closed."""
    episode = Episode(task, tools, episode_id=f"{task.id}#0")
    try:
        await episode.start()
        for calls in turns:
            for call in calls:
                await episode.step(call_text(call.tool, call.arguments))
            await episode.step("Done.")
        assert episode.done
        await episode.grade()
    finally:
        await episode.close()
    return episode


class Oracle:
    """BFCL's multi-turn checker. It keeps the backends of an episode in its module."""

    def __init__(self, package: BfclPackage, category: str) -> None:
        package.backend_class("MathAPI")  # puts the package on the path
        from bfcl_eval.eval_checker.multi_turn_eval import (  # type: ignore[import-not-found]
            multi_turn_checker,
            multi_turn_utils,
        )

        self._checker, self._utils = multi_turn_checker, multi_turn_utils
        self._category = f"multi_turn_{category}"
        self._rows = {row["id"]: row for row in package.rows(category)}
        self._answers = package.answers(category)

    def verdict(self, task: Task, turns: Turns) -> tuple[bool, bool]:
        """Whether the episode is valid, and whether it is quiet where nothing is to be called."""
        decoded = [[[call.python] for call in calls] for calls in turns]
        row, answer = self._rows[task.id], self._answers[task.id]
        try:
            found = self._checker.multi_turn_checker(decoded, answer, row, self._category, "policy")
        finally:
            self._forget()
        quiet = self._checker.multi_turn_irrelevance_checker(decoded, answer)
        return found["valid"], quiet["valid"]

    def results(self, task: Task) -> list[str]:
        """What BFCL's executor says to each gold call, as its own answers write them."""
        row = self._rows[task.id]
        calls = [call for calls in self._answers[task.id] for call in calls]
        try:
            results, _ = self._utils.execute_multi_turn_func_call(
                calls,
                row["initial_config"],
                row["involved_classes"],
                "policy",
                task.id,
                long_context="long_context" in self._category,
            )
        finally:
            self._forget()
        return results

    def _forget(self) -> None:
        for name in [name for name in vars(self._utils) if name.endswith("_instance")]:
            delattr(self._utils, name)


def _perturbed(kind: str, turns: Turns, rng: random.Random) -> Turns | None:
    """`turns` gone wrong in one place; None where there is no such place."""
    filled = [n for n, calls in enumerate(turns) if calls]
    at = rng.choice(filled)
    calls = turns[at]
    position = rng.randrange(len(calls))
    call = calls[position]
    match kind:
        case "identity":
            return turns
        case "drop_call":
            calls.pop(position)
        case "duplicate":
            calls.insert(position, call)
        case "swap":
            pairs = [(n, i) for n in filled for i in range(len(turns[n]) - 1)]
            if not pairs:
                return None
            at, i = rng.choice(pairs)
            turns[at][i : i + 2] = reversed(turns[at][i : i + 2])
        case "mutate_argument" | "drop_argument":
            places = [(c, name) for calls in turns for c in calls for name in c.arguments]
            if not places:
                return None
            call, name = rng.choice(places)
            if kind == "drop_argument":
                del call.arguments[name]
            else:
                call.arguments[name] = _mutated(call.arguments[name])
        case "unexpected_argument":
            call.arguments["no_such_argument"] = 1
        case "failed_then_right":
            calls.insert(position, Call(call.tool, {**call.arguments, "no_such_argument": 1}))
        case "add_hallucinated":
            calls.insert(position, _JUNK)
        case "replace_by_hallucinated":
            calls[position] = _JUNK
        case "move_to_next_turn" if at + 1 < len(turns):
            turns[at + 1].insert(0, calls.pop())
        case "move_to_previous_turn" if at:
            turns[at - 1].append(calls.pop(0))
        case "call_in_empty_turn" if len(filled) < len(turns):
            empty = next(n for n in range(len(turns)) if n not in filled)
            turns[empty].append(call)
        case "all_in_first_turn":
            return [[c for calls in turns for c in calls], *([] for _ in turns[1:])]
        case "empty":
            return [[] for _ in turns]
        case _:
            return None
    return turns


def _mutated(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "_x"
    if isinstance(value, list):
        return value[:-1] if value else ["x"]
    return {**value, "x": 1}
