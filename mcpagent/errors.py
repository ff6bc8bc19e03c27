"""The one error story of mcpagent.

    MCPAgentError
    ├── UserError      the user must fix something        exit 2, remedy, no traceback
    │   └── InUseError     another process writes there
    ├── RunError       the run itself failed              exit 1
    └── EpisodeError   one episode failed; its siblings go on, the episode is unscored

Errors are classified at boundaries (a transport, a file, a process); nothing else catches broadly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class MCPAgentError(Exception):
    """Base of every error that mcpagent raises on purpose.

    `where` is a file with its line, a config key or a server; `remedy` is what to do or type next; `details`
    are fields that the error document of `--json` also has.
    """

    kind = "error"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        remedy: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = remedy
        self.details = details or {}

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  {self.remedy}" if self.remedy else head

    def as_json(self) -> dict[str, dict[str, Any]]:
        """Return the error document that `--json` commands print."""
        told = {"kind": self.kind, "message": self.message, "where": self.where, "remedy": self.remedy}
        return {"error": {**told, **self.details}}


class UserError(MCPAgentError):
    """Bad input, a missing package, a wrong key: the user can fix it."""

    kind = "user"
    exit_code = 2


class InUseError(UserError):
    """Another process writes to this folder or file; `process` says which one: its pid, host, command, and
    since when. It is empty if the other process has not said so yet."""

    def __init__(self, message: str, *, where: str, remedy: str, process: dict[str, Any]) -> None:
        super().__init__(message, where=where, remedy=remedy, details={"process": process})
        self.process = process


class RunError(MCPAgentError):
    """The run failed for a reason that the input does not explain."""

    kind = "run"
    exit_code = 1


class EpisodeError(MCPAgentError):
    """One episode could not be scored (infrastructure); recorded on its trajectory."""

    kind = "episode"
