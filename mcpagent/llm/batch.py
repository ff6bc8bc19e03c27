"""Questions that are answered later: files of the Batch API in place of an endpoint.

A question is a line of the file that is written. Its answer is a line of the file that comes back, found by
`custom_id`: the run and the key of the journal, which keeps the answers. A run asks until it cannot go on,
and is begun again with the answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.errors import UserError
from mcpagent.llm.budget import BudgetSpent
from mcpagent.llm.contract import ChatReply, ChatRequest, Usage
from mcpagent.llm.endpoint import MODES, UNUSABLE, chat_body, read_chat
from mcpagent.llm.journal import Journal
from mcpagent.storage.datasets import write_jsonl
from mcpagent.storage.json_stream import open_bytes, reading


class AnswerAwaited(BudgetSpent):
    """The question is in the batch; what asks it goes on when the answers are there."""

    def __init__(self) -> None:
        super().__init__("batch")


class BatchClient:
    """A `ChatClient` that answers from the journal; every other question is in `waiting`, by its key."""

    def __init__(self, model: str, *, journal: Journal) -> None:
        self._model = model
        self._journal = journal
        self.waiting: dict[str, JsonObject] = {}

    async def ask(self, request: ChatRequest, *, key: str) -> ChatReply:
        """Return the answer that the journal has. Raises AnswerAwaited if it has none, and ChatFailed."""
        key = f"{self._journal.prefix}:{key}"
        if (recorded := self._journal.answer(key)) is not None:
            return recorded
        body = SECRETS.value(chat_body(request, model=self._model, mode=MODES[0]))
        self.waiting[key] = {
            "custom_id": key,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body,
        }
        raise AnswerAwaited

    def take(self, path: Path, *, on_note: Callable[[str], None]) -> int:
        """Put the answers of a file into the journal and return how many are new; `on_note` is told of each
        line that is none, whose question waits on. Raises UserError if no line is of this batch."""
        taken, again = 0, 0
        others: list[str] = []
        with reading(path), open_bytes(path) as stream:
            lines = list(stream)
        for number, raw in enumerate(lines, 1):
            try:
                key, reply = _answer(raw)
            except UNUSABLE as error:
                on_note(f"{path}:{number}: is not an answer of a batch: {SECRETS.text(str(error)):.200}")
                continue
            if not key.startswith(f"{self._journal.prefix}:"):
                others.append(key)
                on_note(f"{path}:{number}: {key!r:.80} is of another batch, or of other settings")
            elif self._journal.answer(key) is not None:
                again += 1
            else:
                self._journal.sent(key, Usage())
                self._journal.answered(key, reply)
                taken += 1
        if not taken and not again:
            raise UserError(
                f"none of its {len(lines)} lines is an answer of this batch",
                where=str(path),
                remedy="give the file that came back for the file of --batch, with the options of then",
            )
        return taken

    def write(self, path: Path) -> int:
        """Write the questions that wait, whole or not at all, and return how many they are."""
        return write_jsonl(path, self.waiting.values())


def _answer(raw: bytes) -> tuple[str, ChatReply]:
    """Return key and answer of a line. Raises one of UNUSABLE if it is not one, or the provider failed."""
    line: Any = SECRETS.value(json.loads(raw))
    response = line["response"] or {}
    if line.get("error") or response.get("status_code", 200) != 200:
        told = json.dumps(line.get("error") or response.get("body"), ensure_ascii=False)
        raise ValueError(f"{line['custom_id']} has no answer: {told}")
    return str(line["custom_id"]), read_chat(response["body"])
