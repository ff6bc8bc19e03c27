"""One attempt at a request, over the `openai` SDK: Chat Completions of any compatible server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.core.values import retry_after_s
from mcpagent.errors import UserError
from mcpagent.llm.contract import ChatFailed, ChatReply, ChatRequest, FailureReason, Finish, Usage

if TYPE_CHECKING:
    import openai  # at run time only once there is an endpoint: it takes most of a second to import

# How far a server enforces the schema of an answer, the most first.
MODES = ("json_schema", "json_object", "text")
UNUSABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)
_FINISH = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "content_filter": Finish.REFUSED,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
}


def chat_body(request: ChatRequest, *, model: str, mode: str) -> dict[str, Any]:
    """Return the body of a Chat Completions request; `mode` is one of MODES."""
    sampling = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
    body: dict[str, Any] = {
        "model": model,
        "messages": list(request.messages),
        "max_completion_tokens": request.max_output_tokens,
        **{name: value for name, value in sampling.items() if value is not None},
    }
    if request.tools:
        body["tools"] = list(request.tools)
    if request.schema is not None and mode == "json_schema":
        schema = {"name": request.schema_name, "schema": request.schema, "strict": True}
        body["response_format"] = {"type": mode, "json_schema": schema}
    elif request.schema is not None and mode == "json_object":
        body["response_format"] = {"type": mode}
    return body


def read_chat(raw: JsonObject) -> ChatReply:
    """Raise one of UNUSABLE if the body is not a chat completion."""
    choice = raw["choices"][0]
    message = choice["message"]
    calls = tuple(message.get("tool_calls") or ())
    finish = _FINISH.get(choice.get("finish_reason") or "stop", Finish.STOP)
    refusal = message.get("refusal")
    return ChatReply(
        text=str(refusal or message.get("content") or ""),
        finish=Finish.REFUSED if refusal else Finish.TOOL_CALLS if calls else finish,
        usage=_usage(raw),
        raw=raw,
        tool_calls=calls,
    )


def _usage(raw: JsonObject) -> Usage | None:
    usage = raw.get("usage")
    if not isinstance(usage, dict) or not {"prompt_tokens", "completion_tokens"} <= usage.keys():
        return None
    return Usage(int(usage["prompt_tokens"]), int(usage["completion_tokens"]))


_OPTIONAL = ("temperature", "seed")
_NO_QUOTA = {"insufficient_quota", "billing_hard_limit_reached"}


class Concessions:
    """The features that the server has refused so far. `mode` is how the schema of an answer is asked for;
    `state` counts the concessions, so that a request knows which of them it was sent with."""

    def __init__(self, *, on_note: Callable[[str], None]) -> None:
        self.mode = MODES[0]
        self.state = 0
        self._works = False
        self._dropped: set[str] = set()
        self._is_renamed = False
        self._on_note = on_note

    def works(self, state: int) -> None:
        """A request with a schema was answered: a later refusal has another reason than that."""
        self._works = self._works or state == self.state

    def applied(self, body: dict[str, Any]) -> dict[str, Any]:
        """`body` without what the server does not take."""
        kept = {name: value for name, value in body.items() if name not in self._dropped}
        if self._is_renamed and "max_completion_tokens" in kept:
            kept["max_tokens"] = kept.pop("max_completion_tokens")
        return kept

    def give_in(self, message: str, state: int, *, has_schema: bool) -> bool:
        """Return True if the refused request, sent in `state`, is worth another attempt."""
        if state != self.state:
            return True  # another request's refusal has changed how it would be sent now
        note = self._concession(message, has_schema=has_schema)
        if note is None:
            return False
        self.state += 1
        self._on_note(note)
        return True

    def _concession(self, message: str, *, has_schema: bool) -> str | None:
        words = set(re.findall(r"\w+", message.lower()))
        if "max_completion_tokens" in words and not self._is_renamed:
            self._is_renamed = True
            return "the server does not know max_completion_tokens; it is sent max_tokens"
        for name in _OPTIONAL:
            if name in words and name not in self._dropped:
                self._dropped.add(name)
                return f"the server refuses {name}; it is left out"
        if not has_schema or self._works or self.mode == MODES[-1]:
            return None
        refused, self.mode = self.mode, MODES[MODES.index(self.mode) + 1]
        return f"the server refuses {refused} answers ({message[:120]}); trying {self.mode}"


def failure_of(error: openai.APIStatusError, *, where: str, model: str) -> ChatFailed | UserError:
    """Return what an error status says: of this attempt (ChatFailed), or of every request (UserError)."""
    status, text = error.status_code, _message(error)
    code = error.body.get("code") if isinstance(error.body, dict) else None
    if status in {401, 403}:
        return UserError(
            f"the API refuses the key ({status}): {text}",
            where=where,
            remedy="set OPENAI_API_KEY, also in .env",
        )
    if status == 404:
        return UserError(
            f"the API has no model {model!r}, or no such path (404): {text}",
            where=where,
            remedy="check the name of the model and api.base_url (it usually ends in /v1)",
        )
    if status == 402 or (status == 429 and code in _NO_QUOTA):
        return UserError(f"the account has no quota left: {text}", where=where, remedy="check its billing")
    if status == 429:
        wait_s = retry_after_s(error.response.headers)
        return ChatFailed(FailureReason.RATE_LIMITED, f"429: {text}", retry_after_s=wait_s)
    if status in {408, 409} or status >= 500:
        wait_s = retry_after_s(error.response.headers)
        return ChatFailed(FailureReason.SERVER_ERROR, f"{status}: {text}", retry_after_s=wait_s)
    return ChatFailed(FailureReason.BAD_REQUEST, f"{status}: {text}")


def _message(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict):
        parts = [body.get("message"), body.get("param")]
        told = " ".join(str(part) for part in parts if part)
        return told or json.dumps(body)[:300]
    return str(body or error.message)[:300]


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """The way in which a model is asked: where (`base_url` None is OpenAI's own), by which deadline of one
    attempt, its whole answer, with how many requests at once and in a minute (None: no limit), and how often
    in all if a failure may pass."""

    model: str
    base_url: str | None = None
    api_key: str
    timeout_s: float = 120.0
    max_in_flight: int = 8
    per_minute: float | None = None
    attempts: int = 6


class Endpoint:
    """Sends requests. What a server cannot do (structured outputs, a parameter) is found out by its refusal,
    given up for all later requests, and told to `on_note`."""

    def __init__(self, settings: EndpointSettings, *, on_note: Callable[[str], None]) -> None:
        import openai

        self.settings = settings
        self._concessions = Concessions(on_note=on_note)
        SECRETS.learn({"API_KEY": settings.api_key})
        self._client = openai.AsyncOpenAI(
            api_key=settings.api_key,
            base_url=settings.base_url,
            timeout=settings.timeout_s,
            max_retries=0,  # an attempt is counted, paced and paid for: `RetryingClient` repeats
        )

    async def send(self, request: ChatRequest, *, key: str) -> ChatReply:
        """Raise ChatFailed, and UserError for what no other request would survive (key, model, quota)."""
        import openai

        asked = self._concessions.state
        # Gateways that know the header bill one key once, also when the answer to it was lost.
        headers = {"Idempotency-Key": key}
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                body = await self._post(request, headers)
        except (TimeoutError, openai.APITimeoutError):
            text = f"no whole answer within {self.settings.timeout_s:g} s"
            raise ChatFailed(FailureReason.TIMED_OUT, text, may_be_billed=True) from None
        except openai.APIConnectionError as error:
            never_sent = type(error.__cause__).__name__ in {"ConnectError", "ConnectTimeout"}
            text = SECRETS.text(f"{error} {error.__cause__ or ''}".strip())
            raise ChatFailed(FailureReason.CONNECTION, text, may_be_billed=not never_sent) from None
        except openai.APIStatusError as error:
            raise self._refused(error, request, asked) from None
        reply = self._read(body)
        if request.schema is not None:
            self._concessions.works(asked)
        return reply

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.close()

    async def _post(self, request: ChatRequest, headers: dict[str, str]) -> str:
        mode = self._concessions.mode
        body = self._concessions.applied(chat_body(request, model=self.settings.model, mode=mode))
        answer = await self._client.chat.completions.with_raw_response.create(**body, extra_headers=headers)
        return answer.text

    def _read(self, text: str) -> ChatReply:
        try:
            raw: Any = json.loads(text)
            # Some gateways repeat the key in what they answer.
            raw = SECRETS.value(raw)
            return read_chat(raw)
        except UNUSABLE as error:
            text = f"{type(error).__name__}: {error}; the body is {text[:200]!r}"
            raise ChatFailed(FailureReason.BAD_BODY, SECRETS.text(text), may_be_billed=True) from None

    def _refused(
        self, error: openai.APIStatusError, request: ChatRequest, asked: int
    ) -> ChatFailed | UserError:
        where = str(self._client.base_url)
        failure = failure_of(error, where=where, model=self.settings.model)
        if isinstance(failure, UserError):
            return UserError(SECRETS.text(failure.message), where=failure.where, remedy=failure.remedy)
        has_schema = request.schema is not None
        if failure.reason is FailureReason.BAD_REQUEST and self._concessions.give_in(
            failure.text, asked, has_schema=has_schema
        ):
            failure.reason = FailureReason.UNSUPPORTED
        failure.text = SECRETS.text(failure.text)
        return failure


def json_of(answer: str) -> JsonObject | None:
    """Return the answer as a JSON object, also out of a Markdown fence; None if it is not one."""
    text = answer.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
