"""tavily: web search, page text and short answers."""

from __future__ import annotations

import functools
import re
import sqlite3
import threading
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcpagent.servers.builtin import Answer, BuiltinTool, ServerDefinition, at_least_one, echo
from mcpagent.servers.embedded import Page, build

QueryArg = Annotated[str, Field(description="What to look for.")]


class SearchResult(Answer):
    """`content` is the part of the page that matches the query best."""

    title: str
    url: str
    content: str


class SearchResults(Answer):
    """Best match first."""

    results: list[SearchResult]


class PageText(Answer):
    url: str
    text: str


class ShortAnswer(Answer):
    answer: str


_MAX_QUERY_WORDS = 32


class PageIndex:
    """Pages and their sentences, ranked by bm25. One index serves all threads of the process."""

    def __init__(self, pages: tuple[Page, ...]) -> None:
        self._pages = pages
        self._by_url = {page.url: page for page in pages}
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.execute("CREATE VIRTUAL TABLE pages USING fts5(title, text, tokenize='porter unicode61')")
        self._db.execute(
            "CREATE VIRTUAL TABLE sentences USING fts5(page UNINDEXED, text, tokenize='porter unicode61')"
        )
        rows = list(enumerate(pages))
        self._db.executemany(
            "INSERT INTO pages(rowid, title, text) VALUES (?, ?, ?)", [(i, p.title, p.text) for i, p in rows]
        )
        self._db.executemany(
            "INSERT INTO sentences(page, text) VALUES (?, ?)",
            [(i, sentence) for i, p in rows for sentence in re.split(r"(?<=\.) ", p.text)],
        )

    def page(self, url: str) -> Page | None:
        """Return the page at `url`; None if there is none."""
        return self._by_url.get(url)

    def search(self, query: str, *, limit: int) -> list[tuple[Page, str]]:
        """Best pages first, each with its best sentence. A page with every word of the query counts alone;
        only if there is none do pages with some of the words."""
        words = list(dict.fromkeys(re.findall(r"\w+", query)))[:_MAX_QUERY_WORDS]
        if not words:
            return []
        quoted = [f'"{word}"' for word in words]
        with self._lock:
            matches = self._ranked(" AND ".join(quoted), limit) or self._ranked(" OR ".join(quoted), limit)
            return [(self._pages[i], self._best_sentence(i, " OR ".join(quoted))) for i in matches]

    def _ranked(self, match: str, limit: int) -> list[int]:
        rows = self._db.execute(
            "SELECT rowid FROM pages WHERE pages MATCH ? ORDER BY rank, rowid LIMIT ?",
            (match, min(limit, len(self._pages))),  # SQLite takes 64-bit integers only
        )
        return [row[0] for row in rows]

    def _best_sentence(self, page: int, match: str) -> str:
        row = self._db.execute(
            "SELECT text FROM sentences WHERE sentences MATCH ? AND page = ? ORDER BY rank, rowid LIMIT 1",
            (match, page),
        ).fetchone()
        # Only the title matched: the page's first sentence stands for it.
        return row[0] if row else self._pages[page].text.split(". ")[0].rstrip(".") + "."


@functools.cache
def _index() -> PageIndex:
    return PageIndex(build().pages)


class EmbeddedTavily:
    """The tools of tavily, answered from the data set; the index is built at the process's first call."""

    async def tavily_search(self, query: QueryArg, max_results: int = 3) -> SearchResults:
        """Search the web."""
        matches = _index().search(query, limit=at_least_one("max_results", max_results))
        return SearchResults(
            results=[SearchResult(title=p.title, url=p.url, content=sentence) for p, sentence in matches]
        )

    async def tavily_extract(self, url: Annotated[str, Field(description="Page address.")]) -> PageText:
        """Text of a web page."""
        page = _index().page(url.strip().rstrip("/"))
        if page is None:
            raise ToolError(f"No page at {echo(url)}.")
        return PageText(url=page.url, text=page.text)

    async def tavily_qna_search(self, query: QueryArg) -> ShortAnswer:
        """Short answer to a question, from the web."""
        matches = _index().search(query, limit=1)
        if not matches:
            raise ToolError("No page answers this query.")
        return ShortAnswer(answer=matches[0][1])


TAVILY = ServerDefinition(
    name="tavily",
    instructions="Web search, page text and short answers.",
    embedded=EmbeddedTavily,
    tools=(
        BuiltinTool(EmbeddedTavily.tavily_search),
        BuiltinTool(EmbeddedTavily.tavily_extract),
        BuiltinTool(EmbeddedTavily.tavily_qna_search),
    ),
)
