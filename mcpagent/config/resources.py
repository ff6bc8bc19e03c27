"""Files that ship with mcpagent: `configs/` and `templates/`, in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from mcpagent.errors import RunError

_PACKAGE = Path(__file__).resolve().parent.parent


def resource_root() -> Path:
    """The folder that holds `configs/` and `templates/`."""
    installed = _PACKAGE / "_resources"
    return installed if installed.is_dir() else _PACKAGE.parent


def resource_path(name: str) -> Path:
    """Path of a file or folder such as `configs/model.yaml`. Raises RunError if the installation lacks it."""
    path = resource_root() / name
    if not path.exists():
        raise RunError(
            f"{name} is missing from this installation of mcpagent",
            where=str(path),
            remedy="pip install --force-reinstall mcpagent",
        )
    return path
