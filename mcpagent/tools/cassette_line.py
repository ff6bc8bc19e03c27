"""One recorded call as a line of JSON that carries its own checksum."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from pydantic import ValidationError

from mcpagent.core.validation import shown
from mcpagent.errors import UserError
from mcpagent.tools.cassette_answer import Answer
from mcpagent.tools.cassette_key import CallKey, digest

HEAD_BYTES = len('{"call": "0123456789abcdef-0123456789abcdef", "sum": "0123456789abcdef", ')

_HEAD = re.compile(rb'\{"call": "([0-9a-f]{16})-([0-9a-f]{16})", "sum": "([0-9a-f]{16})", ')


@dataclass(frozen=True)
class Recorded:
    """An answer and what it is an answer to."""

    key: CallKey
    answer: Answer


def encode(recorded: Recorded) -> bytes:
    """The line, with its newline. The same record gives the same bytes."""
    key = asdict(recorded.key)
    key["arguments"] = json.loads(json.dumps(key["arguments"], sort_keys=True))
    answer = recorded.answer.model_dump(mode="json", exclude_defaults=True)
    fields = {name: key[name] for name in ("server", "tool", "arguments", "after", "version", "schema")}
    # What `wire_fault` would refuse is never recorded: here is no lone surrogate and no NaN.
    body = json.dumps({**fields, "answer": answer}, ensure_ascii=False, allow_nan=False)[1:].encode()
    ids = recorded.key.id
    return f'{{"call": "{ids}", "sum": "{_sum(ids.encode(), body)}", '.encode() + body + b"\n"


def ids_of(line: bytes, *, where: str) -> tuple[bytes, bytes]:
    """`call_id` and `state_id` of a whole line, as bytes. Raises UserError if it is not as it was written."""
    head = _HEAD.match(line)
    if head is None:
        raise _damaged(where, f"is no recorded call: {shown(line[:60].decode('utf-8', 'replace'))}")
    if head[3].decode() != _sum(line[10:43], line[HEAD_BYTES:-1]):
        raise _damaged(where, "does not match its checksum: it was edited or damaged after its recording")
    return bytes.fromhex(head[1].decode()), bytes.fromhex(head[2].decode())


def decode(line: bytes, *, where: str) -> Recorded:
    """What `encode` was given. Raises UserError for a line that another version wrote."""
    try:
        fields = json.loads(line)
        del fields["call"], fields["sum"]
        answer = Answer.model_validate(fields.pop("answer"))
        return Recorded(CallKey(**fields), answer)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise _damaged(where, f"cannot be read: {reason}") from None


def _sum(ids: bytes, body: bytes) -> str:
    return digest(ids + body)


def _damaged(where: str, message: str) -> UserError:
    return UserError(
        f"the line {message}", where=where, remedy="delete the line, so that the call is recorded again"
    )
