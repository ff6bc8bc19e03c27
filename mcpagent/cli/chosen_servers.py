"""What `--servers` means for every command that has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcpagent.console import Console
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.tools.servers_config import ServerConfig, builtin_servers, load_servers


def chosen_servers(
    path: Path | None, *, console: Console, limited: bool = True, builtin: Sequence[str] = BUILTIN_NAMES
) -> Sequence[ServerConfig]:
    """The servers of an mcp.json; None is the built-in ones (`limited` or full). Raises UserError."""
    if path is None:
        return builtin_servers(builtin, limited=limited)
    loaded = load_servers(path)
    for note in loaded.notes:
        console.note(f"{path}: {note}")
    return loaded.servers
