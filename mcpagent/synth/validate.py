"""Is every record of a dataset fit to train on? Streaming; one finding for each record that is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.validation import describe
from mcpagent.errors import UserError
from mcpagent.reward.validate import task_problems
from mcpagent.storage.compression import open_bytes
from mcpagent.storage.jsonl import empty_dataset
from mcpagent.storage.records import decode_line, read_records, reading


class RejectCode(StrEnum):
    """What is wrong with a record; the stages in which they are found are in this order."""

    JSON = "json"  # the line is no JSON object
    SCHEMA = "schema"  # a field is missing or has a wrong type
    NOT_COMPACT = "not_compact"  # the prompt holds more than one system and one user message
    GROUND_TRUTH = "ground_truth"  # the reward could not judge it: references, match rules, checks
    UNKNOWN_TOOL = "unknown_tool"  # a plan or an offer names a tool that no server in use has
    DUPLICATE_ID = "duplicate_id"  # the task_id of an earlier record


MAX_FINDINGS = 50  # a file that is wrong throughout is wrong in the same way


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Why the record at `where` (file:line) is rejected."""

    code: RejectCode
    where: str
    message: str


@dataclass
class ValidationReport:
    """`records` seen, `rejects` by code, and the first MAX_FINDINGS of them in the order of the file."""

    records: int = 0
    rejects: Counter[RejectCode] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.rejects[finding.code] += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    @property
    def valid(self) -> int:
        return self.records - self.rejects.total()

    def as_json(self) -> JsonObject:
        stages: list[JsonObject] = []
        left = self.records
        for code in RejectCode:
            stages.append({"name": code.value, "in": left, "out": left - self.rejects[code]})
            left -= self.rejects[code]
        rejects = {code.value: self.rejects[code] for code in RejectCode if self.rejects[code]}
        findings = [{"code": f.code.value, "where": f.where, "message": f.message} for f in self.findings]
        return {
            "records": self.records,
            "valid": self.valid,
            "rejects": rejects,
            "stages": stages,
            "findings": findings,
        }


def validate_dataset(path: Path, *, catalog: Iterable[ToolSpec] | None) -> ValidationReport:
    """Check every record; `catalog` None does not check tools against servers.

    Task ids are remembered, records are not. A broken line of JSONL is a finding; a broken JSON array, a
    file that cannot be read and one without records raise UserError.
    """
    known = None if catalog is None else {name for t in catalog for name in (t.dotted, t.name, t.server)}
    report = ValidationReport()
    ids: dict[str, int] = {}
    for line, record in _records(path):
        report.records += 1
        problem = _problem(record, known, ids, line)
        if problem is not None:
            code, message = problem
            report.add(Finding(code=code, where=f"{path}:{line}", message=message))
    if not report.records:
        raise empty_dataset(path)
    return report


def _problem(
    record: JsonObject | UserError, known: set[str] | None, ids: dict[str, int], line: int
) -> tuple[RejectCode, str] | None:
    if isinstance(record, UserError):
        return RejectCode.JSON, record.message
    try:
        task = Task.model_validate(record)
    except ValidationError as error:
        details = error.errors()
        is_prompt = all(d["loc"] == ("prompt",) and d["type"] == "value_error" for d in details)
        code = RejectCode.NOT_COMPACT if is_prompt else RejectCode.SCHEMA
        return code, "; ".join(describe(detail) for detail in details)
    problems = task_problems(task)
    if problems:
        return RejectCode.GROUND_TRUTH, "; ".join(problems)
    unknown = sorted(_tools_named(task) - known) if known is not None else []
    if unknown:
        return RejectCode.UNKNOWN_TOOL, f"no server in use has {', '.join(unknown)}"
    first = ids.setdefault(task.id, line)
    if first != line:
        return RejectCode.DUPLICATE_ID, f"task_id {task.id!r} is that of line {first}"
    return None


def _tools_named(task: Task) -> set[str]:
    """Every tool that an episode of the task would call or offer, as written."""
    truth = task.truth
    names = {
        f"{call.server}.{call.tool}" for step in truth.tool_sequence for call in (step, *step.alternatives)
    }
    names |= {f"{server}.{call.tool}" for server, calls in truth.setup.items() for call in calls}
    names |= {f"{server}.{check.call.tool}" for server, checks in truth.state.items() for check in checks}
    if truth.success.must_call_tool is not None:
        names.add(truth.success.must_call_tool)
    return names | set(task.offered_tools or ())


def _records(path: Path) -> Iterator[tuple[int, JsonObject | UserError]]:
    """Like `read_records`, but a broken line of JSONL is an item and not the end."""
    if _is_array(path):
        yield from read_records(path)
        return
    with reading(path), open_bytes(path) as stream:
        for line, raw in enumerate(stream, 1):
            text = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
            if not text.strip():
                continue
            try:
                yield line, decode_line(text.strip(), path=path, line=line)
            except UserError as error:
                yield line, error


def _is_array(path: Path) -> bool:
    with reading(path), open_bytes(path) as stream:
        for raw in stream:
            text = raw.removeprefix(b"\xef\xbb\xbf").strip()
            if text:
                return text.startswith(b"[")
    return False
