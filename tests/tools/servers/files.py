"""An `mcp.json` of the servers of this folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.house import ROOT


def servers_file(folder: Path, **servers: tuple[str, ...]) -> Path:
    """By name, the module here and its arguments."""
    entries = {
        name: {
            "command": sys.executable,
            "args": ["-S", "-m", f"tests.tools.servers.{module}", *arguments],
            "cwd": str(ROOT),
        }
        for name, (module, *arguments) in servers.items()
    }
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    return path
