"""Chats as they are stored, each as what its user said, what was called and what came back.

    {"messages": [{"role", "content", "tool_calls", "tool_call_id"}], "tools": [...]}    OpenAI, TRL, axolotl
    [{"role", "content", ...}]                                                           the messages alone
    {"conversations": [{"from", "value"}]}                                               ShareGPT

In JSONL, a JSON array or document (also `.gz` and `.zst`) and parquet. Arguments are an object or JSON text.
Calls may also stand in blocks of the content (`tool_use`) or between tags of the text (`<tool_call>`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mcpagent.core.records import JsonObject, short_repr
from mcpagent.core.redact import SECRETS, Secrets, written_secrets
from mcpagent.core.values import is_json_array, is_json_object
from mcpagent.env.parsing import parse_action
from mcpagent.errors import UserError
from mcpagent.storage.json_stream import locate_records, open_bytes, reading
from mcpagent.storage.packages import is_installed, pip_install
from mcpagent.synth.tasks.stages import RejectCode, RejectedTask, Rejection

_MESSAGES = ("messages", "conversations")  # the field of a row that holds them
_NOT_TEXT = ("images", "audios", "videos")  # and what its text refers to
_PARQUET = b"PAR1"
_HEAD_BYTES = 64 << 20
_LOOKED_AT = 100  # rows, of which one tells the shape
_ROLES = {
    role: role_of
    for role_of, roles in {
        "system": ("system", "developer"),
        "user": ("user", "human"),
        "assistant": ("assistant", "gpt", "model"),
        "call": ("function_call", "tool_call"),
        "tool": ("tool", "function", "observation", "tool_response", "function_call_output"),
    }.items()
    for role in roles
}


@dataclass(frozen=True, kw_only=True)
class LoggedCall:
    """A call by the name that the log has. Calls of one `message` were made at once; `result` is None if the
    log does not say what came back."""

    name: str
    arguments: JsonObject
    user_turn: int
    message: int
    result: str | None = None


@dataclass(frozen=True, kw_only=True)
class Chat:
    """`users` are the messages of the user that were answered, `said` is the last one of the assistant after
    them, `system` what stood before."""

    users: tuple[str, ...]
    calls: tuple[LoggedCall, ...]
    said: str | None
    system: tuple[str, ...] = ()


def holds_chats(path: Path) -> bool:
    """Return whether a file is one of chats by its shape: one of its first rows is a list, or an object that
    has messages. Raises UserError if it is not there or is damaged."""
    if _is_parquet(path):
        return True
    with suppress(UserError):
        rows = (row for _, row in islice(_rows(path), _LOOKED_AT) if isinstance(row, dict))
        return any(name in row for row in rows for name in _MESSAGES)
    return False


def read_chats(path: Path) -> Iterator[tuple[int, Chat | Rejection]]:
    """Yield the line (of parquet the row) of each chat, and the chat or why it cannot be one. What looks like
    a secret is replaced by its name. Raises UserError for a file that cannot be read."""
    for line, row in _rows(path):
        try:
            if isinstance(row, UserError):
                raise RejectedTask(RejectCode.JSON, row.message)
            yield line, _without_secrets(_chat(row))
        except RejectedTask as rejected:
            yield line, rejected.rejection


def _rows(path: Path) -> Iterator[tuple[int, JsonObject | UserError]]:
    if _is_parquet(path):
        yield from enumerate(_parquet_rows(path), start=1)
        return
    with reading(path), open_bytes(path) as stream:
        head = stream.readline(_HEAD_BYTES)
        first = _decoded(head)
        document = None
        if first is None and head.lstrip()[:1] == b"{":  # an object over several lines, or broken JSONL
            document = _decoded(head + stream.read(_HEAD_BYTES))
    if is_json_object(document):
        yield 1, dict(document)
        return
    is_lines = is_json_array(first) and all(map(_is_message, first))
    with reading(path), open_bytes(path) as stream:
        rows = locate_records(stream, path, list_field="messages", is_lines=is_lines)
        whole: list[JsonObject] = []  # the messages of a file that is one chat
        for line, row in rows:
            if isinstance(row, dict) and _is_message(row) and not is_lines:
                whole.append(row)
            else:
                yield line, row
        if whole:
            yield 1, {"messages": whole}


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def _is_message(value: Any) -> bool:
    """Return True if a value is a message, and not a row that has some."""
    return is_json_object(value) and bool({"role", "from"} & value.keys()) and not value.keys() & {*_MESSAGES}


def _is_parquet(path: Path) -> bool:
    with reading(path), path.open("rb") as stream:
        return stream.read(len(_PARQUET)) == _PARQUET


def _parquet_rows(path: Path) -> Iterator[JsonObject]:
    """Yield the rows without the empty fields that a table gives to every object in it."""
    if not is_installed("datasets"):
        raise UserError(
            "is parquet, and reading that needs a package that is not installed: datasets",
            where=str(path),
            remedy=f"{pip_install('datasets')}, or save the rows as JSONL",
        )
    from datasets import Dataset  # pyright: ignore[reportAttributeAccessIssue]

    for row in Dataset.from_parquet(str(path), keep_in_memory=True):
        yield _without_empty(row)


def _without_empty(value: Any) -> Any:
    if is_json_object(value):
        return {name: _without_empty(item) for name, item in value.items() if item is not None}
    return [_without_empty(item) for item in value] if is_json_array(value) else value


def _chat(row: JsonObject) -> Chat:
    """Raise RejectedTask."""
    messages = next((row[name] for name in _MESSAGES if name in row), None)
    if isinstance(messages, str):
        messages = _decoded(messages.encode())
    if not is_json_array(messages):
        raise RejectedTask(RejectCode.SCHEMA, "has no list of messages (`messages`)")
    if any(row.get(name) for name in _NOT_TEXT):
        raise RejectedTask(RejectCode.NOT_TEXT, "has images, sounds or videos next to its messages")
    transcript = _Transcript()
    for number, message in enumerate(messages, start=1):
        if not is_json_object(message):
            raise RejectedTask(RejectCode.SCHEMA, f"message {number} is {short_repr(message)}, not an object")
        transcript.add(dict(message), number)
    return transcript.chat()


@dataclass
class _Transcript:
    """Takes the messages in their order."""

    system: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    calls: list[LoggedCall] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)  # of the calls
    said: list[str] = field(
        default_factory=list
    )  # the last words of the assistant to each message of the user
    is_answered: bool = True  # whether the assistant did anything since the user spoke
    has_tags: bool = False

    def add(self, message: JsonObject, number: int) -> None:
        """Raise RejectedTask for a message that is none, or that no task can hold."""
        named = message.get("role") or message.get("from") or message.get("type")
        role = _ROLES.get(str(named).lower())
        if role is None:
            raise RejectedTask(RejectCode.SCHEMA, f"message {number} has the role {short_repr(named)}")
        content = message.get("content", message.get("value", message.get("output")))
        text, blocks = _parts(content, number)
        match role:
            case "system":
                self.system.append(text)
            case "user":
                self._user(text, blocks, number)
            case "assistant":
                self._assistant(message, text, blocks, number)
            case "call":
                made = message if "name" in message else _decoded(text.encode())
                self._call_all(_listed(made) or [made], number)
            case _:
                self._result(text, message.get("tool_call_id") or message.get("call_id"), number)

    def _user(self, text: str, blocks: list[JsonObject], number: int) -> None:
        for block in blocks:
            if block.get("type") != "tool_result":
                kind = str(block.get("type", "something"))
                raise RejectedTask(RejectCode.NOT_TEXT, f"message {number} of the user holds {kind}")
            self._result(_parts(block.get("content"), number)[0], block.get("tool_use_id"), number)
        if not text.strip():
            return
        if self.is_answered:
            self.users.append(text)
            self.said.append("")
        else:
            self.users[-1] += f"\n{text}"
        self.is_answered = False

    def _assistant(self, message: JsonObject, text: str, blocks: list[JsonObject], number: int) -> None:
        made = [*_listed(message.get("tool_calls")), *_listed(message.get("function_call"))]
        made += [block for block in blocks if block.get("type") == "tool_use"]
        if not made and ("<tool_call>" in text or "<think>" in text):
            parsed = parse_action(text, tool_format="hermes")
            if parsed.failures:
                raise RejectedTask(RejectCode.SCHEMA, f"message {number}: {parsed.failures[0].reason}")
            made, text = [{"name": c.tool, "arguments": c.arguments} for c in parsed.calls], parsed.text
            self.has_tags = self.has_tags or bool(made)
        self._call_all(made, number)
        if self.said:
            self.said[-1] = "" if made else text.strip()

    def _call_all(self, made: Iterable[Any], number: int) -> None:
        self.is_answered = True
        for entry in made:
            call = entry.get("function", entry) if is_json_object(entry) else None
            name = call.get("name") if is_json_object(call) else None
            if not is_json_object(entry) or not is_json_object(call) or not isinstance(name, str) or not name:
                raise RejectedTask(
                    RejectCode.SCHEMA, f"message {number} has a call without a name: {short_repr(entry)}"
                )
            given = call.get("arguments", call.get("input"))
            arguments = _decoded(given.encode()) if isinstance(given, str) and given.strip() else given or {}
            if not is_json_object(arguments):
                detail = (
                    f"the arguments of {name} in message {number} are no JSON object: {short_repr(given)}"
                )
                raise RejectedTask(RejectCode.SCHEMA, detail)
            if self.users:  # what was called before the user spoke is no answer to them
                turn = len(self.users) - 1
                self.calls.append(
                    LoggedCall(name=name, arguments=dict(arguments), user_turn=turn, message=number)
                )
                self.ids.append(entry.get("id") or entry.get("call_id"))

    def _result(self, text: str, call_id: str | None, number: int) -> None:
        """Give a result to its call: by its id, else to the first call that has none yet."""
        waiting = [at for at, call in enumerate(self.calls) if call.result is None]
        if call_id is not None and any(self.ids):
            waiting = [at for at in waiting if self.ids[at] == call_id]
        if not waiting:
            raise RejectedTask(
                RejectCode.NO_CALL, f"message {number} is a result, and no message makes its call"
            )
        self.calls[waiting[0]] = replace(self.calls[waiting[0]], result=text)

    def chat(self) -> Chat:
        """Return the chat. Raises RejectedTask if nothing was asked, or nothing called."""
        users = self.users if self.is_answered else self.users[:-1]
        if not users:
            raise RejectedTask(RejectCode.SCHEMA, "no message of a user is answered")
        if not self.calls:
            raise RejectedTask(RejectCode.NO_CALL, "nothing is called, so there is nothing to grade by")
        # With calls in tags the system message is the text that teaches them.
        system = () if self.has_tags else tuple(filter(None, self.system))
        said = self.said[len(users) - 1] or None
        return Chat(users=tuple(users), calls=tuple(self.calls), said=said, system=system)


def _listed(value: Any) -> list[Any]:
    return list(value) if is_json_array(value) else [value] if value else []


def _parts(content: Any, number: int) -> tuple[str, list[JsonObject]]:
    """Return the text of a content, and its blocks that are something else."""
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    blocks: list[JsonObject] = []
    for part in content if is_json_array(content) else [content]:
        text = part if isinstance(part, str) else part.get("text") if is_json_object(part) else None
        if isinstance(text, str):
            texts.append(text)
        elif is_json_object(part):
            blocks.append(dict(part))
        else:
            raise RejectedTask(RejectCode.SCHEMA, f"message {number} holds {short_repr(part)}")
    return "\n".join(texts), blocks


def _without_secrets(chat: Chat) -> Chat:
    """Return the chat with the name of each secret in its place. Raises RejectedTask if a call needs one."""
    secrets = Secrets()
    told = [*chat.system, *chat.users, chat.said or "", *(call.result or "" for call in chat.calls)]
    for name, value in written_secrets([told, [call.arguments for call in chat.calls]]):
        secrets.add(value, name)

    def clean(value: Any) -> Any:
        return secrets.value(SECRETS.value(value))

    for call in chat.calls:
        if (shown := clean(call.arguments)) != call.arguments:
            raise RejectedTask(
                RejectCode.SECRET, f"{call.name} was called with a secret: {short_repr(shown)}"
            )
    calls = tuple(
        replace(call, result=clean(call.result) if call.result else call.result) for call in chat.calls
    )
    users, system = tuple(map(clean, chat.users)), tuple(map(clean, chat.system))
    return replace(chat, users=users, calls=calls, said=clean(chat.said or "") or None, system=system)
