"""The data set behind the embedded upstreams: 400 invented companies, their pages, a chat workspace."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import TypeVar

from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.core.seeds import derive_seed
from mcpagent.servers.builtin import (
    Answer,
    Article,
    Articles,
    at_least_one,
    days,
    echo,
    first,
    unknown_symbol,
)

DATASET_VERSION = 1  # raise it when any answer changes: datasets made from other answers are stale
DATASET_DATE = date(2025, 11, 18)
SERVER_TIME = "2025-11-18T15:30:00-05:00"
SERVER_EPOCH_S = 1763497800  # SERVER_TIME, Unix
N_COMPANIES = 400
N_BARS = 60

_CONSONANTS = "BCDFGHJKLMNPQRSTVWXZ"
_SECTORS = (
    "Technology",
    "Healthcare",
    "Energy",
    "Utilities",
    "Industrials",
    "Materials",
    "Financials",
    "Real Estate",
    "Consumer Goods",
    "Communications",
)
_ONSETS = ("V", "Z", "K", "T", "M", "N", "L", "D", "P", "S", "G", "R", "B", "Tr", "Br", "Dr", "Kr", "Pl")
_MIDDLES = ("el", "an", "or", "ix", "um", "ar", "en", "ol", "iv", "ad", "os", "un")
_ENDINGS = ("kor", "dara", "via", "nex", "tis", "lon", "mar", "rix", "dine", "vo", "phos", "gen")
_FORMS = ("Dynamics", "Labs", "Systems", "Holdings", "Works", "Group", "Industries", "Partners")
_PRODUCTS = ("batteries", "sensors", "pumps", "vaccines", "cables", "turbines", "lenses", "coatings")
_BUYERS = ("hospitals", "farms", "harbours", "schools", "airlines", "builders", "railways", "shops")
_CITIES = ("Doria", "Melun", "Castra", "Opal Bay", "Norwick", "Tessen", "Larkhill", "Port Evan")
_MONTHS = ("January", "February", "March", "April", "May", "June")
_HEADLINES = (
    "{name} opens a plant in {city}",
    "{name} names a new finance chief",
    "{name} moves its head office to {city}",
    "{name} buys a supplier in {city}",
)
_USERS = ("ada", "boris", "chen", "dara", "emil", "farah")


class Bar(Answer):
    """`date` is the first trading day of the bar."""

    date: str
    open: float
    close: float


@dataclass(frozen=True, slots=True)
class FiledStatement:
    """One fiscal year, in dollars."""

    fiscal_year: int
    revenue: int
    net_income: int


@dataclass(frozen=True, slots=True)
class Page:
    """A web page; `published` is a date."""

    title: str
    url: str
    text: str
    published: str


@dataclass(frozen=True, slots=True)
class Company:
    """`change_percent` is of `price` against `previous_close`, unique and never zero. `pages` are newest
    first; the first is the outlook, which names the analysts' `target`."""

    ticker: str
    name: str
    sector: str
    price: float
    previous_close: float
    change_percent: float
    market_cap: int
    volume: int
    last_size: int
    target: int
    statements: tuple[FiledStatement, ...]  # newest first
    pages: tuple[Page, ...]


class User(Answer):
    id: str
    name: str


class Message(Answer):
    """`user` is a user id."""

    user: str
    text: str
    ts: str


@dataclass(frozen=True, slots=True)
class WorkspaceChannel:
    """`watches` is the ticker that its one message names; every company is watched by one channel."""

    id: str
    name: str
    watches: str
    message: Message
    replies: tuple[Message, ...]


@dataclass(frozen=True)
class Dataset:
    """Everything that the embedded servers know."""

    companies: tuple[Company, ...]
    channels: tuple[WorkspaceChannel, ...]
    users: tuple[User, ...]  # the first one is the user of the server's own token

    @functools.cached_property
    def by_ticker(self) -> dict[str, Company]:
        """Return companies by ticker."""
        return {c.ticker: c for c in self.companies}

    @functools.cached_property
    def channel_by_key(self) -> dict[str, WorkspaceChannel]:
        """Return channels by id and by name, in lower case; no id equals a name."""
        return {key: c for c in self.channels for key in (c.id.casefold(), c.name)}

    @functools.cached_property
    def pages(self) -> tuple[Page, ...]:
        """Return the web pages of all companies."""
        return tuple(page for company in self.companies for page in company.pages)


@functools.cache
def build() -> Dataset:
    """Return the data set, which is the same everywhere."""
    tickers = _tickers(_rng("tickers"))
    return Dataset(
        companies=_companies(tickers),
        channels=_channels(tickers, rng=_rng("channels")),
        users=tuple(User(id=f"U{100 + i}", name=name) for i, name in enumerate(_USERS)),
    )


@functools.lru_cache(maxsize=N_COMPANIES)
def daily_bars(company: Company) -> tuple[Bar, ...]:
    """60 trading days, oldest first, the last one closing at the company's previous close."""
    rng = _rng("bars", company.ticker)
    day, close = DATASET_DATE, company.previous_close
    bars: list[Bar] = []
    while len(bars) < N_BARS:
        day -= timedelta(days=1)
        if day.weekday() >= 5:
            continue
        opened = round(close * (1 + rng.uniform(-0.02, 0.02)), 2)
        bars.append(Bar(date=day.isoformat(), open=opened, close=close))
        close = round(opened * (1 + rng.uniform(-0.01, 0.01)), 2)
    return tuple(reversed(bars))


def _rng(*parts: str) -> Random:
    return Random(derive_seed("mcpagent.embedded", DATASET_VERSION, 0, *parts))


def _tickers(rng: Random) -> list[str]:
    tickers: dict[str, None] = {}
    while len(tickers) < N_COMPANIES:
        tickers[rng.choice("QXZ") + "".join(rng.choice(_CONSONANTS) for _ in range(3))] = None
    return list(tickers)


def _names(rng: Random) -> list[str]:
    words = [onset + middle + ending for onset in _ONSETS for middle in _MIDDLES for ending in _ENDINGS]
    return [f"{word} {rng.choice(_FORMS)}" for word in rng.sample(words, N_COMPANIES)]


def _companies(tickers: list[str]) -> tuple[Company, ...]:
    rng = _rng("companies")
    names = _names(rng)
    targets = rng.sample(range(50, 2000), N_COMPANIES)
    outlook_numbers = rng.sample(range(100, 1000), N_COMPANIES)
    news_numbers = iter(rng.sample(range(1000, 10000), 2 * N_COMPANIES))
    taken: set[float] = set()
    companies: list[Company] = []
    for ticker, name, target, outlook in zip(tickers, names, targets, outlook_numbers, strict=True):
        previous, price, change = _prices(rng, taken)
        taken.add(change)
        pages = [_outlook(rng, ticker=ticker, name=name, target=target, number=outlook)]
        for weeks in range(1, rng.randint(1, 3)):
            pages.append(_news(rng, name=name, number=next(news_numbers), weeks=weeks))
        companies.append(
            Company(
                ticker=ticker,
                name=name,
                sector=rng.choice(_SECTORS),
                price=price,
                previous_close=previous,
                change_percent=change,
                market_cap=rng.randint(100, 99_999) * 1_000_000,
                volume=rng.randint(10_000, 999_999),
                last_size=rng.randint(1, 900),
                target=target,
                statements=_statements(rng),
                pages=tuple(pages),
            )
        )
    return tuple(companies)


def _prices(rng: Random, taken: set[float]) -> tuple[float, float, float]:
    """Previous close, price and their change, drawn until the change is new: rankings have no ties."""
    while True:
        previous = rng.randint(1_100, 90_000) / 100
        price = round(previous * (1 + rng.uniform(-0.0999, 0.0999)), 2)
        change = round((price / previous - 1) * 100, 2)
        if change not in taken and change != 0 and 10 <= price < 1000:
            return previous, price, change


def _statements(rng: Random) -> tuple[FiledStatement, ...]:
    revenue = rng.randint(100, 9_999)
    statements: list[FiledStatement] = []
    for year in range(DATASET_DATE.year - 1, DATASET_DATE.year - 4, -1):
        income = round(revenue * rng.uniform(-0.05, 0.3))
        statements.append(FiledStatement(year, revenue * 1_000_000, income * 1_000_000))
        revenue = round(revenue * rng.uniform(0.8, 1.1))
    return tuple(statements)


def _outlook(rng: Random, *, ticker: str, name: str, target: int, number: int) -> Page:
    sentences = [
        f"{name} sells {rng.choice(_PRODUCTS)} to {rng.choice(_BUYERS)}.",
        f"Analysts set a target of {target} for {ticker}.",
    ]
    if rng.random() < 0.5:
        sentences.append(f"Its next report is due in {rng.choice(_MONTHS)}.")
    published = DATASET_DATE - timedelta(days=rng.randint(1, 6))
    return Page(
        f"{ticker} outlook", f"https://pages.example/{number}", " ".join(sentences), published.isoformat()
    )


def _news(rng: Random, *, name: str, number: int, weeks: int) -> Page:
    headline = rng.choice(_HEADLINES).format(name=name, city=rng.choice(_CITIES))
    published = DATASET_DATE - timedelta(days=7 * weeks + rng.randint(0, 6))
    text = f"{headline}. The company announced it on {published.isoformat()}."
    return Page(headline, f"https://pages.example/{number}", text, published.isoformat())


def _channels(tickers: list[str], *, rng: Random) -> tuple[WorkspaceChannel, ...]:
    """Ids, names and watched tickers are drawn independently: none can be guessed from another."""
    count = len(tickers)
    ids = sorted(rng.sample(range(100, 1000), count))
    names = rng.sample(range(100, 1000), count)
    watched = rng.sample(tickers, count)
    channels: list[WorkspaceChannel] = []
    for index, (number, name, ticker) in enumerate(zip(ids, names, watched, strict=True)):
        posted_s = SERVER_EPOCH_S - 86_400 + rng.randint(0, 43_200)
        message = Message(user=f"U{rng.randint(101, 105)}", text=f"watch {ticker}", ts=f"{posted_s}.000100")
        reply = Message(user=f"U{rng.randint(101, 105)}", text="noted", ts=f"{posted_s + 600}.000100")
        channels.append(
            WorkspaceChannel(
                id=f"C{number}",
                name=f"desk-{name}",
                watches=ticker,
                message=message,
                replies=(reply,) if index % 8 == 0 else (),
            )
        )
    return tuple(channels)


T = TypeVar("T")


def company(symbol: str) -> Company:
    """Symbols match whatever their case and surrounding space. Raises `ToolError` if there is no such one."""
    listed = build().by_ticker.get(symbol.strip().upper())
    if listed is None:
        raise unknown_symbol(symbol)
    return listed


def page(items: Sequence[T], *, limit: int, cursor: str) -> tuple[Sequence[T], str]:
    """Return the items after `cursor`, and the next cursor: a position, empty at the end."""
    if cursor and not re.fullmatch(r"[0-9]{1,9}", cursor):
        raise ToolError(f"Unknown cursor {echo(cursor)}.")
    start = int(cursor or 0)
    end = start + at_least_one("limit", limit)
    return items[start:end], str(end) if end < len(items) else ""


def bars_between(company: Company, *, start: str, end: str) -> list[Bar]:
    """Return daily bars from one day to the other, both included. Raises `ToolError` for bad dates."""
    first_day, last_day = days(start, end)
    return [bar for bar in daily_bars(company) if first_day <= bar.date <= last_day]


def articles(symbol: str, *, limit: int) -> Articles:
    """Return the newest `limit` news pages of a company."""
    return Articles(
        articles=[
            Article(title=page.title, url=page.url, published=page.published)
            for page in first(company(symbol).pages, limit)
        ]
    )


def matching(query: str, *, tickers: bool = True) -> list[Company]:
    """Return companies whose name (or ticker) contains the query, the exact ticker first, else by ticker."""
    text = query.strip().casefold()
    matches = [
        c for c in build().companies if text in c.name.casefold() or (tickers and text in c.ticker.casefold())
    ]
    return sorted(matches, key=lambda c: (c.ticker.casefold() != text, c.ticker))
