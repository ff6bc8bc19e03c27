"""Where an evaluation succeeds and fails: slices, habits of calling, and what went wrong in each episode.

All of it follows from tasks and stored episodes, without a model that judges.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcpagent.core.records import Metric, Record
from mcpagent.core.tasks import Task
from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import StopReason, Trajectory, Turn
from mcpagent.evaluate.intervals import clustered_mean
from mcpagent.reward.assignment import ARGUMENT_CREDIT, NAME_CREDIT, Assignment, assign
from mcpagent.reward.record import EpisodeRecord, record_of

_LIMITS = frozenset(
    {
        *(StopReason.MAX_TURNS, StopReason.MAX_TOOL_CALLS, StopReason.MAX_TOKENS),
        *(StopReason.CONTEXT_OVERFLOW, StopReason.LIMIT),
    }
)
_MANY_STEPS = 4
_DISTRACTORS = (0, 5, 10, 20)  # lower ends of the groups
# What can go wrong, in the order in which it is looked for, and what it means.
ERRORS = {
    "infrastructure": "a server or the machinery failed: unscored",
    "limit": "cut off: turns, calls, tokens or context ran out",
    "called_needlessly": "called a tool where no call is right",
    "wrong_refusal": "called nothing, rightly, but the answer does not say so",
    "no_tool_use": "called nothing where a tool is needed",
    "malformed_call": "wrote calls that do not parse, and none that does",
    "wrong_answer": "made every call of the plan, and answered wrongly",
    "wrong_state": "made every call of the plan, and left another state",
    "hallucinated_tool": "called a tool that is not offered",
    "error_not_recovered": "the last call came back with an error",
    "wrong_arguments": "called the right tool with other arguments",
    "ended_early": "right so far, but calls of the plan are missing",
    "wrong_tool": "called other tools than the plan's",
    "other": "none of these",
}


class Slice(Record):
    """The episodes of one part of the tasks; `task_success` counts unscored ones as failed."""

    n_tasks: int
    n_episodes: int
    task_success: Metric


class ErrorKind(Record):
    """How many episodes failed in one way, and the id of the first of them."""

    episodes: int
    example: str


class Times(Record):
    """Seconds of an episode, over all scored ones; None without any."""

    p50_s: float | None
    p95_s: float | None


class Breakdown(Record):
    """`measures` by name, `slices` by what they divide the tasks by and then by value, `errors` by kind."""

    measures: dict[str, Metric]
    slices: dict[str, dict[str, Slice]]
    errors: dict[str, ErrorKind]
    episode_latency: Times


@dataclass(frozen=True)
class _Played:
    """A scored episode with its task, and which call plays which gold call."""

    task: Task
    trajectory: Trajectory
    record: EpisodeRecord
    assignment: Assignment

    @property
    def attempts(self) -> int:
        """Calls, parsed or not."""
        return len(self.record.calls) + self.record.parse_failure_count


def break_down(tasks: Iterable[Task], trajectories: Sequence[Trajectory]) -> Breakdown:
    """The breakdown of episodes of `tasks`; episodes of other tasks are left out."""
    names = {t.task_id for t in trajectories}
    by_id = {task.id: task for task in tasks if task.id in names}
    episodes = sorted((t for t in trajectories if t.task_id in by_id), key=lambda t: (t.task_id, t.attempt))
    played = [_played(by_id[t.task_id], t) for t in episodes]
    scored = [p for p in played if p.trajectory.is_success is not None]
    return Breakdown(
        measures={name: _mean(scored, of, rate=name not in COUNTS) for name, of in MEASURES.items()},
        slices={name: _slices(played, divide) for name, divide in DIVISIONS.items()},
        errors=_errors(played),
        episode_latency=_times([sum(turn.wall_s for turn in p.trajectory.turns) for p in scored]),
    )


def error_of(task: Task, trajectory: Trajectory) -> str | None:
    """Which of `ERRORS` an episode is; None for a success."""
    return _error(_played(task, trajectory))


def _played(task: Task, trajectory: Trajectory) -> _Played:
    record = record_of(task, trajectory)
    return _Played(task, trajectory, record, assign(task.truth.tool_sequence, record.calls))


def _error(played: _Played) -> str | None:
    trajectory, truth = played.trajectory, played.task.truth
    if trajectory.is_success:
        return None
    if trajectory.is_success is None:
        return "infrastructure"
    if trajectory.stop_reason in _LIMITS:
        return "limit"
    if truth.abstain:
        return "called_needlessly" if played.attempts else "wrong_refusal"
    if not played.attempts and truth.tool_sequence:
        return "no_tool_use"
    if played.attempts and not played.record.calls:
        return "malformed_call"
    return _wrong_calls(played) or ("other" if played.attempts else "wrong_answer")


def _wrong_calls(played: _Played) -> str | None:
    trajectory, plan = played.trajectory, played.task.truth.tool_sequence
    calls, assignment = played.record.calls, played.assignment
    if len(assignment.exact) == len(plan):
        named = (("wrong_answer", "answer"), ("wrong_state", "state"), ("called_needlessly", "abstain"))
        return next((kind for kind, term in named if trajectory.term(term) == 0.0), None)
    if any(made.result.failure is FailureKind.UNKNOWN_TOOL for made in calls):
        return "hallucinated_tool"
    if calls and calls[-1].result.is_error:
        return "error_not_recovered"
    missing = [index for index in range(len(plan)) if index not in assignment.exact]
    if any(assignment.credit[index] for index in missing):
        return "wrong_arguments"
    return "ended_early" if len(calls) == len(assignment.exact) else "wrong_tool"


def _abstention_precision(played: _Played) -> float | None:
    return None if played.attempts else float(played.task.truth.abstain)


def _abstention_recall(played: _Played) -> float | None:
    return float(not played.attempts) if played.task.truth.abstain else None


def _recovery(played: _Played) -> float | None:
    has_error = played.record.parse_failure_count or any(made.result.is_error for made in played.record.calls)
    return float(bool(played.trajectory.is_success)) if has_error else None


def _repeated(played: _Played) -> float | None:
    calls = played.record.calls
    return 1 - len({made.identity for made in calls}) / len(calls) if calls else None


def _hallucinated(played: _Played) -> float | None:
    calls = played.record.calls
    unknown = sum(made.result.failure is FailureKind.UNKNOWN_TOOL for made in calls)
    return unknown / len(calls) if calls else None


def _argument_accuracy(played: _Played) -> float | None:
    """Over the gold calls whose tool was called in their user turn, the share of right arguments."""
    shares = [(credit - NAME_CREDIT) / ARGUMENT_CREDIT for credit in played.assignment.credit if credit]
    return min(1.0, max(0.0, math.fsum(shares) / len(shares))) if shares else None


def _tokens(count: Callable[[Turn], int]) -> Callable[[_Played], float | None]:
    """None where a policy works on text and does not count."""
    return lambda played: float(sum(map(count, played.trajectory.turns))) or None


def _completion_tokens(turn: Turn) -> int:
    usage = turn.completion.usage
    return len(turn.completion.token_ids) or (usage.output_tokens if usage else 0)


def _prompt_tokens(turn: Turn) -> int:
    """What the environment added; of a model behind an API all that was sent."""
    usage = turn.completion.usage
    return len(turn.added_token_ids) or (usage.input_tokens if usage else 0)


MEASURES: dict[str, Callable[[_Played], float | None]] = {
    "abstention_precision": _abstention_precision,
    "abstention_recall": _abstention_recall,
    "recovery_rate": _recovery,
    "repeated_call_rate": _repeated,
    "hallucinated_call_rate": _hallucinated,
    "argument_accuracy": _argument_accuracy,
    "mean_prompt_tokens": _tokens(_prompt_tokens),
    "mean_completion_tokens": _tokens(_completion_tokens),
}
COUNTS = frozenset({"mean_prompt_tokens", "mean_completion_tokens"})  # the others are rates


def _mean(played: Sequence[_Played], measure: Callable[[_Played], float | None], *, rate: bool) -> Metric:
    by_task: dict[str, list[float]] = defaultdict(list)
    for one in played:
        if (value := measure(one)) is not None:
            by_task[one.task.id].append(value)
    return clustered_mean([by_task[name] for name in sorted(by_task)], seed=0, rate=rate)


def _class(task: Task) -> str:
    return str(task.extra_info.get("class") or task.extra_info.get("template") or task.data_source)


def _servers(task: Task) -> str:
    return " + ".join(sorted({step.server for step in task.truth.tool_sequence})) or "none"


def _step_count(task: Task) -> str:
    count = len(task.truth.tool_sequence)
    return str(count) if count < _MANY_STEPS else f"{_MANY_STEPS} or more"


def _distractors(task: Task) -> str:
    """Offered tools that the plan has not."""
    if task.offered_tools is None:
        return "whole catalog"
    used = {f"{step.server}.{step.tool}" for step in task.truth.tool_sequence}
    count = len(set(task.offered_in(len(task.truth.user_turns)) or ()) - used)
    start = max(low for low in _DISTRACTORS if low <= count)
    after = next((low for low in _DISTRACTORS if low > start), None)
    return f"{start} or more" if after is None else f"{start} to {after - 1}"


DIVISIONS: dict[str, Callable[[Task], str]] = {
    "class": _class,
    "server": _servers,
    "steps": _step_count,
    "distractors": _distractors,
}


def _slices(played: Sequence[_Played], divide: Callable[[Task], str]) -> dict[str, Slice]:
    parts: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in played:
        parts[divide(one.task)][one.task.id].append(float(bool(one.trajectory.is_success)))
    return {name: _slice(parts[name]) for name in sorted(parts)}


def _slice(by_task: Mapping[str, Sequence[float]]) -> Slice:
    return Slice(
        n_tasks=len(by_task),
        n_episodes=sum(map(len, by_task.values())),
        task_success=clustered_mean([by_task[name] for name in sorted(by_task)], seed=0),
    )


def _errors(played: Sequence[_Played]) -> dict[str, ErrorKind]:
    kinds = [(kind, one.trajectory.id) for one in played if (kind := _error(one)) is not None]
    counts = Counter(kind for kind, _ in kinds)
    examples = dict(reversed(kinds))
    return {kind: ErrorKind(episodes=counts[kind], example=examples[kind]) for kind in ERRORS if counts[kind]}


def _times(seconds: Sequence[float]) -> Times:
    """Nearest-rank quantiles."""
    ordered = sorted(seconds)

    def at(share: float) -> float | None:
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None

    return Times(p50_s=at(0.5), p95_s=at(0.95))
