"""One question to a model, its answer, and the ways in which there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mcpagent.core.records import JsonObject


@dataclass(frozen=True)
class Usage:
    """Tokens of one or more requests."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """`messages` are chat messages (`role`, `content`). `schema` is the JSON schema of the answer, enforced
    if the server can; `tools` are those of `core.tools.chat_schema`."""

    messages: tuple[JsonObject, ...]
    max_output_tokens: int
    schema: JsonObject | None = None
    schema_name: str = "answer"
    tools: tuple[JsonObject, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


class Finish(StrEnum):
    """The reason why a model stopped."""

    STOP = "stop"  # it was done
    LENGTH = "length"  # max_output_tokens, or the end of its context
    TOOL_CALLS = "tool_calls"  # it wants tools called
    REFUSED = "refused"  # the model or a content filter declined


@dataclass(frozen=True, kw_only=True)
class ChatReply:
    """`usage` is None if the server does not say. `raw` is the whole body of the response."""

    text: str
    finish: Finish
    usage: Usage | None
    raw: JsonObject
    tool_calls: tuple[JsonObject, ...] = ()


class FailureReason(StrEnum):
    """The reason why a request has no answer."""

    RATE_LIMITED = "rate_limited"  # 429
    TIMED_OUT = "timed_out"  # no whole answer within the deadline
    SERVER_ERROR = "server_error"  # 408, 409 or 5xx
    CONNECTION = "connection"  # the connection failed or broke
    BAD_BODY = "bad_body"  # 200, but the body is not an answer
    BAD_REQUEST = "bad_request"  # 400, 413 or 422: this request will never be answered
    UNSUPPORTED = "unsupported"  # the server does not know a parameter that the client can do without


class ChatFailed(Exception):
    """One attempt gave no answer. `retry_after_s` is what the server asked to wait; with `may_be_billed` the
    model may have worked all the same."""

    def __init__(
        self,
        reason: FailureReason,
        text: str,
        *,
        retry_after_s: float | None = None,
        may_be_billed: bool = False,
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.retry_after_s = retry_after_s
        self.may_be_billed = may_be_billed


class ChatClient(Protocol):
    """Asks a model."""

    async def ask(self, request: ChatRequest, *, key: str) -> ChatReply:
        """Return the answer. `key` names the question: the same for every attempt at it. Raises
        ChatFailed."""
        ...
