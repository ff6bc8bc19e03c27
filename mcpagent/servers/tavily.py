"""tavily: web search, page text and short answers."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from mcp.server.mcpserver import Context
from pydantic import Field

from mcpagent.servers.builtin import Answer, BuiltinTool, ServerDefinition

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


class TavilyUpstream(Protocol):
    """Where the answers come from. Every method raises `ToolError` with a sentence for the model."""

    async def search(self, query: str, *, max_results: int) -> SearchResults: ...
    async def extract(self, url: str) -> PageText: ...
    async def qna(self, query: str) -> ShortAnswer: ...


def _upstream(ctx: Context[Any, Any]) -> TavilyUpstream:
    return ctx.request_context.lifespan_context


async def tavily_search(query: QueryArg, ctx: Context, max_results: int = 3) -> SearchResults:
    """Search the web."""
    return await _upstream(ctx).search(query, max_results=max_results)


async def tavily_extract(url: Annotated[str, Field(description="Page address.")], ctx: Context) -> PageText:
    """Text of a web page."""
    return await _upstream(ctx).extract(url)


async def tavily_qna_search(query: QueryArg, ctx: Context) -> ShortAnswer:
    """Short answer to a question, from the web."""
    return await _upstream(ctx).qna(query)


TAVILY = ServerDefinition(
    name="tavily",
    instructions="Web search, page text and short answers.",
    tools=(
        BuiltinTool(run=tavily_search),
        BuiltinTool(run=tavily_extract),
        BuiltinTool(run=tavily_qna_search),
    ),
)
