"""What an import leaves in a folder: the tasks, the servers, and the settings that bring them together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.dataset_servers import DatasetServers
from mcpagent.config.schema import ToolsConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.servers.bfcl.names import BACKENDS
from mcpagent.servers.bfcl.package import BfclPackage
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.jsonl import write_jsonl
from mcpagent.synth.bfcl.convert import Importer
from mcpagent.synth.output import check_servers, write_servers
from mcpagent.tools.named_servers import note_named

_MAX_TURNS = 200  # no task allows itself more
_EPISODES_AT_ONCE = 8  # each has up to two processes of its own, of about 55 MB


@dataclass(frozen=True)
class Imported:
    """Tasks and right calls by category; `config` is for --config, and names the servers."""

    tasks: dict[str, int]
    calls: dict[str, int]
    paths: dict[str, Path]
    servers: Path
    config: Path

    def as_json(self) -> JsonObject:
        return {
            "tasks": self.tasks,
            "calls": self.calls,
            "paths": {name: str(path) for name, path in self.paths.items()},
            "servers": str(self.servers),
            "config": str(self.config),
        }


def import_bfcl(package: Path, out: Path, *, categories: Sequence[str], overwrite: bool) -> Imported:
    """Raises UserError where a file would be replaced without `overwrite`, or the package is not one."""
    importer = Importer(BfclPackage(package.resolve()))
    paths = {category: out / f"{category}.jsonl" for category in categories}
    servers, config = out / "mcp.json", out / "bfcl.yaml"
    there = [path for path in (*paths.values(), servers, config) if path.exists()]
    if there and not overwrite:
        raise UserError(
            f"{there[0].name} would be replaced",
            where=str(there[0]),
            remedy="add --overwrite, or name another folder",
        )
    imported = Imported({}, {}, paths, servers, config)
    remembered = DatasetServers.of(
        out,
        ToolsConfig(servers=str(servers), isolation=dict.fromkeys(BACKENDS, "episode")),
        rollout={"max_steps_per_episode": _MAX_TURNS, "num_envs": _EPISODES_AT_ONCE},
    )
    check_servers(remembered, overwrite=overwrite)
    entries = {
        name: {
            "command": sys.executable,
            "args": ["-m", "mcpagent.servers.bfcl", name, "--package", str(importer.package.root)],
        }
        for name in BACKENDS
    }
    _write(servers, json.dumps({"mcpServers": entries}, indent=2))
    _write(config, _settings(servers))
    note_named(servers)
    write_servers(remembered.at(out))  # now that there is a file to take the hash of
    for category, path in paths.items():
        imported.tasks[category] = write_jsonl(path, _counted(importer.tasks(category), category, imported))
    return imported


def _counted(tasks: Iterator[Task], category: str, imported: Imported) -> Iterator[Task]:
    imported.calls[category] = 0
    for task in tasks:
        imported.calls[category] += len(task.truth.tool_sequence)
        yield task


def _settings(servers: Path) -> str:
    """YAML: each episode has backends of its own, and the model turns that its task allows."""
    lines = [
        "rollout:",
        f"  max_steps_per_episode: {_MAX_TURNS}",
        f"  num_envs: {_EPISODES_AT_ONCE}",
        "tools:",
        f"  servers: {json.dumps(str(servers.resolve()))}",
        "  isolation:",
        *(f"    {name}: episode" for name in BACKENDS),
    ]
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
