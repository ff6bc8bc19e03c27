"""A chat endpoint whose models are the scripted policies, by name: `with chat_model(tasks) as url`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mcpagent.core.tasks import Task
from mcpagent.env.parsing import parse_action
from mcpagent.policy.contract import CompletionRequest, Sampling
from tests.bridges.scripts import SCRIPTS
from tests.bridges.scripts import script as script_of
from tests.llm.service import Answer, Received, service


@contextmanager
def chat_model(tasks: Sequence[Task]) -> Iterator[str]:
    plays = {name.replace(" ", "-"): script_of(name, tasks) for name in SCRIPTS}
    ids = {task.prompt[-1].content: task.id for task in tasks}

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        messages = [{"role": m["role"], "content": _text(m.get("content"))} for m in body["messages"]]
        asked = next(m["content"] for m in messages if m["role"] == "user")
        request = CompletionRequest(
            episode_id=f"{ids[asked]}#0",
            sampling=Sampling(),
            messages=messages,
            tools=body.get("tools") or (),
        )
        action = parse_action(plays[body["model"]](request))
        calls = [
            {
                "id": f"call-{len(messages)}-{i}",
                "type": "function",
                "function": {"name": call.written_as or call.tool, "arguments": json.dumps(call.arguments)},
            }
            for i, call in enumerate(action.calls)
        ]
        message = {"role": "assistant", "content": action.text, **({"tool_calls": calls} if calls else {})}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    def script(received: Received) -> Answer:
        answer = reply(received.body)
        if not received.body.get("stream"):
            return Answer(body=answer)
        return Answer(body=_streamed(answer), headers={"Content-Type": "text/event-stream"})

    with service(script) as running:
        yield running.url


def _streamed(answer: dict[str, Any]) -> bytes:
    (choice,) = answer["choices"]
    calls = [{"index": i, **call} for i, call in enumerate(choice["message"].pop("tool_calls", ()))]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    base = {**answer, "object": "chat.completion.chunk"}
    chunks = [
        {**base, "usage": None, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {
            **base,
            "usage": None,
            "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}],
        },
        {**base, "choices": []},
    ]
    return (
        b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    )


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
