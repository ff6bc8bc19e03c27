"""Train and evaluate language-model agents on MCP tool servers. Its names are the Python API (docs/api.md).

They stand in `__init__.pyi`, for type checkers and for this file: a name is imported from its module when it
is first used, so that `import mcpagent` loads none of what is behind it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


@cache
def _module_of() -> dict[str, str]:
    """Return the module of each name of the API."""
    lines = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines()
    imports = (line.split() for line in lines if line.startswith("from "))
    return {name: module for _, module, _, name, *_ in imports}


def __getattr__(name: str) -> Any:
    """Import the name from its module, and keep it here."""
    if name not in _module_of():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_module_of()[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_module_of()})
