"""Servers as the tests of this folder start them, and the datasets that are made on them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.policy.contract import Policy, Sampling
from mcpagent.rollout.collector import AgentSettings, Attempt, run_attempt
from mcpagent.synth.explore.changes import Effects
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.explore.tasks import Learned, explore_dataset
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.templates.rules import GeneratedData, generate_dataset
from mcpagent.synth.templates.template import TemplateSet
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import StdioServer


def explored(pool: ToolPool, counts: Mapping[str, int], *, seed: int = 0, **options: Any) -> GeneratedData:
    """What exploring the servers of `pool` gives; the pool is opened and closed."""

    async def run() -> GeneratedData:
        async with pool:
            cache = CallCache(pool)
            learned = Learned(cache, await learn(cache, seed=seed))
            return await explore_dataset(pool, counts=counts, seed=seed, learned=learned, **options)

    return asyncio.run(run())


def generated(
    pool: ToolPool, templates: TemplateSet, counts: Mapping[str, int], *, seed: int, **options: Any
) -> GeneratedData:
    """What the templates give on the servers of `pool`, which is opened and closed."""

    async def run() -> GeneratedData:
        async with pool:
            return await generate_dataset(pool, templates, counts=counts, seed=seed, **options)

    return asyncio.run(run())


async def play(pool: ToolPool, tasks: Sequence[Task], policy: Policy) -> list[Trajectory]:
    """One attempt of the policy at each task."""
    settings = AgentSettings(sampling=Sampling())
    attempts = [
        Attempt(task=task, attempt=0, group_id=task.id, seed=derive_seed(0, number))
        for number, task in enumerate(tasks)
    ]
    return [
        await run_attempt(attempt, policy=policy, tools=pool, settings=settings, renderer=None)
        for attempt in attempts
    ]


def write_config(folder: Path, name: str, *command: object) -> Path:
    """`folder/mcp.json` with one server, a script with its arguments."""
    entry = {"command": sys.executable, "args": [*map(str, command)]}
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {name: entry}}))
    return path


def in_own_process(name: str, *command: object, workspace: Path | None = None) -> ToolPool:
    """A server of which each session has its own process: a script that needs no SDK, with its arguments."""
    server = StdioServer(
        name=name, command=sys.executable, args=("-S", *map(str, command)), isolation="episode"
    )
    section = ServerSection(workspace=None if workspace is None else str(workspace))
    return ToolPool([server], ToolsConfig(timeout_s=60, per_server={name: section}))


async def tried(pool: ToolPool, server: str) -> tuple[Learned, Effects]:
    """What is learned of a server and of the tools that change it."""
    cache = CallCache(pool, own_instances=[server])
    graph = await learn(cache, seed=2)
    effects = Effects(cache, graph, [server], seed=2)
    await effects.run()
    return Learned(cache, graph, effects.changes, effects.watch), effects
