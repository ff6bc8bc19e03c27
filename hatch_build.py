"""Put the commit that a distribution is built from into it: for `mcpagent --version` and records of runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds commit.json: what git says of the checkout, or in an sdist's wheel what the sdist holds."""

    _made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file; not to an editable installation, which asks git itself, and not without git."""
        if version == "editable":
            return
        root, place = Path(self.root), "mcpagent/_resources/commit.json"
        if (root / "commit.json").is_file():
            build_data["force_include"][str(root / "commit.json")] = place
            return
        described = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
        git = shutil.which("git")
        done = git and subprocess.run([git, "-C", str(root), *described], capture_output=True, text=True)
        if done and done.returncode == 0 and (root / ".git").exists():
            head, _, changes = done.stdout.strip().partition("-")
            self._made = Path(tempfile.mkdtemp())
            file = self._made / "commit.json"
            file.write_text(json.dumps({"commit": head, "has_changes": bool(changes)}), encoding="utf-8")
            build_data["force_include"][str(file)] = place if self.target_name == "wheel" else file.name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the file that was made."""
        if self._made is not None:
            shutil.rmtree(self._made)
