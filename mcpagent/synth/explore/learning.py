"""Calls of the read-only tools, to see what they give: which are made, how many, and what became of them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pydantic_core import from_json

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.shown_values import shown_value, text_value
from mcpagent.core.tools import FailureKind, ToolResult, ToolSpec
from mcpagent.core.values import scalars
from mcpagent.synth.explore.candidates import GUESSED, RANKS, Candidates, Shape, Slot, argument_shape
from mcpagent.synth.explore.graph import Fact, Relations, Silence, ToolGraph, grouped
from mcpagent.synth.explore.leaves import Leaf, leaves_of
from mcpagent.synth.tasks.inspect import stands_in, values_of, widest
from mcpagent.synth.tasks.run import NO_NAME, CallCache, SynthSession, anonymous, as_text, says_no
from mcpagent.tools.probes.arguments import harmless_arguments
from mcpagent.tools.wire import head_of
from mcpagent.tools.words import own_words, spaced

_SIDE_BY_SIDE = 16  # calls; fixed, since what one wave of calls finds decides the next
_WAVE = 5  # calls of a tool in one wave
_ANSWERS = 120  # of one tool, after which it is known well enough
_CALLS = 1800  # of all tools, shared among them
_LEAST = 4  # answers of a tool, however many tools there are
_PATIENCE = 10  # refusals that a tool may begin with
_DRAWS = 400  # of values for several parameters
_SPARE = 4  # and further ones for each optional parameter
_LONGEST = 200  # characters of a value that is passed on
_VARIED = 6  # values of an optional parameter that are tried on a call that was answered

SeedValues = Mapping[str, Sequence[Any]]  # `SERVER.TOOL.PARAM` -> values


@dataclass
class _Attempt:
    """A call to make, and what each slot is given."""

    arguments: JsonObject
    given: Sequence[tuple[Slot, Candidates, Any]] = ()


class _Tool:
    """A tool that is being learned: `answers` has by its arguments what it said, both as JSON, `errors` the
    refusals, `nonsense` how it answers a name that nothing has, `decided` the columns that an optional
    parameter tells otherwise, and it `is_vain` if it never answers twice alike."""

    def __init__(
        self, spec: ToolSpec, seed: int, most: int, seed_values: SeedValues, places: Sequence[str]
    ) -> None:
        self.spec, self.most = spec, most
        names = spec.input_schema.get("properties", {})
        self.shape = argument_shape(spec, [name for name in names if f"{spec.dotted}.{name}" in seed_values])
        for slot in self.shape.slots:
            slot.add("named by the user", RANKS[0], seed_values.get(f"{spec.dotted}.{slot.name}", ()))
            slot.add_own(places)
        self.rng = Random(derive_seed(seed, "learn", spec.dotted))
        self.facts: list[Fact] = []
        self.answers: dict[str, str] = {}
        self.refused = self.cut = 0
        self.errors: list[str] = []
        self.nonsense: Any = None
        self.decided: set[str] = set()
        self.is_vain = False
        self._tried: set[str] = set()

    def attempts(self, rank: int) -> list[_Attempt]:
        """Return the next calls to make, of values of that `rank` at most; none of a tool that refuses."""
        spare = 0 if self.facts else _SPARE * min(6, len(self.shape.optional))
        is_open = self.refused < _PATIENCE + spare + len(self.facts) // 2
        room = min(_WAVE, self.most - len(self.facts)) if is_open else 0
        new = (each for each in self._combined(rank) if _key(each.arguments) not in self._tried)
        attempts: dict[str, _Attempt] = {}
        while len(attempts) < room and (attempt := next(new, None)) is not None:
            attempts.setdefault(_key(attempt.arguments), attempt)
        self._tried |= attempts.keys()
        return list(attempts.values())

    def _combined(self, rank: int) -> Iterator[_Attempt]:
        """Yield calls with a value for each slot that needs one; if none of them is answered, of one or two
        optional slots too, since many schemas do not say what is required."""
        if self.facts or self.refused < _PATIENCE:
            yield from self._filled(self.shape, rank)
        if not self.facts and self.refused and (rank == GUESSED or not self.shape.required):
            groups = (itertools.combinations(self.shape.optional, size) for size in (1, 2))
            shapes = [self.shape.requiring(slots) for slots in itertools.chain(*groups)]
            for turn in itertools.zip_longest(*(self._filled(shape, rank) for shape in shapes)):
                yield from filter(None, turn)

    def _filled(self, shape: Shape, rank: int) -> Iterator[_Attempt]:
        """Yield calls with a value for each slot: first of values that came side by side, which are of one
        thing. No text is given twice: from a place to itself it is no way."""
        slots = shape.required
        columns = [slot.values(rank) for slot in slots]
        longest = max(map(len, columns), default=1) if all(columns) else 0
        places: Iterable[list[int]] = ([n] * len(slots) for n in self.rng.sample(range(longest), longest))
        if len(slots) > 1:
            drawn = ([self.rng.randrange(longest) for _ in slots] for _ in range(_DRAWS if longest else 0))
            places = itertools.chain(places, drawn)
        for row in places:
            picked = [column[n % len(column)] for n, column in zip(row, columns, strict=True)]
            texts = [value for _, value in picked if isinstance(value, str)]
            if len(set(texts)) == len(texts):
                given = [(slot, *each) for slot, each in zip(slots, picked, strict=True)]
                yield _Attempt(shape.filled([value for _, value in picked]), given)


async def learn(
    cache: CallCache,
    *,
    seed: int = 0,
    seed_values: SeedValues | None = None,
    places: Mapping[str, Sequence[str]] | None = None,
    on_progress: Callable[[int, str], None] | None = None,
) -> ToolGraph:
    """Call the tools that say they only read: first with what names and schemas say, then with what was
    learned. A call that fails, or says what it says of nonsense, is not a fact.

    `seed_values` are tried before anything else, `places` are paths that a server (by name) was started with.
    `on_progress` is told after each call how many facts there are, and of the tool. Calls run side by side;
    which are made depends on the seed and the answers, not on when they come.
    """
    readers = [spec for spec in cache.specs if spec.annotations.read_only]
    most = max(_LEAST, min(_ANSWERS, _CALLS // max(1, len(readers))))
    named, paths = seed_values or {}, places or {}
    tools = [_Tool(spec, seed, most, named, paths.get(spec.server, ())) for spec in readers]
    relations = Relations({spec.dotted: own_words(spec, cache.specs) for spec in cache.specs})
    learner = _Learner(seed, tools, relations, on_progress or (lambda *_: None))
    async with cache.session() as session:
        await learner.run(session)
        await learner.vary(session)
    async with cache.session(generation=2) as later:
        await learner.drop_what_changes(later)
    others = [spec.dotted for spec in cache.specs if not spec.annotations.read_only]
    text = "does not say that it only reads"
    return learner.graph([Silence("not_read_only", text, (tool,)) for tool in others])


@dataclass
class _Learner:
    seed: int
    tools: Sequence[_Tool]
    relations: Relations
    on_progress: Callable[[int, str], None]
    calls: int = 0
    failed: int = 0
    given: set[str] = field(default_factory=set)
    takers: dict[str, list[tuple[Slot, int]]] = field(default_factory=dict)

    async def run(self, session: SynthSession) -> None:
        """Waves of calls, the likelier ones first, until there is nothing more to try."""
        is_first = True
        while wave := next(filter(None, map(self._wave, RANKS[1:])), None):
            results = await self._all(session, [(tool, attempt.arguments) for tool, attempt in wave])
            if is_first:
                await self._ask_nonsense(session)
                is_first = False
            for (tool, attempt), result in zip(wave, results, strict=True):
                self._judge(tool, attempt, result)

    def _wave(self, rank: int) -> list[tuple[_Tool, _Attempt]]:
        return [(tool, attempt) for tool in self.tools for attempt in tool.attempts(rank)]

    async def _all(
        self, session: SynthSession, calls: Sequence[tuple[_Tool, JsonObject]]
    ) -> list[ToolResult]:
        """The answers in the order of the calls, which are made side by side."""
        turn = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def one(tool: _Tool, arguments: JsonObject) -> ToolResult:
            async with turn:
                result = await session.call(server=tool.spec.server, tool=tool.spec.name, arguments=arguments)
            self.calls += 1
            self.on_progress(sum(len(each.facts) for each in self.tools), tool.spec.dotted)
            return result

        return list(await asyncio.gather(*(one(tool, arguments) for tool, arguments in calls)))

    async def _ask_nonsense(self, session: SynthSession) -> None:
        """Ask tools about a name that nothing has, and keep what they say if that is no error."""
        asked = [(tool, harmless_arguments(tool.spec.input_schema, text=NO_NAME)) for tool in self.tools]
        calls = [(tool, a) for tool, a in asked if a is not None and NO_NAME in json.dumps(a)]
        for (tool, _), result in zip(calls, await self._all(session, calls), strict=True):
            self.failed += result.is_error
            tool.nonsense = None if result.is_error else _outline(result)

    def _judge(self, tool: _Tool, attempt: _Attempt, result: ToolResult) -> None:
        refusal = _refusal(tool, attempt, result)
        if refusal is not None:
            self.failed += 1
            _refuse(tool, attempt, refusal, result)
            return
        for _, place, _ in attempt.given:
            place.accepted += 1
        leaves = self._leaves(tool, result)
        is_sayable = all(
            place.rank < GUESSED
            and any(map(str.isalnum, str(value)))
            and (not place.is_example or stands_in(value, result.content))
            for _, place, value in attempt.given
        )
        self._learn(tool.spec, leaves)
        told = tuple(leaf for leaf in leaves if not leaf.is_key)
        fact = Fact(tool.spec, attempt.arguments, told, is_sayable)
        if result.truncated_chars:
            tool.cut += 1
            return
        tool.answers[_key(attempt.arguments)] = as_text(result)
        extra = [slot for slot, *_ in attempt.given if slot in tool.shape.optional]
        if not tool.facts:  # what it was given is what it needs
            tool.shape, tool.refused = tool.shape.requiring(extra), 0
        tool.facts.append(fact)

    def _learn(self, source: ToolSpec, leaves: Iterable[Leaf]) -> None:
        """What a tool gives is tried by those that it may be meant for."""
        for leaf in leaves:
            label = f"{source.dotted}:{leaf.column} {type(leaf.value).__name__}"
            key = json.dumps([label, leaf.value])
            if key in self.given or len(str(leaf.value)) > _LONGEST:
                continue
            self.given.add(key)
            for slot, rank in self._takers(label, source, leaf):
                is_item = any(isinstance(step, int) for step in slot.path)  # which is no list of several
                is_list = is_item and "," in str(leaf.value)
                slot.add(label, rank, [] if is_list else [slot.taking(leaf.value)])

    def _takers(self, label: str, source: ToolSpec, leaf: Leaf) -> list[tuple[Slot, int]]:
        """The slots that values like this one are for; worked out once for a place."""
        if label not in self.takers:
            self.takers[label] = [
                (slot, rank)
                for tool in self.tools
                for slot in tool.shape.slots
                if (rank := slot.rank_of(tool.spec, source, leaf, self.relations)) is not None
            ]
        return self.takers[label]

    async def vary(self, session: SynthSession) -> None:
        """Give optional parameters to calls that were answered without: a question that leaves out what
        decides the answer has several."""
        for tool in self.tools:
            varied = [
                (fact, {**fact.arguments, slot.name: value})
                for fact in [*tool.facts[:1], *tool.facts[1:][-1:]]
                for slot in tool.shape.optional
                for value in (1, *(value for _, value in slot.values(GUESSED - 1)[:_VARIED]))
                if isinstance(value, str) or slot.type != "string"
            ]
            results = await self._all(session, [(tool, arguments) for _, arguments in varied])
            for (fact, _), result in zip(varied, results, strict=True):
                is_told = not (result.is_error or says_no(result))
                told = {leaf.spot: leaf.value for leaf in self._leaves(tool, result) if is_told}
                tool.decided |= {o.column for o in fact.leaves if told.get(o.spot, o.value) != o.value}

    def _leaves(self, tool: _Tool, result: ToolResult) -> tuple[Leaf, ...]:
        """The values of a result; a field that it does not name itself (`ws-1: North Bay`) has no name."""
        leaves = leaves_of(_told(result), seed=derive_seed(self.seed, tool.spec.dotted))
        said = result.content.casefold()
        named = {o.name for o in leaves if all(word in said for word in spaced(o.name).split())}
        return tuple(o if o.name in named else replace(o, tail=(*o.tail[:-1], "")) for o in leaves)

    async def drop_what_changes(self, later: SynthSession) -> None:
        """Take out the tools whose answers are not the same when they are asked again."""
        for tool in self.tools:
            ends = [*tool.facts[:1], *tool.facts[-1:]]
            again = await self._all(later, [(tool, fact.arguments) for fact in ends])
            said = [tool.answers[_key(fact.arguments)] for fact in ends]
            is_same = any(old == as_text(new) for old, new in zip(said, again, strict=True))
            tool.is_vain = bool(ends) and not is_same

    def graph(self, silences: Sequence[Silence]) -> ToolGraph:
        """Return what was learned, with why tools gave nothing, those of which `silences` say it too."""
        graph = ToolGraph(self.relations, calls=self.calls, failed=self.failed)
        silent = [tool for tool in self.tools if tool.is_vain or not tool.facts]
        graph.silences = grouped([*map(_why_nothing, silent), *silences])
        for tool in (tool for tool in self.tools if tool not in silent):
            values = values_of((fact.spec.dotted, fact.arguments) for fact in tool.facts)
            about = widest(values[tool.spec.dotted]) if values else ""
            for fact in tool.facts:
                leaves = tuple(leaf for leaf in fact.leaves if leaf.column not in tool.decided)
                graph.add(replace(fact, leaves=leaves, about=about))
        return graph


def _told(result: ToolResult) -> dict[str, Any]:
    """Return what a result tells; one in JSON that was cut in its middle, by its beginning."""
    if not result.truncated_chars:
        return shown_value(result)
    try:
        return text_value(json.dumps(from_json(head_of(result), allow_partial=True)))
    except ValueError:
        return shown_value(result)


def _outline(result: ToolResult, names: Iterable[str] = ()) -> Any:
    """Return what a result says but for its values: its fields, and what is true in it; of a text without
    fields all but the names that it was asked with."""

    def outline(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: outline(item) for name, item in value.items()}
        if isinstance(value, list):
            return [outline(item) for item in value[:1]]
        return value if isinstance(value, bool | None) else ""

    told = _told(result)
    return anonymous(result, names) if told.keys() == {"text"} else outline(told)


def _key(arguments: JsonObject) -> str:
    return json.dumps(arguments, sort_keys=True)


def _refusal(tool: _Tool, attempt: _Attempt, result: ToolResult) -> str | None:
    """Return what a tool said that did not answer; None if it answered."""
    if result.is_error or says_no(result):
        return " ".join(result.content.split())[:200]
    if not leaves_of(_told(result)):
        return "it answered nothing"
    if _outline(result, map(str, scalars(attempt.arguments))) == tool.nonsense:
        return "it answered as it answers a name that nothing has"
    return None


def _refuse(tool: _Tool, attempt: _Attempt, refusal: str, result: ToolResult) -> None:
    """Count a refusal for the values that it speaks of, else for those of which least is known."""
    tool.refused += 4 if result.failure in (FailureKind.TIMEOUT, FailureKind.CRASHED) else 1
    tool.errors.append(refusal)
    unsure = [part for part in attempt.given if not part[1].accepted] or attempt.given
    blamed = [part for part in unsure if part[0].name in refusal or str(part[2]) in refusal] or unsure
    for _, place, _ in blamed:
        place.refused += 1


def _why_nothing(tool: _Tool) -> Silence:
    """Return why a tool that may be called gave no fact."""
    name = tool.spec.dotted
    if tool.is_vain:
        return Silence("changes", "gave another answer when it was asked again", (name,))
    if tool.cut:
        return Silence("too_long", "gave answers that are too long to be shown whole", (name,))
    detail = f"{name} said: {tool.errors[0]}" if tool.errors else ""
    slots = tool.shape.required or tool.shape.optional
    names = list(dict.fromkeys(slot.name for slot in slots if "enum" not in slot.lists))
    options = " ".join(f"--seed-value {each}=..." for each in names)
    if names and tool.shape.required:
        why = "for which it took nothing that was tried" if tool.refused else "which nothing gave"
        text = f"cannot be asked without {' and '.join(names)}, {why}; name one: {options}"
        return Silence("no_value", text, (tool.spec.dotted,), detail)
    if names and tool.refused:
        text = f"refused every call, also with {' or '.join(names)}; name one: {options}"
        return Silence("no_value", text, (name,), detail)
    if tool.refused:
        return Silence("refused", "refused every call", (name,), detail)
    return Silence("no_arguments", "cannot be called with arguments made from the schema alone", (name,))
