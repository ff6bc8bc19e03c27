"""Whether a server is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from mcp import Client
from mcp.types import EmptyResult, PingRequest

from mcpagent.tools.deadline import settled
from mcpagent.tools.faults import CallLost, CallThrottled, classify


class Sign(Enum):
    """What comes of asking a server for a sign of life."""

    ALIVE = auto()  # it answered, if only to refuse
    AWAY = auto()  # over HTTP: nobody there, or the exchange was lost; it may come back by itself
    SILENT = auto()  # it did not answer in time
    GONE = auto()  # the connection has ended


async def sign_of_life(
    client: Client, timeout_s: float, *, keep: Callable[[asyncio.Task[Any]], asyncio.Task[Any]]
) -> tuple[Sign, str]:
    """Ping once, and say what came of it in words. `keep` holds the request, which may outlast the wait.

    Revision 2026-07-28 has no ping any more: a server that refuses it is as alive as one that answers.
    """
    ping = keep(asyncio.create_task(client.session.send_request(PingRequest(), EmptyResult)))
    try:
        if not await settled(ping, timeout_s):
            return Sign.SILENT, f"no answer to a ping within {timeout_s:g} s"
    finally:
        ping.cancel()
    if ping.cancelled():
        return Sign.GONE, "the connection was torn down"
    match None if (error := ping.exception()) is None else classify(error):
        case CallThrottled():
            return Sign.ALIVE, "it is busy"
        case CallLost(is_doubtful=True) as lost:
            return Sign.GONE, lost.text
        case CallLost() as lost:
            return Sign.AWAY, lost.text
        case _:
            return Sign.ALIVE, "it answers"
