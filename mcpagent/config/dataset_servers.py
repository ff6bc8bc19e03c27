"""`servers.yaml` in a dataset folder: the MCP servers that its tasks were made with, and how they are run.

It is a configuration with the sections `tools` and `rollout` alone. It names an `mcp.json` and never repeats
what stands in one, since that may hold keys.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcpagent.config.resolve import Setting, merge, nested, resolve_entries
from mcpagent.config.schema import ToolsConfig
from mcpagent.config.source import Entry, Key, read_file, write_tree
from mcpagent.errors import UserError

FILE_NAME = "servers.yaml"
_HEAD = (
    "# The MCP servers that the tasks in this folder were made with. Every command that takes one of its\n"
    "# files uses them; --servers, --set tools.KEY=VALUE and a --config of yours win. Paths are from this\n"
    "# folder; made_with has the hash of the file of servers.\n"
)
_SERVERS: Key = ("tools", "servers")
_OF_BUILTIN = ("builtin", "limited", "upstream")
_BY_SERVER = ("per_server", "allow_list", "read_only")
# What says which servers there are; the rest of `tools` says how any server is called.
_WHICH = frozenset(("tools", name) for name in ("servers", *_OF_BUILTIN, *_BY_SERVER))
# A choice of each command, not of the dataset.
_NOT_KEPT = frozenset({"cassette", "cassette_mode", "on_catalog_change"})


@dataclass(frozen=True, kw_only=True)
class DatasetServers:
    """The settings that a dataset folder remembers, by resolved key, in which paths are absolute. `sha256` is
    the hash that the file of `tools.servers` had."""

    path: Path
    settings: Mapping[Key, Any]
    sha256: str | None = None

    @property
    def servers(self) -> Path | None:
        """The mcp.json; None: the built-in servers."""
        return Path(self.settings[_SERVERS]) if _SERVERS in self.settings else None

    @classmethod
    def of(cls, folder: Path, tools: ToolsConfig) -> DatasetServers:
        """Return what `folder` is to remember of the servers that were used."""
        left_out = _NOT_KEPT if tools.servers is None else _NOT_KEPT.union(_OF_BUILTIN)
        given = tools.model_dump(mode="json", exclude=set(left_out), exclude_defaults=True)
        if tools.servers is None:  # the defaults of a later version may be others
            given |= tools.model_dump(mode="json", include={"builtin", "limited"})
        settings = _with_paths(dict(_leaves({"tools": given})), lambda place: str(Path(place).resolve()))
        sha256 = None if tools.servers is None else _sha256(Path(tools.servers))
        return cls(path=folder / FILE_NAME, settings=settings, sha256=sha256)

    def as_yaml(self) -> str:
        """Return the text of the file; equal servers give equal bytes."""
        folder = self.path.parent.resolve()
        tree = nested(_with_paths(self.settings, lambda place: os.path.relpath(place, folder)))
        document: dict[str, Any] = {"tools": {"servers": None, **tree.pop("tools", {})}, **tree}
        if self.servers is not None:
            document["made_with"] = {"sha256": self.sha256 or _sha256(self.servers)}
        return _HEAD + write_tree(document)

    def for_servers(self, names: Collection[str], *, are_builtin: bool) -> DatasetServers:
        """Return what still holds if servers are named explicitly: how those with these names are run."""
        is_same_kind = are_builtin and self.servers is None
        kept: dict[Key, Any] = {}
        for key, value in self.settings.items():
            _section, name, *inner = key
            holds = key[:2] not in _WHICH or (name in _OF_BUILTIN and is_same_kind)
            if holds or (inner and inner[0] in names):  # tools.per_server.NAME.KEY
                kept[key] = value
            elif name in ("allow_list", "read_only") and isinstance(value, list):
                here = [tool for tool in value if str(tool).partition(".")[0] in names]
                kept |= {key: here} if here else {}
        return replace(self, settings=kept)

    def over(self, below: Mapping[Key, Setting]) -> dict[Key, Setting]:
        """`below` with these servers in place of those that it names."""
        kept = {key: setting for key, setting in below.items() if key[:2] not in _WHICH}
        return kept | {
            key: Setting(value=value, entry=Entry(key=key, value=value, where=str(self.path)))
            for key, value in self.settings.items()
        }


def read_dataset_servers(dataset: Path) -> DatasetServers | None:
    """Return what the folder of the file `dataset` (or `dataset`, a folder) remembers; None if it has no such
    file. The servers may be gone. Raises UserError for a file that is broken."""
    path = (dataset if dataset.is_dir() else dataset.parent) / FILE_NAME
    if not path.is_file():
        return None
    entries = merge(read_file(path))
    made_with = {e.key[1]: e.value for e in entries if e.key[0] == "made_with" and len(e.key) == 2}
    layer = resolve_entries(e for e in entries if e.key[0] != "made_with")
    if layer.problems:
        raise layer.problems[0]
    settings = {key: setting.value for key, setting in layer.settings.items()}
    if strange := sorted(".".join(key) for key in settings if key[0] not in ("tools", "rollout")):
        raise UserError(f"{strange[0]} does not belong here: it takes tools and rollout", where=str(path))
    named, sha256 = settings.pop(_SERVERS, None), made_with.get("sha256")
    settings = _with_paths(settings, lambda place: str((path.parent / place).resolve()))
    if named is not None:
        settings[_SERVERS] = str(_found(path, str(named), sha256))
    return DatasetServers(path=path, settings=settings, sha256=sha256)


def _with_paths(settings: Mapping[Key, Any], written: Callable[[str], str]) -> dict[Key, Any]:
    """Return the settings with their paths as `written` gives them."""
    return {key: written(value) if _is_path(key) else value for key, value in settings.items()}


def _is_path(key: Key) -> bool:
    return key == _SERVERS or (key[:2] == ("tools", "per_server") and key[-1] == "workspace")


def _found(path: Path, named: str, sha256: object) -> Path:
    """Return the mcp.json: where the path from this folder leads, or, if the folder was moved, the file of
    that name and the same contents in the current folder, in this one or in one above it."""
    leads_to = (path.parent / named).resolve()
    folder = path.parent.resolve()
    places = [leads_to, *(place / leads_to.name for place in (Path.cwd(), folder, *folder.parents))]
    same = (place for place in places if place.is_file() and _sha256(place) == sha256)
    return next(same, leads_to)


def _leaves(tree: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in tree.items():
        key = (*prefix, name)
        if isinstance(value, Mapping):
            yield from _leaves(value, key)
        else:
            yield key, value


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
