"""Variables in an `mcp.json`: `${VAR}`, `${VAR:-default}`, and the forms of VS Code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mcpagent.config.environment import environment
from mcpagent.core.redact import SECRETS

# VS Code prefixes a kind: `${env:VAR}`, `${input:id}`.
_VARIABLE = re.compile(r"\$\{(?:(?P<kind>env|input):)?(?P<name>[A-Za-z_][\w.-]*?)(?::-(?P<default>[^}]*))?\}")


class Unresolved(Exception):
    """A variable without a value: what is missing, and what to do."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with its variables replaced; `$VAR` without braces is plain text. Raises Unresolved."""
    return _VARIABLE.sub(lambda match: _value(match, variables), text)


def known_variables(path: Path) -> dict[str, str]:
    """What the file at `path` may name: the environment in force, and the folders that VS Code knows."""
    folder = path.resolve().parent
    workspace = folder.parent if folder.name == ".vscode" else folder
    folders = {
        "workspaceFolder": str(workspace),
        "workspaceFolderBasename": workspace.name,
        "userHome": str(Path.home()),
    }
    return folders | environment()


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name, default = match["name"], match["default"]
    if match["kind"] == "input":
        raise Unresolved(
            f"asks for the VS Code input {name!r}", "Replace it by an environment variable: ${NAME}."
        )
    value = variables.get(name)
    if not value and default is not None:  # as in a shell, `:-` also replaces an empty value
        return default
    if value is None:
        raise Unresolved(
            f"needs the environment variable {name}, which is not set",
            f"export {name}=...  (or put {name}=... into .env)",
        )
    SECRETS.learn({name: value})
    return value
