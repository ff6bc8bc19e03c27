"""What `--servers` means for every command that has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcpagent.console import Console
from mcpagent.rollout.setup import chosen_servers as configured_servers
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.tools.named_servers import note_named
from mcpagent.tools.servers_config import ServerConfig, builtin_servers, load_servers
from mcpagent.workflows.dataset_config import load_for_dataset


def chosen_servers(
    path: Path | None,
    *,
    console: Console,
    data: Path | None = None,
    limited: bool = True,
    builtin: Sequence[str] = BUILTIN_NAMES,
) -> Sequence[ServerConfig]:
    """The servers of an mcp.json, else those that the folder of `data` remembers, else the built-in ones
    (`limited` or full). Raises UserError."""
    if path is None and data is not None:
        tools = load_for_dataset(data=data, split=None, note=console.note, for_training=False).config.tools
        return configured_servers(tools, on_note=console.note)
    if path is None:
        return builtin_servers(builtin, limited=limited)
    loaded = load_servers(path)
    note_named(path)
    for note in loaded.notes:
        console.note(f"{path}: {note}")
    return loaded.servers
