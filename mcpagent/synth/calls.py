"""Real calls for synthesis: sessions whose state is fresh, and one execution for each distinct question."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolCall, ToolResult, ToolSpec
from mcpagent.tools.catalog import SchemaCheck
from mcpagent.tools.contract import Purpose, ToolProvider, ToolSession


class ToolShelf:
    """The tools of the servers in use, by server and name."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._specs: dict[tuple[str, str], ToolSpec] = {(t.server, t.name): t for t in specs}
        self._checks: dict[tuple[str, str], SchemaCheck] = {}

    @property
    def specs(self) -> Collection[ToolSpec]:
        """The catalog, in its order."""
        return self._specs.values()

    def argument_fault(self, server: str, tool: str, arguments: JsonObject) -> str | None:
        """Where and why `arguments` break the input schema of a tool of the catalog; None when they hold."""
        place = (server, tool)
        if place not in self._checks:
            self._checks[place] = SchemaCheck(self._specs[place].input_schema)
        return self._checks[place].fault(arguments)

    def spec(self, server: str, tool: str) -> ToolSpec | None:
        """The tool in the catalog, None when there is none."""
        return self._specs.get((server, tool))

    def is_read_only(self, server: str, tool: str) -> bool:
        """What the server says of the tool; False for one that it does not have."""
        spec = self.spec(server, tool)
        return spec is not None and spec.annotations.read_only


class CallCache(ToolShelf):
    """Answers of the read-only tools, for the length of one generation run.

    The same quote occurs in many plans, and one execution of it is evidence for all of them. A call is
    answered from the cache only while its server has seen nothing but read-only calls in that session;
    everything after a change is executed. Each `generation` of sessions has a cache of its own: a replay
    in another generation is not answered by what it is to be compared with.
    """

    def __init__(self, provider: ToolProvider) -> None:
        super().__init__(provider.tools.values())
        self._provider = provider
        self._answers: dict[str, ToolResult] = {}
        self.executed = 0  # calls that reached a server

    @asynccontextmanager
    async def session(self, *, generation: int = 0) -> AsyncIterator[SynthSession]:
        """A session of its own: stateful servers are as they were at the start."""
        inner = self._provider.session()
        try:
            yield SynthSession(self, inner, generation)
        finally:
            await inner.close()


class SynthSession:
    """The calls of one plan."""

    def __init__(self, cache: CallCache, inner: ToolSession, generation: int) -> None:
        self._cache = cache
        self._inner = inner
        self._generation = generation
        self._changed: set[str] = set()
        self._count = 0

    async def call(self, *, server: str, tool: str, arguments: JsonObject) -> ToolResult:
        """Like `ToolSession.call`: a failing tool is a result."""
        self._count += 1
        call = ToolCall(id=f"call_{self._count}", server=server, tool=tool, arguments=arguments)
        is_read = self._cache.is_read_only(server, tool)
        if not is_read:
            self._changed.add(server)
        key = json.dumps([self._generation, server, tool, arguments], sort_keys=True)
        is_cacheable = is_read and server not in self._changed
        known = self._cache._answers.get(key) if is_cacheable else None
        if known is not None:
            return known.model_copy(update={"call_id": call.id})
        result = await self._inner.call(call, purpose=Purpose.SYNTH)
        self._cache.executed += 1
        if is_cacheable and result.failure is None:
            self._cache._answers[key] = result
        return result
