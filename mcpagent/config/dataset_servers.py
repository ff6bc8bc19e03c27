"""`servers.yaml` in a dataset folder: the MCP servers that its tasks were made with, and how they are run.

It is a configuration with the sections `tools` and `rollout` alone. It names an `mcp.json` and never repeats
what stands in one, since that may hold keys.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpagent.config.resolve import Setting, merge, nested, resolve_entries
from mcpagent.config.schema import ToolsConfig
from mcpagent.config.source import Entry, Key, SourceError, read_file, write_tree
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
_NOT_KEPT = frozenset({"cassette", "cassette_mode", "on_catalog_change", "servers"})


@dataclass(frozen=True, kw_only=True)
class DatasetServers:
    """What a dataset folder remembers: settings by resolved key, without `tools.servers`, which is `servers`
    (an absolute path; None: the built-in servers) and whose hash then was `sha256`."""

    path: Path
    settings: Mapping[Key, Any]
    servers: Path | None = None
    sha256: str | None = None

    @classmethod
    def of(cls, folder: Path, tools: ToolsConfig) -> DatasetServers:
        """Return what `folder` is to remember of the servers that were used."""
        given = tools.model_dump(mode="json", exclude=set(_NOT_KEPT), exclude_defaults=True)
        if tools.servers is None:  # the defaults of a later version may be others
            given |= tools.model_dump(mode="json", include={"builtin", "limited"})
        else:
            given = {name: value for name, value in given.items() if name not in _OF_BUILTIN}
        servers = None if tools.servers is None else Path(tools.servers).resolve()
        return cls(
            path=folder / FILE_NAME,
            settings={
                key: str(Path(value).resolve()) if _is_path(key) else value
                for key, value in _leaves({"tools": given})
            },
            servers=servers,
            sha256=None if servers is None else _sha256(servers),
        )

    def at(self, folder: Path) -> DatasetServers:
        """Return the same, for another folder."""
        sha256 = self.sha256 or (None if self.servers is None else _sha256(self.servers))
        return DatasetServers(
            path=folder / FILE_NAME, settings=self.settings, servers=self.servers, sha256=sha256
        )

    def says_the_same(self, other: DatasetServers) -> bool:
        """Return whether both name the same servers with the same settings, wherever they are kept."""
        return (self.settings, self.servers) == (other.settings, other.servers)

    def as_yaml(self) -> str:
        """Return the text of the file; equal servers give equal bytes."""
        folder = self.path.parent.resolve()
        settings = {
            key: os.path.relpath(value, folder) if _is_path(key) else value
            for key, value in self.settings.items()
        }
        tree = nested({key: Setting(value=value, entry=_NO_ENTRY) for key, value in settings.items()})
        document: dict[str, Any] = {"tools": {"servers": None, **tree.pop("tools", {})}, **tree}
        if self.servers is not None:
            document["tools"]["servers"] = os.path.relpath(self.servers, folder)
            document["made_with"] = {"sha256": self.sha256}
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
        return DatasetServers(path=self.path, settings=kept)

    def over(self, below: Mapping[Key, Setting]) -> dict[Key, Setting]:
        """`below` with these servers in place of those that it names."""
        kept = {key: setting for key, setting in below.items() if key[:2] not in _WHICH}
        entries = {
            key: Entry(key=key, value=value, where=str(self.path)) for key, value in self.settings.items()
        }
        if self.servers is not None:
            entries[_SERVERS] = Entry(key=_SERVERS, value=str(self.servers), where=str(self.path))
        return kept | {key: Setting(value=entry.value, entry=entry) for key, entry in entries.items()}


def read_dataset_servers(dataset: Path) -> DatasetServers | None:
    """Return what the folder of the file `dataset` (or `dataset`, a folder) remembers; None if it has no such
    file. The servers may be gone. Raises UserError for a file that is broken."""
    path = (dataset if dataset.is_dir() else dataset.parent) / FILE_NAME
    if not path.is_file():
        return None
    try:
        entries = merge(read_file(path))
    except SourceError as error:
        raise UserError(error.problem.message, where=error.problem.where) from None
    made_with = {e.key[1]: e.value for e in entries if e.key[0] == "made_with" and len(e.key) == 2}
    layer = resolve_entries(e for e in entries if e.key[0] != "made_with")
    if layer.problems:
        raise UserError(layer.problems[0].message, where=layer.problems[0].where)
    settings = {
        key: str((path.parent / setting.value).resolve()) if _is_path(key) else setting.value
        for key, setting in layer.settings.items()
    }
    if strange := sorted(".".join(key) for key in settings if key[0] not in ("tools", "rollout")):
        raise UserError(f"{strange[0]} does not belong here: it takes tools and rollout", where=str(path))
    named, sha256 = settings.pop(_SERVERS, None), made_with.get("sha256")
    servers = None if named is None else _found(path, str(named), sha256)
    return DatasetServers(path=path, settings=settings, servers=servers, sha256=sha256)


def _is_path(key: Key) -> bool:
    return key[:2] == ("tools", "per_server") and key[-1] == "workspace"


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


_NO_ENTRY = Entry(key=(), value=None, where="")
