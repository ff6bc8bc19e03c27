"""The base of records that touch disk, what is wrong with one, and the numbers that layers report."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pydantic_core
from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]


class Record(BaseModel):
    """Base of frozen records that refuse unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OpenRecord(BaseModel):
    """Base of frozen records that keep unknown fields, so that datasets of others survive a round trip."""

    model_config = ConfigDict(frozen=True, extra="allow")


def reason(error: pydantic_core.ErrorDetails) -> str:
    """Return why a value was refused, to follow "KEY is VALUE, but"."""
    message = error["msg"]
    if error["type"] == "value_error":
        return message.removeprefix("Value error, ")
    if message.startswith("Input should be "):
        return "it must be " + message.removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


def describe(error: pydantic_core.ErrorDetails, *, root: str = "record") -> str:
    """One finding as a sentence: the dotted key, the value if that helps, the reason."""
    key = ".".join(str(part) for part in error["loc"]) or root
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] == "extra_forbidden":
        return f"{key} is not a known field"
    why = reason(error)
    if error["type"] == "value_error" or isinstance(error["input"], Mapping):
        return why if why.startswith(key) else f"{key}: {why}"
    return f"{key} is {short_repr(error['input'])}, but {why}"


def short_repr(value: Any, *, limit_chars: int = 80) -> str:
    """`value` for a message, cut in the middle if it is long."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    if len(text) <= limit_chars:
        return text
    half = limit_chars // 2 - 2
    return f"{text[:half]} ... {text[-half:]}"


class Metric(Record):
    """A value with its 95% interval. A number without its n is not reported; no data is None, not 0."""

    value: float | None
    ci_low: float | None
    ci_high: float | None
    n: int


class CheckStatus(StrEnum):
    """The outcome of a check."""

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
