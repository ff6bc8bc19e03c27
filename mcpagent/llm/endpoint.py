"""One attempt at a request, over the `openai` SDK: Chat Completions or Responses, any compatible server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import openai

from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS, redact
from mcpagent.errors import UserError
from mcpagent.llm.bodies import UNUSABLE, chat_body, read_chat, read_responses, responses_body
from mcpagent.llm.contract import ChatFailed, ChatReply, ChatRequest, FailureReason
from mcpagent.llm.refusals import Concessions, failure_of

Backend = Literal["chat", "responses"]
BACKENDS: tuple[Backend, ...] = ("responses", "chat")


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """`base_url` None is OpenAI's own; `timeout_s` is the deadline of one attempt, its whole answer."""

    model: str
    backend: Backend = "responses"
    base_url: str | None = None
    api_key: str
    timeout_s: float = 120.0


class Endpoint:
    """Sends requests. What a server cannot do (structured outputs, a parameter) is found out by its refusal,
    given up for all later requests, and told to `on_note`."""

    def __init__(
        self, settings: EndpointSettings, *, on_note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._concessions = Concessions(on_note=on_note)
        SECRETS.learn({"API_KEY": settings.api_key})
        self._secrets = {settings.api_key: "API_KEY"} if settings.api_key else {}
        self._client = openai.AsyncOpenAI(
            api_key=settings.api_key,
            base_url=settings.base_url,
            timeout=settings.timeout_s,
            max_retries=0,  # an attempt is counted, paced and paid for: `PatientClient` repeats
        )

    async def send(self, request: ChatRequest, *, key: str) -> ChatReply:
        """Raises ChatFailed, and UserError for what no other request would survive (key, model, quota)."""
        asked = self._concessions.state
        # Gateways that know the header bill one key once, also when the answer to it was lost.
        headers = {"Idempotency-Key": key}
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                body = await self._post(request, headers)
        except (TimeoutError, openai.APITimeoutError):
            raise self._late() from None
        except openai.APIConnectionError as error:
            never_sent = type(error.__cause__).__name__ in {"ConnectError", "ConnectTimeout"}
            text = self._shown(f"{error} {error.__cause__ or ''}".strip())
            raise ChatFailed(FailureReason.CONNECTION, text, may_be_billed=not never_sent) from None
        except openai.APIStatusError as error:
            raise self._refused(error, request, asked) from None
        reply = self._read(body)
        if request.schema is not None:
            self._concessions.works(asked)
        return reply

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _post(self, request: ChatRequest, headers: dict[str, str]) -> str:
        concessions, model = self._concessions, self._settings.model
        if self._settings.backend == "chat":
            body = concessions.applied(chat_body(request, model=model, mode=concessions.mode))
            answer = await self._client.chat.completions.with_raw_response.create(
                **body, extra_headers=headers
            )
        else:
            body = concessions.applied(responses_body(request, model=model, mode=concessions.mode))
            answer = await self._client.responses.with_raw_response.create(**body, extra_headers=headers)
        return answer.text

    def _read(self, text: str) -> ChatReply:
        try:
            raw: Any = json.loads(text)
            # Some gateways repeat the key in what they answer.
            raw = redact(raw, self._secrets)
            return (read_chat if self._settings.backend == "chat" else read_responses)(raw)
        except UNUSABLE as error:
            text = f"{type(error).__name__}: {error}; the body is {text[:200]!r}"
            raise ChatFailed(FailureReason.BAD_BODY, self._shown(text), may_be_billed=True) from None

    def _refused(
        self, error: openai.APIStatusError, request: ChatRequest, asked: int
    ) -> ChatFailed | UserError:
        where = str(self._client.base_url)
        failure = failure_of(error, where=where, model=self._settings.model)
        if isinstance(failure, UserError):
            return UserError(self._shown(failure.message), where=failure.where, remedy=failure.remedy)
        has_schema = request.schema is not None
        if failure.reason is FailureReason.BAD_REQUEST and self._concessions.give_in(
            failure.text, asked, has_schema=has_schema
        ):
            failure.reason = FailureReason.UNSUPPORTED
        failure.text = self._shown(failure.text)
        return failure

    def _late(self) -> ChatFailed:
        text = f"no whole answer within {self._settings.timeout_s:g} s"
        return ChatFailed(FailureReason.TIMED_OUT, text, may_be_billed=True)

    def _shown(self, text: str) -> str:
        return redact(text, self._secrets)


def json_of(reply: ChatReply) -> JsonObject | None:
    """The JSON object that an answer is, also in a Markdown fence; None where it is none."""
    text = reply.text.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
