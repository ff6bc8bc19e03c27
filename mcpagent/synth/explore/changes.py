"""What tools change: each is tried in an instance of its own, and read before and after.

The effect becomes the state check of a task (`StateCheck`). Only servers whose state every session finds as
it was at the start are changed, and no tool of which people outside would hear.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tools import ToolResult, ToolSpec
from mcpagent.synth.explore import questions
from mcpagent.synth.explore.candidates import Slot, add_own_values, argument_shape, learned_kind, value_form
from mcpagent.synth.explore.effects import MOST_CHECKS, check_of, covering, folder_of
from mcpagent.synth.explore.graph import Fact, Silence, ToolGraph, given_by, scalars
from mcpagent.synth.explore.invented import invented_like, known_values
from mcpagent.synth.explore.walks import Step, Walk, replaced_in
from mcpagent.synth.explore.words import (
    IDENTIFIERS,
    name_words,
    noun_in,
    singular,
    stays_here,
    topic,
    words_of,
)
from mcpagent.synth.tasks.run import CallCache, SynthSession, as_text

_TRIES = 6  # calls of a tool, before it is left alone
_READS = 24  # calls that look for an effect
_OF_A_TOOL = 3  # of them, with arguments that are known
_LIKELY = 2.0  # the score of a value of which the names say that it is of that kind
_CREATES = words_of("add create new insert make put record register save write append remember post log")
_NAMING = words_of("name title label subject heading filename")
_PROSE = words_of("text content body message note description comment summary remark observation")
# What new things are called where no names are known that theirs could be made from.
_THINGS = (
    *("Copper Kettle", "Paper Lantern", "Winter Garden", "North Harbour", "Blue Notebook", "Quiet Corner"),
    *("Morning Shift", "Red Bicycle", "Long Table", "Open Window", "Late Train", "Green Folder"),
)


@dataclass(frozen=True)
class Change:
    """A tool that changes something, the values that it was tried with, and the reads that showed it."""

    spec: ToolSpec
    values: tuple[Any, ...]
    reads: tuple[Fact, ...]


class _Slots:
    """The arguments of a tool that changes something, and values for them: by their number, what the facts
    tell (`told`), and which name what is there already (`existing`): the task of a new comment, what is to be
    deleted."""

    def __init__(self, spec: ToolSpec, facts: Sequence[Fact], taken: set[str], seed: int) -> None:
        self.spec, self.taken = spec, taken
        self.facts = [fact for fact in facts if fact.spec.server == spec.server]
        self.shape = argument_shape(spec)
        self.slots = self.shape.required
        for slot in self.slots:
            add_own_values(slot, spec, seed=seed)
        accepted = [self._accepted(slot) for slot in self.slots]
        self.told = [
            list(dict.fromkeys(accepted[n] or self._given(slot))) for n, slot in enumerate(self.slots)
        ]
        self.existing = frozenset(
            number
            for number, slot in enumerate(self.slots)
            if self.told[number] and self._is_name(slot, bool(accepted[number])) and not self._is_made(slot)
        )

    def _accepted(self, slot: Slot) -> list[Any]:
        """Return what other tools of the server took for a parameter of that name."""
        given = (pair for fact in self.facts for pair in (*fact.texts, *fact.numbers))
        return [value for name, value in given if name_words(name) == name_words(slot.name)]

    def _given(self, slot: Slot) -> Iterator[Any]:
        """Yield what the facts give that is likely to be for the slot."""
        for fact in self.facts:
            for value, leaf, prefix in given_by(fact):
                kind = learned_kind(slot, self.spec, fact.spec, value, leaf, prefix)
                if kind is not None and not leaf.in_prose and kind[1] >= _LIKELY:
                    yield value

    def _is_name(self, slot: Slot, is_accepted: bool) -> bool:
        words = {*name_words(slot.name)}
        is_name = is_accepted or slot.form == "path" or words & (_NAMING | IDENTIFIERS)
        return bool(is_name) and not slot.schema.get("enum") and not words & _PROSE

    def _is_made(self, slot: Slot) -> bool:
        """Whether the slot names what the tool makes: the `title` or the `note` of `add_note`."""
        noun = singular(noun_in(slot.name))
        made = singular(topic(self.spec).rpartition(" ")[2])
        return bool({*name_words(self.spec.name)} & _CREATES) and noun in ("", made)

    def is_new(self, number: int) -> bool:
        """Return whether a slot takes the name of something new."""
        slot = self.slots[number]
        is_name = bool({*name_words(slot.name)} & _NAMING) or slot.form == "path"
        return slot.type == "string" and is_name and number not in self.existing

    def drawn(self, rng: Random) -> tuple[Any, ...] | None:
        """Return a value for each slot; None if one has none, or two have the same text."""
        options = [self._options(number, rng) for number in range(len(self.slots))]
        values = tuple(rng.choice(of_slot) if of_slot else None for of_slot in options)
        texts = [value for value in values if isinstance(value, str)]
        return None if None in values or len(set(texts)) < len(texts) else values

    def _options(self, number: int, rng: Random) -> list[Any]:
        slot, told = self.slots[number], self.told[number]
        drawn = [value for kind in slot.kinds.values() for value in kind.values.values()]
        if number in self.existing:
            return told
        if slot.schema.get("enum") or slot.type != "string":
            return drawn
        if self.is_new(number):
            names = [value for value in told if isinstance(value, str)]
            if slot.form == "path":  # next to those that are known
                names = [text for fact in self.facts for _, text in fact.texts if value_form(text) == "path"]
            return [invented_like(list(dict.fromkeys(names)), self.taken, rng) or rng.choice(_THINGS)]
        if told and not {*name_words(slot.name)} & _PROSE:
            return told  # a status, a category
        return [value for value in drawn if " " in str(value)] or drawn


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
            if spec.server in self.kept:
                continue
            outcome = await self._tried(_Slots(spec, self._graph.facts, taken, self._seed))
            if isinstance(outcome, Change):
                self.changes.append(outcome)
            else:
                self.silences.append(outcome)

    async def _tried(self, slots: _Slots) -> Change | Silence:
        rng = Random(derive_seed(self._seed, "changes", slots.spec.dotted))
        why = "nothing gave arguments for it"
        for _ in range(_TRIES):
            values = slots.drawn(rng)
            if values is None:
                continue
            outcome = await self._try(slots, values)
            if isinstance(outcome, Change):
                return outcome
            why = outcome
            if slots.spec.server in self.kept:
                break
        text = "may change something, and was tried in an instance of its own: "
        return Silence("no_effect", text + why, (slots.spec.dotted,))

    async def _try(self, slots: _Slots, values: tuple[Any, ...]) -> Change | str:
        """Return the change, or why there is none."""
        spec, arguments = slots.spec, slots.shape.filled(slots.slots, values)
        if fault := self._cache.argument_fault(spec.server, spec.name, arguments):
            return f"no arguments fit its schema ({fault})"
        readings = await _two_readings(self._cache, spec, arguments, list(self._reads(spec, values)))
        if isinstance(readings, str):
            return f"it refused ({readings})"
        changed = [reading for reading in readings if as_text(reading[1]) != as_text(reading[2])]
        if changed and not await self._starts_over(changed[0]):
            self.kept.add(spec.server)
            return "the next session found the change, so the server needs a workspace or a reset"
        there = {str(value) for number, value in enumerate(values) if number in slots.existing}
        for read, _, _ in changed:
            if {str(value) for value in scalars(read.arguments)} <= there or not read.arguments:
                shown = self._shown.setdefault(spec.server, {})
                shown.setdefault(read.spec.dotted, read)
        seen = [
            (read, check) for read, was, now in changed if (check := check_of(read, was, now, values, there))
        ]
        # Without a check of each value a wrong one would pass.
        picked = covering(seen, [value for value in values if not isinstance(value, bool)])
        if picked is None:
            return "no tool that only reads tells all of the change"
        return Change(spec, values, tuple(picked))

    async def _starts_over(self, changed: _Reading) -> bool:
        """Whether the next session finds the state as this one did."""
        read, was, _ = changed
        async with self._cache.session(generation=4) as session:
            return as_text(await _ask(session, read)) == as_text(was)

    def _reads(self, spec: ToolSpec, values: Sequence[Any]) -> Iterator[Fact]:
        """Calls that may tell of the change: those that are known, and those about its values."""
        made: dict[str, Fact] = {}
        given = [value for value in values if type(value) in (str, int) and len(str(value)) <= 200]
        given += [folder_of(text) for text in given if isinstance(text, str) and folder_of(text)]
        texts = set(map(str, given))
        for reader in (reader for reader in self._readers if reader.server == spec.server):
            facts = [fact for fact in self._graph.facts if fact.spec is reader and fact.page == 1]
            facts.sort(key=lambda fact: set(map(str, scalars(fact.arguments))).isdisjoint(texts))
            options = [fact.arguments for fact in facts[:_OF_A_TOOL]]
            shape = argument_shape(reader)
            if not shape.required:
                options.insert(0, shape.template)
            elif len(shape.required) == 1 and not shape.required[0].schema.get("enum"):
                kind = str if shape.required[0].type == "string" else int
                options += [shape.filled(shape.required, [v]) for v in given if isinstance(v, kind)]
            for arguments in options:
                made.setdefault(json.dumps([reader.name, arguments], sort_keys=True), Fact(reader, arguments))
        yield from list(made.values())[:_READS]


_Reading = tuple[Fact, ToolResult, ToolResult]  # before the change and after it


async def _two_readings(
    cache: CallCache, spec: ToolSpec, arguments: JsonObject, reads: Sequence[Fact]
) -> list[_Reading] | str:
    """Make a call between two readings; or return what the tool said that refused it."""
    async with cache.session() as session:
        before = [await _ask(session, read) for read in reads]
        done = await session.call(server=spec.server, tool=spec.name, arguments=arguments)
        if done.is_error or done.failure is not None:
            return " ".join(done.content.split())[:120]
        after = [await _ask(session, read) for read in reads]
    return list(zip(reads, before, after, strict=True))


async def _ask(session: SynthSession, read: Fact) -> ToolResult:
    return await session.call(server=read.spec.server, tool=read.spec.name, arguments=read.arguments)


def draw_change(
    changes: Sequence[Change], facts: Sequence[Fact], taken: set[str], rng: Random
) -> Walk | None:
    """Return a wish that something be changed, in which only things of `facts` are named."""
    if not changes:
        return None
    change = rng.choice(changes)
    slots = _Slots(change.spec, facts, taken, rng.randrange(2**31))
    values = slots.drawn(rng)
    if values is None:
        return None
    arguments = slots.shape.filled(slots.slots, values)
    others = [pair for pair in zip(change.values, values, strict=True) if not isinstance(pair[0], bool)]
    texts = [(one, other) for one, other in others if isinstance(one, str) and isinstance(other, str)]
    others += [(folder_of(one), folder_of(other)) for one, other in texts if folder_of(one)]
    reads: list[Fact] = []
    for read in change.reads:
        about: Any = read.arguments
        for number, (one, _) in enumerate(others):  # first marks: a new value may be one that was there
            about = replaced_in(about, str(one), f"\0{number}")
        for number, (_, other) in enumerate(others):
            about = replaced_in(about, f"\0{number}", other)
        reads.append(Fact(read.spec, about))
    new = next((str(v) for n, v in enumerate(values) if slots.is_new(n)), "")
    wish = questions.wish_of(change.spec, arguments)
    step = Step(Fact(change.spec, arguments))
    return Walk("state_change", "changed", (step,), wish, reads=tuple(reads), invented=new)


async def state_of(walk: Walk, cache: CallCache) -> Mapping[str, list[JsonObject]] | str:
    """Return the state checks that tell what the walk changes, found by making its call between two readings;
    or why there are none."""
    spec, arguments = walk.steps[-1].fact.spec, walk.steps[-1].fact.arguments
    values = [value for value in scalars(arguments) if not isinstance(value, bool)]
    readings = await _two_readings(cache, spec, arguments, walk.reads)
    if isinstance(readings, str):
        return f"{spec.dotted}({arguments}): {readings}"
    checks: list[JsonObject] = []
    there = {str(value) for value in values if str(value) != walk.invented}
    missing = {str(value) for value in values}
    for read, was, now in readings:
        check = check_of(read, was, now, values, there)
        if check is None:
            return f"{read.spec.dotted}({read.arguments}) does not tell the change"
        missing -= check.covers
        checks.append(_check(read, check.expect, nothing_else=check.nothing_else))
    return f"no reading tells {sorted(missing)}" if missing else {spec.server: checks}


def watching(watch: Mapping[str, Sequence[Fact]]) -> Mapping[str, list[JsonObject]]:
    """Return the state checks of a task that changes nothing."""
    return {server: [_check(read, {}) for read in reads] for server, reads in watch.items() if reads}


def _check(read: Fact, expect: JsonObject, *, nothing_else: bool = True) -> JsonObject:
    call = {"tool": read.spec.name, "arguments": read.arguments}
    return {"call": call, "expect": expect} | ({"nothing_else_changed": True} if nothing_else else {})
