"""The process of `mcpagent env serve`: listen, serve until Ctrl-C, keep what ended."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from mcpagent.bridges.host import Host
from mcpagent.bridges.ors import EpisodeServer, ServeLimits
from mcpagent.config.environment import environment
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.storage.datasets import DiskList
from mcpagent.storage.trajectories import write_trajectories

_SHUTDOWN_S = 30.0  # for sessions that are closed at the end


@contextmanager
def serve(
    server: EpisodeServer, host: Host, *, address: str = "127.0.0.1", port: int = 8000
) -> Iterator[int]:
    """Serve while the block runs, and then close the open sessions; gives the port (a free one if `port` is
    0). Raise UserError for a port that is taken, and for an address that other machines reach if no token
    is asked for."""
    if server.is_open and not _is_loopback(address):
        raise UserError(
            f"{address} can be reached from other machines, and no token is asked for",
            where="--host",
            remedy="set MCPAGENT_SERVE_TOKEN to a secret that clients send as a bearer token",
        )
    with listening(address, port) as sock:
        config = uvicorn.Config(server.app, log_level="warning", access_log=False, timeout_keep_alive=60)
        running = uvicorn.Server(config)
        ended = host.tools.io.submit(running.serve(sockets=[sock]))
        try:
            yield sock.getsockname()[1]
        finally:
            running.should_exit = True
            ended.result(timeout=_SHUTDOWN_S)


def serve_until_interrupted(
    host: Host,
    *,
    address: str,
    port: int,
    sessions: int,
    out: Path | None,
    say: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C, with the token of the environment; then write the ended episodes to `out`. Raise
    UserError."""
    ended: DiskList[Trajectory] = DiskList()
    limits = ServeLimits(sessions=sessions, token=environment().get("MCPAGENT_SERVE_TOKEN") or None)
    keep = (lambda _: None) if out is None else lambda trajectory: ended.put(len(ended), trajectory)
    server = EpisodeServer(host, limits, on_end=keep)
    if server.left_out:
        note(f"{server.left_out} tasks are not served: a user speaks again in them")
    try:
        with serve(server, host, address=address, port=port) as bound:
            say(url_of(address, bound))
            threading.Event().wait()
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt("episodes are no longer served") from interrupt
    finally:
        if out is not None:
            say(str(write_trajectories(out, ended)))


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def url_of(address: str, port: int) -> str:
    """Return the URL of a server that listens there; an IPv6 address stands in brackets (RFC 3986)."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def listening(address: str, port: int) -> socket.socket:
    """Return a listening socket whose connections send at once. Raises UserError if there can be none.

    asyncio sets TCP_NODELAY only on a socket that was made with IPPROTO_TCP, which `create_server` does not
    do. Without it the end of a response waits for the client's delayed ACK: 40 ms. Connections inherit it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        sock = socket.create_server((address, port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(
            f"cannot listen on {address}:{port} ({error.strerror or error})",
            where="--host/--port",
            remedy="use --port 0 for any free port, and an address of this machine as --host",
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
