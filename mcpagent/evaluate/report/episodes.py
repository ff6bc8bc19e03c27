"""The stored episodes of a run, as a list that can be filtered: a file is read again when it has changed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import NONCE_META_KEY, FailureKind, ToolCall, ToolResult
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.reward.assignment import assign
from mcpagent.reward.record import RecordedCall
from mcpagent.storage.datasets import find_dataset, read_tasks
from mcpagent.storage.trajectories import RECORDS_SUFFIXES, read_trajectories

_LISTED_CHARS = 300  # of a question, of the calls and of an answer, which the search goes over
_LARGEST_DATASET = 64_000_000  # bytes; the plans of larger ones are not looked up
OUTCOMES = {True: "success", False: "failure", None: "unscored"}  # by `is_success`
_STEP = re.compile(r"step-\d+")
_NOT_SENT = {
    FailureKind.UNKNOWN_TOOL,
    FailureKind.INVALID_ARGUMENTS,
    FailureKind.DENIED,
    FailureKind.LIMIT,
}


@dataclass
class NonceCount:
    """Counts by server: results that came from it, how many of them carry the nonce that it stamps, and
    results that a cassette replayed, for which no server was asked."""

    trajectories: int = 0
    results: Counter[str] = field(default_factory=Counter)
    stamped: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)

    def add(self, trajectory: Trajectory) -> None:
        """Count the results of a trajectory."""
        self.trajectories += 1
        for result in trajectory.tool_results:
            # Refused by the environment itself, or lost on the way: no server answered.
            if result.failure in _NOT_SENT or (result.failure and result.failure.is_infrastructure):
                continue
            if result.from_cassette:
                self.replayed[result.server] += 1
                continue
            self.results[result.server] += 1
            self.stamped[result.server] += NONCE_META_KEY in result.meta

    def include(self, other: NonceCount) -> None:
        """Add what another count holds."""
        self.trajectories += other.trajectories
        self.results.update(other.results)
        self.stamped.update(other.stamped)
        self.replayed.update(other.replayed)


@dataclass(frozen=True)
class EpisodeFile:
    """The part of one file of trajectories that is kept. `first_attempts` are whole, by task; the files of
    training steps keep none."""

    path: Path
    signature: tuple[int, int]  # time of the last change (ns) and size (bytes)
    rows: list[JsonObject]
    nonces: NonceCount
    first_attempts: dict[str, Trajectory]


class EpisodeFiles:
    """The trajectory files of a run by stem: `eval_trained`, `step-000010`. Not safe for several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: dict[str, EpisodeFile] = {}

    def refresh(self) -> None:
        """Read the files that are new or have changed, and forget those that are gone. Raises UserError for a
        file that cannot be read."""
        paths = trajectory_files(self._folder)
        self.files = {stem: file for stem, file in self.files.items() if stem in paths}
        for stem, path in paths.items():
            status = path.stat()
            signature = (status.st_mtime_ns, status.st_size)
            stored = self.files.get(stem)
            if stored is None or stored.signature != signature:
                self.files[stem] = _read(path, signature, keeps_attempts=not _STEP.fullmatch(stem))

    @property
    def nonces(self) -> NonceCount:
        """The counts of all files together."""
        total = NonceCount()
        for file in self.files.values():
            total.include(file.nonces)
        return total

    def listed(self, most: int) -> tuple[dict[str, list[JsonObject]], int]:
        """Return up to `most` rows by stem, evaluations before steps and the newest steps first, and how many
        episodes are left out."""
        listed: dict[str, list[JsonObject]] = {}
        count = left_out = 0
        for stem, file in sorted(self.files.items(), key=lambda item: _age(item[0])):
            room = most - count
            listed[stem] = file.rows[:room]
            count += len(listed[stem])
            left_out += len(file.rows) - len(listed[stem])
        return {stem: rows for stem, rows in listed.items() if rows}, left_out

    def read(self, stem: str) -> Iterator[Trajectory]:
        """Read the trajectories of a file with their tokens, in the order of its rows. Raises KeyError for a
        stem that is not there, and UserError for a file that cannot be read."""
        return read_trajectories(self.files[stem].path)


def trajectory_files(folder: Path) -> dict[str, Path]:
    """Return the files of trajectories in a folder by stem, in the order of the stems."""
    paths = (path for path in folder.glob("[!.]*") if path.name.endswith(RECORDS_SUFFIXES))
    return {stem_of(path): path for path in sorted(paths, key=stem_of)}


def stem_of(path: Path) -> str:
    """Return `step-000010` of `step-000010.jsonl.zst`."""
    return path.name.partition(".")[0]


def gold_tasks(config: JsonObject, task_ids: set[str]) -> dict[str, Task]:
    """Read tasks by id, from the datasets that a resolved configuration names; without those
    whose dataset is gone or very large."""
    tasks: dict[str, Task] = {}
    for path in _datasets(config):
        if path.stat().st_size > _LARGEST_DATASET:
            continue
        try:
            for task in read_tasks(path):
                if task.id in task_ids:
                    tasks[task.id] = task
        except UserError:
            continue  # a dataset that is being written, or not ours any more: the page can do without
    return tasks


@dataclass(frozen=True)
class GoldCall:
    """A gold call of a task, `server.tool({...})`, and what an episode made of it: `exact`, `called` with
    other arguments, or `missing`; nothing if no call is right."""

    text: str
    outcome: str


def gold_calls(task: Task, trajectory: Trajectory) -> list[GoldCall]:
    """Compare the gold calls of a task with the calls of an episode, matched as the reward matches them."""
    if task.truth.is_refusal:
        return [GoldCall(text, "") for text in gold_plan(task)]
    calls = [
        RecordedCall(turn=turn.index, user_turn=turn.user_turn, call=call, result=result)
        for turn in trajectory.turns
        for call, result in zip(turn.tool_calls, turn.tool_results, strict=False)
        if not result.is_search
    ]
    assignment = assign(task.truth.tool_sequence, calls)
    outcomes = dict.fromkeys(assignment.credited_call, "called") | dict.fromkeys(assignment.exact, "exact")
    return [GoldCall(text, outcomes.get(i, "missing")) for i, text in enumerate(gold_plan(task))]


def gold_plan(task: Task) -> tuple[str, ...]:
    """Return the gold calls of a task as text; if the tools cannot tell, say that."""
    if task.truth.is_refusal:
        return ("no call is right" if task.truth.abstain else "no tool can tell: the answer is none",)
    return tuple(
        f"{step.server}.{step.tool}({json.dumps(step.params, ensure_ascii=False)})"
        for step in task.truth.tool_sequence
    )


def _datasets(config: JsonObject) -> list[Path]:
    data = config.get("data")
    named = [data[split] for split in ("train", "validation") if data.get(split)] if data else []
    paths: dict[Path, None] = {}
    for name in named:
        try:
            train = find_dataset(name, split="train")
        except UserError:
            continue
        neighbours = [train.with_name(f"{split}{train.suffix}") for split in ("validation", "heldout")]
        paths |= dict.fromkeys(path for path in (train, *neighbours) if path.is_file())
    return list(paths)


def _read(path: Path, signature: tuple[int, int], *, keeps_attempts: bool) -> EpisodeFile:
    rows: list[JsonObject] = []
    nonces = NonceCount()
    first_attempts: dict[str, Trajectory] = {}
    for trajectory in read_trajectories(path, with_tokens=False):
        nonces.add(trajectory)
        rows.append(_row(trajectory))
        if keeps_attempts and trajectory.attempt == 0:
            first_attempts.setdefault(trajectory.task_id, trajectory)
    _against_their_groups(rows)
    return EpisodeFile(path, signature, rows, nonces, first_attempts)


def _row(trajectory: Trajectory) -> JsonObject:
    calls = [call for turn in trajectory.turns for call in turn.tool_calls]
    written = " ".join(f"{called(c)} {json.dumps(c.arguments, ensure_ascii=False)}" for c in calls)
    return {
        "task": trajectory.task_id,
        "attempt": trajectory.attempt,
        "outcome": OUTCOMES[trajectory.is_success],
        "stop": trajectory.stop_reason.value,
        "complexity": trajectory.complexity,
        "reward": trajectory.reward,
        "turns": len(trajectory.turns),
        "tools": list(dict.fromkeys(map(called, calls))),
        "question": question(trajectory)[:_LISTED_CHARS],
        "calls": written[:_LISTED_CHARS],
        "answer": (trajectory.final_answer or "")[:_LISTED_CHARS],
    }


def _against_their_groups(rows: Sequence[JsonObject]) -> None:
    """Give each row its reward minus the mean of its task's scored attempts in the same file, if there
    are several: what a group-relative advantage is made of."""
    rewards: dict[str, list[float]] = {}
    for row in rows:
        if row["reward"] is not None:
            rewards.setdefault(row["task"], []).append(row["reward"])
    for row in rows:
        group = rewards.get(row["task"], [])
        if row["reward"] is not None and len(group) > 1:
            row["relative"] = row["reward"] - sum(group) / len(group)


def called(call: ToolCall | ToolResult) -> str:
    """Return `server.tool`."""
    return f"{call.server}.{call.tool}" if call.server else call.tool


def question(trajectory: Trajectory) -> str:
    """Return the user's first message, or the task's id without one."""
    said = (str(m.get("content", "")) for m in trajectory.prompt if m.get("role") == "user")
    return next(said, "") or trajectory.task_id


def _age(stem: str) -> tuple[bool, int, str]:
    """Sort evaluations first, then steps from the last one to the first."""
    is_step = _STEP.fullmatch(stem) is not None
    return (is_step, -int(stem.removeprefix("step-")) if is_step else 0, stem)
