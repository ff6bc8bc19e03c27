"""The servers' own record of the calls that reached them, for comparison with the trajectories."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from mcpagent.core.tools import LEDGER_ENV
from mcpagent.errors import UserError

MODEL_PURPOSE = "episode"  # the purpose of a call that does not state one


@dataclass(frozen=True)
class Ledger:
    """Appends one JSON line a call: the model's calls to `path`, the environment's own to `<path>.env`."""

    path: Path

    @classmethod
    def from_environment(cls) -> Ledger | None:
        """Return the ledger that `MCPAGENT_CALL_LEDGER` names, if any."""
        value = os.environ.get(LEDGER_ENV, "")
        return cls(Path(value)) if value else None

    def __post_init__(self) -> None:
        if not self.path.parent.is_dir():
            raise UserError(
                f"the call ledger's folder {self.path.parent} does not exist",
                where=LEDGER_ENV,
                remedy=f"mkdir -p {self.path.parent}",
            )

    @property
    def environment_path(self) -> Path:
        """Return where the environment's own calls are recorded."""
        return self.path.with_name(self.path.name + ".env")

    def append(self, *, server: str, tool: str, nonce: str, purpose: str) -> None:
        """Write one line. `time_s` is Unix time. One write to a file opened with O_APPEND never interleaves
        with those of other processes (POSIX write(2))."""
        entry = {"server": server, "tool": tool, "nonce": nonce, "purpose": purpose, "time_s": time.time()}
        path = self.path if purpose == MODEL_PURPOSE else self.environment_path
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(descriptor)
