"""Generated tasks of every class with the servers that they were made on: full templates, an explored box."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from mcpagent.config.environment import resource_path
from mcpagent.core.tasks import Task
from mcpagent.servers.provider import builtin_servers
from mcpagent.synth.datasets.describe import task_class
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.explore.tasks import Learned, explore_dataset
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.templates.rules import generate_dataset
from mcpagent.synth.templates.template import Template, load_templates
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer

_READ_ONLY = ToolAnnotations(read_only_hint=True)
_FILES = {
    "docs": {
        "plan.txt": "Owner: Marta\nDeadline: 2026-04-17\nBudget 18450 euros for the northern harbour.",
        "notes.md": "Met with Olsen at 14:30 in Bergen. He wants 37 crates of tea by May 5.",
    },
    "logs": {
        "boot.log": "kernel 6.1.44 started\nmounted /data\nlistening on port 8443",
        "audit.log": "user kim deleted report 991\nuser lee created invoice 5521",
    },
}
_WEATHER = {"Lisbon": (21.5, "sunny", 63), "Bergen": (7.25, "light rain", 91), "Genoa": (15.75, "cloudy", 70)}


def list_folders() -> str:
    """List all folders"""
    return "\n".join(f"[DIR] {name}" for name in _FILES)


def list_files(folder: str) -> str:
    """List the files of a folder"""
    if folder not in _FILES:
        raise ToolError(f"no folder {folder}")
    return "\n".join(f"[FILE] {name}" for name in _FILES[folder])


def read_file(path: str) -> str:
    """Read the contents of a file"""
    folder, _, name = path.partition("/")
    if name not in _FILES.get(folder, {}):
        raise ToolError(f"no file {path}")
    return _FILES[folder][name]


def weather(city: str) -> dict[str, object]:
    """Current weather of a city"""
    if city not in _WEATHER:
        raise ToolError(f"no city {city}")
    degrees, sky, humidity = _WEATHER[city]
    wind = {"speed": degrees * 2 + 1.25, "from": "north-west"}
    return {
        "temperature": degrees,
        "sky": sky,
        "humidity": humidity,
        "at": "2025-11-22T14:05:00Z",
        "wind": wind,
    }


def list_cities() -> list[str]:
    """List the cities with a weather station"""
    return list(_WEATHER)


def full_pool() -> ToolPool:
    return ToolPool(builtin_servers(limited=False))


def box_pool() -> ToolPool:
    """A server that no template knows: plain text from three of its tools, JSON from two."""
    server = MCPServer("box", log_level="ERROR")
    for tool in (list_folders, list_files, read_file):
        server.add_tool(tool, annotations=_READ_ONLY, structured_output=False)
    for tool in (weather, list_cities):
        server.add_tool(tool, annotations=_READ_ONLY)
    return ToolPool([InProcessServer(name="box", server=server)])


async def full_tasks(
    pool: ToolPool,
    *,
    count: int,
    per_class: int,
    templates_per_class: int | None = None,
) -> list[Task]:
    """Of so many templates of each class, which is faster, or of all."""
    templates = load_templates(resource_path("templates/full"))
    by_class: dict[str | None, list[Template]] = defaultdict(list)
    for template in templates.templates:
        by_class[template.kind].append(template)
    chosen = tuple(
        t
        for group in by_class.values()
        for t in sorted(group, key=lambda template: -template.weight)[:templates_per_class]
    )
    templates = replace(templates, templates=chosen)
    data = await generate_dataset(pool, templates, counts={"train": count}, seed=11)
    return _some_of_each(data.tasks["train"], per_class)


async def explored_tasks(pool: ToolPool, *, count: int, per_class: int) -> list[Task]:
    cache = CallCache(pool)
    learned = Learned(cache, await learn(cache, seed=7))
    counts = {"train": count}
    data = await explore_dataset(pool, counts=counts, seed=7, learned=learned)
    return _some_of_each(data.tasks["train"], per_class)


def _some_of_each(tasks: Iterable[Task], per_class: int) -> list[Task]:
    """Up to `per_class` of each class, of different templates or tools."""
    by_class: dict[str, dict[str, Task]] = defaultdict(dict)
    for task in tasks:
        kind = str(task.extra_info.get("template") or [(s.tool) for s in task.truth.tool_sequence])
        by_class[task_class(task)].setdefault(kind, task)
    return [task for kinds in by_class.values() for task in list(kinds.values())[:per_class]]
