"""Which questions there are about what was learned: of one call, of several, of a list, of what leads where.

Each shape draws a walk: the calls that answer it, which of their arguments come out of earlier results, the
expression of the answer over the results (`core.placeholders`), and what is asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

from mcpagent.core.answer_line import folded
from mcpagent.core.moments import Moment
from mcpagent.core.values import scalars
from mcpagent.synth.explore import questions
from mcpagent.synth.explore.graph import Edge, Fact, ToolGraph
from mcpagent.synth.explore.invented import Inventor
from mcpagent.synth.explore.leaves import Leaf, at_step, column_of, is_naming, tells_apart
from mcpagent.synth.explore.paging import is_paging
from mcpagent.synth.explore.questions import goal_of, is_amount, is_worth_asking, thing_of
from mcpagent.synth.explore.walks import Answer, Seen, Step, Walk
from mcpagent.synth.explore.words import IDENTIFIERS, name_words, topic

_LONGEST = 4  # calls of a walk
_FEW = 4  # things that are compared
_LEAST_ROWS = 3  # of a list that is counted
_SHOWN = 8  # items that an answer lists
_MOST = (("highest", max), ("lowest", min))


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

    @cached_property
    def inventor(self) -> Inventor:
        """Return what makes names of things that there are not."""
        return Inventor(self.facts, self.graph.facts)

    def draw(self, rng: Random) -> Walk | None:
        """Return a random question about one of the facts; None if this one has nothing to ask."""
        shape = rng.choices(list(self.weights), weights=list(self.weights.values()))[0]
        # A tool with few facts is asked about as often as one with many, half of the time.
        pool = self.facts if rng.random() < 0.5 else self._by_spec[rng.choice(sorted(self._by_spec))]
        fact = rng.choice(pool)
        if shape in _OF_LISTS:
            table = self._table(rng, fact)
            return getattr(self, shape)(rng, fact, *table) if table else None
        if not (askable := self._askable(fact)):
            return None
        # A whole text less often than what has a name of its own.
        leaf, goal = rng.choices(askable, weights=[4.0 if leaf.name else 1.0 for leaf, _ in askable])[0]
        return getattr(self, shape)(rng, fact, leaf, goal)

    # One call

    def single(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk:
        """Return a field of what one call says."""
        value = f"${{{leaf.at_step(1)}}}"
        told = (Seen(value, self._told_by(leaf, fact)),)
        return Walk("single", "single", (Step(fact),), goal, _answer_of(leaf, value), told)

    def counted(self, rng: Random, fact: Fact, leaf: Leaf, column: list[Any], rows: str, group: str) -> Walk:
        """Return how many items a list has, or the most or the least of something."""
        name, (most, function) = leaf.tail[0], rng.choice(_MOST)
        shape, goal, expression = "counted", f"the number of {group}", f"count({rows})"
        if self._is_amount(leaf, column) and rng.random() < 0.7:
            shape, goal = most, f"the {most} {questions.field_of(leaf, fact)} of all {group}"
            expression = f'{function.__name__}(pluck({rows}, "{name}"))'
        # Who has seen the first and the last item of a list has seen the list.
        ends = (f"${{{rows}[{place}].{name}}}" for place in (0, len(column) - 1))
        told = tuple(Seen(end, self._arguments(fact)) for end in ends)
        return Walk("single", shape, (Step(fact),), goal, Answer("number", (f"${{{expression}}}",)), told)

    def listed(
        self, rng: Random, fact: Fact, leaf: Leaf, column: list[Any], rows: str, group: str
    ) -> Walk | None:
        """Every item of a whole list that has the same text in a field, or all of a short one."""
        key = leaf.levels[0].key
        name = key or leaf.tail[0]
        goal = f"the {questions.plural(questions.spaced(name))} of all {group}"
        picked = list(range(len(column)))
        if key and isinstance(leaf.value, str):
            value = rng.choice(column)
            picked = [place for place, other in enumerate(column) if other == value]
            goal = f"{goal} with {questions.field_of(leaf, fact)} {questions.said_value(value)}"
        elif not is_naming(name) or len({folded(str(value)) for value in column}) < len(column):
            return None
        if not 2 <= len(picked) <= _SHOWN:
            return None
        values = tuple(f"${{{rows}[{place}].{name}}}" for place in picked)
        told = tuple(Seen(value, self._arguments(fact)) for value in values)
        return Walk("single", "listed", (Step(fact),), goal, Answer("set", values), told)

    def _table(self, rng: Random, fact: Fact) -> tuple[Leaf, list[Any], str, str] | None:
        """Return a whole list: a leaf, the values of its column, the expression of the list, what its
        items are."""
        columns: dict[tuple[str, tuple[str, ...]], list[Leaf]] = {}
        for leaf in fact.leaves if fact.is_whole else ():
            if len(leaf.levels) == 1 and len(leaf.tail) == 1 and not leaf.in_prose:
                columns.setdefault((leaf.levels[0].rows, leaf.tail), []).append(leaf)
        full = [
            leaves
            for leaves in columns.values()
            if len(leaves) >= _LEAST_ROWS
            and [leaf.levels[0].index for leaf in leaves] == list(range(len(leaves)))
        ]
        if not full:
            return None
        leaves = rng.choice(full)
        level = leaves[0].levels[0]
        group = questions.group_of(fact, level) if self._is_told_apart(leaves[0], fact) else ""
        return (leaves[0], [leaf.value for leaf in leaves], at_step(level.rows, 1), group) if group else None

    # Several calls side by side

    def both(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return the same field of two things, or which of several has the most of it."""
        if leaf.levels or len(list(scalars(fact.arguments))) != 1 or questions.is_of_another(leaf, fact):
            return None
        alike = [o for o in self._by_spec[fact.spec.dotted] if o.arguments.keys() == fact.arguments.keys()]
        by_value = {str(leaf.value): (fact, leaf)}
        for other in rng.sample(alike, len(alike)):
            if (
                (each := other.same_as(leaf))
                and self._is_clear(each, other)
                and self._clear_goal(each, other)
            ):
                by_value.setdefault(str(each.value), (other, each))
        candidates = list(by_value.values())
        most, function = rng.choice(_MOST)
        is_choice = self._is_amount(leaf, [each.value for _, each in candidates]) and rng.random() < 0.5
        compared = candidates[: rng.randint(2, _FEW) if is_choice else 2]
        names = tuple(thing_of(each) for each, _ in compared)
        said = questions.field_of(leaf, fact)
        if len(compared) < 2 or len({*names} - {""}) < len(compared) or not said:
            return None
        values = [f"${{{each.at_step(number)}}}" for number, (_, each) in enumerate(compared, 1)]
        goal = f"the {said} {questions.joined([questions.within('', name).strip() for name in names])}"
        answer = Answer("pairs", tuple(values), names)
        if is_choice:
            numbers = [each.value for _, each in compared]
            right = names[numbers.index(function(numbers))]
            goal, answer = f"the {most} {said}", Answer("choice", (right,), names)
        told = tuple(
            Seen(value, self._told_by(each, of)) for value, (of, each) in zip(values, compared, strict=True)
        )
        steps = tuple(Step(of) for of, _ in compared)
        return Walk("parallel", "most" if is_choice else "both", steps, goal, answer, told)

    # One call after the other

    def chain(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return a field of what is named only by what leads to it."""
        steps: list[Step] = []
        phrase = self._reached(rng, leaf, fact, steps, depth=rng.randint(1, _LONGEST - 2), taken=[fact])
        given = {str(value) for step in steps for value in scalars(step.fact.arguments)}
        if phrase is None or len(steps) < 2 or str(leaf.value) in given:
            return None
        reached = goal_of(leaf, fact, about=phrase)
        if reached is None or reached.count(" of ") >= _LONGEST:
            return None
        value = f"${{{leaf.at_step(len(steps))}}}"
        told = (Seen(value, self._told_by(leaf, fact)),)
        return Walk("sequential", "chain", tuple(steps), reached, _answer_of(leaf, value), told)

    def _reached(
        self, rng: Random, leaf: Leaf, fact: Fact, steps: list[Step], *, depth: int, taken: list[Fact]
    ) -> str | None:
        """Append the calls that lead to `fact`, of which `leaf` is used, and the call itself; return what it
        is about, in words."""
        without = questions.implied(leaf, fact)
        edges = [
            edge
            for edge in self.graph.edges_into(fact)
            if all(edge.source is not one for one in taken)
            # "The date of A and the date of B" would be two questions.
            and edge.parameter not in without
            and not thing_of(fact, without={*without, edge.parameter})
        ]
        if depth == 0 or len(steps) + 2 > _LONGEST or not edges:
            steps.append(Step(fact))
            return thing_of(fact, without=without)
        edge = rng.choice(edges)
        if not self._is_told_apart(edge.leaf, edge.source) or _goes_back(edge, leaf, fact):
            return None
        taken = [*taken, edge.source]
        source = self._reached(rng, edge.leaf, edge.source, steps, depth=depth - 1, taken=taken)
        value = f"{edge.prefix}${{{edge.leaf.at_step(len(steps))}}}"
        steps.append(Step(fact, ((edge.text, value),)))
        is_itself = _finds_itself(edge, leaf, fact)
        return questions.found_by(edge, source, is_itself=is_itself) if source is not None else None

    # What cannot be done as it is asked

    def missing_function(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return a question like the others, of which the tool is taken away."""
        walk = self.single(rng, fact, leaf, goal) if self._is_looked_up(fact) else None
        return walk and replace(walk, kind="missing_function", shape="missing_function", lack="function")

    def missing_entity(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return a question like the others that does not say what it is about; the user says it when
        asked."""
        if len(fact.arguments) != 1 or len(list(scalars(fact.arguments))) != 1:
            return None
        if leaf.level and leaf.level.key:
            return None  # the question names a thing, of which another tool may tell it
        ((parameter, value),) = fact.arguments.items()
        kind = questions.kind_of(fact.spec, parameter)
        unsaid = goal_of(leaf, fact, about=f"the {kind}") if kind and not kind.endswith(" by") else None
        if not unsaid or questions.table_of(value):
            return None
        walk = replace(self.single(rng, fact, leaf, unsaid), kind="missing_parameter", shape="told")
        return replace(walk, names=thing_of(fact))

    def unknown_entity(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return a question like the others about a thing that there is not, but for a count: a list of what
        there is not has no items, which is an answer."""
        if type(leaf.value) is int and any(other.levels for other in fact.leaves):
            return None
        made = self.inventor.unlike(fact, rng)
        if made is None or leaf.levels or not leaf.name or (asked := goal_of(leaf, made[0])) is None:
            return None
        kind, answer = "unknown_entity", _answer_of(leaf, str(leaf.value))
        return Walk(kind, kind, (Step(made[0]),), asked, answer, lack="existence", invented=made[1])

    def forbidden(self, rng: Random, fact: Fact, leaf: Leaf, goal: str) -> Walk | None:
        """Return the wish to change what can only be read."""
        same = (other.same_as(leaf) for other in self._by_spec[fact.spec.dotted])
        twins = [other.value for other in same if other and other.value != leaf.value]
        if not leaf.name or not twins or not self._is_looked_up(fact):
            return None
        wish = f"change {goal} to {questions.said_value(rng.choice(twins))}"
        return Walk("missing_function", "forbidden", (Step(fact),), wish, lack="right")

    # Parts

    def _is_looked_up(self, fact: Fact) -> bool:
        """Return True if only a tool can know: what it works out of the question, a model may know without
        it."""
        return not fact.arguments or bool(self.graph.edges_into(fact))

    @cached_property
    def _names(self) -> Mapping[str, set[str]]:
        """Other names of things, as lists tell them: the id of a ship and its name."""
        names: dict[str, set[str]] = {}
        for fact in self.graph.facts:
            for leaf in fact.leaves:
                if leaf.level and leaf.level.key and is_naming(leaf.name):
                    one, other = str(leaf.value), str(leaf.level.called)
                    names.setdefault(one, set()).add(other)
                    names.setdefault(other, set()).add(one)
        return names

    def _told_by(self, leaf: Leaf, fact: Fact) -> tuple[tuple[str, ...], ...]:
        """Return what identifies the thing that a value is of: the names of its item, or what the call is
        about."""
        called = [str(level.called) for level in leaf.levels if level.key]
        return tuple(map(self._named, called)) or self._arguments(fact)

    def _arguments(self, fact: Fact) -> tuple[tuple[str, ...], ...]:
        given = [
            str(value)
            for name, argument in fact.arguments.items()
            if not is_paging(name, argument) and not questions.is_choice(fact.spec, name)
            for value in scalars(argument)
            if not questions.table_of(value)
        ]
        return tuple(map(self._named, given))

    def _named(self, name: str) -> tuple[str, ...]:
        others = self._names.get(name, set())
        return (name, *sorted(others)) if len(others) <= _FEW else (name,)

    def _clear_goal(self, leaf: Leaf, fact: Fact) -> str | None:
        """Return what is asked for; None if tools tell different things of it."""
        goal = goal_of(leaf, fact)
        return goal if goal and len(self._values.get(goal.casefold(), ())) <= 1 else None

    def _askable(self, fact: Fact) -> list[tuple[Leaf, str]]:
        """Return what to ask of a fact, in words; worked out once."""
        if id(fact) not in self._askable_of:
            # What a plainer call tells too: nobody asks for the author of a file and its first 47 lines.
            plain = {
                (leaf.expression, leaf.value)
                for other in (self.graph.facts if questions.filters_of(fact) else ())
                if other.spec is fact.spec and other.arguments.items() < fact.arguments.items()
                for leaf in other.leaves
            }
            self._askable_of[id(fact)] = [
                (leaf, goal)
                for leaf in (() if self._names_another(fact) else fact.leaves)
                if is_worth_asking(leaf, fact)
                and (fact.arguments or not leaf.is_line)  # `Ada: on the late shift` in a list of guards
                and (leaf.expression, leaf.value) not in plain
                and self._is_clear(leaf, fact)
                and self._is_told_apart(leaf, fact)
                and (goal := self._clear_goal(leaf, fact))
            ]
        return self._askable_of[id(fact)]

    def _names_another(self, fact: Fact) -> bool:
        """Return True if a text names another thing that can be asked about, and not the one that the call
        is about: `1. Ash (N-395)` of the notes that are like N-378."""
        words = {*re.findall(r"[\w-]+", fact.prose)}
        return any(
            value not in words and words & self._given[name]
            for name, value in fact.texts
            if IDENTIFIERS & {*name_words(name)}
        )

    @cached_property
    def _given(self) -> Mapping[str, set[str]]:
        """Return what calls were made with, by parameter."""
        given: dict[str, set[str]] = {}
        for fact in self.graph.facts:
            for name, value in fact.texts:
                given.setdefault(name, set()).add(value)
        return given

    def _is_amount(self, leaf: Leaf, values: Sequence[Any]) -> bool:
        """Return True if a field has the highest of these: one that tools are asked by names a thing."""
        return leaf.name not in self._parameters and is_amount(leaf, values)

    @cached_property
    def _parameters(self) -> set[str]:
        return {name for fact in self.graph.facts for name in fact.spec.input_schema.get("properties", {})}

    @cached_property
    def _unclear(self) -> set[tuple[str, str, str]]:
        """(tool, column, folded value) of names that are one if they are read as people read them; without a
        value if it is the same in every result and item that tells it: often it names a thing itself, as in
        `- Fluffy: halves the damage`."""
        told: dict[tuple[str, str], Counter[str]] = {}
        for fact in self.graph.facts:
            for leaf in fact.leaves:
                told.setdefault((fact.spec.dotted, leaf.column), Counter())[str(leaf.value)] += 1
        calls = Counter(fact.spec.dotted for fact in self.graph.facts)
        unclear: set[tuple[str, str, str]] = set()
        for (tool, column), times in told.items():
            if len(times) == 1 and max(calls[tool], times.total()) > 2:
                unclear.add((tool, column, ""))
            names = Counter(map(folded, times))
            unclear |= {(tool, column, name) for name in names if names[name] > 1}
        return unclear

    def _is_clear(self, leaf: Leaf, fact: Fact) -> bool:
        """Return True if a value is not the same for all things, nor taken for another one of its column."""
        tellings = ((fact.spec.dotted, leaf.column, name) for name in ("", folded(str(leaf.value))))
        return self._unclear.isdisjoint(tellings)

    @cached_property
    def _repeated(self) -> set[tuple[str, str, str, str]]:
        """(tool, list, field, value) of what several items of such a list have; without a value if the field
        does not tell the items of every such list apart."""
        repeated: set[tuple[str, str, str, str]] = set()
        for fact in self.graph.facts:
            told: dict[tuple[str, str], Counter[str]] = {}
            for leaf in fact.leaves:
                if leaf.level and len(leaf.tail) == 1:
                    times = told.setdefault((leaf.level.rows, leaf.tail[0]), Counter())
                    times[str(leaf.value).casefold()] += 1
            for (rows, name), times in told.items():
                twice = [value for value in times if times[value] > 1]
                values = twice if tells_apart(name, times) else [""]
                repeated |= {(fact.spec.dotted, column_of(rows), name, value) for value in values}
        return repeated

    def _is_told_apart(self, leaf: Leaf, fact: Fact) -> bool:
        places = ((fact.spec.dotted, column_of(level.rows), level) for level in leaf.levels)
        return self._repeated.isdisjoint(
            (tool, rows, level.key, value)
            for tool, rows, level in places
            for value in ("", str(level.called).casefold())
        )

    @cached_property
    def _values(self) -> Mapping[str, set[str]]:
        """Every value that a tool tells of what a question may ask for: two for one are ambiguous."""
        told: dict[str, set[str]] = {}
        for fact in self.graph.facts:
            for leaf in fact.leaves:
                if is_worth_asking(leaf, fact) and (goal := goal_of(leaf, fact)):
                    told.setdefault(goal.casefold(), set()).add(str(leaf.value))
        return told


def _answer_of(leaf: Leaf, value: str) -> Answer:
    if isinstance(leaf.value, str):
        moment = Moment.read(leaf.value)
        return Answer("date" if moment and not moment.year else "name", (value,))
    return Answer("number", (value,))


def _goes_back(edge: Edge, leaf: Leaf, fact: Fact) -> bool:
    """Return True if what the leaf stands in has the start of the edge too: several things share the value
    of the edge, as the pledges of one state do, and it leads to no one thing."""
    return _stands_with(leaf, fact, {str(value) for value in scalars(edge.source.arguments)})


def _finds_itself(edge: Edge, leaf: Leaf, fact: Fact) -> bool:
    """Return True if an edge leads from an item of a list to a record of the same item: the plant that a
    search for its common name finds is not the common name of a plant."""
    level = edge.leaf.level
    if level is None or not level.key or not (kind := questions.item_kind(level, edge.source)):
        return False
    is_searched = {*kind.split()} <= {*name_words(topic(fact.spec))}
    return is_searched and _stands_with(leaf, fact, {str(level.called)})


def _stands_with(leaf: Leaf, fact: Fact, values: set[str]) -> bool:
    """Return True if what a leaf stands in has one of the values."""
    rows = {level.rows for level in leaf.levels}
    theirs = ((other, {level.rows for level in other.levels}) for other in fact.leaves)
    return any(str(other.value) in values for other, lists in theirs if rows & lists or rows == lists)


_OF_LISTS = ("counted", "listed")  # rather than of a field
# How often each is drawn, by the name of its method.
WEIGHTS: Mapping[str, float] = {
    "single": 3, "chain": 4, "both": 2, "counted": 1.7, "listed": 0.7,
    "missing_entity": 1, "missing_function": 0.7, "unknown_entity": 0.7, "forbidden": 0.3,
}  # fmt: skip
