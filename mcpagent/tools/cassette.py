"""Record and replay of tool calls: a `ToolProvider` around another one, or in strict mode around none.

    record   every call goes to its server, and its answer is recorded
    replay   the tape answers what it can; anything else goes to the server and is recorded
    strict   the tape answers, or the call fails; no server is started

An answer is kept under (server and version, tool, schemas, arguments) and, because an answer of a server with
state depends on what the session did to it before, under the session's earlier calls on that server that were
not read-only. Failures of the infrastructure are never recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec, catalog_hash
from mcpagent.errors import UserError
from mcpagent.tools.cassette_counts import CassetteCounts
from mcpagent.tools.cassette_deck import CassetteMode, Deck
from mcpagent.tools.cassette_session import CassetteSession
from mcpagent.tools.cassette_tape import Tape
from mcpagent.tools.catalog import Catalog
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.servers_config import Isolation


class Cassette:
    """The tools of a run with their answers on a tape. Close it, or use it as a context manager."""

    def __init__(self, deck: Deck, live: ToolProvider | None) -> None:
        self._deck = deck
        self._live = live

    @classmethod
    def around(
        cls,
        live: ToolProvider,
        folder: Path,
        *,
        mode: CassetteMode,
        isolation: Mapping[str, Isolation],
        versions: Mapping[str, str] | None = None,
        result_limit_chars: int,
        secrets: Mapping[str, str] | None = None,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Record from `live`, replay what the tape has. `result_limit_chars` is the limit that `live` cuts
        to; `on_note` is told of tools that changed since the recording and of servers whose recorded answers
        may depend on other episodes. Raises UserError for a tape that cannot be read or written."""
        tools = list(live.tools.values())
        tape = Tape(folder, writable=True)
        try:
            for note in [*_changes(tape, tools), *_contaminations(tools, isolation)]:
                on_note(note)
            tape.pin(tools, versions or {})
        except BaseException:
            tape.close()
            raise
        deck = Deck(
            tape=tape,
            mode=mode,
            catalog=Catalog(tools),
            isolation=isolation,
            versions=versions or {},
            limit_chars=result_limit_chars,
            secrets=secrets or {},
            counts=CassetteCounts(mode),
        )
        return cls(deck, live)

    @classmethod
    def alone(
        cls,
        folder: Path,
        *,
        allow: Sequence[str] | None = None,
        result_limit_chars: int,
        secrets: Mapping[str, str] | None = None,
    ) -> Self:
        """Strict: the tape is all there is, its tools included. Raises UserError where there is no tape."""
        tape = Tape(folder, writable=False)
        pinned = tape.catalog
        if pinned is None:
            tape.close()
            raise UserError(
                "the cassette has no catalog of its tools",
                where=str(folder),
                remedy="record it again: --cassette-mode record",
            )
        deck = Deck(
            tape=tape,
            mode="strict",
            catalog=Catalog.of(pinned.tools, allow=allow),
            isolation={},
            versions=pinned.versions,
            limit_chars=result_limit_chars,
            secrets=secrets or {},
            counts=CassetteCounts("strict"),
        )
        return cls(deck, None)

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """Every tool by the name that the model sees."""
        return self._deck.catalog.tools

    @property
    def catalog_hash(self) -> str:
        """As that of a `ToolPool`."""
        return self._deck.catalog.hash

    def session(self) -> CassetteSession:
        """A new, single-use session."""
        return CassetteSession(self._deck, None if self._live is None else self._live.session())

    def take_counts(self) -> JsonObject:
        """What happened since this was last asked."""
        counts, self._deck.counts = self._deck.counts, CassetteCounts(self._deck.mode)
        return counts.as_json()

    def close(self) -> None:
        """Sort the tape where it was written to. The servers belong to whoever started them. Idempotent."""
        self._deck.tape.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _changes(tape: Tape, tools: Sequence[ToolSpec]) -> list[str]:
    pinned = tape.catalog
    if pinned is None or catalog_hash(pinned.tools) == catalog_hash(tools):
        return []
    then, now = ({spec.dotted: spec for spec in specs} for specs in (pinned.tools, tools))
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    return [f"the tools have changed since the cassette was recorded: {', '.join(differing[:8])}"]


def _contaminations(tools: Sequence[ToolSpec], isolation: Mapping[str, Isolation]) -> list[str]:
    """A server that episodes share and that may be changed: what one episode was told is on the tape, though
    another one may have caused it."""
    writing: dict[str, list[str]] = {}
    for spec in tools:
        if not spec.annotations.read_only and isolation.get(spec.server, "shared") == "shared":
            writing.setdefault(spec.server, []).append(spec.name)
    return [
        f"server {server!r} is shared by all episodes, and {', '.join(names[:4])} may change it: recorded "
        f"answers can depend on other episodes; tools.isolation.{server}=episode keeps them apart"
        for server, names in writing.items()
    ]
