"""BFCL's multi-turn benchmark on a model, with the board's own definition of the number.

A category's accuracy is the share of its tasks that BFCL's own checker calls valid; the board's multi-turn
number is the unweighted mean of the four categories, and there is none without all of them. An episode that
could not be played counts as wrong, as does one that takes more than 20 steps with calls in a user turn.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject, Metric
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.intervals import rate_interval
from mcpagent.interrupts import Interrupted
from mcpagent.run.evaluate import EvalOutcome, evaluate_model
from mcpagent.servers.bfcl.checker import CATEGORIES, MAX_STEPS, check
from mcpagent.servers.bfcl.package import BACKENDS, VERSION, BfclPackage
from mcpagent.storage.atomic import write_text
from mcpagent.storage.datasets import read_tasks, write_jsonl
from mcpagent.storage.packages import pip_install
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.synth.bfcl import import_bfcl

FORCED = "multi_turn:force_terminated"  # BFCL's words
NOT_PLAYED = "multi_turn:inference_error"


@dataclass(frozen=True, kw_only=True)
class CategoryScore:
    """`errors` counts why episodes are wrong, in the checker's words."""

    accuracy: Metric
    errors: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class BoardResult:
    """`overall` is None unless all four categories were played. `differing` are the scored episodes whose
    task success is not the checker's verdict, with its reason; `unparsed` counts those in which a call did
    not parse: there BFCL goes on to the next user turn, and an episode lets the model try again."""

    overall: Metric | None
    categories: dict[str, CategoryScore]
    agreed: int
    differing: dict[str, str]
    unscored: int
    unparsed: int
    outcome: EvalOutcome
    path: Path

    def as_json(self) -> JsonObject:
        """The document of `eval benchmark --json`."""
        return {
            "benchmark": "bfcl-multi-turn",
            "bfcl_eval": VERSION,
            "overall": None if self.overall is None else self.overall.model_dump(mode="json"),
            "categories": {
                name: {"accuracy": score.accuracy.model_dump(mode="json"), "errors": score.errors}
                for name, score in self.categories.items()
            },
            "agreement": {"agreed": self.agreed, "differing": self.differing},
            "unscored": self.unscored,
            "unparsed": self.unparsed,
            "metrics": {
                name: metric.model_dump(mode="json") for name, metric in self.outcome.result.metrics.items()
            },
            "provenance": self.outcome.result.provenance,
        }


def find_package(folder: Path | None) -> BfclPackage:
    """The package in `folder`, else the one that is installed here. Raises UserError with the line that
    installs it, or what it needs."""
    if folder is None:
        spec = importlib.util.find_spec("bfcl_eval")
        if spec is None or spec.origin is None:
            raise UserError(
                "the benchmark is played with your own copy of bfcl-eval, and there is none here",
                remedy=f"{pip_install('--no-deps', f'bfcl-eval=={VERSION}')}, or --package DIR for a copy",
            )
        folder = Path(spec.origin).parent.parent
    package = BfclPackage(folder.resolve())
    for backend in BACKENDS:
        package.backend_class(backend)
    return package


def play_board(
    configured: Callable[[Path], TrainConfig],
    *,
    package: BfclPackage,
    model: str,
    categories: Sequence[str],
    folder: Path,
    max_tasks: int | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> BoardResult:
    """Make the tasks in `folder` (the first `max_tasks` of each category), play each once, judge them with
    BFCL's checker, and write `board.json` beside tasks and episodes. `configured` gives the configuration for
    a file of tasks. Raises UserError and RunError."""
    console = console or Console()
    imported = import_bfcl(
        package.root, folder / "tasks", categories=categories, overwrite=overwrite, max_tasks=max_tasks
    )
    data = folder / "tasks" / "all.jsonl"
    write_jsonl(data, (task for path in imported.paths.values() for task in read_tasks(path)))
    try:
        outcome = evaluate_model(
            configured(data), model=model, data=data, out=folder / "evaluation.json", console=console
        )
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"{folder / 'tasks'} has the tasks", option="--overwrite") from interrupt
    assert outcome.trajectories is not None
    played = list(read_trajectories(outcome.trajectories, with_tokens=False))
    result = judged(package, played, categories=categories, outcome=outcome, path=folder / "board.json")
    write_text(result.path, json.dumps(result.as_json(), indent=1) + "\n")
    return result


def judged(
    package: BfclPackage,
    played: Sequence[Trajectory],
    *,
    categories: Sequence[str],
    outcome: EvalOutcome,
    path: Path,
) -> BoardResult:
    """The board's numbers of played episodes, one for each task."""
    lengths = {name: len(turns) for c in categories for name, turns in package.answers(c).items()}
    steps = {t.task_id: _steps(t, lengths[t.task_id]) for t in played}
    verdicts = check(package, [{"id": t.task_id, "turns": steps[t.task_id]} for t in played])
    errors = {
        t.task_id: _ended_early(t, steps[t.task_id]) or (None if verdict["valid"] else str(verdict["error"]))
        for t, verdict in zip(played, verdicts, strict=True)
    }
    scores: dict[str, CategoryScore] = {}
    for category in categories:
        mine = [error for name, error in errors.items() if name.startswith(f"multi_turn_{category}_")]
        scores[category] = CategoryScore(
            accuracy=rate_interval(mine.count(None), len(mine)),
            errors=dict(sorted(Counter(error for error in mine if error is not None).items())),
        )
    scored = [t for t in played if t.is_success is not None]
    differing = {
        t.task_id: errors[t.task_id] or "valid" for t in scored if t.is_success != (errors[t.task_id] is None)
    }
    return BoardResult(
        overall=_overall([score.accuracy for score in scores.values()])
        if set(scores) == set(CATEGORIES)
        else None,
        categories=scores,
        agreed=len(scored) - len(differing),
        differing=differing,
        unscored=len(played) - len(scored),
        unparsed=sum(any(turn.parse_failures for turn in t.turns) for t in played),
        outcome=outcome,
        path=path,
    )


def _overall(accuracies: Sequence[Metric]) -> Metric:
    """The unweighted mean. Categories have equally many tasks, so that its interval is that of one rate."""
    n = sum(metric.n for metric in accuracies)
    mean = sum(metric.value or 0.0 for metric in accuracies) / len(accuracies)
    return rate_interval(mean * n, n)


def _steps(trajectory: Trajectory, user_turns: int) -> list[list[list[JsonObject]]]:
    """By user turn and model step, the calls; without a tool where one was refused before it was made."""
    steps: list[list[list[JsonObject]]] = [[] for _ in range(user_turns)]
    for turn in trajectory.turns:
        made: list[JsonObject] = []
        for call, result in zip(turn.tool_calls, turn.tool_results, strict=True):
            is_made = result.failure is None or result.failure.value == "tool_error"
            made.append({"tool": call.tool if is_made else None, "arguments": call.arguments})
        if made:
            steps[turn.user_turn].append(made)
    return steps


def _ended_early(trajectory: Trajectory, steps: Sequence[Sequence[Any]]) -> str | None:
    """Why an episode is wrong whatever it did, in BFCL's words; None where the checker decides."""
    if trajectory.is_success is None:
        return NOT_PLAYED
    if trajectory.stop_reason is not StopReason.ANSWERED or any(len(turn) > MAX_STEPS for turn in steps):
        return FORCED
    return None
