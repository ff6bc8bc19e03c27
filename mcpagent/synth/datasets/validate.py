"""Is every record of a dataset fit to train on? Streaming; one finding for each record that is not."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from mcpagent.core.records import JsonObject, describe
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.reward.validate import task_warnings
from mcpagent.storage.datasets import empty_dataset, write_jsonl
from mcpagent.storage.json_stream import Located, locate_records, open_bytes, reading
from mcpagent.synth.tasks.inspect import answer_in_prompt, written_faults
from mcpagent.synth.tasks.prove import examine
from mcpagent.synth.tasks.run import CallCache, ToolShelf
from mcpagent.synth.tasks.stages import (
    EXECUTION_STAGES,
    VALIDATION_STAGES,
    RejectCode,
    Rejection,
    by_stage,
    yield_table,
)
from mcpagent.tools.io_thread import IOThread

_AT_ONCE = 32  # tasks executed at once
_MOST_FINDINGS = 50  # a file that is wrong throughout is wrong in the same way


@dataclass
class ValidationReport:
    """`records` seen, `rejects` by code, and of the first of them the place (file:line) and why, in the order
    of the file. `warnings` counts the records that could be passed without being done, `warned` is where the
    first is."""

    records: int = 0
    rejects: Counter[RejectCode] = field(default_factory=Counter)
    findings: list[tuple[str, Rejection]] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)
    warned: dict[str, str] = field(default_factory=dict)
    is_executed: bool = False

    def add(self, where: str, rejection: Rejection) -> None:
        """Count the record at `where`, which is refused; the first are kept."""
        self.rejects[rejection.code] += 1
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append((where, rejection))

    def warn(self, where: str, task: Task) -> None:
        """Count what is doubtful about a sound task, with the first place of each kind."""
        for warning in task_warnings(task):
            self.warnings[warning] += 1
            self.warned.setdefault(warning, where)

    @property
    def valid(self) -> int:
        """The number of sound records."""
        return self.records - self.rejects.total()

    def as_json(self) -> JsonObject:
        """Return the document of `data validate --json`."""
        stages = {**VALIDATION_STAGES, **(EXECUTION_STAGES if self.is_executed else {})}
        rejects = {code.value: self.rejects[code] for code in RejectCode if self.rejects[code]}
        findings = [
            {"code": rejection.code.value, "where": where, "message": rejection.detail}
            for where, rejection in self.findings
        ]
        warnings = [
            {"message": message, "records": count, "first": self.warned[message]}
            for message, count in self.warnings.most_common()
        ]
        return {
            "records": self.records,
            "valid": self.valid,
            "rejects": rejects,
            "warnings": warnings,
            "stages": yield_table(self.records, by_stage(self.rejects, stages)),
            "findings": findings,
        }


def validate_dataset(
    path: Path, *, catalog: Iterable[ToolSpec] | None, out: Path | None = None
) -> ValidationReport:
    """Check every record as it is written, and write the good ones to `out` if it is given; `catalog` None
    does not check tools against servers.

    Task ids are remembered, records are not. A broken line of JSONL is a finding; a broken JSON
    array, a file that cannot be read and one without records raise UserError.
    """
    report = ValidationReport()
    _keep_good(_sound_tasks(path, None if catalog is None else ToolShelf(catalog), report), out=out)
    return report


def _sound_tasks(path: Path, shelf: ToolShelf | None, report: ValidationReport) -> Iterator[tuple[str, Task]]:
    """(file:line, task) for each record that is sound as it is written; `report` is told of every record."""
    ids: dict[str, int] = {}  # the line of each
    with reading(path), open_bytes(path) as stream:
        for located in locate_records(stream, path):
            report.records += 1
            where = f"{path}:{located.line}"
            task = _problem(located, shelf, ids)
            if isinstance(task, Task):
                report.warn(where, task)
                yield where, task
            else:
                report.add(where, task)
    if not report.records:
        raise empty_dataset(path)


def prove_dataset(path: Path, cache: CallCache, io: IOThread, *, out: Path | None = None) -> ValidationReport:
    """`validate_dataset`, and each task is executed, replayed, and shown to be necessary and minimal."""
    report = ValidationReport(is_executed=True)
    _keep_good(_proven_tasks(path, cache, report, io), out=out)
    return report


def _proven_tasks(
    path: Path, cache: CallCache, report: ValidationReport, io: IOThread
) -> Iterator[tuple[str, Task]]:
    """Yield the sound tasks that were executed, replayed, and shown to be necessary and minimal."""

    async def examined(batch: Sequence[tuple[str, Task]]) -> list[JsonObject | Rejection]:
        return await asyncio.gather(*(examine(task, cache) for _, task in batch))

    sound = _sound_tasks(path, cache, report)
    while batch := list(islice(sound, _AT_ONCE)):
        for (where, task), outcome in zip(batch, io.run(examined(batch)), strict=True):
            if isinstance(outcome, Rejection):
                report.add(where, outcome)
            else:
                yield where, task


def _keep_good(checked: Iterable[tuple[str, Task]], *, out: Path | None) -> None:
    """Check every record, and write the good ones to `out` if it is given."""
    tasks = (task for _, task in checked)
    if out is None:
        deque(tasks, maxlen=0)
    elif not write_jsonl(out, tasks):
        out.unlink()  # what reads a file without a task would fail there and not here


def _problem(located: Located, shelf: ToolShelf | None, ids: dict[str, int]) -> Task | Rejection:
    """The task, or the first thing that is wrong with it."""
    if isinstance(located.record, UserError):
        return Rejection(RejectCode.JSON, located.record.message)
    try:
        task = Task.read(located.record)
    except ValidationError as error:
        details = error.errors()
        is_prompt = all(d["loc"] == ("prompt",) and d["type"] == "value_error" for d in details)
        code = RejectCode.NOT_COMPACT if is_prompt else RejectCode.SCHEMA
        return Rejection(code, "; ".join(describe(detail) for detail in details))
    if (fault := next(written_faults(task, shelf), None)) is not None:
        return fault
    if (said := answer_in_prompt(task)) is not None:
        return Rejection(RejectCode.ANSWER_IN_PROMPT, f"the question itself says {said!r}")
    if (first := ids.get(task.id)) is not None:
        return Rejection(RejectCode.DUPLICATE_ID, f"task_id {task.id!r} is that of line {first}")
    ids[task.id] = located.line
    return task
