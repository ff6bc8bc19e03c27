"""`OpenAIPolicy`: a model behind a Chat Completions API, with that API's own tool calling.

The API keeps calls and results as messages with ids; the environment reads calls from text. A native call is
written here in the form that the environment's parser reads first (Hermes): its arguments are JSON on both
sides, so nothing is lost, one parser judges every policy, and arguments that are no JSON fail there as any
broken call does. What goes back to the API is its own message with its own ids, never that text.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpagent.core.hidden_text import without_marks
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import api_schemas
from mcpagent.core.trajectory import Completion, FinishReason, TokenUsage
from mcpagent.core.values import MAX_JSON_DEPTH, decode_model_json
from mcpagent.errors import EpisodeError
from mcpagent.llm.budget import BudgetSpent, Price
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatReply, ChatRequest, FailureReason, Finish
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.scripted import call_text

_MARKERS = re.compile(r"<(?=/?(?:tool|think|function|parameter|\|))")
_TOO_LONG = re.compile(r"context.?length|maximum context|context window|too many tokens", re.IGNORECASE)
_LARGEST_SEED = 2**31 - 1  # what every server takes


class OpenAIPolicy:
    """Asks `client`, whose retries and limits are its own. An episode for which it has no answer raises
    EpisodeError and is left unscored; what no other request would survive either raises UserError. Every key
    begins with `run`, by default a new one: gateways answer a key only once, also that of an earlier run."""

    def __init__(self, client: ChatClient, *, price: Price | None = None, run: str = "") -> None:
        self._client, self._price = client, price
        self._conversations: dict[str, _Conversation] = {}
        self._run = run or uuid.uuid4().hex

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One answer of the model behind the API for each request, in order, all asked at once."""
        return list(await asyncio.gather(*(self._answer(request) for request in requests)))

    async def release(self, episode_id: str) -> None:
        """Forget the conversation of an episode."""
        self._conversations.pop(episode_id, None)

    async def _answer(self, request: CompletionRequest) -> Completion:
        conversation = self._conversations.setdefault(request.episode_id, _Conversation())
        conversation.catch_up(request.messages)
        sampling, (tools, name_of) = request.sampling, api_schemas(request.tools)
        asked = ChatRequest(
            messages=tuple(conversation.messages),
            max_output_tokens=sampling.max_new_tokens,
            tools=tools,
            temperature=sampling.temperature,
            top_p=None if sampling.top_p == 1.0 else sampling.top_p,
            seed=request.seed % _LARGEST_SEED,
        )
        key = f"{self._run}-{request.episode_id}-{len(conversation.messages)}"
        try:
            reply = await self._client.ask(asked, key=key)
        except ChatFailed as failure:
            if failure.reason is FailureReason.BAD_REQUEST and _TOO_LONG.search(failure.text):
                return Completion(text="", finish_reason=FinishReason.OVERFLOW)
            raise EpisodeError(f"the model gave no answer ({failure.reason}): {failure.text}") from failure
        except BudgetSpent as spent:
            raise EpisodeError(f"the model is past its cap (api.{spent.cap})") from spent
        text = conversation.take(reply, name_of)
        return Completion(text=text, finish_reason=_finish(reply), usage=self._usage(reply))

    def _usage(self, reply: ChatReply) -> TokenUsage | None:
        if reply.usage is None:
            return None
        return TokenUsage(
            input_tokens=reply.usage.input_tokens,
            output_tokens=reply.usage.output_tokens,
            cost_usd=None if self._price is None else self._price.of(reply.usage),
        )


@dataclass(eq=False)
class _Conversation:
    """One episode as the API holds it. `unanswered` are the ids of the last calls, in the order in which the
    environment answers them: those that it makes, then those that it cannot read."""

    messages: list[JsonObject] = field(default_factory=list)
    unanswered: deque[str] = field(default_factory=deque)
    _seen: int = 0

    def catch_up(self, messages: Sequence[JsonObject]) -> None:
        """Add what the environment has said since."""
        # What was sampled is here already, as the API wrote it; the text of it is for the environment.
        for message in messages[self._seen + 1 if self._seen else 0 :]:
            if message["role"] != "tool" or "tool_call_id" in message:  # of a shot, as it is sent
                self.messages.append({**message, "content": without_marks(message["content"])})
            elif self.unanswered:
                answered = {"role": "tool", "tool_call_id": self.unanswered.popleft()}
                self.messages.append({**answered, "content": without_marks(message["content"])})
            else:  # the answer to a call that the model wrote as text: the API knows of none
                content = f"<tool_response>\n{without_marks(message['content'])}\n</tool_response>"
                self.messages.append({"role": "user", "content": content})
        self._seen = len(messages)

    def take(self, reply: ChatReply, name_of: Mapping[str, str]) -> str:
        """Add the model's message; returns it as the environment reads it. `name_of` has the environment's
        names of tools by the API's, if they differ."""
        calls = () if _raw_finish(reply) == "content_filter" else tuple(map(_Call.of, reply.tool_calls))
        said: JsonObject = {"role": "assistant", "content": reply.text}
        if calls:
            said |= {"content": reply.text or None, "tool_calls": [call.as_message() for call in calls]}
        self.messages.append(said)
        ordered = sorted(calls, key=lambda call: call.arguments is None)
        self.unanswered = deque(call.id for call in ordered)
        if not calls:
            return reply.text
        # With native calls, text is text.
        text = _MARKERS.sub("< ", reply.text).strip()
        return "\n".join([*([text] if text else []), *(call.as_text(name_of) for call in calls)])


@dataclass(frozen=True)
class _Call:
    """`arguments` is None if the model did not write a JSON object; `raw` is what it wrote."""

    id: str
    name: str
    arguments: JsonObject | None
    raw: str

    @classmethod
    def of(cls, call: Any) -> _Call:
        """Whatever a server sends."""
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name, raw = function.get("name"), function.get("arguments")
        raw = raw if isinstance(raw, str) else json.dumps(raw)
        name = name if isinstance(name, str) else ""
        own_id = call.get("id")
        return cls(
            id=own_id if isinstance(own_id, str) and own_id else f"call-{uuid.uuid4().hex}",
            name=name,
            arguments=_arguments(raw) if name.strip() else None,
            raw=raw,
        )

    def as_text(self, name_of: Mapping[str, str]) -> str:
        if self.arguments is not None:
            return call_text(name_of.get(self.name, self.name), self.arguments)
        # No JSON begins with it: what could not be read must not be read as something else.
        shown = _MARKERS.sub("< ", f"{self.name} {self.raw}")
        return f"<tool_call>\n!{shown}\n</tool_call>"

    def as_message(self) -> JsonObject:
        """Return the message in which it goes back. Servers parse the arguments of their own history, and
        fail if they cannot."""
        arguments = "{}" if self.arguments is None else json.dumps(self.arguments)
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name or "unnamed", "arguments": arguments},
        }


def _arguments(raw: str) -> JsonObject | None:
    """Return the JSON object that `raw` is, by the environment's rules; None if it is not one."""
    text = raw.strip()
    try:
        # The call around the arguments is a level of its own.
        value, end = decode_model_json(text or "{}", max_depth=MAX_JSON_DEPTH - 1)
    except ValueError:
        return None
    return value if isinstance(value, dict) and end >= len(text) else None


def _raw_finish(reply: ChatReply) -> str | None:
    return reply.raw["choices"][0].get("finish_reason")


def _finish(reply: ChatReply) -> FinishReason:
    """A cut reply is not a decision, whatever calls it holds; a refusal is an answer like any
    other."""
    is_cut = reply.finish is Finish.LENGTH or _raw_finish(reply) == "length"
    return FinishReason.LENGTH if is_cut else FinishReason.STOP
