"""Which mcp.json files a person has named on this machine.

A dataset folder may name an mcp.json, and an mcp.json is a list of programs to run. So one that came with
somebody's dataset is not started before the person has named it once.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from mcpagent.errors import UserError
from mcpagent.storage.atomic import write_text


def note_named(servers: Path) -> None:
    """Keep that a person named this file. Where nothing can be kept, they will be asked to name it again."""
    for mark in _marks(servers):
        try:
            if not mark.exists():
                write_text(mark, f"{servers.resolve()}\n", is_settings=True)
        except OSError:
            return


def check_named(servers: Path, *, by: Path) -> None:
    """Raises UserError for a file that is gone, and for one that was never named here, neither at this place
    nor with these contents. `by` is the file that names it."""
    if not servers.is_file():
        raise UserError(
            f"the dataset was made with the servers of {servers}, and there is no such file",
            where=str(by),
            remedy="name them with --set tools.servers=FILE (or --servers FILE), or fix the path there",
        )
    if not any(mark.exists() for mark in _marks(servers)):
        raise UserError(
            f"the dataset names programs to start, in {servers}, which were never used on this machine",
            where=str(by),
            remedy=f"read that file; if you trust it, name it once: mcpagent tools list --servers {servers}",
        )


def _marks(servers: Path) -> list[Path]:
    place = str(servers.resolve()).encode("utf-8", "surrogateescape")
    keys = [place]
    with suppress(OSError):
        keys.append(servers.read_bytes())
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return [state / "mcpagent" / "servers" / hashlib.sha256(key).hexdigest() for key in keys]
