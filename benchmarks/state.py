"""Does every episode begin in the same state? `python -m benchmarks.state --episodes 500 --at-once 32`.

Three servers of others, installed from npm and PyPI into a temporary folder, each on a workspace. Every
episode hashes the bytes of its copy before its server starts, reads, writes, and reads again. Exits 1 where
two episodes began with other bytes or other answers, where a write was not seen in its own episode, or where
the workspace itself was changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcpagent.core.tools import ToolCall
from mcpagent.tools.limits import CallLimits, ServerLimits
from mcpagent.tools.pool import PoolSession, ToolPool
from mcpagent.tools.servers_config import StdioServer
from mcpagent.tools.workspace import tree_digest

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A server on its workspace: what to read, and what to write in the episode of a number."""

    server: StdioServer
    workspace: Path
    read: Call
    write: Callable[[int], Call]


@dataclass
class Seen:
    """What the episodes of a server began with."""

    digests: set[str] = field(default_factory=set)
    answers: set[str] = field(default_factory=set)
    unseen_writes: int = 0
    failures: int = 0
    copies_s: list[float] = field(default_factory=list)


def _install(folder: Path) -> None:
    """The servers, so that starting one asks nobody."""
    names = [f"@modelcontextprotocol/server-{name}" for name in ("filesystem", "memory")]
    subprocess.run(["npm", "install", "--silent", "--prefix", str(folder), *names], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "py")], check=True)
    pip = [str(folder / "py" / "bin" / "pip"), "install", "-q", "mcp-server-sqlite", "mcp<2"]
    subprocess.run(pip, check=True)


def _subjects(folder: Path) -> list[Subject]:
    scripts = folder / "node_modules" / "@modelcontextprotocol"
    files = folder / "files"
    for number in range(40):
        place = files / f"group-{number % 4}" / f"note-{number}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"note {number}\n" * 50)
    memory = folder / "memory" / "memory.jsonl"
    memory.parent.mkdir()
    entity = {"type": "entity", "name": "Ada", "entityType": "person", "observations": ["she writes"]}
    memory.write_text(json.dumps(entity) + "\n")
    base = folder / "base" / "shop.db"
    base.parent.mkdir()
    with closing(sqlite3.connect(base)) as database, database:
        database.execute("create table items (name text)")
        database.executemany("insert into items values (?)", [(f"item {n}",) for n in range(200)])
    node = {"command": "node", "env": {}}
    return [
        Subject(
            StdioServer(
                name="filesystem",
                args=(str(scripts / "server-filesystem" / "dist" / "index.js"), str(files)),
                **node,
            ),
            files,
            ("directory_tree", {"path": str(files)}),
            lambda n: ("write_file", {"path": f"{files}/group-{n % 4}/new-{n}.txt", "content": "x" * n}),
        ),
        Subject(
            StdioServer(
                name="memory",
                command="node",
                args=(str(scripts / "server-memory" / "dist" / "index.js"),),
                env={"MEMORY_FILE_PATH": str(memory)},
            ),
            memory.parent,
            ("read_graph", {}),
            lambda n: (
                "create_entities",
                {"entities": [{"name": f"P{n}", "entityType": "person", "observations": ["is new"]}]},
            ),
        ),
        Subject(
            StdioServer(
                name="sqlite",
                command=str(folder / "py" / "bin" / "mcp-server-sqlite"),
                args=("--db-path", str(base)),
            ),
            base.parent,
            ("read_query", {"query": "select count(*), max(name) from items"}),
            lambda n: ("write_query", {"query": f"insert into items values ('zz {n}')"}),
        ),
    ]


async def _episode(subject: Subject, pool: ToolPool, number: int, seen: Seen) -> None:
    async with pool.session() as session:
        begun_s = time.perf_counter()
        copy = await session.workspace(subject.server.name)
        seen.copies_s.append(time.perf_counter() - begun_s)
        assert copy is not None
        seen.digests.add(await asyncio.to_thread(tree_digest, copy))
        before = await _call(session, subject, subject.read, seen)
        seen.answers.add(before)
        await _call(session, subject, subject.write(number), seen)
        seen.unseen_writes += await _call(session, subject, subject.read, seen) == before


async def _call(session: PoolSession, subject: Subject, call: Call, seen: Seen) -> str:
    tool, arguments = call
    result = await session.call(ToolCall(id="b", server=subject.server.name, tool=tool, arguments=arguments))
    seen.failures += result.is_error
    return result.content


async def _run(subject: Subject, *, episodes: int, at_once: int) -> bool:
    original = tree_digest(subject.workspace)
    limits = ServerLimits(workspace=subject.workspace, start_timeout_s=180, timeout_s=120)
    seen, slots = Seen(), asyncio.Semaphore(at_once)
    begun_s = time.perf_counter()

    async def one(pool: ToolPool, number: int) -> None:
        async with slots:
            await _episode(subject, pool, number, seen)

    calls = CallLimits(result_limit_chars=10**6, per_server={subject.server.name: limits})
    async with ToolPool([subject.server], limits=calls) as pool:
        await asyncio.gather(*(one(pool, number) for number in range(episodes)))
    is_same = seen.digests == {original} == {tree_digest(subject.workspace)} and len(seen.answers) == 1
    is_good = is_same and not seen.unseen_writes and not seen.failures
    copy_ms = 1000 * statistics.median(seen.copies_s)
    took_s = time.perf_counter() - begun_s
    print(
        f"{subject.server.name}: {episodes} episodes, {at_once} at once, in {took_s:.0f} s; "
        f"{len(seen.digests)} starting state(s) by bytes, {len(seen.answers)} by answers, "
        f"{seen.unseen_writes} unseen writes, {seen.failures} failed calls; "
        f"a copy took {copy_ms:.1f} ms (median)",
        flush=True,
    )
    return is_good


def main() -> None:
    """Run every subject; exits 1 where one of them did not begin in the same state each time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--only", help="one of filesystem, memory, sqlite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcpagent-state-") as name:
        _install(Path(name))
        outcomes = [
            asyncio.run(_run(subject, episodes=options.episodes, at_once=options.at_once))
            for subject in _subjects(Path(name))
            if options.only in (None, subject.server.name)
        ]
    sys.exit(0 if all(outcomes) else 1)


if __name__ == "__main__":
    main()
