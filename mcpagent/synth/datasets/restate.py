"""Datasets made before questions stated the form of their answer, with that form; streaming."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mcpagent.core.answer_line import (
    ASKED_BEFORE,
    ASKS_FOR_LINE,
    STATED_TYPES,
    form_problem,
    item_type,
    stated,
)
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import AnswerCheck, GroundTruth, Message, Task
from mcpagent.storage.datasets import empty_dataset, parse_task
from mcpagent.storage.json_stream import read_records

# What became of a record, and what is said of it.
OUTCOMES = {
    "restated": "say now what form their answer has",
    "line_added": "have an answer line now, and say what form it has",
    "refusals": "have the answer none now",
    "unchanged": "said so already",
    "left": "are left as they are",
}


@dataclass
class RestateReport:
    """`counts` by outcome. `left` counts the records that stay as they are by the type of their check, with
    the place (file:line) and the reason of the first."""

    counts: Counter[str] = field(default_factory=Counter)
    left: dict[str, JsonObject] = field(default_factory=dict)

    def leave(self, kind: str, *, where: str, reason: str) -> None:
        """Count a record that stays as it is."""
        of_kind = self.left.setdefault(kind, {"records": 0, "first": where, "reason": reason})
        of_kind["records"] += 1

    def as_json(self) -> JsonObject:
        """Return the document of `data restate --json`."""
        by_outcome = {name: self.counts[name] for name in OUTCOMES}
        return {"records": self.counts.total(), "by_outcome": by_outcome, "left": self.left}


def restated_tasks(path: Path, report: RestateReport) -> Iterator[Task]:
    """Yield each task of a dataset with the form of its answer stated, as far as it can be, in the order of
    the file. Raises UserError."""
    for line, record in read_records(path):
        where = f"{path}:{line}"
        task = parse_task(record, where=where)
        check = task.truth.final_answer
        if (reason := _why_left(task)) is not None:
            report.counts["left"] += 1
            report.leave("none" if check is None else check.type, where=where, reason=reason)
            yield task
            continue
        new = _restated(task)
        report.counts[_outcome(task, new)] += 1
        yield new
    if not report.counts:
        raise empty_dataset(path)


def _why_left(task: Task) -> str | None:
    """Return why no form can be stated for a task; None if one can, or none is needed."""
    truth, check = task.truth, task.truth.final_answer
    if check is None:
        is_asked = truth.answer_line or truth.abstain or task.is_generated
        return None if is_asked else "no answer of it is checked"
    if check.type in ("none", "abstention") or (check.type not in STATED_TYPES and truth.answer_line):
        return None
    if check.type not in STATED_TYPES:
        return f"type {check.type} has no form that a question could state"
    return form_problem(check)


def _restated(task: Task) -> Task:
    truth = task.truth.model_dump(exclude_unset=True)
    check = task.truth.final_answer
    if check.type == "abstention" if check is not None else task.truth.abstain:
        truth["final_answer"] = {"type": "none", **_form(check)}
    if task.is_generated:
        truth.pop("abstain", None)  # who looks first and then says none is right
    truth["answer_line"] = True
    spec = task.reward_spec.model_copy(update={"ground_truth": GroundTruth.model_validate(truth)})
    return stated(task.model_copy(update={"prompt": _asking(task.prompt), "reward_spec": spec}))


def _form(check: AnswerCheck | None) -> JsonObject:
    """Return the form that the question of an old refusal asks for, by what was not to be said."""
    withheld = list((check.model_extra or {}).get("without", ())) if check is not None else []
    kind = item_type(withheld) if withheld else None
    return {} if kind is None else {"form": kind if len(withheld) == 1 else "set"}


def _asking(prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return a prompt whose system message asks for the line, in place of the sentence that asked before."""
    *system, user = prompt
    lines = system[0].content.split("\n") if system else []
    lines = [ASKS_FOR_LINE if line in ASKED_BEFORE else line for line in lines]
    if ASKS_FOR_LINE not in lines:
        lines.append(ASKS_FOR_LINE)
    return Message(role="system", content="\n".join(lines)), user


def _outcome(old: Task, new: Task) -> str:
    if new == old:
        return "unchanged"
    if new.truth.final_answer != old.truth.final_answer:
        return "refusals"
    return "restated" if old.truth.answer_line else "line_added"
