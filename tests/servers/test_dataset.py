"""The embedded data set: the same everywhere, consistent across servers, unambiguous."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import asdict
from typing import Any

import pytest

from mcpagent.servers.embedded import Dataset, build, daily_bars
from mcpagent.servers.fmp import EmbeddedFmp
from mcpagent.servers.polygon import EmbeddedPolygon
from mcpagent.servers.tavily import EmbeddedTavily
from tests.servers.calls import call

# Datasets and checkpoints were made from these answers. If one must change, raise DATASET_VERSION.
FINGERPRINT = "da73e815a2a6cd49f9feb24ebfc16a6943a65c18208b3caf02ac8b2885324467"


def fingerprint(dataset: Dataset) -> str:
    everything = {**asdict(dataset), "bars": [daily_bars(c) for c in dataset.companies]}
    return hashlib.sha256(json.dumps(everything, sort_keys=True, default=vars).encode()).hexdigest()


def test_the_data_set_is_the_pinned_one() -> None:
    assert fingerprint(build()) == FINGERPRINT


def test_companies_are_unambiguous() -> None:
    companies = build().companies
    assert len(companies) == 400
    for field in ("ticker", "name", "change_percent", "target"):
        assert len({getattr(c, field) for c in companies}) == 400, field
    assert len({page.url for page in build().pages}) == len(build().pages)
    for company in companies:
        assert re.fullmatch(r"[QXZ][BCDFGHJKLMNPQRSTVWXZ]{3}", company.ticker)
        assert 10 <= company.price < 1000
        assert 50 <= company.target < 2000
        # Hand formula: (price / previous - 1) * 100, to two decimals.
        expected = (company.price - company.previous_close) / company.previous_close * 100
        assert company.change_percent == pytest.approx(expected, abs=0.00501)
        assert 1 <= len(company.pages) <= 3
        assert f"Analysts set a target of {company.target} for {company.ticker}." in company.pages[0].text


def test_every_company_is_watched_by_exactly_one_channel() -> None:
    dataset = build()
    assert len(dataset.channels) == 400
    assert {c.watches for c in dataset.channels} == {c.ticker for c in dataset.companies}
    assert all(c.message.text == f"watch {c.watches}" for c in dataset.channels)
    assert all(re.fullmatch(r"C[1-9]\d\d", c.id) for c in dataset.channels)
    assert len({c.name for c in dataset.channels}) == 400


UPSTREAMS = {"polygon": EmbeddedPolygon(), "fmp": EmbeddedFmp(), "tavily": EmbeddedTavily()}


def gather(server: str, calls: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Results of many calls, without the protocol: other tests show that it changes nothing."""

    async def main() -> dict[str, Any]:
        return {
            key: (await getattr(UPSTREAMS[server], tool)(**arguments)).model_dump()
            for key, (tool, arguments) in calls.items()
        }

    return asyncio.run(main())


def test_the_servers_agree_about_every_company() -> None:
    tickers = [c.ticker for c in build().companies]
    days = {"start_date": "2025-01-01", "end_date": "2025-12-31"}

    def by_ticker(server: str, tool: str, key: str, **more: Any) -> dict[str, Any]:
        return gather(server, {t: (tool, {key: t, **more}) for t in tickers})

    aggs = by_ticker("polygon", "polygon_get_aggs", "ticker", **days)
    previous = by_ticker("polygon", "polygon_get_previous_close", "ticker")
    details = by_ticker("polygon", "polygon_get_ticker_details", "ticker")
    trades = by_ticker("polygon", "polygon_get_last_trade", "ticker")
    news = by_ticker("polygon", "polygon_get_news", "ticker")
    quotes = by_ticker("fmp", "fmp_get_quote", "symbol")
    changes = by_ticker("fmp", "fmp_get_change_percent", "symbol")
    closes = by_ticker("fmp", "fmp_get_previous_close", "symbol")
    history = by_ticker("fmp", "fmp_get_historical_prices", "symbol", **days)
    profiles = by_ticker("fmp", "fmp_get_company_profile", "symbol")
    stock_news = by_ticker("fmp", "fmp_get_stock_news", "symbol")
    pages = gather("tavily", {t: ("tavily_extract", {"url": news[t]["articles"][0]["url"]}) for t in tickers})
    for ticker in tickers:
        bars = aggs[ticker]["bars"]
        assert len(bars) == 60 and bars[-1]["date"] == "2025-11-17"
        assert bars[-1]["close"] == previous[ticker]["close"] == closes[ticker]["previous_close"]
        assert [(b["date"], b["close"]) for b in bars] == [
            (p["date"], p["close"]) for p in history[ticker]["prices"]
        ]
        assert quotes[ticker]["price"] == trades[ticker]["price"]
        assert quotes[ticker]["change_percent"] == changes[ticker]["change_percent"]
        assert details[ticker]["name"] == profiles[ticker]["name"]
        assert news[ticker] == stock_news[ticker]
        assert details[ticker]["name"] in pages[ticker]["text"]


def test_every_figure_on_a_page_is_what_the_other_tools_say() -> None:
    companies = {c.ticker: c for c in build().companies}
    news = gather("polygon", {t: ("polygon_get_news", {"ticker": t, "limit": 10}) for t in companies})
    profiles = gather("fmp", {t: ("fmp_get_company_profile", {"symbol": t}) for t in companies})
    articles = {a["url"]: (t, a) for t in companies for a in news[t]["articles"]}
    assert len(articles) == len(build().pages)
    pages = gather("tavily", {url: ("tavily_extract", {"url": url}) for url in articles})
    for url, (ticker, article) in articles.items():
        text = pages[url]["text"]
        assert profiles[ticker]["name"] in text
        figures = re.findall(r"\d[\d.,-]*\d", text)
        is_outlook = article["title"] == f"{ticker} outlook"
        # The outlook names the target and nothing else; a piece of news, the day on which it was published.
        assert figures == [str(companies[ticker].target) if is_outlook else article["published"]]
        if not is_outlook:
            assert text.startswith(f"{article['title']}.")


def test_the_quarters_of_every_company_add_up_to_its_years() -> None:
    tickers = [c.ticker for c in build().companies]
    asked = {"limit": 12}
    years = gather("fmp", {t: ("fmp_get_income_statement", {"symbol": t, **asked}) for t in tickers})
    quarters = gather(
        "fmp", {t: ("fmp_get_income_statement", {"symbol": t, "period": "quarter", **asked}) for t in tickers}
    )
    for ticker in tickers:
        for year in years[ticker]["statements"]:
            name = year["fiscal_year"]
            parts = [q for q in quarters[ticker]["statements"] if q["fiscal_year"].startswith(f"{name}-Q")]
            assert len(parts) == 4
            for field in ("revenue", "net_income"):
                assert sum(part[field] for part in parts) == year[field]


def test_searching_for_a_target_finds_that_company_alone_and_qna_says_it() -> None:
    companies = build().companies
    found = gather(
        "tavily", {c.ticker: ("tavily_search", {"query": f"target {c.ticker}"}) for c in companies}
    )
    answers = gather(
        "tavily", {c.ticker: ("tavily_qna_search", {"query": f"target {c.ticker}"}) for c in companies}
    )
    for company in companies:
        sentence = f"Analysts set a target of {company.target} for {company.ticker}."
        assert found[company.ticker]["results"] == [
            {"title": f"{company.ticker} outlook", "url": company.pages[0].url, "content": sentence}
        ]
        assert answers[company.ticker] == {"answer": sentence}


def test_gainers_and_losers_are_the_extremes_of_all_quotes() -> None:
    ranked = sorted(build().companies, key=lambda c: c.change_percent)
    gainers = call("fmp", "fmp_get_market_gainers", limit=400).structured_content["tickers"]
    losers = call("fmp", "fmp_get_market_losers", limit=3).structured_content["tickers"]
    assert [g["symbol"] for g in gainers] == [c.ticker for c in reversed(ranked)]
    assert [g["symbol"] for g in losers] == [c.ticker for c in ranked[:3]]
