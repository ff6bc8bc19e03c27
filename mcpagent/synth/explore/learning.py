"""Calls of the read-only tools, to see what they give: which are made, how many, and what became of them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mcpagent.core.placeholders import result_value
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tools import FailureKind, ToolResult, ToolSpec
from mcpagent.synth.explore.answers import (
    Leaf,
    answer_fields,
    is_asked_for,
    is_fault,
    is_paging,
    listed_values,
    next_page,
    speaks_of,
    tells_the_time,
)
from mcpagent.synth.explore.candidates import (
    REFUSALS,
    CandidateValue,
    Kind,
    Shape,
    Slot,
    add_own_values,
    add_places,
    add_statements,
    argument_shape,
    learned_kind,
    ranked_kinds,
    value_form,
)
from mcpagent.synth.explore.changes import Addition
from mcpagent.synth.explore.graph import Fact, Silence, ToolGraph, given_by, no_value
from mcpagent.synth.tasks.run import CallCache, SynthSession, as_text, says_no
from mcpagent.tools.probes.arguments import harmless_arguments

_SIDE_BY_SIDE = 16  # calls; fixed, since what one wave of calls finds decides the next
_WAVE = 6  # calls of a tool in one wave
_ANSWERS = 120  # of one tool, after which it is known well enough
_CALLS = 1800  # of all tools, shared among them
_LEAST = 4  # answers of a tool, however many tools there are
_PATIENCE = 10  # refusals that a tool may begin with
_DRAWS = 24  # attempts to draw arguments that were not tried
_PAGES = 6  # that are followed from one call
_VARIED = 4  # values of an optional parameter
_LEVELS = (2.0, 0.7, -9.0)  # scores: what the names say is likely is tried first, by all tools
_PROBE = "mcpagent-probe"  # names nothing: what a tool says of it, it says of everything

_BY_USER = "named by the user"  # the kind of values that need no guessing
NOT_READ_ONLY = "does not say that it only reads"
SeedValues = Mapping[str, Sequence[Any]]  # `SERVER.TOOL.PARAM` -> values


@dataclass(frozen=True)
class Learned:
    """What the tools were seen to do, the answers that showed it, and what can be added and read back."""

    cache: CallCache
    graph: ToolGraph
    additions: Sequence[Addition] = ()


@dataclass(frozen=True)
class LearningProgress:
    """How far the learning is: `tool` is the one that was called last."""

    calls: int
    facts: int
    tool: str


@dataclass
class _Attempt:
    arguments: JsonObject
    kinds: tuple[Kind, ...] = ()
    slots: tuple[Slot, ...] = ()
    combination: tuple[str, ...] | None = None
    values: tuple[Any, ...] = ()
    base: Fact | None = None  # whose arguments these are, but for one that is optional
    page: int = 1


@dataclass
class _Tool:
    """A tool that is being learned."""

    spec: ToolSpec
    shape: Shape  # with the optional parameters that refusals asked for among the required ones
    seed: int
    rng: Random
    most: int
    facts: list[Fact] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)  # arguments -> answer, both as JSON
    tried: set[str] = field(default_factory=set)
    combinations: dict[tuple[str, ...], list[int]] = field(default_factory=dict)  # accepted, refused
    exhausted: set[tuple[str, ...]] = field(default_factory=set)
    following: list[_Attempt] = field(default_factory=list)  # next pages
    followed: int = 0
    varied: set[str] = field(default_factory=set)
    calls: int = 0
    refused: int = 0
    is_vain: bool = False  # it never answers twice alike
    why: str = ""  # the first refusal
    errors: set[str] = field(default_factory=set)  # that it gave; empty for an answer that was none
    nonsense: Any = None
    is_checked: bool = False
    cut: int = 0

    @property
    def is_open(self) -> bool:
        """A tool that refuses is asked less and less."""
        return self.refused < _PATIENCE + len(self.facts) // 2 and len(self.facts) < self.most

    def attempts(self, level: float) -> list[_Attempt]:
        """The next calls to make, where there are some of which the kinds score `level` at least."""
        made: list[_Attempt] = []
        room = min(_WAVE, self.most - len(self.facts)) if self.is_open else 0
        while self.following and len(made) < room:
            attempt = self.following.pop(0)
            if self._is_new(attempt.arguments):
                made.append(attempt)
        while len(made) < room and (attempt := self._next(level)) is not None:
            made.append(attempt)
            for kind in attempt.kinds:
                kind.pending += 1
        return made

    def _is_new(self, arguments: JsonObject) -> bool:
        key = json.dumps(arguments, sort_keys=True)
        if key in self.tried:
            return False
        self.tried.add(key)
        return True

    def _next(self, level: float) -> _Attempt | None:
        required = self.shape.required
        if not required:
            if self._is_new(self.shape.template):
                return _Attempt(self.shape.template)
            return self._variation()
        # Optional parameters are worth a look, but not before the others are understood.
        if len(self.facts) >= 2 and self.calls % 4 == 3 and (attempt := self._variation()) is not None:
            return attempt
        return self._combined(level) or (self._variation() if self.facts else None)

    def _combined(self, level: float) -> _Attempt | None:
        slots = self.shape.required
        spent = {key[0] for key in self.exhausted} if len(slots) == 1 else frozenset[str]()
        ranked = [ranked_kinds(slot, level, spent) for slot in slots]
        if not all(ranked):
            return None
        choices = list(itertools.islice(itertools.product(*ranked), 256))
        keyed = [(tuple(kind.label for kind in kinds), kinds) for kinds in choices]
        keyed = [(key, kinds) for key, kinds in keyed if key not in self.exhausted]
        keyed.sort(key=lambda pair: -self._promise(*pair))
        for key, kinds in keyed:
            if not all(kind.is_open for kind in kinds):
                continue
            for _ in range(_DRAWS):
                values = self._draw(kinds)
                arguments = self.shape.filled(slots, values)
                if self._is_new(arguments):
                    self.calls += 1
                    return _Attempt(arguments, kinds, slots, key, values)
            self.exhausted.add(key)
        return None

    def _promise(self, key: tuple[str, ...], kinds: Sequence[Kind]) -> float:
        accepted, refused = self.combinations.get(key, (0, 0))
        return sum(k.rank for k in kinds) + (3.0 if accepted else 0.0) - refused - 0.15 * accepted

    def _draw(self, kinds: Sequence[Kind]) -> tuple[Any, ...]:
        """A value of each kind; where two come from one thing, they are more often of the same one."""
        if len(kinds) == 1:
            untried = self._untried(kinds[0])
            return (untried[0].value if untried else kinds[0].candidates[0].value,)
        first = self.rng.choice(kinds[0].candidates)
        values = [first.value]
        for kind in kinds[1:]:
            same = [c for c in kind.candidates if c.item and c.item == first.item]
            other = self.rng.choice(same if same and self.rng.random() < 0.7 else kind.candidates)
            values.append(other.value)
        return tuple(values)

    def _untried(self, kind: Kind) -> list[CandidateValue]:
        slot, tried = self.shape.required[0], self.tried
        fresh = [
            c
            for c in kind.candidates
            if json.dumps(self.shape.filled((slot,), (c.value,)), sort_keys=True) not in tried
        ]
        # What the schema and the person say keeps its order; of what was learned, any may be the first.
        if ":" in kind.label and fresh:
            fresh.sort(key=lambda c: derive_seed(self.seed, self.spec.dotted, kind.label, c.value))
        return fresh

    def _variation(self) -> _Attempt | None:
        """A call that is known to work, with one more parameter."""
        for slot in self.shape.optional:
            if is_paging(slot.name, "" if slot.form else 0):
                continue
            for kind in sorted(slot.kinds.values(), key=lambda k: -k.rank):
                if not kind.is_open or kind.score < 2:
                    continue
                for candidate in kind.candidates[: _DRAWS if not self.shape.required else _VARIED]:
                    base = self._base(f"{slot.name}={candidate.value!r}")
                    if base is None or candidate.value == slot.schema.get("default"):
                        continue
                    arguments = {**base.arguments, slot.name: candidate.value}
                    if self._is_new(arguments):
                        self.calls += 1
                        return _Attempt(arguments, (kind,), (slot,), None, (candidate.value,), base)
        return None

    def _base(self, mark: str) -> Fact | None:
        """A call that gave an answer, with at most one such parameter; each value of one gets a call."""
        most = len(self.shape.template) + 1
        plain = [fact for fact in self.facts if fact.page == 1 and len(fact.arguments) <= most]
        if mark in self.varied or not plain:
            return None
        self.varied.add(mark)
        return plain[self.rng.randrange(len(plain))]


async def learn(
    cache: CallCache,
    *,
    seed: int = 0,
    seed_values: SeedValues | None = None,
    places: Mapping[str, Sequence[str]] | None = None,
    on_progress: Callable[[LearningProgress], None] | None = None,
) -> ToolGraph:
    """Call the tools that say they only read: first with what names and schemas say, then with what was
    learned. A call that fails, or says what it says of nonsense, is not a fact.

    `seed_values` are tried before anything else, `places` are paths that a server (by name) was started with.
    Calls run side by side; which are made depends on the seed and the answers, not on when they come.
    """
    learner = _Learner(cache, seed, seed_values or {}, places or {}, on_progress)
    async with cache.session() as session:
        await learner.run(session)
    async with cache.session(generation=2) as later:
        await learner.drop_what_changes(later)
    return learner.graph()


class _Learner:
    def __init__(
        self,
        cache: CallCache,
        seed: int,
        seed_values: SeedValues,
        places: Mapping[str, Sequence[str]],
        on_progress: Callable[[LearningProgress], None] | None,
    ) -> None:
        self._cache, self._seed, self._on_progress = cache, seed, on_progress
        readers = [spec for spec in cache.specs if spec.annotations.read_only]
        most = max(_LEAST, min(_ANSWERS, _CALLS // max(1, len(readers))))
        self.tools = [
            _Tool(spec, argument_shape(spec), seed, Random(derive_seed(seed, "learn", spec.dotted)), most)
            for spec in readers
        ]
        self._calls = self._failed = 0
        self._given: set[str] = set()
        self._known_takers: dict[tuple[str, str, str, bool, bool], list[tuple[Slot, str, float]]] = {}
        self._for_sql = [slot for tool in self.tools for slot in tool.shape.slots if slot.form == "sql"]
        for tool in self.tools:
            for slot in tool.shape.slots:
                slot.add(_BY_USER, 10, seed_values.get(f"{tool.spec.dotted}.{slot.name}", ()))
                add_own_values(slot, tool.spec, seed=seed)
                add_places(slot, places.get(tool.spec.server, ()))

    async def run(self, session: SynthSession) -> None:
        """Waves of calls, the likelier ones first, until there is nothing more to try."""
        while True:
            for level in _LEVELS:
                wave = [(tool, attempt) for tool in self.tools for attempt in tool.attempts(level)]
                if wave:
                    break
            else:
                return
            results = await self._all(session, [(tool, attempt.arguments) for tool, attempt in wave])
            answered = [tool for (tool, _), r in zip(wave, results, strict=True) if not _is_refusal(r)]
            await self._check(session, [t for t in self.tools if t in answered and not t.is_checked])
            for (tool, attempt), result in zip(wave, results, strict=True):
                self._judge(tool, attempt, result)

    async def _all(
        self, session: SynthSession, calls: Sequence[tuple[_Tool, JsonObject]]
    ) -> list[ToolResult]:
        """The answers in the order of the calls, which are made side by side."""
        turn = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def one(tool: _Tool, arguments: JsonObject) -> ToolResult:
            async with turn:
                result = await session.call(server=tool.spec.server, tool=tool.spec.name, arguments=arguments)
            self._calls += 1
            self._tell(tool)
            return result

        return list(await asyncio.gather(*(one(tool, arguments) for tool, arguments in calls)))

    def _tell(self, tool: _Tool) -> None:
        if self._on_progress is not None:
            facts = sum(len(each.facts) for each in self.tools)
            self._on_progress(LearningProgress(self._calls, facts, tool.spec.dotted))

    async def _check(self, session: SynthSession, tools: list[_Tool]) -> None:
        """What tools that gave an answer say of nonsense, where that is no error."""
        asked = [(tool, harmless_arguments(tool.spec.input_schema, text=_PROBE)) for tool in tools]
        calls = [(tool, a) for tool, a in asked if a is not None and _PROBE in json.dumps(a)]
        for tool in tools:
            tool.is_checked = True
        for (tool, _), result in zip(calls, await self._all(session, calls), strict=True):
            self._failed += _is_refusal(result)
            if not _is_refusal(result):
                tool.nonsense = result_value(result)

    def _judge(self, tool: _Tool, attempt: _Attempt, result: ToolResult) -> None:
        for kind in attempt.kinds:
            kind.pending -= 1
        tally = tool.combinations.setdefault(attempt.combination, [0, 0]) if attempt.combination else [0, 0]
        refusal = _refusal(tool, attempt, result)
        if refusal is not None:
            tally[1] += 1
            self._failed += 1
            self._refuse(tool, attempt, refusal, result)
            return
        tally[0] += 1
        for kind in attempt.kinds:
            kind.accepted += 1
        value = result_value(result)
        leaves = tuple(answer_fields(value, seed=derive_seed(self._seed, tool.spec.dotted)))
        fact = Fact(tool.spec, attempt.arguments, leaves, attempt.page)
        self._learn(fact)
        if result.truncated_chars:
            tool.cut += 1
            return
        said = as_text(result)
        if attempt.base is not None:
            before = tool.answers[json.dumps(attempt.base.arguments, sort_keys=True)]
            if said == before:  # the parameter made no difference
                return
        tool.answers[json.dumps(attempt.arguments, sort_keys=True)] = said
        tool.facts.append(fact)
        self._follow(tool, fact, value)

    def _refuse(self, tool: _Tool, attempt: _Attempt, refusal: str, result: ToolResult) -> None:
        tool.refused += 4 if result.failure in (FailureKind.TIMEOUT, FailureKind.CRASHED) else 1
        tool.why = tool.why or refusal
        tool.errors.add(refusal if _is_refusal(result) else "")
        if not tool.facts and _requires_more(tool, attempt, refusal):
            return
        blamed = [
            n
            for n, (slot, value) in enumerate(zip(attempt.slots, attempt.values, strict=True))
            if speaks_of(slot.name, value, refusal)
        ]
        unsure = [n for n, kind in enumerate(attempt.kinds) if not kind.accepted]
        # What the schema allows was hardly the reason.
        guessed = [n for n in unsure if attempt.kinds[n].label != "enum"]
        for number in blamed or guessed or unsure or range(len(attempt.kinds)):
            attempt.kinds[number].refused += 1
            slot = attempt.slots[number]
            if slot.is_free and result.is_error:
                told = (attempt.values[number], slot.name, tool.spec.name)
                slot.add("named in a refusal", 2.5, [v for v in listed_values(refusal) if v not in told])

    def _learn(self, fact: Fact) -> None:
        """What the fact gives is tried by the tools that it may be meant for."""
        arguments = [text for _, text in fact.texts]
        for value, leaf, prefix in given_by(fact):
            key = json.dumps([fact.spec.dotted, leaf.field, prefix, value])
            is_long = isinstance(value, str) and (not 0 < len(value) <= 200 or "\n" in value)
            if key in self._given or is_long:
                continue
            self._given.add(key)
            for slot, label, score in self._takers(fact.spec, value, leaf, prefix):
                taken = str(value) if slot.type == "string" else value
                slot.add(label, score, [taken], f"{fact.spec.dotted}:{leaf.item}")
            if not prefix:
                for slot in self._for_sql:
                    add_statements(slot, fact.spec, arguments, leaf)

    def _takers(
        self, source: ToolSpec, value: str | int, leaf: Leaf, prefix: str
    ) -> list[tuple[Slot, str, float]]:
        """The slots that values like this one are for; worked out once for a field and a form."""
        alike = (source.dotted, leaf.field, value_form(value), "/" in str(value), bool(prefix))
        if alike not in self._known_takers:
            self._known_takers[alike] = [
                (slot, *kind)
                for tool in self.tools
                for slot in tool.shape.slots
                if (kind := learned_kind(slot, tool.spec, source, value, leaf, prefix)) is not None
            ]
        return self._known_takers[alike]

    def _follow(self, tool: _Tool, fact: Fact, value: Any) -> None:
        """The next page of a list, where the answer says that there is one, or may have one."""
        if fact.page >= _PAGES or (fact.page == 1 and tool.followed >= 3):
            return
        names = [slot.name for slot in tool.shape.slots if len(slot.path) == 1]
        if (further := next_page(names, fact.arguments, value)) is not None:
            tool.followed += fact.page == 1
            tool.following.append(_Attempt({**fact.arguments, **further}, page=fact.page + 1))

    async def drop_what_changes(self, later: SynthSession) -> None:
        """Take out the tools whose answers are not the same when they are asked again."""
        tools = [tool for tool in self.tools if tool.facts]
        asked = [(tool, fact) for tool in tools for fact in (tool.facts[0], tool.facts[-1])]
        results = await self._all(later, [(tool, fact.arguments) for tool, fact in asked])
        for tool in tools:
            tool.is_vain = True
        for (tool, fact), result in zip(asked, results, strict=True):
            if tool.answers[json.dumps(fact.arguments, sort_keys=True)] == as_text(result):
                tool.is_vain = _is_of_now(tool)

    def graph(self) -> ToolGraph:
        """What was learned."""
        graph = ToolGraph(calls=self._calls, failed=self._failed)
        for tool in self.tools:
            if tool.is_vain or not tool.facts:
                graph.leave_out(_why_nothing(tool))
                continue
            for fact in tool.facts:
                graph.add(fact)
        for spec in self._cache.specs:
            if not spec.annotations.read_only:
                graph.leave_out(Silence("not_read_only", NOT_READ_ONLY, (spec.dotted,)))
        return graph


def _is_refusal(result: ToolResult) -> bool:
    return result.is_error or result.failure is not None


def _refusal(tool: _Tool, attempt: _Attempt, result: ToolResult) -> str | None:
    """What a tool said that did not answer; None where it answered."""
    if _is_refusal(result):
        return " ".join(result.content.split())[:200]
    if says_no(result):
        return " ".join(result.content.split())[:200]
    said = as_text(result)
    if not answer_fields(result_value(result)):
        return "it answered nothing"
    if tool.nonsense is not None and _PROBE in json.dumps(attempt.arguments) + _PROBE:
        for _, text in Fact(tool.spec, attempt.arguments, ()).texts:
            said = said.replace(json.dumps(text, ensure_ascii=False)[1:-1], _PROBE)
        if said == json.dumps(tool.nonsense, ensure_ascii=False, sort_keys=True):
            return "it answered as it answers a name that nothing has"
    return None


def _requires_more(tool: _Tool, attempt: _Attempt, refusal: str) -> bool:
    """Whether a refusal, or the user, says that optional parameters are to be given: from now on they are."""
    shape = tool.shape
    lacking = [
        slot
        for slot in shape.slots
        if slot.name not in attempt.arguments and (_BY_USER in slot.kinds or is_asked_for(slot.name, refusal))
    ]
    if more := [slot for slot in lacking if slot in shape.optional]:
        tool.shape, tool.refused, tool.exhausted = shape.requiring(more), 0, set()
    return bool(lacking)


def _is_of_now(tool: _Tool) -> bool:
    return all(tells_the_time(fact.leaves, tool.spec.name) for fact in tool.facts)


def _why_nothing(tool: _Tool) -> Silence:
    """Why a tool that may be called gave no fact."""
    name = tool.spec.dotted
    if tool.is_vain:
        text = "tells what time it is" if _is_of_now(tool) else "gave another answer when it was asked again"
        return Silence("changes", text, (name,))
    if tool.cut:
        return Silence("too_long", "gave answers that are too long to be shown whole", (name,))
    detail = f"{name} said: {tool.why}" if tool.why else ""
    lacking = [slot for slot in tool.shape.required if slot.best < _LEVELS[1] and not slot.was_accepted]
    # The values are not the reason where the program fails in the same way whatever it is given.
    if tool.refused >= REFUSALS and len(tool.errors) == 1 and is_fault(tool.why):
        return Silence("refused", "refused every call with the same words", (name,), detail)
    if lacking:
        is_tried = any(kind.refused for slot in lacking for kind in slot.kinds.values())
        return no_value(name, [slot.name for slot in lacking], detail, is_tried=is_tried)
    if tool.refused:
        return Silence("refused", "refused every call", (name,), detail)
    return Silence("no_arguments", "cannot be called with arguments made from the schema alone", (name,))
