"""Requests and responses as the two APIs of OpenAI write them."""

from __future__ import annotations

from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.llm.contract import ChatReply, ChatRequest, Finish, Usage

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
    body: dict[str, Any] = {
        "model": model,
        "messages": list(request.messages),
        "max_completion_tokens": request.max_output_tokens,
        **_sampling(request),
    }
    if request.tools:
        body["tools"] = list(request.tools)
    if request.schema is not None and mode == "json_schema":
        schema = {"name": request.schema_name, "schema": request.schema, "strict": True}
        body["response_format"] = {"type": mode, "json_schema": schema}
    elif request.schema is not None and mode == "json_object":
        body["response_format"] = {"type": mode}
    return body


def responses_body(request: ChatRequest, *, model: str, mode: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "input": list(request.messages),
        "max_output_tokens": request.max_output_tokens,
        "store": False,
        **_sampling(request),
    }
    body.pop("seed", None)  # the Responses API has none
    if request.schema is not None and mode == "json_schema":
        body["text"] = {
            "format": {"type": mode, "name": request.schema_name, "schema": request.schema, "strict": True}
        }
    elif request.schema is not None and mode == "json_object":
        body["text"] = {"format": {"type": mode}}
    return body


def read_chat(raw: JsonObject) -> ChatReply:
    """Raises one of UNUSABLE where the body is no chat completion."""
    choice = raw["choices"][0]
    message = choice["message"]
    calls = tuple(message.get("tool_calls") or ())
    finish = _FINISH.get(choice.get("finish_reason") or "stop", Finish.STOP)
    refusal = message.get("refusal")
    return ChatReply(
        text=str(refusal or message.get("content") or ""),
        finish=Finish.REFUSED if refusal else Finish.TOOL_CALLS if calls else finish,
        usage=_usage(raw, "prompt_tokens", "completion_tokens"),
        raw=raw,
        tool_calls=calls,
    )


def read_responses(raw: JsonObject) -> ChatReply:
    """Raises one of UNUSABLE where the body is no response."""
    parts = [part for item in raw["output"] if item["type"] == "message" for part in item["content"]]
    refusals = [part["refusal"] for part in parts if part["type"] == "refusal"]
    texts = [part["text"] for part in parts if part["type"] == "output_text"]
    finish = Finish.STOP
    if raw.get("status") == "incomplete":
        why = (raw.get("incomplete_details") or {}).get("reason")
        finish = Finish.REFUSED if why == "content_filter" else Finish.LENGTH
    elif raw.get("status") in {"failed", "cancelled"}:
        raise ValueError(f"status {raw['status']}: {raw.get('error')}")
    return ChatReply(
        text="".join(refusals or texts),
        finish=Finish.REFUSED if refusals else finish,
        usage=_usage(raw, "input_tokens", "output_tokens"),
        raw=raw,
    )


def _usage(raw: JsonObject, input_key: str, output_key: str) -> Usage | None:
    usage = raw.get("usage")
    if not isinstance(usage, dict) or not {input_key, output_key} <= usage.keys():
        return None
    return Usage(int(usage[input_key]), int(usage[output_key]))


def _sampling(request: ChatRequest) -> dict[str, Any]:
    chosen = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
    return {name: value for name, value in chosen.items() if value is not None}
