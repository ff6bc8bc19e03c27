"""A scripted model that writes plausible tasks over the embedded servers, some wrong, each in one way.

What it says depends on the question alone: which sample and attempt (the key), and what the prompt shows.
What the service around it does wrong depends also on how often the question has come.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tests.llm.service import API_KEY, Answer, Received, error, says

KINDS = 20  # sample n behaves as n % KINDS


@dataclass(frozen=True)
class Question:
    """A key taken apart."""

    sample: int
    attempt: int
    stage: str

    @classmethod
    def of(cls, key: str) -> Question:
        *_, sample, stage, attempt = key.split(":")
        assert stage in {"draft", "review", "solve"}
        return cls(int(sample), int(attempt), stage)


def model(received: Received) -> Answer:
    question = Question.of(received.key)
    kind = question.sample % KINDS
    if question.stage == "review":
        return says(received, review(kind))
    if question.stage == "solve":
        return says(received, json.dumps(solution(received, kind)))
    if kind == 14 and received.number <= 2:
        return error(500, f"oh {API_KEY}", retry_after_ms="1")
    if kind == 15:
        return error(429, "storm", retry_after_ms="1")
    if kind == 16 and received.number == 1:
        return Answer(hangs=True)
    if kind == 19 and received.number == 1:
        return Answer(body=b"<html>bad gateway</html>")
    if kind == 8:
        return says(received, "I cannot help with that.", refuses=True)
    if kind == 9:
        return says(received, '{"user_prompt": "What', is_cut=True)
    is_first = question.attempt == 0
    if kind == 7 and is_first:
        return says(received, "Here is the task you asked for!")
    return says(received, json.dumps(draft(received, kind, is_first=is_first)))


def draft(received: Received, kind: int, *, is_first: bool) -> dict[str, Any]:
    """A right task of the class asked for; with the fault of its kind where it is the first attempt."""
    asked = received.messages[1]["content"]
    channels = re.findall(r"C\d{3}\b", asked)
    sample = Question.of(received.key).sample
    channel = channels[0] if kind == 18 else channels[sample % len(channels)]
    task = right_task(asked, channel)
    step = task["steps"][0] if task["steps"] else {}
    if kind == 13:
        task["answer"]["value"] = "42"
    if not is_first:
        return task
    match kind:
        case 6:
            step["tool"] = "get_channel_history"
        case 10:
            step["arguments"] = json.dumps({"channel": channel})
        case 11:
            step["arguments"] = json.dumps({"channel_id": "${step2.id}"})
        case 12:
            step["arguments"] = json.dumps({"channel_id": "nowhere"})
        case 5:
            del task["answer"]
        case _:
            pass
    return task


def right_task(asked: str, channel: str) -> dict[str, Any]:
    """A task of the class that is asked for: of what a channel watches, and what that costs."""
    history = call("slack", "get_slack_channel_history", channel_id=channel, limit=1)
    quote = call("fmp", "fmp_get_quote", symbol=f"${{{TICKER}}}")
    close = call("fmp", "fmp_get_previous_close", symbol=f"${{{TICKER}}}")
    name = {"type": "name", "value": f"${{{TICKER}}}", "unit": "", "decimals": None}
    price = {"type": "number", "value": "${step2.price}", "unit": "USD", "decimals": 2}
    none = {"type": "none", "value": "", "unit": "", "decimals": None}
    wishes = {
        "one call answers": (f"Which ticker did {channel} last say to watch?", [history], name),
        "fulfil a condition": (
            f"Who was the last to write in {channel}?",
            [history],
            {**name, "type": "set", "value": '${pluck(where(step1.messages, "user", "!=", ""), "user")}'},
        ),
        "adds up": (
            f"What do one share today and one at the last close cost together, of the ticker of {channel}?",
            [history, quote, close],
            {**price, "value": "${sum(step2.price, step3.previous_close)}"},
        ),
        "compares": (
            f"How far has the ticker that {channel} watches moved since its previous close?",
            [history, quote, close],
            {**price, "value": "${step2.price - step3.previous_close}"},
        ),
        "lacks something": ("Which ticker did my channel last say to watch?", [history], name),
        "does not exist": (
            f"What was last said in X{channel}?",
            [call("slack", "get_slack_channel_history", channel_id=f"X{channel}")],
            {**none, "would_be": "name"},
        ),
        "none of the tools": (f"Print a label for the door of {channel}.", [], none),
        "changes something": (
            f"Say hello in {channel}.",
            [call("slack", "send_slack_message", channel=channel, message="hello")],
            none,
        ),
    }
    told = asked.partition("\n")[0]
    chain = (f"What does the ticker that {channel} watches cost?", [history, quote], price)
    wish, (prompt, steps, answer) = next(
        ((wish, made) for wish, made in wishes.items() if wish in told or made[0] == told), ("", chain)
    )
    read = {**history, "expect": json.dumps({"messages[0].text": "hello"})}
    return {
        "user_prompt": prompt,
        "follow_up": f"I mean {channel}." if wish == "lacks something" else "",
        "asks_after": 0,
        "steps": steps,
        "answer": {"options": [], "would_be": "", **answer},
        "missing": f"X{channel}" if wish == "does not exist" else "",
        "proof": read if wish == "changes something" else None,
    }


TICKER = "word(step1.messages[0].text, -1)"


def call(server: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"server": server, "tool": tool, "arguments": json.dumps(arguments)}


def review(kind: int) -> str:
    is_so = kind != 17
    return json.dumps({"reason": "as it should be" if is_so else "nobody asks this", "accept": is_so})


def solution(received: Received, kind: int) -> dict[str, Any]:
    """The way that the question alone says; a wrong one of kind 4."""
    question = received.messages[1]["content"].partition("\n\nTools\n")[0]
    task = right_task(question, re.findall(r"C\d{3}\b", question)[-1])
    value = "${step1.messages[0].ts}" if kind == 4 else task["answer"]["value"]
    return {"steps": task["steps"], "value": value}
