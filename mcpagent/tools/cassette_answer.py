"""What a call answered, as it is recorded: without times, ids and hidden fields, which differ every time."""

from __future__ import annotations

from collections.abc import Mapping

from mcpagent.core.records import JsonObject, Record
from mcpagent.core.redact import SECRETS, redact
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult
from mcpagent.tools.cassette_key import canonical, digest
from mcpagent.tools.wire import cut_middle

# A server answers a wrong call with one of these, and would again; every other failure says nothing about it.
_ANSWERS = frozenset({None, FailureKind.TOOL_ERROR, FailureKind.INVALID_ARGUMENTS})


class Answer(Record):
    """The part of a `ToolResult` that is the same whenever the call is made in the same state.

    `limit_chars` is the limit that `content` was cut to; 0 where it is whole. Hidden `_meta` is left out: a
    nonce is evidence that a server was asked, which a replayed result must not show.
    """

    content: str
    structured: JsonObject | None = None
    is_error: bool = False
    failure: FailureKind | None = None
    truncated_chars: int = 0
    limit_chars: int = 0

    @classmethod
    def of(cls, result: ToolResult, *, limit_chars: int, secrets: Mapping[str, str]) -> Answer | None:
        """None where the result is no answer of the tool."""
        if result.failure not in _ANSWERS:
            return None
        return cls(
            content=redact(result.content, secrets),
            structured=redact(result.structured, secrets),
            is_error=result.is_error,
            failure=result.failure,
            truncated_chars=result.truncated_chars,
            limit_chars=limit_chars if result.truncated_chars else 0,
        )

    @property
    def digest(self) -> str:
        return digest(canonical(self.model_dump(mode="json")))

    def within(self, limit_chars: int) -> Answer | None:
        """As a server would have answered under another limit; None where what that needs was cut off."""
        if self.truncated_chars:
            return self if self.limit_chars == limit_chars else None
        content, cut = cut_middle(self.content, limit_chars)
        if not cut:
            return self
        return self.model_copy(
            update={"content": content, "truncated_chars": cut, "limit_chars": limit_chars}
        )

    def result(self, call: ToolCall) -> ToolResult:
        """The answer to `call`, whose server and tool are resolved."""
        return ToolResult(
            call_id=call.id,
            server=call.server,
            tool=call.tool,
            content=SECRETS.text(self.content),  # a tape may come from elsewhere
            structured=SECRETS.value(self.structured),
            is_error=self.is_error,
            failure=self.failure,
            truncated_chars=self.truncated_chars,
            from_cassette=True,
        )
