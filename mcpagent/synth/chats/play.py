"""The calls of a chat, made on the live servers before they count; and what tells the changes that they
made."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.core.shown_values import shown_value, text_value
from mcpagent.core.tools import FailureKind, ToolResult, ToolSpec
from mcpagent.core.values import scalars
from mcpagent.synth.chats.read import LoggedCall
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.tasks.effects import checks_of, state_check
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import RejectCode, RejectedTask
from mcpagent.tools.catalog import near_match

_SIGNS = re.compile(r"[\W_]+")  # which hosts and APIs put between server and tool, or leave out


@dataclass(frozen=True)
class MadeCall:
    """A call of the log, the tool that it is of, and what that says today."""

    logged: LoggedCall
    spec: ToolSpec
    result: ToolResult

    def still_shows(self, said: str) -> bool:
        """Return whether what `said` tells of the result in the log stands in that of today too."""
        if self.logged.result is None:
            return True
        then, now = text_value(self.logged.result), shown_value(self.result)
        told = (leaf for leaf in scalars(then) if stands_in(leaf, said))
        return then == now or (then.keys() != {"text"} and set(map(str, told)) <= set(map(str, scalars(now))))


class Player:
    """Makes the calls of chats. Those that may write go only to the servers in `may_be_changed`."""

    def __init__(
        self, cache: CallCache, catalog: Mapping[str, ToolSpec], may_be_changed: Collection[str]
    ) -> None:
        self._cache, self._catalog, self._may_be_changed = cache, catalog, may_be_changed
        self._by_name: dict[str, list[ToolSpec]] = {}
        for spec in catalog.values():
            for before in ("", spec.server, f"mcp{spec.server}"):  # as hosts write a tool
                self._by_name.setdefault(_letters(before + spec.name), []).append(spec)

    async def play(self, logged: Sequence[LoggedCall]) -> tuple[list[MadeCall], dict[str, list[JsonObject]]]:
        """Return the calls that succeed, and by server the state checks that tell what they changed; none if
        no reading tells all of it. A call that failed in the log just as now is left out. Raises
        RejectedTask."""
        calls = self._fitting([(call, self._spec(call.name)) for call in logged])
        writes = {spec.server for _, spec in calls if not spec.annotations.read_only}
        reads = [read for server in sorted(writes) for read in self._reads(server, calls)]
        made: list[MadeCall] = []
        async with (
            self._cache.turn if writes else nullcontext(),
            self._cache.session(only_reads=not writes) as session,
        ):

            async def ask(spec: ToolSpec, arguments: JsonObject) -> ToolResult:
                return await session.call(server=spec.server, tool=spec.name, arguments=arguments)

            before = [await ask(read.spec, read.arguments) for read in reads]
            for call, spec in calls:
                result = await ask(spec, call.arguments)
                if not result.is_error:
                    made.append(MadeCall(call, spec, result))
                elif result.failure is not FailureKind.TOOL_ERROR or not _failed_then(call, result):
                    then = "" if call.result is None else f"; the log has {call.result[:100]!r}"
                    detail = f"{spec.dotted}({call.arguments}) fails today: {result.content[:200]}{then}"
                    raise RejectedTask(RejectCode.STEP_FAILED, detail)
            after = [await ask(read.spec, read.arguments) for read in reads]
        if not made:
            raise RejectedTask(RejectCode.NO_CALL, "every call failed, then and now")
        return made, _state(made, list(zip(reads, before, after, strict=True)))

    def _spec(self, name: str) -> ToolSpec:
        exact = [s for shown, s in self._catalog.items() if name in (shown, s.dotted, s.qualified_name)]
        match exact or self._by_name.get(_letters(name), []):
            case [spec]:
                return spec
            case []:
                hint = near_match(name, self._catalog) or ""
                raise RejectedTask(RejectCode.UNKNOWN_TOOL, f"no server in use has {name}. {hint}".strip())
            case specs:
                which = ", ".join(spec.dotted for spec in specs)
                raise RejectedTask(RejectCode.UNKNOWN_TOOL, f"{name} may be any of {which}")

    def _fitting(self, calls: Sequence[tuple[LoggedCall, ToolSpec]]) -> list[tuple[LoggedCall, ToolSpec]]:
        """Return the calls that may be made: without those that break the schema if a later call of the tool
        does not, in the same user turn, and without a reading that stands there already."""
        kept: list[tuple[LoggedCall, ToolSpec]] = []
        for at, (call, spec) in enumerate(calls):
            if not spec.annotations.read_only and spec.server not in self._may_be_changed:
                raise RejectedTask(
                    RejectCode.MAY_WRITE,
                    f"{spec.dotted} does not say that it only reads, and what it writes would stay. If it "
                    f"reads: --read-only {spec.dotted}. Else each session needs a copy of its data: "
                    f"--set {shlex.quote(f'tools.per_server.{spec.server}.workspace=FOLDER')}, or a reset",
                )
            if fault := self._fault(call, spec):
                later = [c for c, s in calls[at + 1 :] if s is spec and c.user_turn == call.user_turn]
                if all(self._fault(c, spec) for c in later):
                    raise RejectedTask(RejectCode.INVALID_ARGUMENTS, f"{spec.dotted}: {fault}")
            elif not _is_told(call, spec, kept):
                kept.append((call, spec))
        return kept

    def _fault(self, call: LoggedCall, spec: ToolSpec) -> str | None:
        return self._cache.argument_fault(spec.server, spec.name, call.arguments)

    def _reads(self, server: str, calls: Sequence[tuple[LoggedCall, ToolSpec]]) -> list[Fact]:
        """Return the readings that may tell what changes: those of the chat, and those that take nothing."""
        likely = [(spec, call.arguments) for call, spec in calls]
        likely += [(spec, {}) for spec in self._cache.specs if not spec.input_schema.get("required")]
        reads = [one for one in likely if one[0].server == server and one[0].annotations.read_only]
        return [Fact(*read) for at, read in enumerate(reads) if read not in reads[:at]]


def _letters(name: str) -> str:
    return _SIGNS.sub("", name.lower())


def _is_told(call: LoggedCall, spec: ToolSpec, kept: Sequence[tuple[LoggedCall, ToolSpec]]) -> bool:
    """Return True if a tool that only reads was asked the same in the turn, and nothing was written since."""
    for earlier, other in reversed(kept):
        if not other.annotations.read_only or earlier.user_turn != call.user_turn:
            return False
        if other is spec and earlier.arguments == call.arguments:
            return True
    return False


def _failed_then(call: LoggedCall, result: ToolResult) -> bool:
    """Return True if the log has the error of today: one text in the other, as hosts put words around it."""
    then, now = " ".join((call.result or "").split()), " ".join(result.content.split())
    return bool(then and now) and (then in now or now in then)


def _state(
    made: Sequence[MadeCall], readings: Sequence[tuple[Fact, ToolResult, ToolResult]]
) -> dict[str, list[JsonObject]]:
    state: dict[str, list[JsonObject]] = {}
    writes = [call for call in made if not call.spec.annotations.read_only]
    for server in sorted({call.spec.server for call in writes}):
        given = [call.logged.arguments for call in writes if call.spec.server == server]
        picked = checks_of([reading for reading in readings if reading[0].spec.server == server], given)
        if picked is None:
            return {}
        state[server] = [
            state_check(read, check.expect, nothing_else=check.nothing_else) for read, check in picked
        ]
    return state
