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
    """A key taken apart; `vote` is None for a draft."""

    sample: int
    attempt: int
    vote: int | None

    @classmethod
    def of(cls, key: str) -> Question:
        _, _, sample, stage, attempt, *vote = key.split(":")
        assert stage in {"draft", "vote"}
        return cls(int(sample), int(attempt), int(vote[0]) if vote else None)


def model(received: Received) -> Answer:
    question = Question.of(received.key)
    kind = question.sample % KINDS
    if question.vote is not None:
        return says(received, vote(question, kind))
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
    """A right task of the complexity asked for; with the fault of its kind where it is the first attempt."""
    asked = received.messages[1]["content"]
    channels = re.findall(r"C\d{3}\b", asked)
    channel = "C101" if kind == 18 else channels[0]
    task = right_task(asked, channel)
    step = task["steps"][0]
    if kind == 13:
        task["answer"] = {"type": "number", "values": ["42"], "tolerance": 0.0}
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
            del task["final_answer"]
        case _:
            pass
    return task


def right_task(asked: str, channel: str) -> dict[str, Any]:
    last = "word(step1.messages[0].text, -1)"
    steps = [
        {
            "server": "slack",
            "tool": "get_slack_channel_history",
            "arguments": json.dumps({"channel_id": channel, "limit": 1}),
        }
    ]
    if "one simple task" in asked:
        answer = {"type": "must_include", "values": [f"${{{last}}}"], "tolerance": 0.0}
        prompt = f"Which ticker did channel {channel} last say to watch?"
        return {"user_prompt": prompt, "steps": steps, "answer": answer, "final_answer": f"${{{last}}}"}
    symbol = json.dumps({"symbol": f"${{{last}}}"})
    steps.append({"server": "fmp", "tool": "fmp_get_quote", "arguments": symbol})
    value, prompt = "step2.price", f"What does the ticker that {channel} watches cost?"
    if "one complex task" in asked:
        steps.append({"server": "fmp", "tool": "fmp_get_previous_close", "arguments": symbol})
        value = "round(step2.price - step3.previous_close, 2)"
        prompt = f"How far has the ticker that {channel} watches moved since its previous close?"
    answer = {"type": "number", "values": [f"${{{value}}}"], "tolerance": 0.005}
    return {"user_prompt": prompt, "steps": steps, "answer": answer, "final_answer": f"It is ${{{value}}}."}


def vote(question: Question, kind: int) -> str:
    if kind == 0 and question.vote == 2:
        return "no JSON at all"  # one voice that cannot be read leaves a majority of the three
    accepts = kind != 17 and not (kind == 1 and question.vote == 0)
    return json.dumps({"reason": "as it should be" if accepts else "nobody asks this", "accept": accepts})
