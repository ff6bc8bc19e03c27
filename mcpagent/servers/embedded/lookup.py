"""Lookups in the data set that several embedded upstreams share, with their errors for the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import TypeVar

from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.servers.embedded.generate import Bar, Company, Dataset, daily_bars
from mcpagent.servers.news import Article, Articles

T = TypeVar("T")

_MAX_ECHO_CHARS = 40


def echo(text: str) -> str:
    """The model's own words in an error, short enough not to fill its context."""
    return text if len(text) <= _MAX_ECHO_CHARS else text[:_MAX_ECHO_CHARS] + "..."


def company(dataset: Dataset, symbol: str) -> Company:
    """Symbols match whatever their case and surrounding space. Raises `ToolError` if there is no such one."""
    found = dataset.by_ticker.get(symbol.strip().upper())
    if found is None:
        raise ToolError(f"Unknown symbol {echo(symbol)}.")
    return found


def at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ToolError(f"{name} must be at least 1.")
    return value


def first(items: Sequence[T], limit: int) -> Sequence[T]:
    return items[: at_least_one("limit", limit)]


def page(items: Sequence[T], *, limit: int, cursor: str) -> tuple[Sequence[T], str]:
    """The items after `cursor` and the next cursor, which is empty at the end. A cursor is a position."""
    if cursor and not re.fullmatch(r"[0-9]{1,9}", cursor):
        raise ToolError(f"Unknown cursor {echo(cursor)}.")
    start = int(cursor or 0)
    end = start + at_least_one("limit", limit)
    return items[start:end], str(end) if end < len(items) else ""


def bars_between(found: Company, *, start: str, end: str) -> list[Bar]:
    """Daily bars from one day to the other, both included. Raises `ToolError` for bad dates."""
    first_day, last_day = _day("start_date", start), _day("end_date", end)
    if first_day > last_day:
        raise ToolError("start_date is after end_date.")
    return [bar for bar in daily_bars(found) if first_day.isoformat() <= bar.date <= last_day.isoformat()]


def articles(found: Company, *, limit: int) -> Articles:
    return Articles(
        articles=[
            Article(title=page.title, url=page.url, published=page.published)
            for page in first(found.pages, limit)
        ]
    )


def matching(dataset: Dataset, query: str, *, tickers: bool = True) -> list[Company]:
    """Companies whose name (or ticker) contains the query, the exact ticker first, else by ticker."""
    wanted = query.strip().casefold()
    found = [
        c
        for c in dataset.companies
        if wanted in c.name.casefold() or (tickers and wanted in c.ticker.casefold())
    ]
    return sorted(found, key=lambda c: (c.ticker.casefold() != wanted, c.ticker))


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ToolError(f"{name} must be a date like 2025-11-17.") from None
