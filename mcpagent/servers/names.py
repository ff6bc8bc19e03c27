"""The names of the built-in servers and of their upstreams, without what it takes to build one."""

from __future__ import annotations

from enum import StrEnum

# What templates, samples and the embedded model are made for: adding one makes them stale.
DATA_SERVERS = ("polygon", "fmp", "tavily", "slack")
BUILTIN_NAMES = (*DATA_SERVERS, "python")


class UpstreamKind(StrEnum):
    """The source of a server's answers."""

    EMBEDDED = "embedded"  # the data set that ships with mcpagent
    LIVE = "live"  # the real web services, with the user's keys


# By server with a live upstream: the variables that may hold its key, the first that is set wins.
KEY_NAMES: dict[str, tuple[str, ...]] = {
    "polygon": ("MASSIVE_API_KEY", "POLYGON_API_KEY"),
    "fmp": ("FMP_API_KEY",),
    "tavily": ("TAVILY_API_KEY",),
    "slack": ("SLACK_BOT_TOKEN",),
}


def live_variable(server: str, setting: str) -> str:
    """Return the environment variable of a setting of a live upstream."""
    return f"MCPAGENT_{server.upper()}_{setting}"
