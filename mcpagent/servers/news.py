"""News, which polygon and fmp report alike."""

from __future__ import annotations

from mcpagent.servers.builtin import Answer


class Article(Answer):
    """`published` is a date, YYYY-MM-DD."""

    title: str
    url: str
    published: str


class Articles(Answer):
    """Newest first."""

    articles: list[Article]
