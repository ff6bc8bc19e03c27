"""MCP servers and their tools: listed, called, measured."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolCall, ToolResult, ToolSpec
from mcpagent.errors import UserError
from mcpagent.tools.catalog import near_match
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, ServerConfig
from mcpagent.tools.transports.login import log_in
from mcpagent.tools.transports.oauth import forget_login, store_login


@asynccontextmanager
async def open_tool(
    dotted: str,
    configs: Sequence[ServerConfig],
    *,
    timeout_s: float | None = None,
    max_in_flight: int = 1,
    allow_writes: bool = False,
    console: Console,
) -> AsyncGenerator[tuple[ToolSpec, Callable[[JsonObject], Awaitable[ToolResult]]]]:
    """Start the server of `SERVER.TOOL`, and no other, and yield the tool and what calls it; `timeout_s` goes
    before the server's own deadline. Raises UserError, with the nearest name, if there is no such tool."""
    config, tool = _place(dotted, configs)
    if timeout_s is not None:
        config = replace(config, timeout_s=timeout_s)
    section = ServerSection(max_in_flight=max_in_flight, allow_writes=allow_writes)
    limits = ToolsConfig(per_server={config.name: section})
    pool = ToolPool([config], limits, on_note=console.note)
    async with pool, pool.session() as session:
        spec = next((spec for spec in pool.tools.values() if spec.name == tool), None)
        if spec is None:
            raise _unknown("tool", dotted, [spec.dotted for spec in pool.tools.values()])
        numbers = count()

        def call(arguments: JsonObject) -> Awaitable[ToolResult]:
            call_id = f"cli-{next(numbers)}"
            return session.call(ToolCall(id=call_id, server=spec.server, tool=spec.name, arguments=arguments))

        yield spec, call


def call_tool(
    dotted: str,
    arguments: JsonObject,
    configs: Sequence[ServerConfig],
    *,
    timeout_s: float | None = None,
    console: Console,
) -> tuple[ToolSpec, ToolResult]:
    """Call `SERVER.TOOL` once. A failing call is a result; raises UserError as `open_tool` does."""

    async def run() -> tuple[ToolSpec, ToolResult]:
        # Whoever writes a call here asks for what it does.
        opened = open_tool(dotted, configs, timeout_s=timeout_s, allow_writes=True, console=console)
        async with opened as (spec, call):
            return spec, await call(arguments)

    return asyncio.run(run())


def log_in_at(
    name: str,
    configs: Sequence[ServerConfig],
    *,
    scope: str | None,
    show: Callable[[str], None],
    visit: Callable[[str], object],
) -> JsonObject:
    """Have a person log in at a server, and keep the login. Raises UserError."""
    login = asyncio.run(log_in(_over_http(name, configs), scope=scope, show=show, visit=visit))
    return {
        "url": login.server,
        "kept_in": str(store_login(login)),
        "renewable": login.token.refresh_token is not None,
        "scope": login.token.scope,
    }


def log_out_at(name: str, configs: Sequence[ServerConfig]) -> bool:
    """Forget the login at a server; False if there was none. Raises UserError."""
    return forget_login(_over_http(name, configs).url)


def _over_http(name: str, configs: Sequence[ServerConfig]) -> HttpServer:
    config = next((config for config in configs if config.name == name), None)
    if config is None:
        raise _unknown("server", name, [config.name for config in configs])
    if not isinstance(config, HttpServer):
        raise UserError(
            f"server {name!r} is not reached over HTTP, so there is nothing to log in at",
            remedy="What a program on this machine needs to know goes into its env.",
        )
    return config


def _place(dotted: str, configs: Sequence[ServerConfig]) -> tuple[ServerConfig, str]:
    """Return the server and the tool that SERVER.TOOL names. Both may hold dots: the longest server name
    wins."""
    for config in sorted(configs, key=lambda c: len(c.name), reverse=True):
        if dotted.startswith(f"{config.name}."):
            return config, dotted.removeprefix(f"{config.name}.")
    server, dot, _ = dotted.partition(".")
    if not dot:
        raise UserError(
            f"{dotted!r} names no server", remedy="Write SERVER.TOOL; mcpagent tools list shows them."
        )
    raise _unknown("server", server, [config.name for config in configs])


def _unknown(kind: str, name: str, names: Sequence[str]) -> UserError:
    near = near_match(name, names)
    return UserError(f"there is no {kind} {name!r}", remedy=near or f"There are: {', '.join(sorted(names))}")


@dataclass(frozen=True, kw_only=True)
class ListedServer:
    """A server that was started and ended again; `error` says why it did not start."""

    name: str
    tools: tuple[ToolSpec, ...] = ()
    start_s: float
    error: UserError | None = None


def list_servers(
    configs: Sequence[ServerConfig],
    *,
    on_note: Callable[[str, str], None],
    on_listed: Callable[[ListedServer], None] = lambda _: None,
) -> list[ListedServer]:
    """Start all servers at once; the result is in the order of `configs`. `on_note` gets the name of a server
    and what there is to say of it."""

    async def listed(config: ServerConfig) -> ListedServer:
        started_s = time.perf_counter()
        try:
            async with ToolPool([config], on_note=partial(on_note, config.name)) as pool:
                start_s, tools = time.perf_counter() - started_s, tuple(pool.tools.values())
            server = ListedServer(name=config.name, tools=tools, start_s=start_s)
        except UserError as error:
            start_s = time.perf_counter() - started_s
            server = ListedServer(name=config.name, start_s=start_s, error=error)
        on_listed(server)
        return server

    async def run() -> list[ListedServer]:
        return await asyncio.gather(*map(listed, configs))

    return asyncio.run(run())


_REPORT_INTERVAL_S = 0.5  # a bar that moves at every call would be a tenth of the measured CPU time


@dataclass(kw_only=True)
class BenchOutcome:
    """The measurements of a benchmark. Latencies are those of the calls that succeeded, without waiting for a
    turn."""

    tool: str
    concurrency: int
    planned: int
    start_s: float = 0.0  # of the server
    wall_s: float = 0.0
    cpu_s: float = 0.0  # of this process: the client, and a built-in server, which runs in it
    latencies_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    first_failure: str | None = None
    reported: int = 0  # calls that the bar shows
    reported_s: float = 0.0  # when it was told

    @property
    def calls(self) -> int:
        """Calls that have an outcome; fewer than planned after an interrupt."""
        return len(self.latencies_s) + self.failures.total()

    @property
    def calls_per_s(self) -> float | None:
        """Calls with an outcome a second of wall time; None before the first."""
        return self.calls / self.wall_s if self.calls else None

    @property
    def cpu_s_per_call(self) -> float | None:
        """CPU seconds for one call with an outcome; None before the first."""
        return self.cpu_s / self.calls if self.calls else None

    def latency_s(self, quantile: float) -> float | None:
        """Return the smallest latency that at least this share of the calls kept; None if none succeeded."""
        if not self.latencies_s:
            return None
        return sorted(self.latencies_s)[max(0, math.ceil(quantile * len(self.latencies_s)) - 1)]

    def add(self, result: ToolResult) -> None:
        """Count one result: its latency in seconds, or why it failed."""
        if result.failure is None:
            self.latencies_s.append(result.latency_s)
            return
        self.failures[result.failure.value] += 1
        self.first_failure = self.first_failure or result.content

    def as_json(self) -> dict[str, Any]:
        """One row of `tools bench --json`."""
        return {
            "tool": self.tool,
            "planned": self.planned,
            "calls": self.calls,
            "concurrency": self.concurrency,
            "start_s": self.start_s,
            "wall_s": self.wall_s,
            "calls_per_s": self.calls_per_s,
            "latency_s": {"p50": self.latency_s(0.5), "p95": self.latency_s(0.95)},
            "cpu_s_per_call": self.cpu_s_per_call,
            "failures": dict(self.failures),
            "first_failure": self.first_failure,
        }


def bench_tool(
    dotted: str,
    arguments: JsonObject,
    configs: Sequence[ServerConfig],
    *,
    calls: int,
    concurrency: int,
    timeout_s: float | None = None,
    allow_writes: bool = False,
    console: Console,
) -> BenchOutcome:
    """Make `calls` equal calls of `SERVER.TOOL`, `concurrency` at a time. An interrupt ends it early.

    Raises UserError if there is no such tool, or if it is not read-only and writes are not allowed.
    """
    outcome = BenchOutcome(tool=dotted, concurrency=concurrency, planned=calls)

    async def run() -> None:
        started_s = time.perf_counter()
        opened = open_tool(
            dotted,
            configs,
            timeout_s=timeout_s,
            max_in_flight=concurrency,
            allow_writes=allow_writes,
            console=console,
        )
        async with opened as (spec, call):
            if not spec.annotations.read_only and not allow_writes:
                raise UserError(
                    f"{dotted} does not say that it is read-only: {calls} calls may have {calls} effects",
                    remedy="--allow-writes makes them.",
                )
            outcome.start_s = time.perf_counter() - started_s
            numbers = iter(range(calls))
            with console.progress(f"calling {dotted}", total=calls) as advance:

                def report() -> None:
                    advance(outcome.calls - outcome.reported)
                    outcome.reported, outcome.reported_s = outcome.calls, time.perf_counter()

                async def work() -> None:
                    for _ in numbers:
                        outcome.add(await call(arguments))
                        if time.perf_counter() - outcome.reported_s > _REPORT_INTERVAL_S:
                            report()

                started_s, started_cpu_s = time.perf_counter(), time.process_time()
                try:
                    await asyncio.gather(*(work() for _ in range(concurrency)))
                except asyncio.CancelledError:
                    # Ctrl-C: what was measured is the result. A second one interrupts asyncio.run itself.
                    if (task := asyncio.current_task()) is not None:
                        task.uncancel()
                outcome.wall_s = time.perf_counter() - started_s
                outcome.cpu_s = time.process_time() - started_cpu_s
                report()

    asyncio.run(run())
    return outcome
