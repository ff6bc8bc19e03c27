"""fmp: quotes, company profiles, statements and market movers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from mcp.server.mcpserver import Context
from pydantic import Field

from mcpagent.servers import embedded as lookup
from mcpagent.servers.builtin import Answer, Articles, BuiltinTool, ServerDefinition, first
from mcpagent.servers.embedded import Company, build
from mcpagent.servers.embedded import FiledStatement as YearStatement

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


class FmpUpstream(Protocol):
    """Where the answers come from. Every method raises `ToolError` with a sentence for the model."""

    async def quote(self, symbol: str) -> Quote:
        """Return the last price, and the change of the day in percent."""
        ...

    async def company_profile(self, symbol: str) -> CompanyProfile:
        """Return name and sector of a company."""
        ...

    async def income_statement(self, symbol: str, *, period: Period, limit: int) -> IncomeStatement:
        """Return revenue and net income, the newest statement first."""
        ...

    async def gainers(self, *, limit: int) -> Movers:
        """Return the stocks that rose most today, in that order."""
        ...

    async def losers(self, *, limit: int) -> Movers:
        """Return the stocks that fell most today, in that order."""
        ...

    async def search_ticker(self, query: str, *, limit: int) -> SymbolMatches:
        """Return companies whose symbol or name matches."""
        ...

    async def search_name(self, query: str, *, limit: int) -> SymbolMatches:
        """Return companies whose name matches."""
        ...

    async def stock_news(self, symbol: str, *, limit: int) -> Articles:
        """Return articles about a company, the newest first."""
        ...

    async def change_percent(self, symbol: str) -> ChangePercent:
        """Return the change of the day in percent."""
        ...

    async def previous_close(self, symbol: str) -> PreviousClose:
        """Return the closing price of the last trading day."""
        ...

    async def historical_prices(self, symbol: str, *, start: str, end: str) -> HistoricalPrices:
        """Return closing prices from `start` to `end`, the oldest first."""
        ...


def _upstream(ctx: Context[Any, Any]) -> FmpUpstream:
    return ctx.request_context.lifespan_context


async def fmp_get_quote(symbol: SymbolArg, ctx: Context) -> Quote:
    """Current price of a stock and its change."""
    return await _upstream(ctx).quote(symbol)


async def fmp_get_company_profile(symbol: SymbolArg, ctx: Context) -> CompanyProfile:
    """Name and sector of a company."""
    return await _upstream(ctx).company_profile(symbol)


async def fmp_get_income_statement(
    symbol: SymbolArg, ctx: Context, period: Period = "annual", limit: int = 1
) -> IncomeStatement:
    """Revenue and net income of a company, newest first."""
    return await _upstream(ctx).income_statement(symbol, period=period, limit=limit)


async def fmp_get_market_gainers(ctx: Context, limit: int = 5) -> Movers:
    """Stocks that rose most today."""
    return await _upstream(ctx).gainers(limit=limit)


async def fmp_get_market_losers(ctx: Context, limit: int = 5) -> Movers:
    """Stocks that fell most today."""
    return await _upstream(ctx).losers(limit=limit)


async def fmp_search_ticker(
    query: Annotated[str, Field(description="Part of a symbol or name.")], ctx: Context, limit: int = 5
) -> SymbolMatches:
    """Find companies by symbol or name."""
    return await _upstream(ctx).search_ticker(query, limit=limit)


async def fmp_search_name(
    query: Annotated[str, Field(description="Part of a name.")], ctx: Context, limit: int = 5
) -> SymbolMatches:
    """Find companies by name."""
    return await _upstream(ctx).search_name(query, limit=limit)


async def fmp_get_stock_news(symbol: SymbolArg, ctx: Context, limit: int = 5) -> Articles:
    """Latest news about a company."""
    return await _upstream(ctx).stock_news(symbol, limit=limit)


async def fmp_get_change_percent(symbol: SymbolArg, ctx: Context) -> ChangePercent:
    """Today's change of a stock in percent."""
    return await _upstream(ctx).change_percent(symbol)


async def fmp_get_previous_close(symbol: SymbolArg, ctx: Context) -> PreviousClose:
    """Previous close of a stock."""
    return await _upstream(ctx).previous_close(symbol)


async def fmp_get_historical_prices(
    symbol: SymbolArg, start_date: StartArg, end_date: EndArg, ctx: Context
) -> HistoricalPrices:
    """Daily closes of a stock between two dates."""
    return await _upstream(ctx).historical_prices(symbol, start=start_date, end=end_date)


FMP = ServerDefinition(
    name="fmp",
    instructions="Quotes, company profiles, income statements and market movers.",
    tools=(
        BuiltinTool(run=fmp_get_quote),
        BuiltinTool(run=fmp_get_company_profile),
        BuiltinTool(run=fmp_get_income_statement),
        BuiltinTool(run=fmp_get_market_gainers),
        BuiltinTool(run=fmp_get_market_losers),
        BuiltinTool(run=fmp_search_ticker),
        BuiltinTool(run=fmp_get_stock_news),
        BuiltinTool(run=fmp_get_change_percent),
        BuiltinTool(run=fmp_get_previous_close),
        BuiltinTool(run=fmp_get_historical_prices, in_limited_set=False),
        BuiltinTool(run=fmp_search_name, in_limited_set=False),
    ),
)


class EmbeddedFmp:
    """An `FmpUpstream` without state."""

    def __init__(self) -> None:
        self._data = build()

    async def quote(self, symbol: str) -> Quote:
        """Return the last price, and the change of the day in percent."""
        company = lookup.company(self._data, symbol)
        return Quote(symbol=company.ticker, price=company.price, change_percent=company.change_percent)

    async def company_profile(self, symbol: str) -> CompanyProfile:
        """Return name and sector of a company."""
        company = lookup.company(self._data, symbol)
        return CompanyProfile(symbol=company.ticker, name=company.name, sector=company.sector)

    async def income_statement(self, symbol: str, *, period: Period, limit: int) -> IncomeStatement:
        """Return revenue and net income, the newest statement first."""
        company = lookup.company(self._data, symbol)
        if period == "annual":
            statements = [_annual(year) for year in company.statements]
        else:
            statements = [quarter for year in company.statements for quarter in _quarters(year)]
        return IncomeStatement(symbol=company.ticker, statements=list(first(statements, limit)))

    async def gainers(self, *, limit: int) -> Movers:
        """Return the stocks that rose most today, in that order."""
        return _movers(sorted(self._data.companies, key=lambda c: -c.change_percent), limit=limit)

    async def losers(self, *, limit: int) -> Movers:
        """Return the stocks that fell most today, in that order."""
        return _movers(sorted(self._data.companies, key=lambda c: c.change_percent), limit=limit)

    async def search_ticker(self, query: str, *, limit: int) -> SymbolMatches:
        """Return companies whose symbol or name matches."""
        return _matches(lookup.matching(self._data, query), limit=limit)

    async def search_name(self, query: str, *, limit: int) -> SymbolMatches:
        """Return companies whose name matches."""
        return _matches(lookup.matching(self._data, query, tickers=False), limit=limit)

    async def stock_news(self, symbol: str, *, limit: int) -> Articles:
        """Return articles about a company, the newest first."""
        return lookup.articles(lookup.company(self._data, symbol), limit=limit)

    async def change_percent(self, symbol: str) -> ChangePercent:
        """Return the change of the day in percent."""
        return _change(lookup.company(self._data, symbol))

    async def previous_close(self, symbol: str) -> PreviousClose:
        """Return the closing price of the last trading day."""
        company = lookup.company(self._data, symbol)
        return PreviousClose(symbol=company.ticker, previous_close=company.previous_close)

    async def historical_prices(self, symbol: str, *, start: str, end: str) -> HistoricalPrices:
        """Return closing prices from `start` to `end`, the oldest first."""
        company = lookup.company(self._data, symbol)
        days = lookup.bars_between(company, start=start, end=end)
        prices = [DayClose(date=day.date, close=day.close) for day in days]
        return HistoricalPrices(symbol=company.ticker, prices=prices)


def _change(company: Company) -> ChangePercent:
    return ChangePercent(symbol=company.ticker, change_percent=company.change_percent)


def _movers(ranked: Sequence[Company], *, limit: int) -> Movers:
    return Movers(tickers=[_change(company) for company in first(ranked, limit)])


def _matches(companies: Sequence[Company], *, limit: int) -> SymbolMatches:
    return SymbolMatches(results=[SymbolMatch(symbol=c.ticker, name=c.name) for c in first(companies, limit)])


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
