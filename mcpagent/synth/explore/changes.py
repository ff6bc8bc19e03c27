"""What tools change: each is tried in an instance of its own, and read before and after.

The effect becomes the state check of a task (`StateCheck`). Only servers whose state every session finds as
it was at the start are changed, and no tool of which people outside would hear.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tools import ToolResult, ToolSpec
from mcpagent.core.values import scalars
from mcpagent.synth.explore.candidates import LIKELY, POSSIBLE, argument_shape, naming
from mcpagent.synth.explore.graph import Fact, Silence, ToolGraph
from mcpagent.synth.explore.invented import invented_like, known_values
from mcpagent.synth.explore.questions import wish_of
from mcpagent.synth.explore.walks import Step, Walk, about
from mcpagent.synth.tasks.effects import MOST_CHECKS, checks_of, folder_of, state_check
from mcpagent.synth.tasks.run import CallCache, SynthSession, as_text
from mcpagent.tools.words import name_words, stays_here

_TRIES = 6  # calls of a tool, before it is left alone
_READS = 24  # calls that look for an effect
_OF_A_TOOL = 3  # of them, with arguments that are known


@dataclass(frozen=True)
class Change:
    """A tool that changes something, those that show it, and for which of its slots new names are `made`."""

    spec: ToolSpec
    readers: tuple[ToolSpec, ...]
    made: tuple[bool, ...]


class _Writer:
    """Draws arguments for a tool that changes something, in which only things of `facts` are named, and new
    things (names that are not `taken`)."""

    def __init__(self, spec: ToolSpec, graph: ToolGraph, facts: Sequence[Fact], taken: set[str]) -> None:
        self._taken, self._shape = taken, argument_shape(spec)
        self._options = list[list[Any]]()
        facts = [fact for fact in facts if fact.spec.server == spec.server]
        for slot in self._shape.required:
            slot.add_own()
            listed = [value for each in slot.lists.values() for value in each.values.values()]
            words = name_words(slot.name)
            taken_before = [v for fact in facts for name, v in fact.given if name_words(name) == words]
            told = [
                slot.taking(leaf.value)
                for fact in facts
                for leaf in fact.leaves
                if slot.rank_of(spec, fact.spec, leaf, graph.relations) in (LIKELY, POSSIBLE)
            ]
            options = listed if "enum" in slot.lists else taken_before or told or listed
            self._options.append(list(dict.fromkeys(options)))

    @property
    def ways(self) -> list[tuple[bool, ...]]:
        """Which slots can name something new: first none of those for which something is known."""
        able = list[Sequence[bool]]()
        for slot, options in zip(self._shape.required, self._options, strict=True):
            is_free = slot.type == "string" and "enum" not in slot.lists
            able.append((False, True) if options and is_free else (not options,))
        return sorted(itertools.product(*able), key=sum)

    def drawn(self, made: tuple[bool, ...], rng: Random) -> tuple[JsonObject, str] | None:
        """Return arguments, and the name of what is new in them; None if a value is missing, or two texts are
        the same."""
        new, values = "", list[Any]()
        for slot, options, is_new in zip(self._shape.required, self._options, made, strict=True):
            if is_new and slot.type == "string":
                texts = [value for value in options if isinstance(value, str)]
                values.append(
                    invented_like(texts, self._taken, rng) or f"{slot.name} {rng.randrange(10, 1000)}"
                )
                new = new or str(values[-1])
            else:
                values.append(rng.choice(options) if options else None)
        texts = [value for value in values if isinstance(value, str)]
        is_odd = None in values or len(set(texts)) < len(texts)
        return None if is_odd else (self._shape.filled(values), new)


class Effects:
    """Tries what changes something. `servers` are those whose state comes back; `silences` says of the tools
    that were tried without success why, `kept` which servers kept the change for the next session, and
    `watch` has by server the reads that show whether anything was changed."""

    def __init__(self, cache: CallCache, graph: ToolGraph, servers: Collection[str], *, seed: int) -> None:
        self._cache, self._graph, self._seed = cache, graph, seed
        specs = [spec for spec in cache.specs if spec.server in servers]
        self._specs = [spec for spec in specs if not spec.annotations.read_only and stays_here(spec)]
        self._readers = [spec for spec in specs if spec.annotations.read_only]
        self.changes: list[Change] = []
        self.silences: list[Silence] = []
        self.kept: set[str] = set()
        self.tried = [spec.dotted for spec in self._specs]
        self._shown: dict[str, dict[str, Fact]] = {}

    @property
    def watch(self) -> Mapping[str, tuple[Fact, ...]]:
        """By server, reads of what is there in which a change was seen."""
        return {
            server: tuple(reads.values())[:MOST_CHECKS]
            for server, reads in self._shown.items()
            if server not in self.kept
        }

    async def run(self, on_call: Callable[[str], None] = lambda _: None) -> None:
        """Try each tool."""
        taken = known_values(self._graph.facts)
        for spec in self._specs:
            on_call(spec.dotted)
            writer = _Writer(spec, self._graph, self._graph.facts, taken)
            rng = Random(derive_seed(self._seed, "changes", spec.dotted))
            outcome: Change | str = "nothing gave arguments for it"
            for made in itertools.islice(itertools.cycle(writer.ways), _TRIES):
                if spec.server in self.kept or isinstance(outcome, Change):
                    break
                if (drawn := writer.drawn(made, rng)) is not None:
                    outcome = await self._tried(Fact(spec, drawn[0]), made)
            if isinstance(outcome, Change):
                self.changes.append(outcome)
            else:
                text = "may change something, and was tried in an instance of its own: "
                self.silences.append(Silence("no_effect", text + outcome, (spec.dotted,)))

    async def _tried(self, call: Fact, made: tuple[bool, ...]) -> Change | str:
        """Return the change that a call makes, or why there is none."""
        spec = call.spec
        if fault := self._cache.argument_fault(spec.server, spec.name, call.arguments):
            return f"no arguments fit its schema ({fault})"
        readers = [reader for reader in self._readers if reader.server == spec.server]
        readings = await _two_readings(self._cache, call, reads_about(call, readers, self._graph.facts))
        if isinstance(readings, str):
            return f"it refused ({readings})"
        changed = [reading for reading in readings if as_text(reading[1]) != as_text(reading[2])]
        for read, was, _ in changed[:1]:
            async with self._cache.session(generation=4) as session:
                again = await _ask(session, read)
            if as_text(again) != as_text(was):
                self.kept.add(spec.server)
                return "the next session found the change, so the server needs a workspace or a reset"
        shown = self._shown.setdefault(spec.server, {})
        for read, was, _ in changed:
            if not was.is_error:  # of what is there
                shown.setdefault(read.spec.dotted, read)
        checks = checks_of(readings, call.arguments)
        if checks is None:
            return "no tool that only reads tells all of the change"
        return Change(spec, tuple({read.spec.dotted: read.spec for read, _ in checks}.values()), made)


def reads_about(call: Fact, readers: Sequence[ToolSpec], facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the calls of `readers` that may tell what a call changes: those that are known, and those about
    its values."""
    given = [v for v in scalars(call.arguments) if type(v) in (str, int) and len(str(v)) <= 200]
    given += [folder_of(text) for text in given if isinstance(text, str) and folder_of(text)]
    texts = set(map(str, given))
    made: dict[str, Fact] = {}
    for reader in readers:
        calls = [fact for fact in facts if fact.spec is reader]
        calls.sort(key=lambda fact: set(map(str, scalars(fact.arguments))).isdisjoint(texts))
        options = [fact.arguments for fact in calls[:_OF_A_TOOL]]
        if len(reader.input_schema.get("required", ())) < 2:
            options += naming(reader, given)
        made |= {about(read): read for arguments in options for read in [Fact(reader, arguments)]}
    return tuple(made.values())[:_READS]


_Reading = tuple[Fact, ToolResult, ToolResult]  # before the change and after it


async def _two_readings(cache: CallCache, call: Fact, reads: Sequence[Fact]) -> list[_Reading] | str:
    """Make a call between two readings; or return what the tool said that refused it."""
    async with cache.session() as session:
        before = [await _ask(session, read) for read in reads]
        done = await _ask(session, call)
        if done.is_error:
            return " ".join(done.content.split())[:120]
        after = [await _ask(session, read) for read in reads]
    return list(zip(reads, before, after, strict=True))


async def _ask(session: SynthSession, call: Fact) -> ToolResult:
    return await session.call(server=call.spec.server, tool=call.spec.name, arguments=call.arguments)


def draw_change(
    changes: Sequence[Change], graph: ToolGraph, facts: Sequence[Fact], taken: set[str], rng: Random
) -> Walk | None:
    """Return a wish that something be changed, in which only things of `facts` are named."""
    change = rng.choice(changes)
    drawn = _Writer(change.spec, graph, facts, taken).drawn(change.made, rng)
    if drawn is None:
        return None
    call = Fact(change.spec, drawn[0])
    wish = wish_of(change.spec, drawn[0], graph.relations.tool_words[change.spec.dotted])
    reads = reads_about(call, change.readers, facts)
    walk = Walk("state_change", "changed", (Step(call),), wish, reads=reads, invented=drawn[1])
    return walk if reads else None


async def state_of(walk: Walk, cache: CallCache) -> Mapping[str, list[JsonObject]] | str:
    """Return the state checks that tell what the walk changes, found by making its call between two readings;
    or why there are none."""
    call = walk.steps[-1].fact
    readings = await _two_readings(cache, call, walk.reads)
    checks = readings if isinstance(readings, str) else checks_of(readings, call.arguments)
    if checks is None or isinstance(checks, str):
        return f"{call.spec.dotted}({call.arguments}): {checks or 'no reading tells all of the change'}"
    made = [state_check(read, check.expect, nothing_else=check.nothing_else) for read, check in checks]
    return {call.spec.server: made}


def watching(watch: Mapping[str, Sequence[Fact]]) -> Mapping[str, list[JsonObject]]:
    """Return the state checks of a task that changes nothing."""
    return {server: [state_check(read, {}) for read in reads] for server, reads in watch.items() if reads}
