"""The environment variables in force: the process's own, then those of `.env` in the working directory."""

from __future__ import annotations

import os
from pathlib import Path

from dotenv import dotenv_values


def environment() -> dict[str, str]:
    """`.env` of the working directory; the real environment wins."""
    from_file = {
        name: value for name, value in dotenv_values(Path.cwd() / ".env").items() if value is not None
    }
    return from_file | dict(os.environ)
