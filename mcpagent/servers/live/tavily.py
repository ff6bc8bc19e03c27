"""tavily's answers from the Tavily API."""

from __future__ import annotations

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from mcpagent.servers.builtin import at_least_one, echo
from mcpagent.servers.live.client import ApiClient, LiveService, Rate
from mcpagent.servers.tavily import PageText, SearchResult, SearchResults, ShortAnswer

_MAX_RESULTS = 20  # the documented maximum
_NO_ANSWER = "No page answers this query."


class _SearchAnswer(BaseModel):
    answer: str | None = None
    results: list[SearchResult]


class _PageText(PageText):
    text: str = Field(validation_alias="raw_content")


class _Pages(BaseModel):
    results: list[_PageText]


class LiveTavily:
    """The tools of tavily."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def tavily_search(self, query: str, max_results: int) -> SearchResults:
        """Pages that match, each with a passage of its text."""
        count = at_least_one("max_results", max_results)
        if not query.strip():  # the service refuses it; the embedded one finds nothing
            return SearchResults(results=[])
        answer = await self._api.post(
            "/search", _SearchAnswer, query=query, max_results=min(count, _MAX_RESULTS)
        )
        return SearchResults(results=answer.results[:count])

    async def tavily_extract(self, url: str) -> PageText:
        """Return the text of a page."""
        address = url.strip()
        if not address:
            raise ToolError("url is empty.")
        answer = await self._api.post("/extract", _Pages, urls=[address], format="text")
        if not answer.results:
            raise ToolError(f"No page at {echo(url)}.")
        return answer.results[0]

    async def tavily_qna_search(self, query: str) -> ShortAnswer:
        """Return one short answer to a question."""
        if not query.strip():
            raise ToolError(_NO_ANSWER)
        answer = await self._api.post("/search", _SearchAnswer, query=query, include_answer=True)
        if not answer.answer:
            raise ToolError(_NO_ANSWER)
        return ShortAnswer(answer=answer.answer)


SERVICE = LiveService(
    base_url="https://api.tavily.com",
    rates={"": Rate(100, 60)},  # of development keys
    tools=LiveTavily,
)
