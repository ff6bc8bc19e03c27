"""The names of the built-in servers and of their upstreams, without what it takes to build one."""

from __future__ import annotations

from enum import StrEnum

BUILTIN_NAMES = ("polygon", "fmp", "tavily", "slack")


class UpstreamKind(StrEnum):
    """Where a server's answers come from."""

    EMBEDDED = "embedded"  # the data set that ships with mcpagent
