"""Lookups in the data set that several embedded upstreams share, with their errors for the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.servers.arguments import at_least_one, days, echo, first, unknown_symbol
from mcpagent.servers.embedded.generate import Bar, Company, Dataset, daily_bars
from mcpagent.servers.news import Article, Articles

T = TypeVar("T")


def company(dataset: Dataset, symbol: str) -> Company:
    """Symbols match whatever their case and surrounding space. Raises `ToolError` if there is no such one."""
    found = dataset.by_ticker.get(symbol.strip().upper())
    if found is None:
        raise unknown_symbol(symbol)
    return found


def page(items: Sequence[T], *, limit: int, cursor: str) -> tuple[Sequence[T], str]:
    """The items after `cursor` and the next cursor, which is empty at the end. A cursor is a position."""
    if cursor and not re.fullmatch(r"[0-9]{1,9}", cursor):
        raise ToolError(f"Unknown cursor {echo(cursor)}.")
    start = int(cursor or 0)
    end = start + at_least_one("limit", limit)
    return items[start:end], str(end) if end < len(items) else ""


def bars_between(found: Company, *, start: str, end: str) -> list[Bar]:
    """Daily bars from one day to the other, both included. Raises `ToolError` for bad dates."""
    first_day, last_day = days(start, end)
    return [bar for bar in daily_bars(found) if first_day <= bar.date <= last_day]


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
