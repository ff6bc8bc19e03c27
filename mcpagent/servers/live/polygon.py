"""polygon's answers from the Massive API, which was called Polygon until 2025."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Protocol, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from mcpagent.servers.builtin import Article, Articles, at_least_one, days, echo, unknown_symbol
from mcpagent.servers.embedded import Bar
from mcpagent.servers.live.client import ApiClient, LiveService, Rate, RefusedRequest
from mcpagent.servers.polygon import (
    Aggs,
    Frequency,
    LastTrade,
    MarketStatus,
    PreviousClose,
    TickerDetails,
    TickerMatch,
    TickerMatches,
    by_period,
)

_MAX_BARS = 50_000  # of one page; the documented maxima of `limit`
_MAX_ARTICLES = 1000
_MAX_TICKERS = 1000
_MAX_PAGES = 50
_KEY_PARAMETER = "apikey"


class _Page(Protocol):
    next_url: str | None


T = TypeVar("T")
P = TypeVar("P", bound=_Page)


class _Bar(BaseModel):
    t: int  # Unix milliseconds of the bar's first moment, midnight in New York: UTC has the same date then
    o: float
    c: float
    v: float


class _Bars(BaseModel):
    results: list[_Bar] = []  # absent if there are none
    next_url: str | None = None


class _Article(BaseModel):
    title: str
    article_url: str
    published_utc: str


class _News(BaseModel):
    results: list[_Article] = []
    next_url: str | None = None


class _Ticker(BaseModel):
    ticker: str
    name: str
    market_cap: float | None = None  # funds have none


class _Details(BaseModel):
    results: _Ticker


class _Tickers(BaseModel):
    results: list[TickerMatch] = []
    next_url: str | None = None


class _Status(MarketStatus):
    server_time: str = Field(validation_alias="serverTime")


class _Trade(BaseModel):
    p: float
    s: float


class _LastTrade(BaseModel):
    results: _Trade


class LivePolygon:
    """The tools of polygon. Of an unknown ticker the service has empty bars and news."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def polygon_get_aggs(
        self, ticker: str, start_date: str, end_date: str, frequency: Frequency
    ) -> Aggs:
        """Weeks and months are joined from days here, so that a bar means the same as embedded."""
        symbol, (first_day, last_day) = _symbol(ticker), days(start_date, end_date)
        path = f"/v2/aggs/ticker/{quote(symbol)}/range/1/day/{first_day}/{last_day}"
        daily = [
            Bar(date=_date(bar.t), open=bar.o, close=bar.c)
            async for page in self._pages(path, _Bars, adjusted="true", sort="asc", limit=_MAX_BARS)
            for bar in page.results
        ]
        return Aggs(ticker=symbol, bars=by_period(daily, frequency))

    async def polygon_get_news(self, ticker: str, limit: int) -> Articles:
        """Return articles about a company, the newest first."""
        symbol, count = _symbol(ticker), at_least_one("limit", limit)
        articles: list[Article] = []
        async for page in self._pages(
            "/v2/reference/news", _News, ticker=symbol, order="desc", limit=min(count, _MAX_ARTICLES)
        ):
            articles += [
                Article(title=a.title, url=a.article_url, published=a.published_utc[:10])
                for a in page.results
            ]
            if len(articles) >= count:
                break
        return Articles(articles=articles[:count])

    async def polygon_get_ticker_details(self, ticker: str) -> TickerDetails:
        """Return name and market capitalisation of a company."""
        answer = (await self._about(ticker, "/v3/reference/tickers/{}", _Details)).results
        if answer.market_cap is None:
            raise ToolError(f"No market cap is known of {answer.ticker}.")
        return TickerDetails(ticker=answer.ticker, name=answer.name, market_cap=round(answer.market_cap))

    async def polygon_get_market_status(self) -> MarketStatus:
        """Return whether the market is open, and the time there."""
        return await self._api.get("/v1/marketstatus/now", _Status)

    async def polygon_get_previous_close(self, ticker: str) -> PreviousClose:
        """Return closing price and volume of the last trading day."""
        answer = await self._about(ticker, "/v2/aggs/ticker/{}/prev", _Bars)
        if not answer.results:
            raise unknown_symbol(ticker)
        bar = answer.results[0]
        return PreviousClose(ticker=_symbol(ticker), close=bar.c, volume=round(bar.v))

    async def polygon_get_last_trade(self, ticker: str) -> LastTrade:
        """Price and size of the last trade."""
        trade = (await self._about(ticker, "/v2/last/trade/{}", _LastTrade)).results
        return LastTrade(ticker=_symbol(ticker), price=trade.p, size=round(trade.s))

    async def polygon_search_tickers(self, query: str, limit: int, cursor: str) -> TickerMatches:
        """Return one page of the companies whose symbol or name matches."""
        count = min(at_least_one("limit", limit), _MAX_TICKERS)
        # A cursor carries its query with it; the service refuses both together.
        asked = (
            {"cursor": cursor} if cursor else {"search": query.strip(), "market": "stocks", "active": "true"}
        )
        try:
            page = await self._api.get("/v3/reference/tickers", _Tickers, limit=count, **asked)
        except RefusedRequest:
            raise ToolError(f"Unknown cursor {echo(cursor)}." if cursor else "No such search.") from None
        next_cursor = _query(page.next_url).get("cursor", "")
        return TickerMatches(results=page.results, next_cursor=next_cursor)

    async def _about(self, ticker: str, path: str, shape: type[T]) -> T:
        """Return what the service says about one ticker. Raises `ToolError` if it knows none of that name."""
        try:
            return await self._api.get(path.format(quote(_symbol(ticker))), shape)
        except RefusedRequest as error:
            if error.status == 404:
                raise unknown_symbol(ticker) from None
            raise

    async def _pages(self, path: str, shape: type[P], **params: str | int) -> AsyncIterator[P]:
        """Yield at most 50 pages. Of `next_url` path and query count: the key goes to the configured host."""
        for _ in range(_MAX_PAGES):
            page = await self._api.get(path, shape, **params)
            yield page
            if not page.next_url:
                return
            path, params = urlsplit(page.next_url).path, {**_query(page.next_url)}


SERVICE = LiveService(
    base_url="https://api.massive.com",
    rates={"": Rate(5, 60)},  # of the free tier
    tools=LivePolygon,
)


def _symbol(ticker: str) -> str:
    """Return the ticker as a part of a path. Raises `ToolError` for what can be none."""
    symbol = ticker.strip().upper()
    if not re.fullmatch(r"[A-Z0-9][A-Z0-9.:\-]{0,19}", symbol):
        raise unknown_symbol(ticker)
    return symbol


def _date(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).date().isoformat()


def _query(url: str | None) -> dict[str, str]:
    """Return the parameters of a `next_url`, but for a key."""
    pairs = parse_qsl(urlsplit(url or "").query)
    return {name: value for name, value in pairs if name.lower() != _KEY_PARAMETER}
