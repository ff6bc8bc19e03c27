"""The command line as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def mcpagent(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mcpagent.cli.main", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one message of a command that the user must fix something for."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1
    return done.stderr
