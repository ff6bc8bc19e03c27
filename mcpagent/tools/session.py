"""The tools of one episode: calls resolved, checked, bounded and turned into results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from mcp.types import CallToolResult

from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec, failed_result
from mcpagent.tools.catalog import Catalog, near_match
from mcpagent.tools.connection import Connection, PendingCall, WriteGeneration
from mcpagent.tools.contract import PURPOSE_META_KEY, Purpose
from mcpagent.tools.faults import CallFailed
from mcpagent.tools.server import StartedServer
from mcpagent.tools.wire import cut_meta, cut_middle, render, wire_fault

_RESERVED_META = "io.modelcontextprotocol/"  # stamps of the protocol itself, the same on every result


class PoolSession:
    """A `ToolSession`. Isolated servers are opened at the session's first call of them."""

    def __init__(
        self,
        servers: Mapping[str, StartedServer],
        *,
        catalog: Catalog,
        result_limit_chars: int,
        on_close: Callable[[PoolSession], None],
    ) -> None:
        self._servers = servers
        self._catalog = catalog
        self._result_limit_chars = result_limit_chars
        self._on_close = on_close
        self._own: dict[str, Connection] = {}
        self._write_generations: dict[str, WriteGeneration] = {}
        self._closed = False

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        """Make the call; every failure is a result. `call.server` may be empty: then `call.tool` is the name
        that the model sees."""
        if self._closed:
            raise RuntimeError("the session is closed")
        try:
            spec = self._resolve(call)
        except CallFailed as failure:
            return failed_result(call, failure.kind, failure.text)
        named = call.model_copy(update={"server": spec.server, "tool": spec.name})
        server = self._servers[spec.server]
        pending = self._pending_call(server, spec, call, purpose)
        try:
            if fault := wire_fault(call.arguments):
                raise CallFailed(FailureKind.INVALID_ARGUMENTS, f"the arguments hold {fault}")
            raw = await self._connection(server).call(pending)
            result = self._result(server, named, raw, latency_s=pending.latency_s)
        except CallFailed as failure:
            if failure.kind is FailureKind.UPSTREAM and server.inputs[spec.name].fault(call.arguments):
                # Some servers break down over wrong arguments instead of refusing them.
                failure = CallFailed(FailureKind.INVALID_ARGUMENTS, failure.text)
            text = server.without_secrets(failure.text, tool=spec.name)
            result = failed_result(named, failure.kind, text, latency_s=pending.latency_s)
        server.counts.note(result, waited_s=pending.waited_s, sendings=pending.sendings)
        return result

    async def close(self) -> None:
        """End the session's own instances. Idempotent."""
        self._closed = True
        self._on_close(self)
        own, self._own = self._own, {}
        if own:
            await asyncio.gather(*(connection.supervisor.close() for connection in own.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _resolve(self, call: ToolCall) -> ToolSpec:
        spec = self._catalog.find(call.server, call.tool)
        if spec is not None:
            return spec
        name = f"{call.server}.{call.tool}" if call.server else call.tool
        if self._catalog.denies(call.server, call.tool):
            raise CallFailed(FailureKind.DENIED, f"{name} is not allowed here")
        near = near_match(call.tool, self._catalog.tools)
        raise CallFailed(
            FailureKind.UNKNOWN_TOOL, f"there is no tool {name!r}" + (f". {near}" if near else "")
        )

    def _pending_call(
        self, server: StartedServer, spec: ToolSpec, call: ToolCall, purpose: Purpose
    ) -> PendingCall:
        keeps_state = not server.limits.survives_restart
        return PendingCall(
            tool=spec.name,
            arguments=call.arguments,
            meta={PURPOSE_META_KEY: purpose.value},
            timeout_s=server.timeout_s,
            repeats=server.repeats,
            is_safe=server.is_safe(spec),
            is_write=not spec.annotations.read_only,
            write_generation=self._write_generations.setdefault(server.name, WriteGeneration())
            if keeps_state
            else None,
        )

    def _connection(self, server: StartedServer) -> Connection:
        if server.shared is not None:
            return server.shared
        if server.name not in self._own:
            self._own[server.name] = server.connect()
        return self._own[server.name]

    def _result(
        self, server: StartedServer, call: ToolCall, raw: CallToolResult, *, latency_s: float
    ) -> ToolResult:
        structured = raw.structured_content if isinstance(raw.structured_content, dict) else None
        if not raw.is_error and (output := server.outputs.get(call.tool)) is not None:
            fault = output.fault(raw.structured_content)
            if fault is not None:
                raise CallFailed(FailureKind.SCHEMA, f"the server broke its own output schema at {fault}")
        if structured is not None and (fault := wire_fault(structured)):
            raise CallFailed(FailureKind.SCHEMA, f"the structured result holds {fault}")
        # Here, before the model sees it: its tokens, the cassette and the report then say the same. And
        # before it is cut, which could leave half a secret.
        whole = server.without_secrets(render(raw.content, structured), tool=call.tool)
        content, cut = cut_middle(whole, self._result_limit_chars)
        meta = cut_meta({k: v for k, v in (raw.meta or {}).items() if not k.startswith(_RESERVED_META)})
        failure = None
        if raw.is_error:
            # Servers say both in prose; the schema tells a wrong argument from one that found nothing.
            broken = server.inputs[call.tool].fault(call.arguments) is not None
            failure = FailureKind.INVALID_ARGUMENTS if broken else FailureKind.TOOL_ERROR
        return ToolResult(
            call_id=call.id,
            server=call.server,
            tool=call.tool,
            content=content,
            structured=server.without_secrets(structured, tool=call.tool),
            is_error=raw.is_error,
            failure=failure,
            latency_s=latency_s,
            truncated_chars=cut,
            meta=server.without_secrets(meta, tool=call.tool) if meta else {},
        )
