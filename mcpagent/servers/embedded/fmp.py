"""fmp's answers from the embedded data set."""

from __future__ import annotations

from collections.abc import Sequence

from mcpagent.servers.arguments import first
from mcpagent.servers.embedded import lookup
from mcpagent.servers.embedded.generate import Company, build
from mcpagent.servers.embedded.generate import Statement as YearStatement
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
from mcpagent.servers.news import Articles


class EmbeddedFmp:
    """An `FmpUpstream` without state."""

    def __init__(self) -> None:
        self._data = build()

    async def quote(self, symbol: str) -> Quote:
        company = lookup.company(self._data, symbol)
        return Quote(symbol=company.ticker, price=company.price, change_percent=company.change_percent)

    async def company_profile(self, symbol: str) -> CompanyProfile:
        company = lookup.company(self._data, symbol)
        return CompanyProfile(symbol=company.ticker, name=company.name, sector=company.sector)

    async def income_statement(self, symbol: str, *, period: Period, limit: int) -> IncomeStatement:
        company = lookup.company(self._data, symbol)
        if period == "annual":
            statements = [_annual(year) for year in company.statements]
        else:
            statements = [quarter for year in company.statements for quarter in _quarters(year)]
        return IncomeStatement(symbol=company.ticker, statements=list(first(statements, limit)))

    async def gainers(self, *, limit: int) -> Movers:
        return _movers(sorted(self._data.companies, key=lambda c: -c.change_percent), limit=limit)

    async def losers(self, *, limit: int) -> Movers:
        return _movers(sorted(self._data.companies, key=lambda c: c.change_percent), limit=limit)

    async def search_ticker(self, query: str, *, limit: int) -> SymbolMatches:
        return _matches(lookup.matching(self._data, query), limit=limit)

    async def search_name(self, query: str, *, limit: int) -> SymbolMatches:
        return _matches(lookup.matching(self._data, query, tickers=False), limit=limit)

    async def stock_news(self, symbol: str, *, limit: int) -> Articles:
        return lookup.articles(lookup.company(self._data, symbol), limit=limit)

    async def change_percent(self, symbol: str) -> ChangePercent:
        return _change(lookup.company(self._data, symbol))

    async def previous_close(self, symbol: str) -> PreviousClose:
        company = lookup.company(self._data, symbol)
        return PreviousClose(symbol=company.ticker, previous_close=company.previous_close)

    async def historical_prices(self, symbol: str, *, start: str, end: str) -> HistoricalPrices:
        company = lookup.company(self._data, symbol)
        days = lookup.bars_between(company, start=start, end=end)
        prices = [DayClose(date=day.date, close=day.close) for day in days]
        return HistoricalPrices(symbol=company.ticker, prices=prices)


def _change(company: Company) -> ChangePercent:
    return ChangePercent(symbol=company.ticker, change_percent=company.change_percent)


def _movers(ranked: Sequence[Company], *, limit: int) -> Movers:
    return Movers(tickers=[_change(company) for company in first(ranked, limit)])


def _matches(found: Sequence[Company], *, limit: int) -> SymbolMatches:
    return SymbolMatches(results=[SymbolMatch(symbol=c.ticker, name=c.name) for c in first(found, limit)])


def _annual(year: YearStatement) -> Statement:
    return Statement(fiscal_year=str(year.fiscal_year), revenue=year.revenue, net_income=year.net_income)


def _quarters(year: YearStatement) -> list[Statement]:
    """The year's four equal quarters, newest first; amounts are whole millions, so a quarter is exact."""
    return [
        Statement(
            fiscal_year=f"{year.fiscal_year}-Q{number}",
            revenue=year.revenue // 4,
            net_income=year.net_income // 4,
        )
        for number in (4, 3, 2, 1)
    ]
