"""The environment variables in force: the process's own, then those of `.env` in the working directory."""

from __future__ import annotations

import os
from pathlib import Path

from dotenv import dotenv_values

from mcpagent.core.redact import SECRETS


def environment() -> dict[str, str]:
    """`.env` of the working directory; the real environment wins. What is named as a secret is one from here
    on, for all that is written and printed."""
    from_file = {
        name: value for name, value in dotenv_values(Path.cwd() / ".env").items() if value is not None
    }
    variables = from_file | dict(os.environ)
    SECRETS.learn_named(variables)
    return variables
