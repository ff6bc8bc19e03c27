"""Servers that misbehave, as configuration: poison over stdio and HTTP, and processes that will not end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from mcpagent.tools.servers_config import HttpServer, StdioServer

SCRIPTS = Path(__file__).with_name("servers")
FAMILIES: tuple[tuple[str, ...], ...] = ((), ("deaf",), ("child",), ("deaf", "child", "daemon"))
DAEMONS: tuple[tuple[str, ...], ...] = (("orphan",), ("deaf", "orphan"), ("deaf", "daemon", "orphan"))

_BOUND_S = 30.0


def script_server(script: str, *arguments: str, name: str = "", **env: str) -> StdioServer:
    """A script of this folder over stdio, called as the script is unless it is given a name."""
    return StdioServer(
        name=name or Path(script).stem,
        command=sys.executable,
        args=(str(SCRIPTS / script), *arguments),
        env=env,
    )


def stdio_poison(*flags: str) -> StdioServer:
    return script_server("poison.py", "stdio", *flags)


@contextmanager
def served(script: str, *arguments: str, **env: str) -> Iterator[int]:
    """A script of this folder as a process, until the end; the port that it prints."""
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **env}) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def http_poison(*flags: str) -> Iterator[HttpServer]:
    with served("poison.py", "http", *flags) as port:
        yield HttpServer(name="poison", url=f"http://127.0.0.1:{port}/mcp")


def stubborn(folder: Path, *traits: str) -> StdioServer:
    """A server with these traits, which writes the ids of its processes into `folder`."""
    name = "-".join(traits) or "plain"
    return script_server("stubborn.py", str(folder / name), *traits, name=name)


def family(folder: Path, *traits: str) -> set[int]:
    """The processes of a `stubborn` server."""
    return {int(pid) for pid in (folder / ("-".join(traits) or "plain")).read_text().split()}


def living(pids: Iterable[int]) -> set[int]:
    return {pid for pid in pids if _is_alive(pid)}


def wait_for_end(pids: Iterable[int]) -> set[int]:
    """Those that are still alive once all are gone or the bound has passed."""
    deadline_s = time.monotonic() + _BOUND_S
    while (left := living(pids)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
