"""The classes of task, and slots that are made from others."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcpagent.core.records import Record

TaskClass = Literal[
    "single",
    "sequential",
    "parallel",
    "missing_parameter",  # the question lacks what a call needs: ask for it
    "missing_function",  # no offered tool can do it: say so
    "irrelevance",  # nothing is asked that a tool is for
    "error_recovery",  # the call that the question invites fails, and there is another way
    "multi_turn",
]


class Derived(Record):
    """A slot made from another: `head` are its first `length` characters in capitals, a guess at a ticker."""

    of: str
    how: Literal["head"] = "head"
    length: int = Field(default=4, ge=1)

    def value(self, source: str) -> str:
        return source[: self.length].upper()
