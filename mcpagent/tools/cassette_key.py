"""What a recorded answer is an answer to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec

UNCHANGED = "0"  # `CallKey.after` where no call of the session has changed the server


def canonical(value: Any) -> bytes:
    """One text for equal JSON values. Raises ValueError for a number that JSON does not have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(data: bytes) -> str:
    """64 bits in hex."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def schema_hash(spec: ToolSpec) -> str:
    """Of what a tool takes and gives; another description does not change its answers."""
    return digest(canonical([spec.input_schema, spec.output_schema]))


@dataclass(frozen=True)
class CallKey:
    """The content address of an answer.

    `after` stands for the earlier calls of the session on that server that may have changed it (`History`).
    `call_id` and `state_id` are hex digests: of the call, and of everything else that its answer depends on.
    """

    server: str
    version: str
    tool: str
    schema: str
    arguments: JsonObject
    after: str = UNCHANGED

    @cached_property
    def call_id(self) -> str:
        return digest(canonical([self.server, self.tool, self.arguments]))

    @cached_property
    def state_id(self) -> str:
        return digest(canonical([self.version, self.schema, self.after]))

    @property
    def id(self) -> str:
        return f"{self.call_id}-{self.state_id}"


@dataclass
class History:
    """The calls of one session on one server that were not read-only, with what each of them answered.

    The answers are part of it: where a server makes up an id, the calls after it belong to that id and to no
    other, so that an attempt never gets answers from two different pasts.
    """

    count: int = 0
    chain: str = ""

    @property
    def after(self) -> str:
        """`COUNT-DIGEST`, or `UNCHANGED`."""
        return f"{self.count}-{self.chain}" if self.count else UNCHANGED

    def push(self, tool: str, arguments: JsonObject, answer: str) -> None:
        """`answer` is the digest of what the call answered."""
        self.chain = digest(canonical([self.chain, tool, arguments, answer]))
        self.count += 1
