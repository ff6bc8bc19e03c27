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
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.tools.cassettes.session import CassetteSession, RecordingPolicy
from mcpagent.tools.cassettes.tape import CassetteCounts, Tape, TapeCatalog
from mcpagent.tools.catalog import Catalog, declared
from mcpagent.tools.contract import OnChange, PinnedTools
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.tools.servers_config import Isolation

_NAMED = 8  # tools named in one note


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What a cassette must know of the live servers, by name: `isolation` (else shared) and `versions`.
    `repeatable` are dotted names of tools whose second effect does no harm."""

    isolation: Mapping[str, Isolation] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    repeatable: Sequence[str] = ()


class Cassette:
    """A `PinnedTools` with its answers on a tape. Close it, or use it as a context manager."""

    def __init__(
        self, policy: RecordingPolicy, live: PinnedTools | None, *, on_change: OnChange = "warn"
    ) -> None:
        self.on_change: OnChange = on_change
        self._policy = policy
        self._live = live

    @classmethod
    def around(
        cls,
        live: PinnedTools,
        folder: Path,
        *,
        mode: Literal["record", "replay"],
        servers: ServerFacts,
        result_limit_chars: int,
        secrets: Mapping[str, str] | None = None,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Record from `live`, replay what the tape has. `result_limit_chars` is the limit that `live` cuts
        results to; `secrets` (value -> name) never reach the tape. `on_note` is told of tools that changed
        since the recording, and of servers whose recorded answers may depend on other episodes.

        Raises UserError for a tape that cannot be read or written, and for a name that no tool has.
        """
        tools = list(live.tools.values())
        catalog = TapeCatalog(tools=tuple(tools), versions=dict(servers.versions))
        tape = Tape(folder, writable=True)
        policy = RecordingPolicy(
            tape=tape,
            mode=mode,
            catalog=Catalog(tools),
            isolation=servers.isolation,
            versions=servers.versions,
            limit_chars=result_limit_chars,
            counts=CassetteCounts(mode),
            repeatable=frozenset(servers.repeatable),
            secrets=secrets or {},
        )
        try:
            for note in [*_changes(tape.catalog, tools), *_contaminations(policy, tools)]:
                on_note(note)
            tape.pin(catalog)
        except BaseException:
            tape.close()
            raise
        return cls(policy, live, on_change=live.on_change)

    @classmethod
    def alone(
        cls,
        folder: Path,
        *,
        result_limit_chars: int,
        allow: Sequence[str] | None = None,
        on_change: OnChange = "warn",
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
        policy = RecordingPolicy(
            tape=tape,
            mode="strict",
            catalog=Catalog.of(declared(pinned.tools, read_only=pinned.harmless), allow=allow),
            isolation={},
            versions=pinned.versions,
            limit_chars=result_limit_chars,
            counts=CassetteCounts("strict"),
            secrets=secrets or {},
        )
        return cls(policy, None, on_change=on_change)

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """Every tool by the name that the model sees."""
        return self._policy.catalog.tools

    @property
    def catalog_hash(self) -> str:
        """As that of a `ToolPool`."""
        return self._policy.catalog.hash

    @property
    def renamed(self) -> Mapping[str, str]:
        """As those of a `ToolPool`."""
        return {name: spec.dotted for name, spec in self.tools.items() if name != spec.name}

    @property
    def versions(self) -> Mapping[str, str]:
        """As those of a `ToolPool`; none where no server runs."""
        return {} if self._live is None else self._live.versions

    def metrics(self) -> PoolMetrics:
        """Of the calls that went to servers; what the tape answered is in the counts."""
        return PoolMetrics(servers=()) if self._live is None else self._live.metrics()

    def session(self) -> CassetteSession:
        """A new, single-use session."""
        return CassetteSession(self._policy, None if self._live is None else self._live.session())

    def take_counts(self) -> JsonObject:
        """What happened since this was last asked."""
        counts, self._policy.counts = self._policy.counts, CassetteCounts(self._policy.mode)
        return counts.as_json()

    def close(self) -> None:
        """Sort the tape where it was written to. The servers belong to whoever started them. Idempotent."""
        self._policy.tape.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _changes(pinned: TapeCatalog | None, tools: Sequence[ToolSpec]) -> list[str]:
    if pinned is None:
        return []
    then, now = ({spec.dotted: spec for spec in specs} for specs in (pinned.tools, tools))
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if not differing:
        return []
    rest = len(differing) - _NAMED
    names = ", ".join(differing[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return [f"the tools have changed since the cassette was recorded: {names}"]


def _contaminations(policy: RecordingPolicy, tools: Sequence[ToolSpec]) -> list[str]:
    """Servers that all episodes share and that may be changed: an answer on the tape may have been caused by
    another episode than the one that recorded it."""
    writing: dict[str, list[str]] = {}
    for spec in tools:
        if policy.writes(spec) and policy.isolation.get(spec.server, "shared") == "shared":
            writing.setdefault(spec.server, []).append(spec.name)
    return [
        f"server {server!r} is shared by all episodes, and {', '.join(names[:_NAMED])} may change it, so a "
        f"recorded answer can depend on other episodes: set tools.isolation.{server}=episode, or name it in "
        "tools.read_only if it keeps no state"
        for server, names in writing.items()
    ]
