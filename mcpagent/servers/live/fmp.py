"""fmp's answers from the stable endpoints of Financial Modeling Prep."""

from __future__ import annotations

from typing import Annotated, TypeVar

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import AfterValidator, BaseModel, Field

from mcpagent.servers.builtin import Article, Articles, at_least_one, days, first, unknown_symbol
from mcpagent.servers.fmp import (
    ChangePercent,
    CompanyProfile,
    DayClose,
    HistoricalPrices,
    IncomeStatement,
    Movers,
    Period,
    PreviousClose,
    Quote,
    Statement,
    SymbolMatch,
    SymbolMatches,
)
from mcpagent.servers.live.client import ApiClient, LiveService, Rate

T = TypeVar("T")


# As a person would say it; the service gives up to five places.
Percent = Annotated[float, AfterValidator(lambda value: round(value, 2))]


class _Quote(Quote):
    change_percent: Percent = Field(validation_alias="changePercentage")


class _PreviousClose(PreviousClose):
    previous_close: float = Field(validation_alias="previousClose")


class _Profile(BaseModel):
    symbol: str
    companyName: str
    sector: str | None = None  # funds have none


class _Statement(BaseModel):
    fiscalYear: str
    period: str  # FY, or Q1 to Q4
    revenue: int
    netIncome: int


class _Mover(BaseModel):
    symbol: str
    changesPercentage: float  # so spelt here alone


class _Match(BaseModel):
    symbol: str
    name: str | None = None


class _Article(BaseModel):
    title: str
    url: str
    publishedDate: str


class _Change(ChangePercent):
    change_percent: Percent = Field(validation_alias="1D")


class _Day(DayClose):
    close: float = Field(validation_alias="price")


class LiveFmp:
    """The tools of fmp. The service answers with a list, an empty one if it knows nothing."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def fmp_get_quote(self, symbol: str) -> Quote:
        """Return the last price, and the change of the day in percent."""
        return await self._one("/quote", _Quote, symbol)

    async def fmp_get_company_profile(self, symbol: str) -> CompanyProfile:
        """Return name and sector of a company."""
        answer = await self._one("/profile", _Profile, symbol)
        if not answer.sector:
            raise ToolError(f"No sector is known of {answer.symbol}.")
        return CompanyProfile(symbol=answer.symbol, name=answer.companyName, sector=answer.sector)

    async def fmp_get_income_statement(self, symbol: str, period: Period, limit: int) -> IncomeStatement:
        """Return revenue and net income, the newest statement first."""
        name, count = _symbol(symbol), at_least_one("limit", limit)
        answer = await self._api.get(
            "/income-statement", list[_Statement], symbol=name, period=period, limit=count
        )
        if not answer:
            raise unknown_symbol(symbol)
        newest_first = sorted(answer, key=lambda s: (s.fiscalYear, s.period), reverse=True)
        return IncomeStatement(symbol=name, statements=[_statement(s) for s in newest_first[:count]])

    async def fmp_get_market_gainers(self, limit: int) -> Movers:
        """Return the stocks that rose most today, in that order."""
        return await self._movers("/biggest-gainers", limit=limit, sign=-1)

    async def fmp_get_market_losers(self, limit: int) -> Movers:
        """Return the stocks that fell most today, in that order."""
        return await self._movers("/biggest-losers", limit=limit, sign=1)

    async def fmp_search_ticker(self, query: str, limit: int) -> SymbolMatches:
        """Search symbols and names apart, as the service does; names fill what symbols leave of `limit`."""
        answer = await self._search("/search-symbol", query, limit)
        if len(answer) < limit:
            answer = answer | await self._search("/search-name", query, limit)
        return _matches(answer, limit)

    async def fmp_search_name(self, query: str, limit: int) -> SymbolMatches:
        """Return companies whose name matches."""
        return _matches(await self._search("/search-name", query, limit), limit)

    async def fmp_get_stock_news(self, symbol: str, limit: int) -> Articles:
        """Return articles about a company, the newest first."""
        count = at_least_one("limit", limit)
        answer = await self._api.get("/news/stock", list[_Article], symbols=_symbol(symbol), limit=count)
        newest_first = sorted(answer, key=lambda a: a.publishedDate, reverse=True)
        return Articles(
            articles=[
                Article(title=a.title, url=a.url, published=a.publishedDate[:10])
                for a in newest_first[:count]
            ]
        )

    async def fmp_get_change_percent(self, symbol: str) -> ChangePercent:
        """Return the change of the day in percent."""
        return await self._one("/stock-price-change", _Change, symbol)

    async def fmp_get_previous_close(self, symbol: str) -> PreviousClose:
        """Return the closing price of the last trading day."""
        return await self._one("/quote", _PreviousClose, symbol)

    async def fmp_get_historical_prices(
        self, symbol: str, start_date: str, end_date: str
    ) -> HistoricalPrices:
        """Return closing prices from `start` to `end`, the oldest first."""
        name, (first_day, last_day) = _symbol(symbol), days(start_date, end_date)
        answer = await self._api.get(
            "/historical-price-eod/light", list[_Day], symbol=name, **{"from": first_day, "to": last_day}
        )
        return HistoricalPrices(symbol=name, prices=sorted(answer, key=lambda day: day.date))

    async def _one(self, path: str, shape: type[T], symbol: str) -> T:
        answer = await self._api.get(path, list[shape], symbol=_symbol(symbol))
        if not answer:
            raise unknown_symbol(symbol)
        return answer[0]

    async def _movers(self, path: str, *, limit: int, sign: int) -> Movers:
        answer = await self._api.get(path, list[_Mover])
        ranked = sorted(answer, key=lambda mover: sign * mover.changesPercentage)
        return Movers(
            tickers=[
                ChangePercent(symbol=m.symbol, change_percent=round(m.changesPercentage, 2))
                for m in first(ranked, limit)
            ]
        )

    async def _search(self, path: str, query: str, limit: int) -> dict[str, str]:
        count = at_least_one("limit", limit)
        answer = await self._api.get(path, list[_Match], query=query.strip(), limit=count)
        return {match.symbol: match.name for match in answer if match.name}


SERVICE = LiveService(
    base_url="https://financialmodelingprep.com/stable",
    rates={"": Rate(250, 24 * 60 * 60)},  # of the free tier
    tools=LiveFmp,
    key_parameter="apikey",
)


def _symbol(symbol: str) -> str:
    name = symbol.strip().upper()
    if not name or "," in name:  # a comma would ask about several
        raise unknown_symbol(symbol)
    return name


def _statement(filed: _Statement) -> Statement:
    is_quarter = filed.period.startswith("Q")
    return Statement(
        fiscal_year=f"{filed.fiscalYear}-{filed.period}" if is_quarter else filed.fiscalYear,
        revenue=filed.revenue,
        net_income=filed.netIncome,
    )


def _matches(answer: dict[str, str], limit: int) -> SymbolMatches:
    pairs = list(answer.items())[:limit]
    return SymbolMatches(results=[SymbolMatch(symbol=symbol, name=name) for symbol, name in pairs])
