"""Looking answers up on a tape, and recording them, under the settings of one run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from mcpagent.core.records import JsonObject
from mcpagent.core.redact import redact
from mcpagent.core.tools import ToolResult, ToolSpec
from mcpagent.tools.cassette_answer import Answer
from mcpagent.tools.cassette_counts import CassetteCounts, Miss
from mcpagent.tools.cassette_key import CallKey, History, schema_hash
from mcpagent.tools.cassette_tape import Stored, Tape
from mcpagent.tools.catalog import Catalog
from mcpagent.tools.servers_config import Isolation

CassetteMode = Literal["record", "replay", "strict"]


@dataclass(kw_only=True)
class Deck:
    """What all sessions of a run share. A server that `isolation` does not name is shared; one that
    `versions` does not name has the version "". `repeatable` are dotted names of tools whose second effect
    does no harm, though their server does not say so. `secrets` (value -> name) never reach the tape."""

    tape: Tape
    mode: CassetteMode
    catalog: Catalog
    isolation: Mapping[str, Isolation]
    versions: Mapping[str, str]
    limit_chars: int
    counts: CassetteCounts
    repeatable: Collection[str] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    _under_way: dict[str, asyncio.Event] = field(default_factory=dict)
    _schemas: dict[str, str] = field(default_factory=dict)

    def key(self, spec: ToolSpec, arguments: JsonObject, history: History) -> CallKey:
        """Arguments without secrets: a key is stored with its answer."""
        if spec.dotted not in self._schemas:
            self._schemas[spec.dotted] = schema_hash(spec)
        return CallKey(
            server=spec.server,
            version=self.versions.get(spec.server, ""),
            tool=spec.name,
            schema=self._schemas[spec.dotted],
            arguments=redact(arguments, self.secrets),
            after=history.after,
        )

    def writes(self, spec: ToolSpec) -> bool:
        """True where a call may change what later calls answer."""
        return not spec.annotations.read_only

    def may_be_repeated(self, spec: ToolSpec) -> bool:
        """True where making a replayed call on the live server can do no harm. An own instance has not seen
        it; a shared one may have, from the session that recorded it."""
        if self.isolation.get(spec.server, "shared") == "episode" or spec.dotted in self.repeatable:
            return True
        return spec.annotations.idempotent and not spec.annotations.destructive

    async def look_up(self, key: CallKey) -> Answer | Miss:
        """The answer on the tape, or why there is none. Waits while another session asks the same live."""
        while (answered := self._under_way.get(key.id)) is not None:
            await answered.wait()
        answer = self.tape.find(key)
        if answer is None and self.mode != "strict":
            self.tape.catch_up()
            answer = self.tape.find(key)
        if answer is None:
            return self._reason(key)
        return answer.within(self.limit_chars) or Miss.CUT_SHORTER

    @contextmanager
    def asking(self, key: CallKey) -> Iterator[None]:
        """While inside, other sessions with the same question wait for the answer instead of asking too."""
        self._under_way[key.id] = asyncio.Event()
        try:
            yield
        finally:
            self._under_way.pop(key.id).set()

    def answer(self, result: ToolResult) -> Answer | None:
        """What of a live result is recorded; None where it says nothing about the tool."""
        return Answer.of(result, limit_chars=self.limit_chars, secrets=self.secrets)

    def record(self, key: CallKey, answer: Answer, *, replace: bool) -> None:
        """Put an answer on the tape."""
        stored = self.tape.add(key, answer, replace=replace)
        self.counts.recorded += stored in (Stored.NEW, Stored.REPLACED)
        self.counts.volatile += stored in (Stored.REPLACED, Stored.KEPT)

    def _reason(self, key: CallKey) -> Miss:
        near = self.tape.nearest(key)
        if near is None:
            return Miss.NEVER_MADE
        if near.version != key.version:
            return Miss.VERSION_CHANGED
        return Miss.SCHEMA_CHANGED if near.schema != key.schema else Miss.OTHER_STATE
