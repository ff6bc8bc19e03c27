"""The environment variables in force, and the files that ship with mcpagent."""

from __future__ import annotations

import os
from pathlib import Path

from dotenv import dotenv_values

from mcpagent.core.redact import SECRETS
from mcpagent.errors import RunError


def environment() -> dict[str, str]:
    """`.env` of the working directory; the real environment wins. What is named as a secret is one from here
    on, for all that is written and printed."""
    from_file = {
        name: value for name, value in dotenv_values(Path.cwd() / ".env").items() if value is not None
    }
    variables = from_file | dict(os.environ)
    SECRETS.learn_named(variables)
    return variables


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
