"""What a server asks of its client in the middle of a call: elicitation and sampling."""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from mcp import MCPError
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.types import (
    INVALID_REQUEST,
    CallToolRequest,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    InputResponse,
    TextContent,
)
from pydantic import TypeAdapter, ValidationError

from mcpagent.core.records import JsonObject, Record
from mcpagent.errors import UserError

ASKED_META_KEY = (
    "mcpagent/asked"  # in a result's `_meta`: what the server asked during the call, and the answers
)
_ROUNDS_MAX = 10
_PAUSE_S = 0.02
_ANY: Any = TypeAdapter(dict[str, Any])  # of what the SDK takes as a result there are models alone


class AnswerRule(Record):
    """One answer of a script. `message` is a regular expression that is searched in what the server asks;
    what is not set fits everything. An elicitation gets `action` and `content`, sampling gets `text`."""

    server: str = "*"
    asks: Literal["elicitation", "sampling"] | None = None
    message: str = ""
    action: Literal["accept", "decline", "cancel"] = "accept"
    content: dict[str, str | int | float | bool | list[str] | None] = {}
    text: str | None = None

    def fits(self, server: str, asks: str, message: str) -> bool:
        """Return whether it answers that."""
        is_kind = self.asks in (None, asks) and (asks == "elicitation" or self.text is not None)
        return is_kind and fnmatch.fnmatch(server, self.server) and bool(re.search(self.message, message))


def load_rules(path: Path) -> tuple[AnswerRule, ...]:
    """Return the rules of a YAML or JSON file, a list. Raises UserError."""
    try:
        listed = yaml.safe_load(path.read_text(encoding="utf-8"))
        rules = TypeAdapter(tuple[AnswerRule, ...]).validate_python(listed)
        for rule in rules:
            re.compile(rule.message)
    except OSError as error:
        raise UserError(f"cannot read it: {error.strerror}", where=str(path)) from error
    except (ValidationError, yaml.YAMLError, re.error, UnicodeDecodeError) as error:
        text = str(error).replace("\n", "; ")[:400]
        remedy = "A list of {server, asks, message, action, content, text}; docs/tools.md has an example."
        raise UserError(f"not a list of answers: {text}", where=str(path), remedy=remedy) from error
    return rules


@dataclass
class Questions:
    """Answer what one connection's server asks, by the first rule that fits, and refuse the rest. `asked` is
    what was asked since it was last taken, and how it was answered."""

    server: str
    rules: Sequence[AnswerRule]
    asked: list[JsonObject] = field(default_factory=list)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the one call that may be asked about

    async def elicit(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Fill in a form by a rule; decline what wants a browser, or what no rule fits."""
        rule = self._rule("elicitation", params.message) if params.mode == "form" else None
        if rule is None:
            result = ElicitResult(action="decline")
        else:
            content = dict(rule.content) if rule.action == "accept" else None
            result = ElicitResult(action=rule.action, content=content)
        answer = {"action": result.action, **({"content": result.content} if result.content else {})}
        self.asked.append({"asks": "elicitation", "message": params.message, "answer": answer})
        return result

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Give the text of a rule."""
        said = [message.content for message in params.messages]
        message = "\n".join(block.text for block in said if isinstance(block, TextContent))
        rule = self._rule("sampling", message)
        text = None if rule is None else rule.text
        self.asked.append({"asks": "sampling", "message": message, "answer": text})
        if text is None:
            return ErrorData(code=INVALID_REQUEST, message="sampling is refused here")
        return CreateMessageResult(
            role="assistant", content=TextContent(text=text), model="scripted", stop_reason="endTurn"
        )

    def take(self) -> list[JsonObject]:
        """Return what was asked since the last time."""
        taken, self.asked = self.asked, []
        return taken

    def _rule(self, asks: str, message: str) -> AnswerRule | None:
        return next((rule for rule in self.rules if rule.fits(self.server, asks, message)), None)


def client_options(questions: Questions | None) -> Mapping[str, Any]:
    """Return what a client says that it can do: answer, if there are answers."""
    if questions is None:
        return {}
    return {"elicitation_callback": questions.elicit, "sampling_callback": questions.sample}


async def call_to_its_end(
    session: ClientSession, request: CallToolRequest, questions: Questions | None
) -> CallToolResult:
    """Return the result of a call, whatever input the server wants before it. Raises MCPError."""
    for _ in range(_ROUNDS_MAX):
        raw = await session.send_request(request, _ANY)
        if raw.get("resultType") != "input_required":
            return CallToolResult.model_validate(raw, by_name=False)
        needed = InputRequiredResult.model_validate(raw, by_name=False)
        if needed.input_requests and questions is None:
            return _refused(needed.input_requests.values())
        responses: dict[str, InputResponse] = {}
        for key, asked in (needed.input_requests or {}).items():
            context = ClientRequestContext(session=session, request_id="input")
            answer = await session.dispatch_input_request(context, asked)
            if isinstance(answer, ErrorData):
                return _refused([asked])
            responses[key] = answer
        if not needed.input_requests:
            await asyncio.sleep(_PAUSE_S)
        again = {"input_responses": responses or None, "request_state": needed.request_state}
        request = CallToolRequest(params=request.params.model_copy(update=again))
    raise MCPError(INVALID_REQUEST, f"the server asked for input more than {_ROUNDS_MAX} times")


def _refused(asked: Any) -> CallToolResult:
    texts = []
    for request in asked:
        match request:
            case ElicitRequest(params=params):
                texts.append(f"a question ({params.message!r})")
            case CreateMessageRequest():
                texts.append("a model's text")
            case _:
                texts.append("the folders of its client")
    text = f"the server wants {', '.join(texts)} for this, which is refused here"
    return CallToolResult(content=[TextContent(text=text)], is_error=True)
