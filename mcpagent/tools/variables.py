"""Variables in an `mcp.json`: `${VAR}`, `${VAR:-default}`, and the forms of VS Code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from mcpagent.config.environment import environment
from mcpagent.core.redact import SECRETS

# VS Code prefixes a kind: `${env:VAR}`, `${input:id}`.
_VARIABLE = re.compile(r"\$\{(?:(?P<kind>env|input):)?(?P<name>[A-Za-z_][\w.-]*?)(?::-(?P<default>[^}]*))?\}")


FOLDERS = ("workspaceFolder", "workspaceFolderBasename", "userHome")  # that VS Code knows


class Unresolved(Exception):
    """A variable without a value: what is missing, and what to do."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with its variables replaced; `$VAR` without braces is plain text. Raises Unresolved."""
    return _VARIABLE.sub(lambda match: _value(match, variables), text)


def shell_word(text: str, variables: Mapping[str, str]) -> str:
    """`text` as a word of a shell's command that means the same: `${VAR}` where it names a variable, and no
    secret that was typed in its place. The folders that VS Code knows are written out."""
    pieces: list[str] = []
    names_variable = False
    done = 0
    for match in _VARIABLE.finditer(text):
        pieces.append(_in_quotes(SECRETS.text(text[done : match.start()])))
        done = match.end()
        if match["name"] in FOLDERS and match["kind"] is None:
            pieces.append(_in_quotes(_value(match, variables)))
            continue
        names_variable = True
        default = "" if match["default"] is None else f":-{_in_quotes(SECRETS.text(match['default']))}"
        pieces.append(f"${{{match['name']}{default}}}")
    word = "".join([*pieces, _in_quotes(SECRETS.text(text[done:]))])
    return f'"{word}"' if names_variable else shlex.quote(SECRETS.text(expand(text, variables)))


def _in_quotes(text: str) -> str:
    """Within double quotes of a shell."""
    return re.sub(r'([\\"$`])', r"\\\1", text)


def known_variables(path: Path) -> dict[str, str]:
    """What the file at `path` may name: the environment in force, and the folders that VS Code knows."""
    folder = path.resolve().parent
    workspace = folder.parent if folder.name == ".vscode" else folder
    return dict(zip(FOLDERS, (str(workspace), workspace.name, str(Path.home())), strict=True)) | environment()


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
