"""What the environment needs from the tool layer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, Protocol

from mcpagent.core.tools import ToolCall, ToolResult, ToolSpec
from mcpagent.tools.metrics import PoolMetrics


class Purpose(StrEnum):
    """The maker of a call. It travels in the request's `_meta`, so that a server's ledger can tell them
    apart."""

    EPISODE = "episode"  # the model
    SETUP = "setup"  # the environment, before the episode
    GRADE = "grade"  # the environment, reading the end state
    SYNTH = "synth"  # data synthesis


class ToolSession(Protocol):
    """The tools of one episode: shared servers, and an instance of its own of each isolated one."""

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        """Make the call; `call.server` and `call.tool` name the tool. A failing tool is a result, never an
        exception: `failure` says which kind."""
        ...

    async def close(self) -> None:
        """End the episode's own instances."""
        ...


OnChange = Literal["warn", "refuse"]


class ToolProvider(Protocol):
    """A started set of servers."""

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """Every tool by the name that the model sees (`core.tools.model_names`)."""
        ...

    def session(self) -> ToolSession:
        """Return a new, single-use session; nothing is opened before the first call needs it."""
        ...


class PinnedTools(ToolProvider, Protocol):
    """A provider whose catalog can be held against that of a dataset, and whose servers are watched."""

    @property
    def catalog_hash(self) -> str:
        """SHA-256 over the offered tools (`core.tools.catalog_hash`)."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """The version that each server reports of itself; a server that reports none is not there."""
        ...

    def metrics(self) -> PoolMetrics:
        """Return what the calls of the servers came to since they were started."""
        ...
