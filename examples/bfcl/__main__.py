"""Play BFCL's tasks, and let its own checkers judge them: `python -m examples.bfcl --help`.

A category's accuracy is the share of its tasks that BFCL's checker calls valid. The board's multi-turn number
is the unweighted mean of the four categories, and there is none without all of them. An episode that could
not be played counts as wrong, as does one that takes more than 20 steps with calls in a user turn. A single
turn counts as wrong if it was cut off, or if what it wrote does not parse.
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

from examples.bfcl.checker import MAX_STEPS, check
from examples.bfcl.package import (
    BACKENDS,
    MULTI_TURN,
    SINGLE_TURN,
    VERSION,
    BfclPackage,
    JsonObject,
    category_of,
)
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
    read_tasks,
    read_trajectories,
    summarise,
)

FORCED = "multi_turn:force_terminated"  # BFCL's words
NOT_PLAYED = "multi_turn:inference_error"
UNPARSED = "ast_decoder:decoder_failed"
CUT = "single_turn:cut_off"  # ours: there BFCL has no limit

Errors = Mapping[str, str | None]  # by task: why it is wrong, in the checker's words; None if it is right


@dataclass(frozen=True, kw_only=True)
class Board:
    """The numbers of the board. `overall` is None unless all four categories were played; `errors` counts why
    episodes are wrong, in the checker's words; `differing` are the scored episodes whose task success is not
    the checker's verdict, with its reason; `unparsed` counts those in which a call did not parse: of several
    turns, BFCL goes on to the next user turn there, and an episode lets the model try again."""

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


def find_package(folder: Path | None, *, backends: Iterable[str] = BACKENDS) -> BfclPackage:
    """Return the package in `folder`, else the one that is installed. Raises UserError if there is none, or
    if one of `backends` needs a package that is not installed."""
    if folder is None:
        spec = importlib.util.find_spec("bfcl_eval")
        if spec is None or spec.origin is None:
            raise UserError(
                "the benchmark needs your own copy of bfcl-eval, and none is installed",
                remedy=f"pip install --no-deps bfcl-eval=={VERSION}, or --package DIR for a copy",
            )
        folder = Path(spec.origin).parent.parent
    package = BfclPackage(folder.resolve())
    for backend in backends:
        package.backend_class(backend)
    return package


def play(
    package: BfclPackage,
    model: str,
    out: Path,
    *,
    categories: Sequence[str] = MULTI_TURN,
    max_tasks: int | None = None,
    seed: int = 0,
    settings: Sequence[str] = (),
    resume: bool = False,
) -> Board:
    """Play tasks of each category once, `max_tasks` of them drawn by `seed`. Write tasks, episodes and
    `board.json` to `out`, and `judged.json`, the evaluation by BFCL's verdicts. `settings` are entries as of
    `--set`; with `resume`, what an interrupted call has played is not played again. Raises UserError and
    RunError."""
    data, file = write_dataset(package, out / "tasks", categories=categories, max_tasks=max_tasks, seed=seed)
    config = load_train_config([file], ["rollout.temperature=0.0", *settings], for_training=False).config
    outcome = evaluate_model(config, model=model, data=data, out=out / "evaluation.json", resume=resume)
    assert outcome.trajectories is not None  # `out` names a file
    played = list(read_trajectories(outcome.trajectories, with_tokens=False))
    errors = verdicts(package, played)
    by_verdict = summarise(judged(played, errors), tasks=read_tasks(data))
    result = by_verdict.with_provenance(outcome.result.provenance)
    (out / "judged.json").write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
    board = board_of(played, errors, categories=categories)
    (out / "board.json").write_text(json.dumps(board.as_json(), indent=1) + "\n", encoding="utf-8")
    return board


def verdicts(package: BfclPackage, played: Sequence[Trajectory]) -> Errors:
    """Return why each task is wrong in its one episode; None if it is right."""
    categories = {category_of(t.task_id) for t in played}
    lengths = {
        name: len(turns) if category in MULTI_TURN else 1
        for category in categories
        for name, turns in package.answers(category).items()
    }
    steps = {t.task_id: _steps(t, lengths[t.task_id]) for t in played}
    said = check(package, [{"id": t.task_id, "turns": steps[t.task_id]} for t in played])
    return {
        t.task_id: _ended_early(t, steps[t.task_id]) or (None if verdict["valid"] else str(verdict["error"]))
        for t, verdict in zip(played, said, strict=True)
    }


def board_of(played: Sequence[Trajectory], errors: Errors, *, categories: Sequence[str]) -> Board:
    """Return the board's numbers of played episodes, one a task."""
    accuracies: dict[str, Metric] = {}
    reasons: dict[str, dict[str, int]] = {}
    for category in categories:
        mine = [t for t in played if category_of(t.task_id) == category]
        accuracies[category] = _accuracy(mine, errors)
        counted = Counter(error for t in mine if (error := errors[t.task_id]) is not None)
        reasons[category] = dict(sorted(counted.items()))
    scored = [t for t in played if t.is_success is not None]
    differing = {
        t.task_id: errors[t.task_id] or "valid" for t in scored if t.is_success != (errors[t.task_id] is None)
    }
    return Board(
        # The multi-turn categories have equally many tasks, so that the mean of their rates is that of all.
        overall=_accuracy(played, errors) if set(categories) in (set(MULTI_TURN), set(SINGLE_TURN)) else None,
        categories=accuracies,
        errors=reasons,
        agreed=len(scored) - len(differing),
        differing=differing,
        unscored=len(played) - len(scored),
        unparsed=sum(any(turn.parse_failures for turn in t.turns) for t in played),
    )


def judged(played: Iterable[Trajectory], errors: Errors) -> list[Trajectory]:
    """Return the episodes with the checker's verdict in place of the reward."""
    return [
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


def _accuracy(played: Iterable[Trajectory], errors: Errors) -> Metric:
    return summarise(judged(played, errors)).metrics["task_success"]


def _steps(trajectory: Trajectory, user_turns: int) -> list[list[list[JsonObject]]]:
    """Return the calls by user turn and model step, as the checker reads them."""
    steps: list[list[list[JsonObject]]] = [[] for _ in range(user_turns)]
    for turn in trajectory.turns:
        made: list[JsonObject] = []
        for call, result in zip(turn.tool_calls, turn.tool_results, strict=True):
            is_refused = result.failure is not None and result.failure.value != "tool_error"
            made.append({"tool": call.tool, "arguments": call.arguments, "refused": is_refused})
        if made:
            steps[turn.user_turn].append(made)
    return steps


def _ended_early(trajectory: Trajectory, steps: Sequence[Sequence[Any]]) -> str | None:
    """Return why an episode is wrong whatever it did; None if the checker decides."""
    if trajectory.is_success is None:
        return NOT_PLAYED
    if category_of(trajectory.task_id) not in MULTI_TURN:
        if any(turn.parse_failures for turn in trajectory.turns):
            return UNPARSED
        return None if trajectory.stop_reason in (StopReason.ANSWERED, StopReason.MAX_TURNS) else CUT
    if trajectory.stop_reason is not StopReason.ANSWERED or any(len(turn) > MAX_STEPS for turn in steps):
        return FORCED
    return None


def _print(board: Board) -> None:
    for name, metric in [*board.categories.items(), ("overall", board.overall)]:
        if metric is None:
            print("overall       none: it is that of all four categories")
        else:
            print(f"{name:13} {metric.value:.3f} [{metric.ci_low:.3f}, {metric.ci_high:.3f}] of {metric.n}")
    total = board.agreed + len(board.differing)
    print(f"agreement     task success is BFCL's verdict in {board.agreed} of {total} episodes")
    for name, count in sum((Counter(errors) for errors in board.errors.values()), Counter()).most_common():
        print(f"wrong         {count} {name}")
    if board.unscored:
        print(f"unscored      {board.unscored} episodes could not be played; they count as wrong")
    if board.unparsed:
        print(f"unparsed      in {board.unparsed} episodes a call did not parse")


def main() -> int:
    """Play the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.bfcl", description=__doc__)
    parser.add_argument("model", help="a checkpoint or run folder, a hub id, openai:NAME, gold or empty")
    parser.add_argument(
        "--out", type=Path, required=True, help="a new folder for tasks, episodes and board.json"
    )
    parser.add_argument("--package", type=Path, help="the folder that holds bfcl_eval; default: as installed")
    parser.add_argument("--single-turn", action="store_true", help="play questions of one turn")
    parser.add_argument(
        "--category",
        action="append",
        help=f"default: {' '.join(MULTI_TURN)}; of one turn: {' '.join(SINGLE_TURN)}",
    )
    parser.add_argument("--max-tasks", type=int, help="draw so many tasks of each category")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn by; default: 0")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted call in --out")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, as of mcpagent"
    )
    given = parser.parse_args()
    kind = SINGLE_TURN if given.single_turn else MULTI_TURN
    try:
        if (given.out / "board.json").exists():
            raise UserError("there is a board already", where=str(given.out), remedy="name another folder")
        if others := {*(given.category or ())} - {*kind}:
            remedy = f"choose of {', '.join(kind)}"
            raise UserError(
                f"is not played here: {', '.join(sorted(others))}", where="--category", remedy=remedy
            )
        board = play(
            find_package(given.package, backends=() if given.single_turn else BACKENDS),
            given.model,
            given.out,
            categories=given.category or kind,
            max_tasks=given.max_tasks,
            seed=given.seed,
            settings=given.set,
            resume=given.resume,
        )
    except MCPAgentError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    _print(board)
    return 0


if __name__ == "__main__":
    sys.exit(main())
