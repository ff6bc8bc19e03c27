"""polygon: prices, reference data and news of stocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from mcpagent.servers import embedded as lookup
from mcpagent.servers.builtin import Answer, Articles, BuiltinTool, ServerDefinition
from mcpagent.servers.embedded import SERVER_TIME, Bar

Frequency = Literal["daily", "weekly", "monthly"]
TickerArg = Annotated[str, Field(description="Stock ticker.")]
StartArg = Annotated[str, Field(description="First day, YYYY-MM-DD.")]
EndArg = Annotated[str, Field(description="Last day, YYYY-MM-DD.")]


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


class EmbeddedPolygon:
    """The tools of polygon, answered from the data set."""

    async def polygon_get_aggs(
        self, ticker: TickerArg, start_date: StartArg, end_date: EndArg, frequency: Frequency = "daily"
    ) -> Aggs:
        """Price bars of a stock between two dates."""
        company = lookup.company(ticker)
        daily = lookup.bars_between(company, start=start_date, end=end_date)
        return Aggs(ticker=company.ticker, bars=by_period(daily, frequency))

    async def polygon_get_news(self, ticker: TickerArg, limit: int = 5) -> Articles:
        """Latest news about a stock."""
        return lookup.articles(ticker, limit=limit)

    async def polygon_get_ticker_details(self, ticker: TickerArg) -> TickerDetails:
        """Name and market cap of a stock."""
        company = lookup.company(ticker)
        return TickerDetails(ticker=company.ticker, name=company.name, market_cap=company.market_cap)

    async def polygon_get_market_status(self) -> MarketStatus:
        """Return whether the market is open now."""
        return MarketStatus(market="open", server_time=SERVER_TIME)

    async def polygon_get_previous_close(self, ticker: TickerArg) -> PreviousClose:
        """Previous day's close and volume of a stock."""
        company = lookup.company(ticker)
        return PreviousClose(ticker=company.ticker, close=company.previous_close, volume=company.volume)

    async def polygon_get_last_trade(self, ticker: TickerArg) -> LastTrade:
        """Price and size of the last trade of a stock."""
        company = lookup.company(ticker)
        return LastTrade(ticker=company.ticker, price=company.price, size=company.last_size)

    async def polygon_search_tickers(
        self,
        query: Annotated[str, Field(description="Part of a ticker or name.")] = "",
        limit: int = 50,
        cursor: str = "",
    ) -> TickerMatches:
        """Find stocks by ticker or name."""
        companies, next_cursor = lookup.page(lookup.matching(query), limit=limit, cursor=cursor)
        return TickerMatches(
            results=[TickerMatch(ticker=c.ticker, name=c.name) for c in companies], next_cursor=next_cursor
        )


POLYGON = ServerDefinition(
    name="polygon",
    instructions="Prices, reference data and news of stocks.",
    embedded=EmbeddedPolygon,
    tools=(
        BuiltinTool(EmbeddedPolygon.polygon_get_aggs),
        BuiltinTool(EmbeddedPolygon.polygon_get_news),
        BuiltinTool(EmbeddedPolygon.polygon_get_ticker_details),
        BuiltinTool(EmbeddedPolygon.polygon_get_market_status, description="Whether the market is open now."),
        BuiltinTool(EmbeddedPolygon.polygon_get_previous_close),
        BuiltinTool(EmbeddedPolygon.polygon_get_last_trade, in_limited_set=False),
        BuiltinTool(EmbeddedPolygon.polygon_search_tickers, in_limited_set=False),
    ),
)
