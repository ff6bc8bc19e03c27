"""What tools change: each is tried in an instance of its own, and read before and after.

The effect becomes the state check of a task (`StateCheck`). Only servers whose state every session finds as
it was at the start are changed, and no tool of which people outside would hear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tools import ToolResult, ToolSpec
from mcpagent.core.values import scalars
from mcpagent.synth.explore import questions
from mcpagent.synth.explore.candidates import (
    LIKELY,
    Slot,
    add_own_values,
    argument_shape,
    learned_rank,
    naming,
    value_form,
)
from mcpagent.synth.explore.effects import MOST_CHECKS, EffectCheck, check_of, covering, folder_of
from mcpagent.synth.explore.graph import Fact, Silence, ToolGraph, given_by
from mcpagent.synth.explore.invented import invented_like, known_values
from mcpagent.synth.explore.walks import Step, Walk, about
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
    """A tool that changes something, and those that show it."""

    spec: ToolSpec
    readers: tuple[ToolSpec, ...]


class _Writer:
    """Draws arguments for a tool that changes something, in which only things of `facts` are named, and new
    things (names that are not `taken`)."""

    def __init__(self, spec: ToolSpec, facts: Sequence[Fact], taken: set[str], seed: int) -> None:
        self.spec, self._taken = spec, taken
        self.facts = [fact for fact in facts if fact.spec.server == spec.server]
        self._shape = argument_shape(spec)
        for slot in self._shape.required:
            add_own_values(slot, spec, seed=seed)

    def drawn(self, rng: Random) -> tuple[JsonObject, str] | None:
        """Return arguments, and the name of what is new in them; None if a value is missing, or two texts are
        the same."""
        new, values = "", list[Any]()
        for slot in self._shape.required:
            options, is_new = self._options(slot, rng)
            values.append(rng.choice(options) if options else None)
            new = str(values[-1]) if is_new and not new else new
        texts = [value for value in values if isinstance(value, str)]
        is_odd = None in values or len(set(texts)) < len(texts)
        return None if is_odd else (self._shape.filled(values), new)

    def _options(self, slot: Slot, rng: Random) -> tuple[list[Any], bool]:
        """The values for a slot, and whether they are names of new things: what is to be deleted is there,
        the task of a new comment too; the comment is new, its text any text."""
        words, is_path = {*name_words(slot.name)}, slot.form == "path"
        options = [value for each in slot.lists.values() for value in each.values.values()]
        if "enum" in slot.lists:
            return options, False
        accepted = self._accepted(slot)
        told = list(dict.fromkeys(accepted or self._told(slot)))
        is_name = bool(accepted) or is_path or bool(words & (_NAMING | IDENTIFIERS))
        if told and is_name and not words & _PROSE and not self._is_made(slot):
            return told, False
        if slot.type != "string":
            return options, False
        if words & _NAMING or is_path:
            names = [value for value in told if isinstance(value, str)]
            if is_path:  # next to those that are known
                names = [text for fact in self.facts for _, text in fact.texts if value_form(text) == "path"]
            made = invented_like(list(dict.fromkeys(names)), self._taken, rng)
            return [made or rng.choice(_THINGS)], True
        if told and not words & _PROSE:
            return told, False  # a status, a category
        return [value for value in options if " " in str(value)] or options, False

    def _accepted(self, slot: Slot) -> list[Any]:
        """Return what other tools of the server took for a parameter of that name."""
        given = (pair for fact in self.facts for pair in (*fact.texts, *fact.numbers))
        return [value for name, value in given if name_words(name) == name_words(slot.name)]

    def _told(self, slot: Slot) -> list[Any]:
        """Return what the facts tell that is likely to be for the slot."""
        given = ((fact.spec, value, leaf) for fact in self.facts for value, leaf, _ in given_by(fact))
        return [
            value
            for source, value, leaf in given
            if not leaf.in_prose and learned_rank(slot, self.spec, source, value, leaf) == LIKELY
        ]

    def _is_made(self, slot: Slot) -> bool:
        """Return True if the slot names what the tool makes: the `title` or the `note` of `add_note`."""
        noun = singular(noun_in(slot.name))
        made = singular(topic(self.spec).rpartition(" ")[2])
        return bool({*name_words(self.spec.name)} & _CREATES) and noun in ("", made)


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
            writer = _Writer(spec, self._graph.facts, taken, self._seed)
            rng = Random(derive_seed(self._seed, "changes", spec.dotted))
            outcome: Change | str = "nothing gave arguments for it"
            for _ in range(_TRIES):
                if spec.server in self.kept or isinstance(outcome, Change):
                    break
                if (drawn := writer.drawn(rng)) is not None:
                    outcome = await self._tried(Fact(spec, drawn[0]))
            if isinstance(outcome, Change):
                self.changes.append(outcome)
            else:
                text = "may change something, and was tried in an instance of its own: "
                self.silences.append(Silence("no_effect", text + outcome, (spec.dotted,)))

    async def _tried(self, call: Fact) -> Change | str:
        """Return the change that a call makes, or why there is none."""
        spec = call.spec
        if fault := self._cache.argument_fault(spec.server, spec.name, call.arguments):
            return f"no arguments fit its schema ({fault})"
        readers = [reader for reader in self._readers if reader.server == spec.server]
        readings = await _two_readings(self._cache, call, reads_about(call, readers, self._graph.facts))
        if isinstance(readings, str):
            return f"it refused ({readings})"
        changed = [reading for reading in readings if as_text(reading[1]) != as_text(reading[2])]
        if changed and not await self._starts_over(changed[0]):
            self.kept.add(spec.server)
            return "the next session found the change, so the server needs a workspace or a reset"
        shown = self._shown.setdefault(spec.server, {})
        for read, was, _ in changed:
            if not was.is_error:  # of what is there
                shown.setdefault(read.spec.dotted, read)
        checks = _checks_of(readings, call)
        if checks is None:
            return "no tool that only reads tells all of the change"
        return Change(spec, tuple({read.spec.dotted: read.spec for read, _ in checks}.values()))

    async def _starts_over(self, changed: _Reading) -> bool:
        """Return True if the next session finds the state as this one did."""
        read, was, _ = changed
        async with self._cache.session(generation=4) as session:
            return as_text(await _ask(session, read)) == as_text(was)


def reads_about(call: Fact, readers: Sequence[ToolSpec], facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the calls of `readers` that may tell what a call changes: those that are known, and those about
    its values."""
    given = [
        value for value in scalars(call.arguments) if type(value) in (str, int) and len(str(value)) <= 200
    ]
    given += [folder_of(text) for text in given if isinstance(text, str) and folder_of(text)]
    texts = set(map(str, given))
    made: dict[str, Fact] = {}
    for reader in readers:
        calls = [fact for fact in facts if fact.spec is reader and fact.page == 1]
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


def _checks_of(readings: Sequence[_Reading], call: Fact) -> list[tuple[Fact, EffectCheck]] | None:
    """The reads that tell all that a call changes, and what each has to give then. Without a check of each
    value a wrong one would pass."""
    values = [value for value in scalars(call.arguments) if not isinstance(value, bool)]
    seen = ((read, check_of(read, was, now, values)) for read, was, now in readings)
    return covering([(read, check) for read, check in seen if check], values)


def draw_change(
    changes: Sequence[Change], facts: Sequence[Fact], taken: set[str], rng: Random
) -> Walk | None:
    """Return a wish that something be changed, in which only things of `facts` are named."""
    change = rng.choice(changes)
    drawn = _Writer(change.spec, facts, taken, rng.randrange(2**31)).drawn(rng)
    if drawn is None:
        return None
    call, wish = Fact(change.spec, drawn[0]), questions.wish_of(change.spec, drawn[0])
    reads = reads_about(call, change.readers, facts)
    walk = Walk("state_change", "changed", (Step(call),), wish, reads=reads, invented=drawn[1])
    return walk if reads else None


async def state_of(walk: Walk, cache: CallCache) -> Mapping[str, list[JsonObject]] | str:
    """Return the state checks that tell what the walk changes, found by making its call between two readings;
    or why there are none."""
    call = walk.steps[-1].fact
    readings = await _two_readings(cache, call, walk.reads)
    checks = readings if isinstance(readings, str) else _checks_of(readings, call)
    if checks is None or isinstance(checks, str):
        return f"{call.spec.dotted}({call.arguments}): {checks or 'no reading tells all of the change'}"
    made = [_check(read, check.expect, nothing_else=check.nothing_else) for read, check in checks]
    return {call.spec.server: made}


def watching(watch: Mapping[str, Sequence[Fact]]) -> Mapping[str, list[JsonObject]]:
    """Return the state checks of a task that changes nothing."""
    return {server: [_check(read, {}) for read in reads] for server, reads in watch.items() if reads}


def _check(read: Fact, expect: JsonObject, *, nothing_else: bool = True) -> JsonObject:
    call = {"tool": read.spec.name, "arguments": read.arguments}
    return {"call": call, "expect": expect} | ({"nothing_else_changed": True} if nothing_else else {})
