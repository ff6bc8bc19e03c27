"""What a refused request means, and what the client can do without so that the next one is taken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import openai

from mcpagent.core.retry_after import retry_after_s
from mcpagent.errors import UserError
from mcpagent.llm.bodies import MODES
from mcpagent.llm.contract import ChatFailed, FailureReason

_OPTIONAL = ("temperature", "seed", "store")
_NO_QUOTA = {"insufficient_quota", "billing_hard_limit_reached"}


class Concessions:
    """What the server has refused so far. `mode` is how the schema of an answer is asked for; `state` counts
    the concessions, so that a request knows which of them it was sent with."""

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
        """True where the refused request, sent in `state`, is worth another attempt."""
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
    """What an error status says: of this attempt (ChatFailed), or of every request (UserError)."""
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
            remedy="check --model, --base-url (it usually ends in /v1) and --backend chat|responses",
        )
    if status in {402, 429} and (status == 402 or code in _NO_QUOTA):
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
