"""Numbers with their uncertainty, and the verdicts of checks."""

from __future__ import annotations

from enum import StrEnum

from mcpagent.core.records import Record


class Metric(Record):
    """A value with its 95 % interval. A number without its n is not reported; no data is None, not 0."""

    value: float | None
    ci_low: float | None
    ci_high: float | None
    n: int


class CheckStatus(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class CheckResult(Record):
    """One line of `mcpagent doctor` and its kin. `remedy` is a command."""

    name: str
    status: CheckStatus
    detail: str
    remedy: str | None = None
