"""Which answer a chat has: what a model names, if the results of today show it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from mcpagent.config.environment import resource_path
from mcpagent.core.records import JsonObject, Record
from mcpagent.core.values import is_json_object, scalars
from mcpagent.llm.budget import BudgetSpent
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatRequest
from mcpagent.llm.endpoint import json_of
from mcpagent.synth.tasks.inspect import stands_in

_RESULT_CHARS = 4000  # of a result that the model is shown


class NamedAnswer(Record):
    """The answer that a model names: the reason first, so that it is not made up afterwards. `value` is
    JSON."""

    reason: str
    type: Literal["number", "date", "name", "set", "list", "pairs", "none"]
    value: str
    unit: str


@dataclass(frozen=True)
class ShownAnswer:
    """A typed answer as fields of the ground truth, and the calls (by number, from 1) whose results show
    it."""

    truth: JsonObject
    shown_by: frozenset[int]


@lru_cache(maxsize=1)
def prompts() -> Mapping[str, str]:
    """Return `templates/prompts/chats.yaml`: by role, what the model is told."""
    return yaml.safe_load(resource_path("templates/prompts/chats.yaml").read_text("utf-8"))


class AnswerWriter:
    """Asks a model what the answer of a chat is. `outcomes` counts what came of it: `shown`, or why not."""

    def __init__(self, client: ChatClient, *, max_output_tokens: int = 1024) -> None:
        self._client, self._max_output_tokens = client, max_output_tokens
        self.outcomes: Counter[str] = Counter()

    async def answer(
        self, users: Sequence[str], calls: Sequence[tuple[str, str]], said: str | None, *, key: str
    ) -> ShownAnswer | None:
        """Return the answer to what the users asked; None if the model names none that a result shows.
        `calls` are the calls as text, each with its result of today; `said` is the answer of the log."""
        results = [f"{n}. {call}\n{result[:_RESULT_CHARS]}" for n, (call, result) in enumerate(calls, 1)]
        parts = {"question": "\n".join(users), "calls": "\n\n".join(results), "said": said or "(not kept)"}
        request = ChatRequest(
            messages=tuple({"role": who, "content": text.format(**parts)} for who, text in prompts().items()),
            max_output_tokens=self._max_output_tokens,
            schema=NamedAnswer.model_json_schema(),
            schema_name="answer",
        )
        try:
            reply = await self._client.ask(request, key=key)
            named = NamedAnswer.model_validate(json_of(reply.text) or {})
        except ChatFailed as failure:
            self.outcomes[failure.reason.value] += 1
        except BudgetSpent:
            self.outcomes["cap_reached"] += 1
        except ValidationError:
            self.outcomes["malformed"] += 1
        else:
            shown = shown_answer(named, [result for _, result in calls])
            what = "none" if named.type == "none" else "not_shown" if shown is None else "shown"
            self.outcomes[what] += 1
            return shown
        return None


def shown_answer(named: NamedAnswer, results: Sequence[str]) -> ShownAnswer | None:
    """Return the answer if it is of its type and a result shows each value of it; else None."""
    try:
        value = json.loads(named.value)
    except ValueError:
        value = named.value
    if not _is_of(named.type, value):
        return None
    values = [*value, *scalars(value)] if is_json_object(value) else list(scalars(value))
    shown_by = [next((n for n, text in enumerate(results, 1) if stands_in(item, text)), 0) for item in values]
    if not values or not all(shown_by):
        return None
    check = {"type": named.type, "value": value, **({"unit": named.unit} if named.unit else {})}
    evidence = [{"value": item} for item in dict.fromkeys(values)]
    return ShownAnswer({"final_answer": check, "evidence": evidence}, frozenset(shown_by))


def _is_of(kind: str, value: Any) -> bool:
    match kind:
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "set" | "list":
            return isinstance(value, list)
        case "pairs":
            return isinstance(value, dict)
        case "date" | "name":
            return isinstance(value, str)
        case _:
            return False
