"""Play BFCL's multi-turn tasks, and print the number of the board: `python -m examples.bfcl --help`.

A category's accuracy is the share of its tasks that BFCL's own checker calls valid; the board's multi-turn
number is the unweighted mean of the four categories, and there is none without all of them. An episode that
could not be played counts as wrong, as does one that takes more than 20 steps with calls in a user turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.bfcl.checker import CATEGORIES, MAX_STEPS, check
from examples.bfcl.package import BACKENDS, VERSION, BfclPackage, JsonObject
from examples.bfcl.tasks import write_dataset
from mcpagent import (
    MCPAgentError,
    Metric,
    RewardTerm,
    StopReason,
    Trajectory,
    UserError,
    evaluate_model,
    load_train_config,
    read_trajectories,
    summarise,
)

FORCED = "multi_turn:force_terminated"  # BFCL's words
NOT_PLAYED = "multi_turn:inference_error"


@dataclass(frozen=True, kw_only=True)
class Board:
    """The numbers of the board. `overall` is None unless all four categories were played; `errors` counts why
    episodes are wrong, in the checker's words; `differing` are the scored episodes whose task success is not
    the checker's verdict, with its reason; `unparsed` counts those in which a call did not parse: there BFCL
    goes on to the next user turn, and an episode lets the model try again."""

    overall: Metric | None
    categories: dict[str, Metric]
    errors: dict[str, dict[str, int]]
    agreed: int
    differing: dict[str, str]
    unscored: int
    unparsed: int

    def as_json(self) -> JsonObject:
        """Return the document of board.json."""
        metrics = {name: metric.model_dump(mode="json") for name, metric in self.categories.items()}
        overall = None if self.overall is None else self.overall.model_dump(mode="json")
        return {"bfcl_eval": VERSION, **asdict(self), "overall": overall, "categories": metrics}


def find_package(folder: Path | None) -> BfclPackage:
    """Return the package in `folder`, else the one that is installed. Raises UserError if there is none, or
    if it needs a package that is not installed."""
    if folder is None:
        spec = importlib.util.find_spec("bfcl_eval")
        if spec is None or spec.origin is None:
            raise UserError(
                "the benchmark needs your own copy of bfcl-eval, and none is installed",
                remedy=f"pip install --no-deps bfcl-eval=={VERSION}, or --package DIR for a copy",
            )
        folder = Path(spec.origin).parent.parent
    package = BfclPackage(folder.resolve())
    for backend in BACKENDS:
        package.backend_class(backend)
    return package


def play(
    package: BfclPackage,
    model: str,
    out: Path,
    *,
    categories: Sequence[str] = CATEGORIES,
    max_tasks: int | None = None,
    settings: Sequence[str] = (),
) -> Board:
    """Play the first `max_tasks` tasks of each category once, and write tasks, episodes and `board.json` to
    `out`. `settings` are entries as of `--set`. Raises UserError and RunError."""
    data, file = write_dataset(package, out / "tasks", categories=categories, max_tasks=max_tasks)
    config = load_train_config([file], ["rollout.temperature=0.0", *settings], for_training=False).config
    outcome = evaluate_model(config, model=model, data=data, out=out / "evaluation.json")
    assert outcome.trajectories is not None  # `out` names a file
    played = list(read_trajectories(outcome.trajectories, with_tokens=False))
    board = judge(package, played, categories=categories)
    (out / "board.json").write_text(json.dumps(board.as_json(), indent=1) + "\n", encoding="utf-8")
    return board


def judge(package: BfclPackage, played: Sequence[Trajectory], *, categories: Sequence[str]) -> Board:
    """Return the board's numbers of played episodes, one a task and as many in each category."""
    lengths = {name: len(turns) for c in categories for name, turns in package.answers(c).items()}
    steps = {t.task_id: _steps(t, lengths[t.task_id]) for t in played}
    verdicts = check(package, [{"id": t.task_id, "turns": steps[t.task_id]} for t in played])
    errors = {
        t.task_id: _ended_early(t, steps[t.task_id]) or (None if verdict["valid"] else str(verdict["error"]))
        for t, verdict in zip(played, verdicts, strict=True)
    }
    accuracies: dict[str, Metric] = {}
    reasons: dict[str, dict[str, int]] = {}
    for category in categories:
        mine = [t for t in played if t.task_id.startswith(f"multi_turn_{category}_")]
        accuracies[category] = _accuracy(mine, errors)
        counted = Counter(error for t in mine if (error := errors[t.task_id]) is not None)
        reasons[category] = dict(sorted(counted.items()))
    scored = [t for t in played if t.is_success is not None]
    differing = {
        t.task_id: errors[t.task_id] or "valid" for t in scored if t.is_success != (errors[t.task_id] is None)
    }
    return Board(
        # Categories have equally many tasks, so that the mean of their rates is the rate of all.
        overall=_accuracy(played, errors) if set(categories) == set(CATEGORIES) else None,
        categories=accuracies,
        errors=reasons,
        agreed=len(scored) - len(differing),
        differing=differing,
        unscored=len(played) - len(scored),
        unparsed=sum(any(turn.parse_failures for turn in t.turns) for t in played),
    )


def _accuracy(played: Iterable[Trajectory], errors: Mapping[str, str | None]) -> Metric:
    """Return the share of episodes without an error, with its interval: the task success of the same episodes
    with the checker's verdict in place of the reward."""
    judged = [
        trajectory.model_copy(
            update={
                "stop_reason": StopReason.ANSWERED,
                "reward_terms": (
                    RewardTerm(name="success", value=float(errors[trajectory.task_id] is None), weight=1.0),
                ),
            }
        )
        for trajectory in played
    ]
    return summarise(judged).metrics["task_success"]


def _steps(trajectory: Trajectory, user_turns: int) -> list[list[list[JsonObject]]]:
    """Return the calls by user turn and model step; a call that was refused has no tool."""
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
    """Return why an episode is wrong whatever it did, in BFCL's words; None if the checker decides."""
    if trajectory.is_success is None:
        return NOT_PLAYED
    if trajectory.stop_reason is not StopReason.ANSWERED or any(len(turn) > MAX_STEPS for turn in steps):
        return FORCED
    return None


def _print(board: Board) -> None:
    for name, metric in [*board.categories.items(), ("overall", board.overall)]:
        if metric is None:
            print("overall       none: the board's number is the mean of all four categories")
        else:
            print(f"{name:13} {metric.value:.3f} [{metric.ci_low:.3f}, {metric.ci_high:.3f}] of {metric.n}")
    total = board.agreed + len(board.differing)
    print(f"agreement     task success is BFCL's verdict in {board.agreed} of {total} episodes")
    for name, count in sum((Counter(errors) for errors in board.errors.values()), Counter()).most_common():
        print(f"wrong         {count} {name}")
    if board.unscored:
        print(f"unscored      {board.unscored} episodes could not be played; they count as wrong")
    if board.unparsed:
        print(f"unparsed      in {board.unparsed} episodes a call did not parse, and was tried again")


def main() -> int:
    """Play the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.bfcl", description=__doc__)
    parser.add_argument("model", help="a checkpoint or run folder, a hub id, openai:NAME, gold or empty")
    parser.add_argument(
        "--out", type=Path, required=True, help="a new folder for tasks, episodes and board.json"
    )
    parser.add_argument("--package", type=Path, help="the folder that holds bfcl_eval; default: as installed")
    parser.add_argument("--category", action="append", choices=CATEGORIES, help="default: all four")
    parser.add_argument("--max-tasks", type=int, help="play the first tasks of each category")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, as of mcpagent"
    )
    given = parser.parse_args()
    try:
        if (given.out / "board.json").exists():
            raise UserError("there is a board already", where=str(given.out), remedy="name another folder")
        board = play(
            find_package(given.package),
            given.model,
            given.out,
            categories=given.category or CATEGORIES,
            max_tasks=given.max_tasks,
            settings=given.set,
        )
    except MCPAgentError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    _print(board)
    return 0


if __name__ == "__main__":
    sys.exit(main())
