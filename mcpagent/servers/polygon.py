"""polygon: prices, reference data and news of stocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from datetime import date
from typing import Annotated, Any, Literal, Protocol

from mcp.server.mcpserver import Context
from pydantic import Field

from mcpagent.servers import embedded as lookup
from mcpagent.servers.builtin import Answer, Articles, BuiltinTool, ServerDefinition
from mcpagent.servers.embedded import SERVER_TIME, build

Frequency = Literal["daily", "weekly", "monthly"]
TickerArg = Annotated[str, Field(description="Stock ticker.")]
StartArg = Annotated[str, Field(description="First day, YYYY-MM-DD.")]
EndArg = Annotated[str, Field(description="Last day, YYYY-MM-DD.")]


class Bar(Answer):
    """`date` is the first trading day of the bar."""

    date: str
    open: float
    close: float


class Aggs(Answer):
    """Oldest bar first."""

    ticker: str
    bars: list[Bar]


class TickerDetails(Answer):
    """`market_cap` is in dollars."""

    ticker: str
    name: str
    market_cap: int


class MarketStatus(Answer):
    """`market` is open, closed or extended-hours; `server_time` is ISO 8601 with its offset."""

    market: str
    server_time: str


class PreviousClose(Answer):
    """`volume` is in shares."""

    ticker: str
    close: float
    volume: int


class LastTrade(Answer):
    """`size` is in shares."""

    ticker: str
    price: float
    size: int


class TickerMatch(Answer):
    ticker: str
    name: str


class TickerMatches(Answer):
    """`next_cursor` is empty on the last page."""

    results: list[TickerMatch]
    next_cursor: str


class PolygonUpstream(Protocol):
    """Where the answers come from. Every method raises `ToolError` with a sentence for the model."""

    async def aggs(self, ticker: str, *, start: str, end: str, frequency: Frequency) -> Aggs:
        """Opening and closing prices from `start` to `end`, one bar for each day, week or month."""
        ...

    async def news(self, ticker: str, *, limit: int) -> Articles:
        """Return articles about a company, the newest first."""
        ...

    async def ticker_details(self, ticker: str) -> TickerDetails:
        """Return name and market capitalisation of a company."""
        ...

    async def market_status(self) -> MarketStatus:
        """Return whether the market is open, and the time there."""
        ...

    async def previous_close(self, ticker: str) -> PreviousClose:
        """Return closing price and volume of the last trading day."""
        ...

    async def last_trade(self, ticker: str) -> LastTrade:
        """Price and size of the last trade."""
        ...

    async def search_tickers(self, query: str, *, limit: int, cursor: str) -> TickerMatches:
        """Return one page of the companies whose symbol or name matches."""
        ...


_PERIOD_OF: dict[Frequency, Callable[[date], tuple[int, ...]]] = {
    "daily": lambda day: (day.toordinal(),),
    "weekly": lambda day: day.isocalendar()[:2],
    "monthly": lambda day: (day.year, day.month),
}


def by_period(daily: Iterable[Bar], frequency: Frequency) -> list[Bar]:
    """Daily bars, oldest first, joined: a bar opens with its first trading day and closes with its last."""
    period_of = _PERIOD_OF[frequency]
    bars: list[Bar] = []
    for _, grouped in itertools.groupby(daily, key=lambda bar: period_of(date.fromisoformat(bar.date))):
        period = list(grouped)
        bars.append(Bar(date=period[0].date, open=period[0].open, close=period[-1].close))
    return bars


def _upstream(ctx: Context[Any, Any]) -> PolygonUpstream:
    return ctx.request_context.lifespan_context


async def polygon_get_aggs(
    ticker: TickerArg, start_date: StartArg, end_date: EndArg, ctx: Context, frequency: Frequency = "daily"
) -> Aggs:
    """Price bars of a stock between two dates."""
    return await _upstream(ctx).aggs(ticker, start=start_date, end=end_date, frequency=frequency)


async def polygon_get_news(ticker: TickerArg, ctx: Context, limit: int = 5) -> Articles:
    """Latest news about a stock."""
    return await _upstream(ctx).news(ticker, limit=limit)


async def polygon_get_ticker_details(ticker: TickerArg, ctx: Context) -> TickerDetails:
    """Name and market cap of a stock."""
    return await _upstream(ctx).ticker_details(ticker)


async def polygon_get_market_status(ctx: Context) -> MarketStatus:
    """Whether the market is open now."""
    return await _upstream(ctx).market_status()


async def polygon_get_previous_close(ticker: TickerArg, ctx: Context) -> PreviousClose:
    """Previous day's close and volume of a stock."""
    return await _upstream(ctx).previous_close(ticker)


async def polygon_get_last_trade(ticker: TickerArg, ctx: Context) -> LastTrade:
    """Price and size of the last trade of a stock."""
    return await _upstream(ctx).last_trade(ticker)


async def polygon_search_tickers(
    ctx: Context,
    query: Annotated[str, Field(description="Part of a ticker or name.")] = "",
    limit: int = 50,
    cursor: str = "",
) -> TickerMatches:
    """Find stocks by ticker or name."""
    return await _upstream(ctx).search_tickers(query, limit=limit, cursor=cursor)


POLYGON = ServerDefinition(
    name="polygon",
    instructions="Prices, reference data and news of stocks.",
    tools=(
        BuiltinTool(run=polygon_get_aggs),
        BuiltinTool(run=polygon_get_news),
        BuiltinTool(run=polygon_get_ticker_details),
        BuiltinTool(run=polygon_get_market_status),
        BuiltinTool(run=polygon_get_previous_close),
        BuiltinTool(run=polygon_get_last_trade, in_limited_set=False),
        BuiltinTool(run=polygon_search_tickers, in_limited_set=False),
    ),
)


class EmbeddedPolygon:
    """A `PolygonUpstream` without state."""

    def __init__(self) -> None:
        self._data = build()

    async def aggs(self, ticker: str, *, start: str, end: str, frequency: Frequency) -> Aggs:
        """Opening and closing prices from `start` to `end`, one bar for each day, week or month."""
        company = lookup.company(self._data, ticker)
        bars = lookup.bars_between(company, start=start, end=end)
        daily = [Bar(date=bar.date, open=bar.open, close=bar.close) for bar in bars]
        return Aggs(ticker=company.ticker, bars=by_period(daily, frequency))

    async def news(self, ticker: str, *, limit: int) -> Articles:
        """Return articles about a company, the newest first."""
        return lookup.articles(lookup.company(self._data, ticker), limit=limit)

    async def ticker_details(self, ticker: str) -> TickerDetails:
        """Return name and market capitalisation of a company."""
        company = lookup.company(self._data, ticker)
        return TickerDetails(ticker=company.ticker, name=company.name, market_cap=company.market_cap)

    async def market_status(self) -> MarketStatus:
        """Return whether the market is open, and the time there."""
        return MarketStatus(market="open", server_time=SERVER_TIME)

    async def previous_close(self, ticker: str) -> PreviousClose:
        """Return closing price and volume of the last trading day."""
        company = lookup.company(self._data, ticker)
        return PreviousClose(ticker=company.ticker, close=company.previous_close, volume=company.volume)

    async def last_trade(self, ticker: str) -> LastTrade:
        """Price and size of the last trade."""
        company = lookup.company(self._data, ticker)
        return LastTrade(ticker=company.ticker, price=company.price, size=company.last_size)

    async def search_tickers(self, query: str, *, limit: int, cursor: str) -> TickerMatches:
        """Return one page of the companies whose symbol or name matches."""
        companies, next_cursor = lookup.page(lookup.matching(self._data, query), limit=limit, cursor=cursor)
        return TickerMatches(
            results=[TickerMatch(ticker=c.ticker, name=c.name) for c in companies], next_cursor=next_cursor
        )
