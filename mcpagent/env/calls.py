"""The calls of one model step: which are made, in which order, and what the limits of the episode refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import TaskLimits
from mcpagent.core.tools import SEARCH_TOOL, FailureKind, ToolCall, ToolResult
from mcpagent.core.trajectory import StopReason
from mcpagent.env.offer import OfferedTool, OfferedTools, SearchableTools
from mcpagent.env.parsing import error_content
from mcpagent.tools.contract import ToolSession


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    """Calls with the catalog's names (an unknown tool keeps an empty server), and one result for each."""

    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    stop_reason: StopReason | None = None
    errors: tuple[str, ...] = ()
    loaded: tuple[JsonObject, ...] = ()  # schemas that searches have loaded

    @property
    def only_searched(self) -> bool:
        """Return whether its calls were searches for tools, all of them."""
        return bool(self.results) and all(result.is_search for result in self.results)


@dataclass(frozen=True, kw_only=True)
class _Planned:
    call: ToolCall
    refusal: ToolResult | None = None  # set if the call is not made
    may_overlap: bool = True
    is_search: bool = False


@dataclass
class CallRunner:
    """Makes the model's calls of one episode and counts them against the limits of its task, and against
    `max_calls`. With `tools` some of them are searches, whose results are in `offer` from the next step on;
    they count against `max_calls` alone. `deadline_s` is a time of the running loop's clock; None: no
    limit."""

    session: ToolSession
    offer: OfferedTools
    max_calls: int
    limits: TaskLimits
    deadline_s: float | None = None
    tools: SearchableTools | None = None
    made: int = 0
    _searched: int = 0
    _loaded: list[JsonObject] = field(default_factory=list)
    _servers: set[str] = field(default_factory=set)

    async def run(self, calls: Sequence[ToolCall]) -> CallOutcome:
        """Results in the order of `calls`. Neighbouring read-only calls run at once; any other call waits for
        those before it and holds up those after it, so that the outcome does not depend on timing."""
        planned: list[_Planned] = []
        stop: StopReason | None = None
        for call in calls:
            stop = stop or self._limit_reached(call)
            planned.append(self._plan(call, stop))
        results: list[ToolResult] = []
        for may_overlap, batch in groupby(planned, key=lambda item: item.may_overlap):
            if may_overlap:
                results += await asyncio.gather(*(self._make(item) for item in batch))
            else:
                for item in batch:
                    results.append(await self._make(item))
        loaded, self._loaded = tuple(self._loaded), []
        if self.tools is not None and loaded:
            self.offer = self.tools.offered
        failures = [r for r in results if r.is_lost or r.is_chosen_miss]
        if any(r.is_chosen_miss for r in results):
            stop = StopReason.NOT_RECORDED
        elif failures and stop is None:
            stop = StopReason.TIMEOUT if self.deadline_passed else StopReason.FAILED
        return CallOutcome(
            calls=tuple(item.call for item in planned),
            results=tuple(results),
            stop_reason=stop,
            errors=tuple(f"{r.server}.{r.tool}: {r.failure}: {r.content[:200]}" for r in failures),
            loaded=loaded,
        )

    def _limit_reached(self, call: ToolCall) -> StopReason | None:
        """Count the call; which limit it breaks, if any."""
        self.made += 1
        tool = self.offer.find(call.tool)
        if self._is_search(tool):
            self._searched += 1
        elif tool is not None:
            self._servers.add(tool.spec.server)
        if self.limits.max_tools is not None and self.made - self._searched > self.limits.max_tools:
            return StopReason.LIMIT
        if self.limits.max_servers is not None and len(self._servers) > self.limits.max_servers:
            return StopReason.LIMIT
        return StopReason.MAX_TOOL_CALLS if self.made > self.max_calls else None

    def _plan(self, call: ToolCall, stop: StopReason | None) -> _Planned:
        tool = self.offer.find(call.tool)
        if tool is None:
            none = f"there is no tool {call.tool!r}"
            why = none if self.tools is None else self.tools.why_unknown(call.tool)
            return _refused(call, FailureKind.UNKNOWN_TOOL, why)
        is_search = self._is_search(tool)
        call = call.resolved(tool.spec)
        problem = tool.check.fault(call.arguments)
        if problem is not None:
            why = f"invalid arguments: {problem}"
            return _refused(call, FailureKind.INVALID_ARGUMENTS, why, is_search=is_search)
        if stop is not None:
            return _refused(call, FailureKind.LIMIT, "no calls are left", is_search=is_search)
        return _Planned(call=call, may_overlap=tool.spec.annotations.read_only, is_search=is_search)

    def _is_search(self, tool: OfferedTool | None) -> bool:
        return self.tools is not None and tool is not None and tool.spec is SEARCH_TOOL

    async def _make(self, item: _Planned) -> ToolResult:
        if item.refusal is not None:
            return item.refusal
        if item.is_search and self.tools is not None:
            content, schemas, names = self.tools.search(item.call.arguments)
            self._loaded += schemas
            return ToolResult(
                call_id=item.call.id,
                server=item.call.server,
                tool=item.call.tool,
                content=content,
                loaded=names,
            )
        try:
            async with asyncio.timeout_at(self.deadline_s):
                return await self.session.call(item.call)
        except TimeoutError:
            return _result(item.call, FailureKind.TIMEOUT, "the deadline of the episode passed")

    @property
    def deadline_passed(self) -> bool:
        """Return whether the time limit of the episode is over; never without one."""
        return self.deadline_s is not None and asyncio.get_running_loop().time() >= self.deadline_s


def _refused(call: ToolCall, failure: FailureKind, message: str, *, is_search: bool = False) -> _Planned:
    return _Planned(call=call, refusal=_result(call, failure, message, is_search=is_search))


def _result(call: ToolCall, failure: FailureKind, message: str, *, is_search: bool = False) -> ToolResult:
    return ToolResult(
        call_id=call.id,
        server=call.server,
        tool=call.tool,
        content=error_content(message[:500]),
        is_error=True,
        failure=failure,
        loaded=() if is_search else None,
    )
