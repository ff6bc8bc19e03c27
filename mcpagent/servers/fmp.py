"""fmp: quotes, company profiles, statements and market movers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from mcpagent.servers import embedded as lookup
from mcpagent.servers.builtin import Answer, Articles, BuiltinTool, ServerDefinition, first
from mcpagent.servers.embedded import Company, FiledStatement, build

Period = Literal["annual", "quarter"]
SymbolArg = Annotated[str, Field(description="Stock symbol.")]
StartArg = Annotated[str, Field(description="First day, YYYY-MM-DD.")]
EndArg = Annotated[str, Field(description="Last day, YYYY-MM-DD.")]


class Quote(Answer):
    """`change_percent` is of the price against the previous close, 1.5 means 1.5 %."""

    symbol: str
    price: float
    change_percent: float


class CompanyProfile(Answer):
    symbol: str
    name: str
    sector: str


class Statement(Answer):
    """`fiscal_year` is "2024", or "2024-Q3" for a quarter; money is in dollars."""

    fiscal_year: str
    revenue: int
    net_income: int


class IncomeStatement(Answer):
    """Newest statement first."""

    symbol: str
    statements: list[Statement]


class ChangePercent(Answer):
    symbol: str
    change_percent: float


class Movers(Answer):
    """Largest move first."""

    tickers: list[ChangePercent]


class SymbolMatch(Answer):
    symbol: str
    name: str


class SymbolMatches(Answer):
    results: list[SymbolMatch]


class PreviousClose(Answer):
    symbol: str
    previous_close: float


class DayClose(Answer):
    date: str
    close: float


class HistoricalPrices(Answer):
    """Oldest day first."""

    symbol: str
    prices: list[DayClose]


class EmbeddedFmp:
    """The tools of fmp, answered from the data set."""

    async def fmp_get_quote(self, symbol: SymbolArg) -> Quote:
        """Current price of a stock and its change."""
        company = lookup.company(symbol)
        return Quote(symbol=company.ticker, price=company.price, change_percent=company.change_percent)

    async def fmp_get_company_profile(self, symbol: SymbolArg) -> CompanyProfile:
        """Name and sector of a company."""
        company = lookup.company(symbol)
        return CompanyProfile(symbol=company.ticker, name=company.name, sector=company.sector)

    async def fmp_get_income_statement(
        self, symbol: SymbolArg, period: Period = "annual", limit: int = 1
    ) -> IncomeStatement:
        """Revenue and net income of a company, newest first."""
        company = lookup.company(symbol)
        if period == "annual":
            statements = [_annual(year) for year in company.statements]
        else:
            statements = [quarter for year in company.statements for quarter in _quarters(year)]
        return IncomeStatement(symbol=company.ticker, statements=list(first(statements, limit)))

    async def fmp_get_market_gainers(self, limit: int = 5) -> Movers:
        """Stocks that rose most today."""
        return _movers(sorted(build().companies, key=lambda c: -c.change_percent), limit=limit)

    async def fmp_get_market_losers(self, limit: int = 5) -> Movers:
        """Stocks that fell most today."""
        return _movers(sorted(build().companies, key=lambda c: c.change_percent), limit=limit)

    async def fmp_search_ticker(
        self, query: Annotated[str, Field(description="Part of a symbol or name.")], limit: int = 5
    ) -> SymbolMatches:
        """Find companies by symbol or name."""
        return _matches(lookup.matching(query), limit=limit)

    async def fmp_search_name(
        self, query: Annotated[str, Field(description="Part of a name.")], limit: int = 5
    ) -> SymbolMatches:
        """Find companies by name."""
        return _matches(lookup.matching(query, tickers=False), limit=limit)

    async def fmp_get_stock_news(self, symbol: SymbolArg, limit: int = 5) -> Articles:
        """Latest news about a company."""
        return lookup.articles(symbol, limit=limit)

    async def fmp_get_change_percent(self, symbol: SymbolArg) -> ChangePercent:
        """Today's change of a stock in percent."""
        return _change(lookup.company(symbol))

    async def fmp_get_previous_close(self, symbol: SymbolArg) -> PreviousClose:
        """Previous close of a stock."""
        company = lookup.company(symbol)
        return PreviousClose(symbol=company.ticker, previous_close=company.previous_close)

    async def fmp_get_historical_prices(
        self, symbol: SymbolArg, start_date: StartArg, end_date: EndArg
    ) -> HistoricalPrices:
        """Daily closes of a stock between two dates."""
        company = lookup.company(symbol)
        days = lookup.bars_between(company, start=start_date, end=end_date)
        prices = [DayClose(date=day.date, close=day.close) for day in days]
        return HistoricalPrices(symbol=company.ticker, prices=prices)


def _change(company: Company) -> ChangePercent:
    return ChangePercent(symbol=company.ticker, change_percent=company.change_percent)


def _movers(ranked: Sequence[Company], *, limit: int) -> Movers:
    return Movers(tickers=[_change(company) for company in first(ranked, limit)])


def _matches(companies: Sequence[Company], *, limit: int) -> SymbolMatches:
    return SymbolMatches(results=[SymbolMatch(symbol=c.ticker, name=c.name) for c in first(companies, limit)])


def _annual(year: FiledStatement) -> Statement:
    return Statement(fiscal_year=str(year.fiscal_year), revenue=year.revenue, net_income=year.net_income)


def _quarters(year: FiledStatement) -> list[Statement]:
    """The year's four equal quarters, newest first; amounts are whole millions, so a quarter is exact."""
    return [
        Statement(
            fiscal_year=f"{year.fiscal_year}-Q{number}",
            revenue=year.revenue // 4,
            net_income=year.net_income // 4,
        )
        for number in (4, 3, 2, 1)
    ]


FMP = ServerDefinition(
    name="fmp",
    instructions="Quotes, company profiles, income statements and market movers.",
    embedded=EmbeddedFmp,
    tools=(
        BuiltinTool(EmbeddedFmp.fmp_get_quote),
        BuiltinTool(EmbeddedFmp.fmp_get_company_profile),
        BuiltinTool(EmbeddedFmp.fmp_get_income_statement),
        BuiltinTool(EmbeddedFmp.fmp_get_market_gainers),
        BuiltinTool(EmbeddedFmp.fmp_get_market_losers),
        BuiltinTool(EmbeddedFmp.fmp_search_ticker),
        BuiltinTool(EmbeddedFmp.fmp_get_stock_news),
        BuiltinTool(EmbeddedFmp.fmp_get_change_percent),
        BuiltinTool(EmbeddedFmp.fmp_get_previous_close),
        BuiltinTool(EmbeddedFmp.fmp_get_historical_prices, in_limited_set=False),
        BuiltinTool(EmbeddedFmp.fmp_search_name, in_limited_set=False),
    ),
)
