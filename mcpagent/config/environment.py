"""The environment variables in force, texts that name them, and the files that ship with mcpagent."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
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


# VS Code prefixes a kind: `${env:VAR}`, `${input:id}`. opencode writes `{env:VAR}`.
_VARIABLE = re.compile(
    r"(?:\$\{(?:(?P<kind>env|input|config|command|workspaceFolder):)?|\{env:)"
    r"(?P<name>/|[A-Za-z_][\w.-]*?)(?::-(?P<default>[^}]*))?\}"
)


# That VS Code predefines: those that are the same for whoever reads the file, and those of an open editor.
PREDEFINED = (
    "workspaceFolder",
    "workspaceRoot",
    "workspaceFolderBasename",
    "userHome",
    "cwd",
    "pathSeparator",
    "/",
)
_OF_AN_EDITOR = re.compile(
    r"(?:relative)?[fF]ile(?:\w*)|lineNumber|columnNumber|selectedText|execPath|defaultBuildTask"
    r"|extensionInstallFolder"
)


class UnsetVariable(Exception):
    """A variable without a value: what is missing, and what to do."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with its variables replaced; `$VAR` without braces is plain text. Raises UnsetVariable."""
    return _VARIABLE.sub(lambda match: _value(match, variables), text)


def shell_word(text: str, variables: Mapping[str, str]) -> str:
    """`text` as a word of a shell's command that means the same: `${VAR}` if it names a variable, and no
    secret that was typed in its place. What VS Code predefines is written out."""
    pieces: list[str] = []
    names_variable = False
    done = 0
    for match in _VARIABLE.finditer(text):
        pieces.append(_in_quotes(SECRETS.text(text[done : match.start()])))
        done = match.end()
        if (match["name"] in PREDEFINED and match["kind"] is None) or match["kind"] == "workspaceFolder":
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
    """Return what the file at `path` may name: the environment in force, and what VS Code predefines."""
    folder = path.resolve().parent
    workspace = folder.parent if folder.name == ".vscode" else folder
    root = str(workspace)
    values = (root, root, workspace.name, str(Path.home()), root, os.sep, os.sep)
    return dict(zip(PREDEFINED, values, strict=True)) | environment()


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name, default = match["name"], match["default"]
    if name == "WORKSPACE" and match["kind"] is None:
        return match[0]  # each instance of a server has its own
    if match["kind"] in ("input", "config", "command"):
        raise UnsetVariable(
            f"asks for the VS Code {match['kind']} {name!r}",
            "Replace it by an environment variable: ${NAME}.",
        )
    if match["kind"] == "workspaceFolder":
        if name != variables.get("workspaceFolderBasename"):
            raise UnsetVariable(f"asks for the VS Code folder {name!r}", "Replace it by its path.")
        return variables["workspaceFolder"]
    value = variables.get(name)
    if not value and default is not None:  # as in a shell, `:-` also replaces an empty value
        return default
    if value is None and match["kind"] is None and _OF_AN_EDITOR.fullmatch(name):
        raise UnsetVariable(
            f"asks for the VS Code variable {name!r}, which has a value in an editor only",
            "Replace it by what it stands for.",
        )
    if value is None:
        raise UnsetVariable(
            f"needs the environment variable {name}, which is not set",
            f"export {name}=...  (or put {name}=... into .env)",
        )
    if match["kind"] is not None or name not in PREDEFINED:
        SECRETS.learn({name: value})
    return value


def state_folder() -> Path:
    """Return the folder of what mcpagent keeps for a user next to their projects; it may not be there yet."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "mcpagent"


_PACKAGE = Path(__file__).resolve().parent.parent


def resource_root() -> Path:
    """Return the folder that holds `configs/` and `templates/`."""
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
