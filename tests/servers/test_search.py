"""tavily's full-text search over pages made for it: what ranks before what, and why."""

from __future__ import annotations

import math
import re

from mcpagent.servers.embedded import Page, build
from mcpagent.servers.tavily import PageIndex


def index(**texts: str) -> PageIndex:
    """Pages by name; the name is the address."""
    pages = tuple(
        Page(title=f"Page {i}", url=url, text=text, published="2025-11-18")
        for i, (url, text) in enumerate(texts.items())
    )
    return PageIndex(pages)


def found(pages: PageIndex, query: str, *, limit: int = 10) -> list[str]:
    return [page.url for page, _ in pages.search(query, limit=limit)]


def test_a_page_with_every_word_hides_those_with_some() -> None:
    pages = index(
        pump="A pump hums.", both="A pump and a valve hum in a hall of many quiet things.", valve="A valve."
    )
    assert found(pages, "pump valve") == ["both"]
    assert set(found(pages, "pump submarine")) == {"pump", "both"}


def test_words_match_by_their_stem_in_any_case() -> None:
    pages = index(a="It sells PUMPS.", b="It sells valves.")
    assert found(pages, "pumping") == ["a"]


def test_the_passage_is_the_sentence_that_matches_best() -> None:
    pages = index(a="It sells pumps. Its head office is in Doria. Pumps are reported in May.")
    ((_, passage),) = pages.search("Where is the head office?", limit=1)
    assert passage == "Its head office is in Doria."


def test_the_ranking_is_bm25_over_title_and_text() -> None:
    """An independent BM25 (k1 1.2, b 0.75, Robertson's idf) over the real pages puts the same page first."""
    pages = build().pages
    bags = [re.findall(r"\w+", f"{p.title} {p.text}".casefold()) for p in pages]
    mean_length = sum(map(len, bags)) / len(bags)

    def score(bag: list[str], word: str, idf: float) -> float:
        n = bag.count(word)
        return idf * n * 2.2 / (n + 1.2 * (0.25 + 0.75 * len(bag) / mean_length))

    search = PageIndex(pages)
    for company in build().companies[::40]:
        # A word of the name, which is in its own pages alone: stems do not matter to it.
        word = company.name.split()[0].casefold()
        holders = sum(word in bag for bag in bags)
        idf = math.log((len(bags) - holders + 0.5) / (holders + 0.5))
        best = max(score(bag, word, idf) for bag in bags)
        first = search.search(word, limit=1)[0][0]
        assert math.isclose(score(bags[pages.index(first)], word, idf), best)
