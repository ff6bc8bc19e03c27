"""A judge behind the loopback service: it reads what it is asked as a model would, and knows the truth."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.llm.service import Answer, Received, Service, says, service

_LINE = re.compile(r"The code is (\w+) where (the rubric is fulfilled|it is not)\.")
_WORD = re.compile(r"(contains|does not contain) the word (\w+)")


@dataclass(frozen=True)
class Asked:
    """`data` is the quoted episode, `fulfilled` and `failed` the codes of the two verdicts."""

    received: Received
    system: str
    user: str
    data: dict[str, Any]
    fulfilled: str
    failed: str

    @classmethod
    def of(cls, received: Received) -> Asked:
        system, user = (str(message["content"]) for message in received.messages)
        codes = {meaning: code for code, meaning in _LINE.findall(system)}
        quoted = user[user.index("\n") + 1 : user.index("\nEND ")]
        return cls(
            received,
            system,
            user,
            json.loads(quoted),
            fulfilled=codes["the rubric is fulfilled"],
            failed=codes["it is not"],
        )

    @property
    def control(self) -> bool | None:
        """The right verdict under a control's rubric; None where the rubric is another."""
        about = _WORD.search(self.system)
        if about is None:
            return None
        return (about[2] in self.data["final_answer"]) == (about[1] == "contains")

    def answers(self, verdict: bool) -> Answer:
        code = self.fulfilled if verdict else self.failed
        return says(self.received, json.dumps({"reason": "so it is", "code": code}))


Truth = Callable[[dict[str, Any]], bool]


def last_number_is_the_close(data: dict[str, Any]) -> bool:
    """Whether the answer ends with the number that the last tool said."""
    numbers = re.findall(r"\d+(?:\.\d+)?", data["final_answer"].split("\n\n")[0])
    closes = re.findall(r'"close": ?(\d+(?:\.\d+)?)', " ".join(call["result"] for call in data["calls"]))
    return bool(numbers and closes) and float(numbers[-1]) == float(closes[-1])


def errs(data: dict[str, Any], rate: float) -> bool:
    """Whether a judge that errs at this rate errs here: the same for the same question and answer."""
    text = json.dumps([data["request"], data["final_answer"].split("\n\n")[0]])
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32 < rate


@contextmanager
def judging(truth: Truth = last_number_is_the_close, *, error_rate: float = 0.0) -> Iterator[Service]:
    """A judge that is right but for a known share of its verdicts. It is never wrong about a control."""

    def script(received: Received) -> Answer:
        asked = Asked.of(received)
        if asked.control is not None:
            return asked.answers(asked.control)
        return asked.answers(truth(asked.data) != errs(asked.data, error_rate))

    with service(script) as running:
        yield running
