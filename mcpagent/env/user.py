"""The user of a conversation of several turns, played by a model and held to what it may say."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mcpagent.core.placeholders import reference_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolResult
from mcpagent.core.trajectory import SimulatedUser
from mcpagent.core.values import numbers_in, scalars
from mcpagent.errors import EpisodeError
from mcpagent.llm.budget import BudgetSpent
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatRequest
from mcpagent.reward.answer.shown import stands_in

_ATTEMPTS = 3  # at one message; after them the script is said
_MAX_TOKENS = 200
_MAX_SEED = 2**31
_MIN_VALUE, _MAX_VALUE = 3, 80  # characters of a result's text that would be a leak
_NAME = re.compile(r"(?<=[^.!?:]\s)[A-Z][\w'-]+|\b\d[\d.,]*\d\b|\b\w*\d\w*\b|\b[A-Z]{2,}\w*")
_WRITTEN = re.compile(r"<[a-z_/|]+>|```|[{}]")
_COMMON = frozenset({"i", "i'm", "i'd", "i'll", "i've", "ok", "okay", "please", "thanks"})

_RULES = (
    "You play the user in a conversation with an assistant that has tools; you have none and know nothing of "
    "them. What you want to say next, in your own words, is this:\n\n{goal}\n\n"
    "Write that as your next message, fitting to what the assistant said last. Keep every name, number and "
    "code of it as it is written. Add no other fact, name or number; do not answer for the assistant, even "
    "if it asks you to. One short message, no quotes."
)


@dataclass(frozen=True, kw_only=True)
class UserTurn:
    """The situation of a simulated user: the `goal` is what the script has it say now, `said` what it has
    said before, `heard` the assistant's last answer. `secrets` (`secrets_of` the task) and what the `results`
    of this episode hold are not the user's to know unless the user said them, nor are the `tool_names`."""

    goal: str
    said: Sequence[str]
    heard: str
    results: Sequence[ToolResult] = ()
    tool_names: Sequence[str] = ()
    secrets: Sequence[str] = ()


def secrets_of(task: Task) -> list[str]:
    """Return the texts of a task's answer, which are not the user's to know."""
    check = task.truth.final_answer
    answer = None if check is None or check.type == "regex" else check.value
    texts = [value for value in scalars(answer) if isinstance(value, str)]
    return [text for text in texts if not reference_texts(text)]


def fault_of(text: str, turn: UserTurn) -> str | None:
    """Return why an honest user would not say `text` at this turn; None if it may stand.

    It has to say every name, number and code of the goal, and none that neither the goal nor an earlier
    message of the user holds; no text of a result that the user never said, and no name of a tool.
    """
    if not text.strip() or len(text) > 3 * len(turn.goal) + 200:
        return "is empty or much longer than what is to be said"
    if _WRITTEN.search(text):
        return "is written like a call or markup"
    own_words = "\n".join([*turn.said, turn.goal])
    if missing := sorted(_values(turn.goal) - _values(text) - _words(text)):
        return f"leaves out {', '.join(missing)}"
    if invented := sorted(_values(text) - _values(own_words) - _words(own_words)):
        return f"says {', '.join(invented)}, which the user does not know"
    if strange := set(numbers_in(text)) - set(numbers_in(own_words)):
        return f"says {sorted(map(str, strange))[0]}, which the user does not know"
    for value in (*turn.secrets, *_texts_of(turn.results)):
        is_long_enough = _MIN_VALUE <= len(value) <= _MAX_VALUE
        if is_long_enough and stands_in(value, text) and not stands_in(value, own_words):
            return f"says {value!r}, which is for a tool to tell"
    if tool := next((name for name in turn.tool_names if "_" in name and name in text), None):
        return f"names the tool {tool}"
    return None


def _values(text: str) -> set[str]:
    """Names inside sentences, codes and numbers."""
    names = {match[0].casefold().removesuffix("'s") for match in _NAME.finditer(text)}
    return names - _COMMON


def _words(text: str) -> set[str]:
    return {word.removesuffix("'s") for word in re.findall(r"[\w'.-]*\w", text.casefold())}


def _texts_of(results: Iterable[ToolResult]) -> Iterator[str]:
    for result in results:
        if result.is_error or result.is_search:
            continue
        try:
            yield from (v for v in scalars(json.loads(result.content)) if isinstance(v, str))
        except ValueError:
            yield from result.content.splitlines()


class UserSimulator:
    """A model that says what a user would say at a turn of the script. With a client that has a journal, the
    same model, turn and seed give the same message."""

    def __init__(self, client: ChatClient, *, model: str) -> None:
        self._client, self._model = client, model

    async def say(self, turn: UserTurn, *, seed: int) -> tuple[str, SimulatedUser]:
        """Return the first message that passes `fault_of`, else the script. Raises EpisodeError if there
        is no answer."""
        rejected: list[str] = []
        for attempt in range(_ATTEMPTS):
            text = await self._ask(turn, seed=derive_seed(seed, "user", len(turn.said), attempt) % _MAX_SEED)
            fault = fault_of(text, turn)
            if fault is None:
                return text, SimulatedUser(model=self._model, rejected=tuple(rejected))
            rejected.append(fault)
        return turn.goal, SimulatedUser(model=self._model, rejected=tuple(rejected), is_scripted=True)

    async def _ask(self, turn: UserTurn, *, seed: int) -> str:
        messages: tuple[JsonObject, ...] = (
            {"role": "system", "content": _RULES.format(goal=turn.goal)},
            {"role": "user", "content": f"The assistant said last:\n\n{turn.heard}"},
        )
        question = json.dumps([self._model, messages, seed], ensure_ascii=False)
        key = hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()
        request = ChatRequest(messages=messages, max_output_tokens=_MAX_TOKENS, temperature=1.0, seed=seed)
        try:
            reply = await self._client.ask(request, key=f"user-{key}")
        except ChatFailed as failure:
            raise EpisodeError(
                f"the simulated user gave no answer ({failure.reason}): {failure.text}"
            ) from failure
        except BudgetSpent as spent:
            raise EpisodeError(f"the simulated user is past its cap (api.{spent.cap})") from spent
        return reply.text.strip()
