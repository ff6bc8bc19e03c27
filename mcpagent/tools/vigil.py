"""Waiting for a sign of life from a server that let a call down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from mcp import Client
from mcp.types import EmptyResult, PingRequest

from mcpagent.tools.breaker import CircuitBreaker
from mcpagent.tools.deadline import settled
from mcpagent.tools.faults import CallLost, CallThrottled, OpenFailed, classify
from mcpagent.tools.listing import Listing, read_listing

PING_TIMEOUT_S = 10.0  # less where the deadline of the call that made us doubt was shorter


@dataclass(eq=False)
class Live:
    """One generation of a server; `leave` is set when its owner must leave or the peer is gone."""

    client: Client
    leave: asyncio.Event
    listing: Listing
    number: int  # 1 for the first
    vigil: asyncio.Task[None] | None = None  # while a sign of life is awaited, calls wait for it
    is_shaky: bool = False  # its last call was lost, though not the connection: calls wait out the backoff
    fault: str = "it ended by itself"


class Vigil:
    """Asks a server whether it is there, until that is decided or, after `patience_s`, the breaker opens.

    Over HTTP nobody may be there for a while, because somebody else restarts the service. It may come back
    as another version, so its tools are listed anew and shown to `on_listing`, which may raise OpenFailed.
    `keep` holds questions that outlast the wait for their answer.
    """

    def __init__(
        self,
        name: str,
        *,
        breaker: CircuitBreaker,
        patience_s: float,
        on_listing: Callable[[Listing], None] | None,
        keep: Callable[[asyncio.Task[Any]], asyncio.Task[Any]],
    ) -> None:
        self._name = name
        self._breaker = breaker
        self._patience_s = patience_s
        self._on_listing = on_listing
        self._keep = keep

    def keep_over(self, live: Live, timeout_s: float, *, is_doubted: bool) -> None:
        """Set `live.vigil`, unless there is one. A server that takes a question and does not answer it within
        `timeout_s` is to be left where it `is_doubted` already."""
        if live.vigil is None and not live.leave.is_set():
            watching = self._watch(live, timeout_s, is_doubted=is_doubted)
            live.vigil = self._keep(asyncio.create_task(watching, name=f"vigil {self._name}"))

    async def _watch(self, live: Live, timeout_s: float, *, is_doubted: bool) -> None:
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._patience_s
        ask: Callable[[Client], Any] = _ping
        try:
            while not live.leave.is_set():
                asked = self._keep(asyncio.create_task(ask(live.client)))
                sign, reason = await _sign(asked, timeout_s)
                if sign is not _Sign.AWAY or live.leave.is_set():  # the latter: it does not know our session
                    if ask is read_listing and sign is not _Sign.SILENT:
                        self._breaker.answered()
                    self._conclude(live, sign, reason, asked, is_doubted=is_doubted)
                    return
                live.is_shaky = True
                self._breaker.failed(reason, may_return=loop.time() < give_up_s)
                if self._breaker.refusal is not None:
                    return
                ask = read_listing
                await asyncio.sleep(self._breaker.delay_s)
        finally:
            live.vigil = None

    def _conclude(
        self, live: Live, sign: _Sign, reason: str, asked: asyncio.Task[Any], *, is_doubted: bool
    ) -> None:
        if sign is _Sign.GONE:
            live.leave.set()
        elif sign is _Sign.SILENT and is_doubted:
            live.fault = (
                f"a call timed out, and then {reason}; if it takes one call at a time, "
                f"lower tools.per_server.{self._name}.max_in_flight"
            )
            live.leave.set()
        elif sign is _Sign.ALIVE and asked.exception() is None and isinstance(asked.result(), Listing):
            try:
                if self._on_listing is not None:
                    self._on_listing(asked.result())
            except OpenFailed as refused:  # the next start says so again, to the calls that wait for it
                live.fault = refused.text
                live.leave.set()


class _Sign(Enum):
    """What comes of a question."""

    ALIVE = auto()  # an answer, if only a refusal: revision 2026-07-28 has no ping any more
    AWAY = auto()  # over HTTP: nobody there, or the exchange was lost; it may come back by itself
    SILENT = auto()  # no answer in time
    GONE = auto()  # the connection has ended


async def _sign(asked: asyncio.Task[Any], timeout_s: float) -> tuple[_Sign, str]:
    """What comes of a question within `timeout_s`, and why. One that is late is cancelled, not awaited."""
    try:
        if not await settled(asked, timeout_s):
            return _Sign.SILENT, f"it did not answer a ping within {timeout_s:g} s"
    finally:
        asked.cancel()
    if asked.cancelled():
        return _Sign.GONE, ""
    match None if (error := asked.exception()) is None else classify(error):
        case CallThrottled():
            return _Sign.ALIVE, ""
        case CallLost(is_doubtful=True):
            return _Sign.GONE, ""
        case CallLost(text=text):
            return _Sign.AWAY, text
        case _:
            return _Sign.ALIVE, ""


async def _ping(client: Client) -> EmptyResult:
    return await client.session.send_request(PingRequest(), EmptyResult)
