"""The files in which other MCP clients keep their servers, by the name of the client."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from mcpagent.tools.servers_config import server_names

# Those of a project before those of its user. CONFIG is where programs of this system keep their settings.
CLIENTS: Mapping[str, tuple[str, ...]] = {
    "claude": ("CONFIG/Claude/claude_desktop_config.json",),
    "claude-code": (".mcp.json", "~/.claude.json"),
    "cursor": (".cursor/mcp.json", "~/.cursor/mcp.json"),
    "vscode": (".vscode/mcp.json", "CONFIG/Code/User/mcp.json", "CONFIG/Code/User/settings.json"),
    "windsurf": ("~/.codeium/windsurf/mcp_config.json",),
    "zed": (".zed/settings.json", "~/.config/zed/settings.json", "CONFIG/Zed/settings.json"),
    "amp": (".amp/settings.json", "~/.config/amp/settings.json"),
    "cline": ("CONFIG/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",),
    "copilot": ("~/.copilot/mcp-config.json",),
    "gemini": (".gemini/settings.json", "~/.gemini/settings.json"),
    "opencode": ("opencode.json", "opencode.jsonc", "~/.config/opencode/opencode.json"),
}


def client_places(client: str, platform: str = sys.platform) -> list[Path]:
    """Return where the client keeps its servers on a system of `sys.platform`, the first to be taken first;
    nothing for a name that is no client's."""
    if platform == "darwin":
        config = "~/Library/Application Support"
    elif platform == "win32":
        config = os.environ.get("APPDATA") or "~/AppData/Roaming"
    else:
        config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return [Path(place.replace("CONFIG", config)).expanduser() for place in CLIENTS.get(client, ())]


def client_file(client: str, platform: str = sys.platform) -> Path | None:
    """Return the file of a client that names a server, else one that is there, else None."""
    there = [place for place in client_places(client, platform) if place.is_file()]
    return next(filter(server_names, there), next(iter(there), None))
