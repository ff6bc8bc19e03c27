"""Where an evaluation succeeds and fails: slices, habits of calling, and what went wrong in each episode.

All of it follows from tasks and stored episodes, without a model that judges.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcpagent.core.answer_line import NO_ANSWER, folded
from mcpagent.core.records import Metric, Record
from mcpagent.core.tasks import Task
from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import StopReason, Trajectory, Turn
from mcpagent.evaluate.columns import Columns
from mcpagent.evaluate.intervals import clustered_mean
from mcpagent.reward.answer.line import answer_values
from mcpagent.reward.assignment import ARGUMENT_CREDIT, NAME_CREDIT, Assignment, assign
from mcpagent.reward.record import EpisodeRecord, record_of
from mcpagent.storage.datasets import DiskList

_LIMITS = frozenset(
    {
        *(StopReason.MAX_TURNS, StopReason.MAX_TOOL_CALLS, StopReason.MAX_TOKENS),
        *(StopReason.CONTEXT_OVERFLOW, StopReason.LIMIT),
    }
)
_MANY_STEPS = 4
_SUCCESS, _SECONDS = "task_success", "seconds"
_DISTRACTORS = (0, 5, 10, 20)  # lower ends of the groups
# What can go wrong, in the order in which it is looked for, and what it means.
ERRORS = {
    "infrastructure": "a server or the machinery failed: unscored",
    "limit": "cut off: turns, calls, tokens or context ran out",
    "called_needlessly": "called a tool though no call is right",
    "wrong_refusal": "called nothing, rightly, but the answer does not say so",
    "no_tool_use": "called nothing though a tool is needed",
    "malformed_call": "wrote calls that do not parse, and none that does",
    "out_of_form": "made every call of the plan, and answered in another form than the one asked for",
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
    """The number of episodes that failed in one way, and the id of the first of them."""

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
        """The number of calls, parsed or not."""
        return len(self.record.calls) + self.record.parse_failure_count


def break_down(tasks: Iterable[Task], trajectories: Iterable[Trajectory]) -> Breakdown:
    """Return the breakdown of episodes of `tasks`; episodes of other tasks are left out. Of an episode a few
    numbers are kept, so that there may be any number of them; `tasks` may be a file of tasks."""
    tasks = tasks if isinstance(tasks, Sequence) else DiskList(tasks)
    places = {task.id: place for place, task in enumerate(tasks)}
    columns = Columns((*MEASURES, _SUCCESS, _SECONDS))
    parts: dict[str, dict[str, str]] = {}  # of each task, by division
    errors: list[tuple[str, int, str, str]] = []  # task, attempt, kind, episode
    for trajectory in trajectories:
        if (place := places.get(trajectory.task_id)) is None:
            continue
        task = tasks[place]
        record = record_of(task, trajectory)
        played = _Played(task, trajectory, record, assign(task.truth.tool_sequence, record.calls))
        if task.id not in parts:
            parts[task.id] = {name: sys.intern(of(task)) for name, of in DIVISIONS.items()}
        if (kind := _error(played)) is not None:
            errors.append((task.id, trajectory.attempt, kind, trajectory.id))
        columns.add(task.id, trajectory.attempt, _numbers(played))
    return Breakdown(
        measures={
            name: clustered_mean(list(columns.by_task(name).values()), seed=0, rate=name not in COUNTS)
            for name in MEASURES
        },
        slices={name: _slices(columns.by_task(_SUCCESS), parts, name) for name in DIVISIONS},
        errors=_error_kinds(errors),
        episode_latency=_times([s for of_task in columns.by_task(_SECONDS).values() for s in of_task]),
    )


def _numbers(played: _Played) -> dict[str, float | None]:
    """Return what is kept of an episode; of an unscored one only that it did not succeed."""
    is_scored = played.trajectory.is_success is not None
    measures = {name: measure(played) if is_scored else None for name, measure in MEASURES.items()}
    seconds = sum(turn.wall_s for turn in played.trajectory.turns)
    return {
        **measures,
        _SUCCESS: float(played.trajectory.is_success is True),
        _SECONDS: seconds if is_scored else None,
    }


def _slices(
    success: Mapping[str, Sequence[float]], parts: Mapping[str, Mapping[str, str]], name: str
) -> dict[str, Slice]:
    by_part: dict[str, list[Sequence[float]]] = defaultdict(list)
    for task_id, attempts in success.items():
        by_part[parts[task_id][name]].append(attempts)
    return {
        part: Slice(
            n_tasks=len(values), n_episodes=sum(map(len, values)), task_success=clustered_mean(values, seed=0)
        )
        for part, values in sorted(by_part.items())
    }


def _error_kinds(errors: Sequence[tuple[str, int, str, str]]) -> dict[str, ErrorKind]:
    episodes: dict[str, list[str]] = defaultdict(list)
    for _, _, kind, episode in sorted(errors):
        episodes[kind].append(episode)
    return {k: ErrorKind(episodes=len(episodes[k]), example=episodes[k][0]) for k in ERRORS if k in episodes}


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


_KIND_OF_TERM = {
    "answer_form": "out_of_form",
    "answer": "wrong_answer",
    "state": "wrong_state",
    "abstain": "called_needlessly",
}


def _wrong_calls(played: _Played) -> str | None:
    trajectory, plan = played.trajectory, played.task.truth.tool_sequence
    calls, assignment = played.record.calls, played.assignment
    if len(assignment.exact) == len(plan):
        return next((kind for term, kind in _KIND_OF_TERM.items() if trajectory.term(term) == 0.0), None)
    if any(made.result.failure is FailureKind.UNKNOWN_TOOL for made in calls):
        return "hallucinated_tool"
    if calls and calls[-1].result.is_error:
        return "error_not_recovered"
    missing = [index for index in range(len(plan)) if index not in assignment.exact]
    if any(assignment.credit[index] for index in missing):
        return "wrong_arguments"
    return "ended_early" if len(calls) == len(assignment.exact) else "wrong_tool"


def _refuses(played: _Played) -> bool:
    """Return True if the answer line says `none`, or, for a task without such a line, nothing was called."""
    if not played.task.truth.answer_line:
        return not played.attempts
    return any(folded(value) == NO_ANSWER for value in answer_values(played.record.final_answer or "") or ())


def _abstention_precision(played: _Played) -> float | None:
    return float(played.task.truth.is_refusal) if _refuses(played) else None


def _abstention_recall(played: _Played) -> float | None:
    return float(_refuses(played)) if played.task.truth.is_refusal else None


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
    """Return the share of right arguments, over the gold calls whose tool was called in their user turn."""
    shares = [(credit - NAME_CREDIT) / ARGUMENT_CREDIT for credit in played.assignment.credit if credit]
    return min(1.0, max(0.0, math.fsum(shares) / len(shares))) if shares else None


def _tokens(count: Callable[[Turn], int]) -> Callable[[_Played], float | None]:
    """Return a measure that is None if the policy works on text and does not count tokens."""
    return lambda played: float(sum(map(count, played.trajectory.turns))) or None


def _completion_tokens(turn: Turn) -> int:
    usage = turn.completion.usage
    return len(turn.completion.token_ids) or (usage.output_tokens if usage else 0)


def _prompt_tokens(turn: Turn) -> int:
    """Return what the environment added; for a model behind an API all that was sent."""
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


def _training(task: Task) -> str:
    """Return whether the task says that it needs a server which training has not seen."""
    return "unseen servers" if task.extra_info.get("unseen_servers") else "seen servers"


def _step_count(task: Task) -> str:
    count = len(task.truth.tool_sequence)
    return str(count) if count < _MANY_STEPS else f"{_MANY_STEPS} or more"


def _distractors(task: Task) -> str:
    """Return how many of the offered tools the plan does not use."""
    if task.offered_tools is None:
        return "whole catalog"
    used = {f"{step.server}.{step.tool}" for step in task.truth.tool_sequence}
    count = len(set(task.offered_in(len(task.truth.user_turns)) or ()) - used)
    start = max(low for low in _DISTRACTORS if low <= count)
    after = next((low for low in _DISTRACTORS if low > start), None)
    return f"{start} or more" if after is None else f"{start} to {after - 1}"


DIVISIONS: dict[str, Callable[[Task], str]] = {
    "complexity": lambda task: task.truth.complexity,
    "class": lambda task: task.kind,
    "server": lambda task: task.servers_called,
    "training": _training,
    "steps": _step_count,
    "distractors": _distractors,
}


GUARDED = ("complexity", "class", "server", "training")  # of what they divide, no part is to get worse


def guarded_parts(task: Task) -> dict[str, str]:
    """Return the part that a task belongs to by each of GUARDED."""
    return {name: sys.intern(DIVISIONS[name](task)) for name in GUARDED}


def _times(seconds: Sequence[float]) -> Times:
    """Return nearest-rank quantiles."""
    ordered = sorted(seconds)

    def at(share: float) -> float | None:
        return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None

    return Times(p50_s=at(0.5), p95_s=at(0.95))
