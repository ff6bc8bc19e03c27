"""Which questions there are about what was learned, each a walk (`walks`): of one call, of two, of what leads
where, and which cannot be answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

from mcpagent.core.answer_line import folded
from mcpagent.core.moments import Moment
from mcpagent.core.records import JsonObject
from mcpagent.synth.explore.graph import Fact, ToolGraph
from mcpagent.synth.explore.invented import invented_like, known_values
from mcpagent.synth.explore.leaves import Leaf, column_of, is_words
from mcpagent.synth.explore.questions import (
    Namer,
    called_by,
    choices_of,
    field_of,
    is_choice,
    is_worth_asking,
    said_value,
    subject_of,
    table_of,
)
from mcpagent.synth.explore.walks import AnswerType, Step, Walk
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.synth.tasks.run import replaced_in
from mcpagent.tools.words import name_words

_LONGEST = 3  # calls of a chain
# How often each is drawn, by the name of its method.
WEIGHTS: Mapping[str, float] = {
    "single": 3, "chain": 4, "both": 2,
    "missing_entity": 1, "missing_function": 0.7, "unknown_entity": 0.7, "forbidden": 0.3,
}  # fmt: skip


@dataclass
class Shapes:
    """Walks over what was learned of which the last call is one of `facts`; `weights` say how often each
    shape is drawn."""

    graph: ToolGraph
    facts: Sequence[Fact]
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    _by_spec: dict[str, list[Fact]] = field(default_factory=dict)
    _askable_of: dict[int, list[tuple[Leaf, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fact in self.facts:
            self._by_spec.setdefault(fact.spec.dotted, []).append(fact)

    def draw(self, rng: Random) -> Walk | None:
        """Return a random question about one of the facts; None if this one has nothing to ask."""
        shape = rng.choices(list(self.weights), weights=list(self.weights.values()))[0]
        # A tool with few facts is asked about as often as one with many, half of the time.
        pool = self.facts if rng.random() < 0.5 else self._by_spec[rng.choice(sorted(self._by_spec))]
        fact = rng.choice(pool)
        if not (askable := self._askable(fact)):
            return None
        return getattr(self, shape)(rng, fact, *rng.choice(askable))

    # What tools tell

    def single(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk:
        """Return a field of what one call says."""
        seen = (self._seen(1, leaf, fact),)
        return Walk("single", "single", (Step(fact),), goal, _type_of(leaf), seen)

    def both(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return the same field of two things."""
        if leaf.is_of_item or not subject_of(fact)[0]:
            return None
        alike = self._by_spec[fact.spec.dotted]
        for other in rng.sample(alike, len(alike)):
            each = next((asked for asked, _ in self._askable(other) if asked.column == leaf.column), None)
            if each is None or each.value == leaf.value or choices_of(other) != choices_of(fact):
                continue
            names = (self.namer.thing_of(fact), self.namer.thing_of(other))
            seen = (self._seen(1, leaf, fact), self._seen(2, each, other))
            both = f"the {field_of(leaf)} of {names[0]} and of {names[1]}{choices_of(fact)}"
            return Walk("parallel", "both", (Step(fact), Step(other)), both, "pairs", seen, names)
        return None

    def chain(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return a field of what is named only by what leads to it."""
        steps: list[Step] = []
        depth = rng.randint(1, _LONGEST - 1)
        if leaf.is_of_item or not (phrase := self._reached(rng, fact, steps, depth=depth, taken=[fact])):
            return None
        reached = self.namer.goal_of(leaf, fact, about=phrase)
        told_directly = self._values.get(reached.casefold(), {str(leaf.value)})
        given = [reached, *(str(value) for step in steps for _, value in step.fact.given)]
        is_said = any(stands_in(leaf.value, text) for text in given)
        if len(steps) < 2 or not reached or told_directly != {str(leaf.value)} or is_said:
            return None
        earlier = (other for step in steps[:-1] for other in step.fact.leaves)
        if any((other.name, other.value) == (leaf.name, leaf.value) for other in earlier):
            return None
        seen = (self._seen(len(steps), leaf, fact),)
        return Walk("sequential", "chain", tuple(steps), reached, _type_of(leaf), seen)

    def _reached(
        self, rng: Random, fact: Fact, steps: list[Step], *, depth: int, taken: Sequence[Fact]
    ) -> str:
        """Append the calls that lead to `fact`, and the call itself; return what it is about, in words, or
        nothing if they say of no one thing what it is."""
        edges = [
            edge
            for edge in (self.graph.edges_into(fact) if depth else ())
            if edge.parameter == subject_of(fact)[0]
            and not any(edge.source is one for one in taken)
            and self._is_told_apart(edge.leaf, edge.source)
            and (phrase := self.namer.reached(edge, None))
            and len(self._led[phrase]) == 1
        ]
        if not edges:
            steps.append(Step(fact))
            return self.namer.thing_of(fact)
        edge = rng.choice(edges)
        depth = 0 if edge.leaf.is_of_item else depth - 1
        about = self._reached(rng, edge.source, steps, depth=depth, taken=[*taken, edge.source])
        steps.append(Step(fact, ((edge.text, edge.leaf.at_step(len(steps))),)))
        return self.namer.reached(edge, about) if about or not edge.source.arguments else ""

    # What cannot be done as it is asked

    def missing_function(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return a question like the others, of which the tools are taken away."""
        walk = self.single(rng, fact, leaf, goal)
        return replace(walk, kind="missing_function", shape="missing_function", lack="function")

    def missing_entity(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return a question like the others that does not say what it is about; the user says it when
        asked."""
        kind = self.namer.kind_of(fact)
        if leaf.is_of_item or not kind or any(table_of(v) for _, v in fact.given):
            return None
        walk, names = self.single(rng, fact, leaf, goal), self.namer.thing_of(fact)
        asked = f"the {field_of(leaf)} of the {kind}{choices_of(fact)}"
        return replace(walk, kind="missing_parameter", shape="told", goal=asked, names=names)

    def unknown_entity(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return a question like the others about a thing that there is not."""
        if leaf.is_of_item or not self.namer.kind_of(fact):
            return None
        real = subject_of(fact)[1]
        alike = [value for _, value in map(subject_of, self._by_spec[fact.spec.dotted])]
        made = invented_like(list(dict.fromkeys(alike)), self.taken, rng)
        if made is None or is_words(real) != is_words(made):
            return None
        unreal = replace(fact, arguments=replaced_in(fact.arguments, str(real), made), leaves=())
        asked, kind = self.namer.goal_of(leaf, unreal), "unknown_entity"
        invented = str(made)
        return Walk(kind, kind, (Step(unreal),), asked, _type_of(leaf), lack="existence", invented=invented)

    def forbidden(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return the wish to change what can only be read."""
        same = (o for other in self._by_spec[fact.spec.dotted] for o in other.leaves)
        twins = [o.value for o in same if o.column == leaf.column and o.value != leaf.value]
        if not twins:
            return None
        wish = f"change {goal} to {said_value(rng.choice(twins))}"
        return Walk("missing_function", "forbidden", (Step(fact),), wish, lack="right")

    # Parts

    @cached_property
    def namer(self) -> Namer:
        """What things are called."""
        return Namer(self.graph.kinds, self.graph.relations)

    @cached_property
    def taken(self) -> set[str]:
        """Every value that is known, in small letters."""
        return known_values(self.graph.facts)

    def _askable(self, fact: Fact) -> list[tuple[Leaf, str]]:
        """Return what to ask of a fact, in words; worked out once."""
        if id(fact) not in self._askable_of:
            self._askable_of[id(fact)] = [
                (leaf, goal)
                for leaf in (fact.leaves if fact.is_sayable else ())
                if is_worth_asking(leaf, fact)
                and not self._is_identifier(leaf)
                and self._is_clear(leaf, fact)
                and self._is_told_apart(leaf, fact)
                and not self._has_two_numbers(leaf, fact)
                and (goal := self._goal(leaf, fact))
            ]
        return self._askable_of[id(fact)]

    def _goal(self, leaf: Leaf, fact: Fact) -> str:
        """Return what is asked for, of an item without the list that it is in if that is clear; empty if two
        tools tell it differently."""
        goals = [self.namer.goal_of(leaf, fact, is_brief=is_brief) for is_brief in (True, False)]
        return next((goal for goal in goals if goal and len(self._values[goal.casefold()]) == 1), "")

    def _is_identifier(self, leaf: Leaf) -> bool:
        """Whether a value is for tools rather than for people: no words, in a field that is called as a
        parameter is that was given, or by a part of its name."""
        named = {*name_words(leaf.name)}
        return not is_words(leaf.value) and any(named <= words for words in self._parameters)

    @cached_property
    def _parameters(self) -> set[frozenset[str]]:
        return {frozenset(name_words(name)) for fact in self.graph.facts for name, _ in fact.given}

    @cached_property
    def _told(self) -> Mapping[tuple[str, str], Counter[str]]:
        """How often each value stands in a column of a tool's results."""
        told: dict[tuple[str, str], Counter[str]] = {}
        for fact in self.graph.facts:
            for leaf in fact.leaves:
                told.setdefault((fact.spec.dotted, leaf.column), Counter())[str(leaf.value)] += 1
        return told

    def _is_clear(self, leaf: Leaf, fact: Fact) -> bool:
        """Whether a value is neither the same for all things nor taken for another one of its column, as
        people read them."""
        told, name = self._told[fact.spec.dotted, leaf.column], folded(str(leaf.value))
        is_same_for_all = len(told) == 1 and told.total() > 2
        return not is_same_for_all and sum(folded(value) == name for value in told) == 1

    def _is_told_apart(self, leaf: Leaf, fact: Fact) -> bool:
        """Whether the field that an item is called by tells items apart in every such list: the author of the
        two notes on one contact does not."""
        columns = [(fact.spec.dotted, column_of(f"{o.rows}[].{o.key}")) for o in leaf.levels if o.key]
        return self._repeated.isdisjoint(columns)

    def _has_two_numbers(self, leaf: Leaf, fact: Fact) -> bool:
        """Whether what goes by a number has another like it, as the row of a sheet and what stands there."""
        name, called = called_by(leaf, fact), self._called[fact.spec.dotted]
        return name.isdecimal() and any(
            2 * len(called & self._told[fact.spec.dotted, other.column].keys())
            > len(self._told[fact.spec.dotted, other.column])
            for other in fact.leaves
            if called_by(other, fact) == name != str(other.value)
        )

    @cached_property
    def _called(self) -> Mapping[str, set[str]]:
        """What the things go by that a tool tells of."""
        called: dict[str, set[str]] = {}
        for fact in self.graph.facts:
            called.setdefault(fact.spec.dotted, set()).update(called_by(leaf, fact) for leaf in fact.leaves)
        return called

    @cached_property
    def _repeated(self) -> set[tuple[str, str]]:
        """(tool, column) of which several items of one list have a value."""
        repeated: set[tuple[str, str]] = set()
        for fact in self.graph.facts:
            told = Counter((leaf.column, folded(str(leaf.value))) for leaf in fact.leaves if leaf.levels)
            repeated |= {(fact.spec.dotted, column) for (column, _), times in told.items() if times > 1}
        return repeated

    @cached_property
    def _values(self) -> Mapping[str, set[str]]:
        """Every value that a tool tells of what a question may ask for: two for one are ambiguous."""
        told: dict[str, set[str]] = {}
        for fact in self.graph.facts:
            for leaf in fact.leaves:
                for goal in {self.namer.goal_of(leaf, fact, is_brief=is_brief) for is_brief in (True, False)}:
                    told.setdefault(goal.casefold(), set()).add(str(leaf.value))
        return told

    @cached_property
    def _led(self) -> Mapping[str, set[str]]:
        """Every value that a phrase leads to: `the captain of Mistral`."""
        led: dict[str, set[str]] = {}
        for fact in self.graph.facts:
            for edge in self.graph.edges_into(fact):
                led.setdefault(self.namer.reached(edge, None), set()).add(edge.text)
        return led

    def _seen(self, step: int, leaf: Leaf, fact: Fact) -> JsonObject:
        """The evidence that a value is: the reference to it, and what identifies the thing that it is of,
        which is the names of its item, or what the call is about."""
        called = [str(level.called) for level in leaf.levels if level.key]
        given = [str(v) for name, v in fact.given if not (is_choice(fact.spec, name) or table_of(v))]
        about = [[name, *sorted(self._names.get(name, ()))] for name in called or given]
        return {"value": leaf.at_step(step), "about": about}

    @cached_property
    def _names(self) -> Mapping[str, set[str]]:
        """Other names of things, as lists tell them: the id of a ship and its name. What no call was given
        is no name."""
        given = {str(value) for fact in self.graph.facts for _, value in fact.given}
        names: dict[str, set[str]] = {}
        for level in (level for fact in self.graph.facts for leaf in fact.leaves for level in leaf.levels):
            used = {str(level.called), *given.intersection(level.names)} if level.key else set[str]()
            for name in used:
                names.setdefault(name, set()).update(used - {name})
        return names


def _type_of(leaf: Leaf) -> AnswerType:
    moment = Moment.read(leaf.value) if isinstance(leaf.value, str) else None
    return "date" if moment and not moment.year else "name" if isinstance(leaf.value, str) else "number"
