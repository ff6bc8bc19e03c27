"""Does one episode see what another one wrote? Two instances of a server, and three episodes that look.

A writer and a neighbour share the first instance, a stranger has the second. What the neighbour sees of the
writer's calls is state within the server; what the stranger sees of them is state outside it (a file, a
database, a service), against which an instance of one's own does not help.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.tools.arguments import as_json, harmless_arguments, known_values
from mcpagent.tools.contract import Purpose, ToolSession

_NO_ARGUMENTS = "no valid arguments could be made from its schema"
_STARTS_OVER = "answers differently at its second call, and a new instance starts over"


class State(StrEnum):
    """Where a server keeps what calls change."""

    NONE = "none"  # one episode's calls change nothing that another one reads
    INSTANCE = "instance"  # in its process or session: an instance of its own keeps an episode apart
    OUTSIDE = "outside"  # in a file, a database or a service that every instance shares
    UNKNOWN = "unknown"  # nothing was seen, and not everything could be tried


@dataclass(frozen=True)
class Episodes:
    """Three sessions: the first two on one instance, the stranger on another."""

    writer: ToolSession
    neighbour: ToolSession
    stranger: ToolSession


@dataclass(frozen=True)
class _Answer:
    text: str
    is_error: bool
    is_lost: bool  # the tool gave no answer at all
    structured: Any = field(compare=False)


class _Written(NamedTuple):
    arguments: JsonObject
    answer: _Answer


class Probe:
    """One look at one server; single use. Afterwards `states` and `evidence` hold what was seen, `looked` the
    tools that answered the same twice, `wrote` those that accepted a write, `not_tried` why others were not
    called or not compared."""

    def __init__(self, server: str, episodes: Episodes) -> None:
        self._server = server
        self._episodes = episodes
        self.text = f"mcpagent-probe-{secrets.token_hex(4)}"  # what every write carries
        self.states: set[State] = set()
        self.evidence: list[tuple[State, str]] = []
        self.looked: list[str] = []
        self.wrote: list[str] = []
        self.not_tried: dict[str, str] = {}
        self._known: dict[str, Any] = {}

    async def run(
        self, readers: Sequence[ToolSpec], writers: Sequence[ToolSpec], *, uses_found_names: bool
    ) -> None:
        """Read, write, read again. `uses_found_names`: writes may name things that reads have found (a
        channel that exists), not only new ones."""
        reads, before = await self._first_reads(readers)
        again = await self._answers(self._episodes.neighbour, reads)
        fresh = await self._answers(self._episodes.stranger, reads)
        steady = self._steady(before, again, fresh)
        self.looked = [tool for tool in steady if not before[tool].is_error]
        written = await self._write(writers, known=self._known if uses_found_names else {})
        if not self.wrote:
            return
        watched = {tool: reads[tool] for tool in steady}
        seen = await self._answers(self._episodes.neighbour, watched)
        self._compare(again, seen, State.INSTANCE, "another session of the same instance")
        seen = await self._answers(self._episodes.stranger, watched)
        self._compare(fresh, seen, State.OUTSIDE, "another instance")
        if not self.states:
            await self._compare_writes(written)

    async def _first_reads(
        self, readers: Sequence[ToolSpec]
    ) -> tuple[dict[str, JsonObject], dict[str, _Answer]]:
        """Arguments and answers. Tools that need no arguments come first: the others take names from them."""
        reads: dict[str, JsonObject] = {}
        answers: dict[str, _Answer] = {}
        for spec in sorted(readers, key=lambda spec: len(spec.input_schema.get("required", ()))):
            arguments = harmless_arguments(spec.input_schema, text=self.text, known=self._known)
            if arguments is None:
                self.not_tried[spec.name] = _NO_ARGUMENTS
                continue
            answer = await self._ask(self._episodes.neighbour, spec.name, arguments)
            if answer.is_lost:
                self.not_tried[spec.name] = answer.text
                continue
            reads[spec.name], answers[spec.name] = arguments, answer
            self._known = {**known_values(answer.structured), **self._known}
        return reads, answers

    def _steady(
        self,
        before: Mapping[str, _Answer],
        again: Mapping[str, _Answer],
        fresh: Mapping[str, _Answer],
    ) -> list[str]:
        """The tools whose answers can be compared: two calls in a row agree."""
        steady: list[str] = []
        for tool, first in before.items():
            if first == again[tool]:
                steady.append(tool)
            elif first == fresh[tool]:
                self._saw(State.INSTANCE, f"{tool} {_STARTS_OVER}")
            else:
                self.not_tried[tool] = "the answers differ from call to call"
        return steady

    async def _write(self, writers: Sequence[ToolSpec], *, known: Mapping[str, Any]) -> dict[str, _Written]:
        """The writes that the server accepted."""
        written: dict[str, _Written] = {}
        for spec in writers:
            arguments = harmless_arguments(spec.input_schema, text=self.text, known=known)
            if arguments is None:
                self.not_tried[spec.name] = _NO_ARGUMENTS
                continue
            answer = await self._ask(self._episodes.writer, spec.name, arguments)
            if answer.is_error:
                self.not_tried[spec.name] = f"it refused the probe: {answer.text.partition(chr(10))[0]}"
                continue
            written[spec.name] = _Written(arguments, answer)
        self.wrote = list(written)
        return written

    def _compare(
        self, before: Mapping[str, _Answer], after: Mapping[str, _Answer], state: State, place: str
    ) -> None:
        for tool, answer in after.items():
            if answer != before[tool] and not answer.is_lost:
                shows = self.text in answer.text and self.text not in before[tool].text
                proof = f" and holds {self.text!r}" if shows else ""
                self._saw(
                    state, f"after {', '.join(self.wrote)}, {tool} in {place} answers differently{proof}"
                )

    async def _compare_writes(self, written: Mapping[str, _Written]) -> None:
        """Where reads show nothing: does a write's own answer tell of earlier writes?"""
        other = f"{self.text}-2"
        for tool, (arguments, first) in written.items():
            second = await self._ask(self._episodes.writer, tool, arguments)
            if second == first:
                continue
            renamed = json.loads(json.dumps(arguments).replace(self.text, other))
            stranger = await self._ask(self._episodes.stranger, tool, renamed)
            if self.text in stranger.text.replace(other, ""):
                self._saw(State.OUTSIDE, f"{tool} in another instance answers with {self.text!r}")
            elif stranger.text.replace(other, self.text) == first.text:
                self._saw(State.INSTANCE, f"{tool} {_STARTS_OVER}")

    async def _answers(self, session: ToolSession, reads: Mapping[str, JsonObject]) -> dict[str, _Answer]:
        return {tool: await self._ask(session, tool, arguments) for tool, arguments in reads.items()}

    async def _ask(self, session: ToolSession, tool: str, arguments: JsonObject) -> _Answer:
        call = ToolCall(id=self.text, server=self._server, tool=tool, arguments=arguments)
        result = await session.call(call, purpose=Purpose.SETUP)
        return _Answer(
            text=result.content,
            is_error=result.is_error,
            is_lost=result.failure is not None and result.failure.is_infrastructure,
            structured=result.structured if result.structured is not None else as_json(result.content),
        )

    def _saw(self, state: State, evidence: str) -> None:
        self.states.add(state)
        self.evidence.append((state, evidence))
