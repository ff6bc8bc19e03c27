"""polygon's answers from the embedded data set."""

from __future__ import annotations

from mcpagent.servers.embedded import lookup
from mcpagent.servers.embedded.generate import SERVER_TIME, build
from mcpagent.servers.news import Articles
from mcpagent.servers.polygon import (
    Aggs,
    Bar,
    Frequency,
    LastTrade,
    MarketStatus,
    PreviousClose,
    TickerDetails,
    TickerMatch,
    TickerMatches,
    by_period,
)


class EmbeddedPolygon:
    """A `PolygonUpstream` without state."""

    def __init__(self) -> None:
        self._data = build()

    async def aggs(self, ticker: str, *, start: str, end: str, frequency: Frequency) -> Aggs:
        company = lookup.company(self._data, ticker)
        found = lookup.bars_between(company, start=start, end=end)
        daily = [Bar(date=bar.date, open=bar.open, close=bar.close) for bar in found]
        return Aggs(ticker=company.ticker, bars=by_period(daily, frequency))

    async def news(self, ticker: str, *, limit: int) -> Articles:
        return lookup.articles(lookup.company(self._data, ticker), limit=limit)

    async def ticker_details(self, ticker: str) -> TickerDetails:
        company = lookup.company(self._data, ticker)
        return TickerDetails(ticker=company.ticker, name=company.name, market_cap=company.market_cap)

    async def market_status(self) -> MarketStatus:
        return MarketStatus(market="open", server_time=SERVER_TIME)

    async def previous_close(self, ticker: str) -> PreviousClose:
        company = lookup.company(self._data, ticker)
        return PreviousClose(ticker=company.ticker, close=company.previous_close, volume=company.volume)

    async def last_trade(self, ticker: str) -> LastTrade:
        company = lookup.company(self._data, ticker)
        return LastTrade(ticker=company.ticker, price=company.price, size=company.last_size)

    async def search_tickers(self, query: str, *, limit: int, cursor: str) -> TickerMatches:
        found, next_cursor = lookup.page(lookup.matching(self._data, query), limit=limit, cursor=cursor)
        return TickerMatches(
            results=[TickerMatch(ticker=c.ticker, name=c.name) for c in found], next_cursor=next_cursor
        )
