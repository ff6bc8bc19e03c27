"""What the tools of several servers share: checks of arguments, and news."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TypeVar

from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.servers.builtin import Answer

T = TypeVar("T")

_MAX_ECHO_CHARS = 40


def echo(text: str) -> str:
    """The model's own words in an error, short enough not to fill its context."""
    return text if len(text) <= _MAX_ECHO_CHARS else text[:_MAX_ECHO_CHARS] + "..."


def unknown_symbol(symbol: str) -> ToolError:
    return ToolError(f"Unknown symbol {echo(symbol)}.")


def at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ToolError(f"{name} must be at least 1.")
    return value


def first(items: Sequence[T], limit: int) -> Sequence[T]:
    return items[: at_least_one("limit", limit)]


def days(start: str, end: str) -> tuple[str, str]:
    """The first and the last day as YYYY-MM-DD. Raises `ToolError` for what is no date, or the wrong way."""
    first_day, last_day = _day("start_date", start), _day("end_date", end)
    if first_day > last_day:
        raise ToolError("start_date is after end_date.")
    return first_day.isoformat(), last_day.isoformat()


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ToolError(f"{name} must be a date like 2025-11-17.") from None


class Article(Answer):
    """`published` is a date, YYYY-MM-DD."""

    title: str
    url: str
    published: str


class Articles(Answer):
    """Newest first."""

    articles: list[Article]
