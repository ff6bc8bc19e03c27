"""Which questions there are about what was learned: of one call, of several, of a list, of what leads where.

Each shape draws a walk: the calls that answer it, which of their arguments come out of earlier results, the
expression of the answer over the results (`core.placeholders`), and what is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.synth.explore import questions
from mcpagent.synth.explore.graph import Edge, Fact, ToolGraph, scalars
from mcpagent.synth.explore.invented import Inventor
from mcpagent.synth.explore.leaves import Leaf, Level, at_step, is_naming
from mcpagent.synth.explore.paging import is_paging
from mcpagent.synth.explore.questions import goal_of, is_amount, is_worth_asking, thing_of
from mcpagent.synth.explore.walks import Answer, Seen, Step, Walk, replaced_in

_LONGEST = 4  # calls of a walk
_FEW = 4  # things that are compared, or gone through one by one
_LEAST_ROWS = 3  # of a list that is counted
_SHOWN = 8  # items that an answer lists
_MOST_OF = 3  # "the captain of the ship of the first berth of port Riga"
# What no server tells of its things.
_UNTOLD = ("price", "phone number", "rating", "owner", "postal address", "insurance number")
_PASTED = re.compile(r"(?=\S*\d)[\w-]{20,}")  # a UUID or hash: people copy one of them, and never type it


@dataclass
class Shapes:
    """Walks over what was learned of which the last call is one of `facts`; `weights` say how often each
    shape is drawn."""

    graph: ToolGraph
    facts: Sequence[Fact]
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    _by_spec: dict[str, list[Fact]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fact in self.facts:
            self._by_spec.setdefault(fact.spec.dotted, []).append(fact)

    @cached_property
    def _fields(self) -> set[str]:
        """The words of every field that a tool was seen to tell."""
        leaves = ((leaf, fact) for fact in self.graph.facts for leaf in fact.leaves[:200])
        return {
            word
            for leaf, fact in leaves
            for word in re.findall(r"\w+", questions.field_of(leaf, fact).lower())
        }

    @cached_property
    def _things(self) -> set[str]:
        """What tools are asked about: a line `Sonnblick: open` in a list of lifts is no field of theirs."""
        facts = self.graph.facts
        return {name.casefold() for fact in facts for names in self._arguments(fact) for name in names} - {""}

    @cached_property
    def _values(self) -> Mapping[str, set[str]]:
        """Every value that a tool tells of what a question may ask for: two for one are ambiguous."""
        told: dict[str, set[str]] = {}
        for fact in self.graph.facts:
            for leaf in fact.leaves:
                if is_worth_asking(leaf, fact) and (goal := goal_of(leaf, fact)):
                    told.setdefault(goal.casefold(), set()).add(str(leaf.value))
        return told

    @cached_property
    def _columns(self) -> Mapping[tuple[str, str], set[Any]]:
        """Every value of a field, by the tool that tells it."""
        columns: dict[tuple[str, str], set[Any]] = {}
        for fact in self.graph.facts:
            for leaf in fact.leaves:
                columns.setdefault((fact.spec.dotted, leaf.column), set()).add(leaf.value)
        return columns

    def _is_amount(self, leaf: Leaf, fact: Fact) -> bool:
        """Whether the numbers of a field can be added up and compared: they name no thing and no year."""
        return is_amount(leaf, self._columns[(fact.spec.dotted, leaf.column)])

    @cached_property
    def inventor(self) -> Inventor:
        """What makes names of things that there are not."""
        return Inventor(self.facts, self.graph.facts)

    def draw(self, rng: Random) -> Walk | None:
        """Return a random question about one of the facts; None if this one has nothing to ask."""
        shape = rng.choices(list(self.weights), weights=list(self.weights.values()))[0]
        # A tool with few facts is asked about as often as one with many, half of the time.
        pool = self.facts if rng.random() < 0.5 else self._by_spec[rng.choice(sorted(self._by_spec))]
        fact = rng.choice(pool)
        if fact.page > 1:
            shape = "chain"  # nobody knows how to go on in a list before its first page was seen
        return getattr(self, shape)(rng, fact)

    # One call

    def single(self, rng: Random, fact: Fact) -> Walk | None:
        """Return a field of what one call says."""
        leaf = self._ask(rng, fact)
        goal = leaf and self._clear_goal(leaf, fact)
        return self._of_leaf("single", fact, leaf, goal) if leaf and goal else None

    def counted(self, rng: Random, fact: Fact) -> Walk | None:
        """Return how many there are, how many of them have more or less than so much, the most or the sum of
        it."""
        table = self._table(rng, fact)
        if table is None:
            return None
        leaf, level, column = table
        group = questions.group_of(fact, level)
        said, name, rows = questions.field_of(leaf, fact), leaf.tail[0], at_step(level.rows, 1)
        shape, goal, expression = "counted", f"the number of {group}", f"count({rows})"
        if said and self._is_amount(leaf, fact) and rng.random() < 0.7:
            bound = _between(sorted(float(value) for value in column), rng)
            over = ("filtered", rng.choice(("over", "under")))
            shape, function = rng.choice((over, *_functions(leaf)))
            goal, expression = f"the {shape} {said} of all {group}", f'{function}(pluck({rows}, "{name}"))'
            if shape == "filtered" and bound is None:
                return None
            if shape == "filtered":
                goal = f"the number of {group} with {said} {function} {bound:g}"
                expression = f'count_{function}(pluck({rows}, "{name}"), {bound!r})'
        # Who has seen the first and the last item of a list has seen the list.
        ends = tuple(
            Seen(f"${{{rows}[{place}].{name}}}", self._arguments(fact)) for place in (0, len(column) - 1)
        )
        return Walk("single", shape, (Step(fact),), goal, Answer("number", (f"${{{expression}}}",)), ends)

    def extreme(self, rng: Random, fact: Fact) -> Walk | None:
        """Return which item of a list has the most or the least of something."""
        table = self._table(rng, fact)
        if table is None or not table[1].key or not self._is_amount(table[0], fact):
            return None
        leaf, level, column = table
        most, function = rng.choice((("highest", max), ("lowest", min)))
        if column.count(function(column)) > 1:
            return None
        rows, said = at_step(level.rows, 1), questions.field_of(leaf, fact)
        place = f'arg{function.__name__}(pluck({rows}, "{leaf.tail[0]}"))'
        value = f'${{at({place}, pluck({rows}, "{level.key}"))}}'
        kind = questions.singular(questions.item_kind(level, fact))
        goal = questions.within(f"the {kind} with the {most} {said}", questions.around(level, fact))
        goal = f"the {questions.spaced(level.key)} of {goal}"
        return Walk("single", "extreme", (Step(fact),), goal, Answer("name", (value,)), (Seen(value, ()),))

    def listed(self, rng: Random, fact: Fact) -> Walk | None:
        """Every item of a whole list that has the same text in a field, or all of a short one."""
        table = self._table(rng, fact)
        if table is None:
            return None
        leaf, level, column = table
        name, rows, group = level.key or leaf.tail[0], at_step(level.rows, 1), questions.group_of(fact, level)
        goal, picked = (
            f"the {questions.plural(questions.spaced(name))} of all {group}",
            list(range(len(column))),
        )
        if level.key and isinstance(leaf.value, str):
            value = rng.choice(column)
            picked = [place for place, other in enumerate(column) if other == value]
            goal = f"{goal} with {questions.field_of(leaf, fact)} {questions.said_value(value)}"
        elif not is_naming(name) or len({str(value) for value in column}) < len(column):
            return None
        if not 2 <= len(picked) <= _SHOWN:
            return None
        values = tuple(f"${{{rows}[{place}].{name}}}" for place in picked)
        told = tuple(Seen(value, self._arguments(fact)) for value in values)
        return Walk("single", "listed", (Step(fact),), goal, Answer("set", values), told)

    def _table(self, rng: Random, fact: Fact) -> tuple[Leaf, Level, list[Any]] | None:
        """A list that is whole, a leaf of a column, and the values of that column."""
        columns: dict[tuple[str, tuple[str, ...]], list[Leaf]] = {}
        for leaf in fact.leaves if fact.is_whole else ():
            if len(leaf.levels) == 1 and len(leaf.tail) == 1 and not leaf.line and not leaf.in_prose:
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
        return leaves[0], leaves[0].levels[0], [leaf.value for leaf in leaves]

    # Several calls side by side

    def both(self, rng: Random, fact: Fact) -> Walk | None:
        """Return the same field of two things, what they differ by, or of several the one with the most of
        it."""
        leaf = self._ask(rng, fact)
        if leaf is None or leaf.levels or not fact.arguments:
            return None
        twins = [
            (other, same)
            for other in rng.sample(self._by_spec[fact.spec.dotted], len(self._by_spec[fact.spec.dotted]))
            if other is not fact and (same := _same_place(leaf, other)) and str(same.value) != str(leaf.value)
        ]
        distinct = list({str(same.value): (other, same) for other, same in twins}.values())
        styles = ("both", "difference", "most", "sum") if self._is_amount(leaf, fact) else ("both",)
        style = rng.choice(styles[:3] if not questions.is_added(leaf) else styles)
        count = rng.randint(2, _FEW) if style == "most" else 2
        compared = [(fact, leaf), *distinct[: count - 1]]
        names = [thing_of(each) for each, _ in compared]
        said = questions.field_of(leaf, fact)
        if len(compared) < count or len({*names} - {""}) < count or not said:
            return None
        if sum(bool(_PASTED.search(name)) for name in names) or any(
            self._clear_goal(each, of) is None for of, each in compared
        ):
            return None  # nobody puts two hashes into one question
        both = questions.joined([questions.within("", name).strip() for name in names])
        values = [each.at_step(number) for number, (_, each) in enumerate(compared, 1)]
        goal = f"the {said} {both}"
        answer = Answer("pairs", tuple(f"${{{v}}}" for v in values), tuple(names))
        if style == "difference":
            goal = f"the difference between {goal}"
            answer = Answer("number", (f"${{abs({values[0]} - {values[1]})}}",))
        elif style == "sum":
            goal, answer = f"the total {said} {both}", Answer("number", (f"${{{values[0]} + {values[1]}}}",))
        elif style == "most":
            most, function = rng.choice((("highest", max), ("lowest", min)))
            numbers = [float(each.value) for _, each in compared]
            right = names[numbers.index(function(numbers))]
            goal, answer = f"the {most} {said}", Answer("choice", (right,), tuple(names))
        told = tuple(
            Seen(f"${{{value}}}", self._told_by(each, of))
            for value, (of, each) in zip(values, compared, strict=True)
        )
        steps = tuple(Step(of) for of, _ in compared)
        return Walk("parallel", style, steps, goal, answer, told, is_parallel=True)

    # One call after the other

    def chain(self, rng: Random, fact: Fact) -> Walk | None:
        """Return a field of what is named only by what leads to it; both arguments of a call may be found
        so."""
        leaf = self._ask(rng, fact)
        if leaf is None or self._clear_goal(leaf, fact) is None or (fact.page > 1 and not leaf.levels):
            return None
        steps: list[Step] = []
        phrase = self._reached(rng, leaf, fact, steps, depth=rng.randint(1, _LONGEST - 2), taken=[fact])
        given = {str(value) for step in steps for value in scalars(step.fact.arguments)}
        if phrase is None or len(steps) < 2 or str(leaf.value) in given:
            return None
        goal = goal_of(leaf, fact, about=phrase)
        if goal is None or goal.count(" of ") > _MOST_OF:
            return None
        value = f"${{{leaf.at_step(len(steps))}}}"
        return Walk(
            "sequential", "joined" if len(steps[-1].links) > 1 else "chain", tuple(steps), goal,
            _answer_of(leaf, value), (Seen(value, self._told_by(leaf, fact)),),
        )  # fmt: skip

    def _reached(
        self, rng: Random, leaf: Leaf, fact: Fact, steps: list[Step], *, depth: int, taken: list[Fact]
    ) -> str | None:
        """Append the calls that lead to `fact`, of which `leaf` is used, and the call itself; return what it
        is about, in words."""
        phrases: dict[str, str] = {}
        links: list[tuple[str, str]] = []
        by_parameter: dict[str, list[Edge]] = {}
        for edge in self.graph.edges_into(fact) if depth > 0 else ():
            if not any(edge.source is other for other in taken):
                by_parameter.setdefault(edge.parameter, []).append(edge)
        for parameter, edges in by_parameter.items():
            if len(steps) + 2 > _LONGEST:
                break
            edge = rng.choice(edges)
            if self._is_detour(fact, edge) or _goes_back(edge, leaf, fact):
                return None
            taken.append(edge.source)
            source = self._reached(rng, edge.leaf, edge.source, steps, depth=depth - 1, taken=taken)
            phrase = questions.found_by(edge, source) if source is not None else None
            if phrase is None:
                return None
            phrases[parameter] = phrase
            links.append((edge.text, f"{edge.prefix}${{{edge.leaf.at_step(len(steps))}}}"))
        steps.append(Step(fact, tuple(links)))
        return thing_of(fact, instead=phrases)

    def _is_detour(self, fact: Fact, edge: Edge) -> bool:
        """Whether the call could be made with the name by which the question tells the item of a list."""
        level = edge.leaf.level
        if level is None or not level.key or level.key == edge.leaf.name:
            return False
        return _sister(fact, edge, str(level.called), self.graph.facts) is not None

    def each(self, rng: Random, fact: Fact) -> Walk | None:
        """Return the most, the least or the sum of a field over the things of a short list, each with its
        call."""
        leaf = self._ask(rng, fact)
        edges = [
            e for e in self.graph.edges_into(fact) if e.leaf.levels and not e.prefix and e.source.is_whole
        ]
        if leaf is None or leaf.levels or not self._is_amount(leaf, fact) or not edges:
            return None
        edge = rng.choice(edges)
        level = edge.leaf.levels[-1]
        column = [o for o in edge.source.leaves if o.column == edge.leaf.column and not o.in_prose]
        is_whole = [o.levels[-1].index for o in column] == list(range(len(column)))
        if len(edge.leaf.levels) > 1 or not is_whole or not 2 <= len(column) <= _FEW:
            return None
        facts = [_sister(fact, edge, str(other.value), self.facts) for other in column]
        steps, values = [Step(edge.source)], list[str]()
        for number, (other, each) in enumerate(zip(column, facts, strict=True), 2):
            same = _same_place(leaf, each) if each else None
            if each is None or same is None:
                return None
            steps.append(Step(each, ((str(other.value), f"${{{at_step(other.expression, 1)}}}"),)))
            values.append(same.at_step(number))
        most, function = rng.choice(_functions(leaf))
        goal = f"the {most} {questions.field_of(leaf, fact)} of all {questions.group_of(edge.source, level)}"
        told = tuple(
            Seen(f"${{{value}}}", self._told_by(leaf, step.fact))
            for value, step in zip(values, steps[1:], strict=True)
        )
        answer = Answer("number", (f"${{{function}({', '.join(values)})}}",))
        return Walk("sequential", "each", tuple(steps), goal, answer, told)

    # What cannot be done as it is asked

    def missing_function(self, rng: Random, fact: Fact) -> Walk | None:
        """Return a question like the others, of which the tool is taken away."""
        walk = self.single(rng, fact)
        return walk and replace(walk, kind="missing_function", shape="missing_function", lack="function")

    def missing_entity(self, rng: Random, fact: Fact) -> Walk | None:
        """Return a question like the others that does not say what it is about; the user may say it when
        asked."""
        leaf = self._ask(rng, fact)
        if leaf is None or len(fact.arguments) != 1 or len(list(scalars(fact.arguments))) != 1:
            return None
        if leaf.level and leaf.level.key:
            return None  # the question names a thing, of which another tool may tell it
        ((parameter, value),) = fact.arguments.items()
        kind = questions.kind_of(fact.spec, parameter)
        goal = goal_of(leaf, fact, about=f"the {kind}") if kind else None
        if not goal or questions.table_of(value) or self._clear_goal(leaf, fact) is None:
            return None
        walk = self._of_leaf("told", fact, leaf, goal)
        if rng.random() < 0.5:
            return replace(walk, kind="missing_parameter", names=thing_of(fact), missing=(kind,))
        words = tuple(dict.fromkeys([kind, *kind.split(), "which", "one"]))
        return replace(
            walk, kind="missing_parameter", shape="asked", lack="entity", missing=words, answer=None, seen=()
        )

    def unknown_entity(self, rng: Random, fact: Fact) -> Walk | None:
        """Return a question like the others about a thing that there is not."""
        leaf, made = self._ask(rng, fact), self.inventor.unlike(fact, rng)
        if leaf is None or made is None or leaf.levels or not leaf.name:
            return None
        unlike, name = made
        goal, kind, answer = goal_of(leaf, unlike), "unknown_entity", _answer_of(leaf, str(leaf.value))
        if goal is None:
            return None
        return Walk(kind, kind, (Step(unlike),), goal, answer, lack="existence", invented=name)

    def unrelated(self, rng: Random, fact: Fact) -> Walk | None:
        """Return a question like the others about what no tool tells."""
        fields = [field for field in _UNTOLD if not set(field.split()) & self._fields]
        thing = thing_of(fact)
        if not fields or not thing or self._ask(rng, fact) is None:
            return None
        untold = fields[derive_seed(0, "unrelated", thing) % len(fields)]  # one of each thing
        goal = questions.within(f"the {untold}", thing)
        return Walk("irrelevance", "unrelated", (Step(fact),), goal, lack="field")

    def forbidden(self, rng: Random, fact: Fact) -> Walk | None:
        """Return the wish to change what can only be read."""
        leaf = self._ask(rng, fact)
        goal = leaf and self._clear_goal(leaf, fact)
        if not leaf or not goal or not leaf.name:
            return None
        twins = [
            same.value
            for other in self._by_spec[fact.spec.dotted]
            if (same := _same_place(leaf, other)) and same.value != leaf.value
        ]
        if not twins:
            return None
        value = questions.said_value(rng.choice(twins))
        return Walk("missing_function", "forbidden", (Step(fact),), goal, lack="right", change=value)

    # Parts

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
        """What identifies the thing that a value is of: the names of its item, or what the call is about."""
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

    def _of_leaf(self, shape: str, fact: Fact, leaf: Leaf, goal: str) -> Walk:
        value = f"${{{leaf.at_step(1)}}}"
        told = (Seen(value, self._told_by(leaf, fact)),)
        return Walk("single", shape, (Step(fact),), goal, _answer_of(leaf, value), told)

    def _clear_goal(self, leaf: Leaf, fact: Fact) -> str | None:
        """What is asked for; None if tools tell different things of it."""
        goal = goal_of(leaf, fact)
        return goal if goal and len(self._values.get(goal.casefold(), ())) <= 1 else None

    def _ask(self, rng: Random, fact: Fact) -> Leaf | None:
        """A leaf to ask for: a whole text less often than what has a name of its own."""
        is_list = any(leaf.line.casefold() in self._things for leaf in fact.leaves)
        askable = [
            leaf for leaf in fact.leaves if is_worth_asking(leaf, fact) and not (leaf.line and is_list)
        ]
        weights = [4.0 if leaf.name else 1.0 for leaf in askable]
        return rng.choices(askable, weights=weights)[0] if askable else None


def _answer_of(leaf: Leaf, value: str) -> Answer:
    if isinstance(leaf.value, str):
        return Answer("date" if questions.DATE.fullmatch(leaf.value) else "name", (value,))
    unit = questions.spaced(leaf.name).rpartition(" ")[2]
    return Answer("number", (value,), unit=unit if unit in questions.UNITS else "")


def _same_place(leaf: Leaf, fact: Fact) -> Leaf | None:
    """Return the leaf of the same field in another result."""
    return next((each for each in fact.leaves if each.column == leaf.column and not each.in_prose), None)


def _sister(fact: Fact, edge: Edge, text: str, among: Sequence[Fact]) -> Fact | None:
    """Return the same call about another thing, if it is one of those."""
    changed = replaced_in(fact.arguments[edge.parameter], edge.text, text)
    arguments = {**fact.arguments, edge.parameter: changed}
    same = (
        other
        for other in among
        if other.spec.dotted == fact.spec.dotted and len(other.arguments) == len(arguments)
    )
    return next((other for other in same if _as_texts(other.arguments) == _as_texts(arguments)), None)


def _functions(leaf: Leaf) -> list[tuple[str, str]]:
    """(word, function) of what may be asked of several amounts; a sum only of those that can be added up."""
    return [("highest", "max"), ("lowest", "min"), ("total", "sum")][: 2 + questions.is_added(leaf)]


def _goes_back(edge: Edge, leaf: Leaf, fact: Fact) -> bool:
    """Whether what the leaf stands in has the start of the edge too: several things share the value of the
    edge, as the pledges of one state do, and it leads to no one thing."""
    starts = {str(value) for value in scalars(edge.source.arguments)}
    rows = {level.rows for level in leaf.levels}
    theirs = ((other, {level.rows for level in other.levels}) for other in fact.leaves)
    return any(str(other.value) in starts for other, lists in theirs if rows & lists or rows == lists)


def _as_texts(arguments: JsonObject) -> dict[str, str]:
    return {name: str(value) for name, value in arguments.items()}


def _between(values: Sequence[float], rng: Random) -> float | None:
    """Return a round number between two neighbours, none of which it is equal to."""
    gaps = [(low, high) for low, high in pairwise(values) if high > low]
    if not gaps:
        return None
    low, high = rng.choice(gaps)
    middle = float(f"{(low + high) / 2:.2g}")
    is_odd = all(map(float.is_integer, values)) and not middle.is_integer()  # nobody counts by halves
    return middle if low < middle < high and not is_odd else None


# How often each is drawn, by the name of its method.
WEIGHTS: Mapping[str, float] = {
    "single": 3, "chain": 4, "both": 2, "counted": 1, "extreme": 0.7, "listed": 0.7, "each": 0.7,
    "missing_entity": 1, "missing_function": 0.7, "unknown_entity": 0.7, "unrelated": 0.3, "forbidden": 0.3,
}  # fmt: skip
