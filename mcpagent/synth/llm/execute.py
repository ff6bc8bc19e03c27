"""The plan over MCP: what it finds is the answer, and `synth.ground` says what that is worth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolCall, ToolResult, ToolSpec
from mcpagent.storage.jsonl import task_record
from mcpagent.synth.calls import CallCache
from mcpagent.synth.ground import Rejection, ground
from mcpagent.synth.llm.faults import Fault, Stage
from mcpagent.tools.contract import Purpose, ToolProvider, ToolSession

_SHOWN_CHARS = 1500  # of one result; what the committee reads and the journal keeps
_DETAIL_CHARS = 600


@dataclass(frozen=True, kw_only=True)
class Executed:
    """A settled task, and its calls as they were made: server, tool, arguments, result."""

    task: Task
    calls: tuple[JsonObject, ...]

    def as_json(self) -> JsonObject:
        return {"task": task_record(self.task), "calls": list(self.calls)}

    @classmethod
    def from_json(cls, value: JsonObject) -> Executed:
        return cls(task=Task.model_validate(value["task"]), calls=tuple(value["calls"]))


class Executor:
    """Runs plans. Those that change something run one at a time: a user's own server may keep one state for
    all sessions. Calls that a cassette answers repeat by nature."""

    def __init__(self, pool: ToolProvider) -> None:
        self._pool = pool
        self._turn = asyncio.Lock()
        self.executed_calls = 0

    async def run(self, draft: Task) -> Executed | Fault:
        """The settled task; its plan ran more than once and gave the same, is worth 1.0, and is needed."""
        reads = {t.dotted for t in self._pool.tools.values() if t.annotations.read_only}
        if all(f"{step.server}.{step.tool}" in reads for step in draft.truth.tool_sequence):
            return await self._run(draft)
        async with self._turn:
            return await self._run(draft)

    async def _run(self, draft: Task) -> Executed | Fault:
        # A cache of its own: a call that was right for an earlier sample is evidence of that moment only.
        traced = _Traced(self._pool)
        outcome = await ground(draft, CallCache(traced))
        self.executed_calls += sum(map(len, traced.sessions))
        if isinstance(outcome, Rejection):
            return Fault(Stage.EXECUTE, outcome.code.value, outcome.detail[:_DETAIL_CHARS])
        return Executed(task=outcome, calls=tuple(traced.sessions[0]))


class _Traced:
    """A provider that keeps what each of its sessions was asked and answered; the first runs the plan."""

    def __init__(self, inner: ToolProvider) -> None:
        self._inner = inner
        self.sessions: list[list[JsonObject]] = []

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        return self._inner.tools

    def session(self) -> ToolSession:
        self.sessions.append([])
        return _TracedSession(self._inner.session(), self.sessions[-1])


class _TracedSession:
    def __init__(self, inner: ToolSession, calls: list[JsonObject]) -> None:
        self._inner = inner
        self._calls = calls

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        result = await self._inner.call(call, purpose=purpose)
        entry = {"server": call.server, "tool": call.tool, "arguments": call.arguments}
        self._calls.append({**entry, "result": result.content[:_SHOWN_CHARS]})
        return result

    async def close(self) -> None:
        await self._inner.close()
