"""Which questions there are about what was learned: of one call, of several, of a list, of what leads where.

Each shape draws a walk: the calls that answer it, which of their arguments come out of earlier results, the
expression of the answer over the results (`core.placeholders`), and what is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

from mcpagent.core.seeds import derive_seed
from mcpagent.synth.explore.answers import Leaf, place_of
from mcpagent.synth.explore.changes import Addition, draw_addition
from mcpagent.synth.explore.graph import Edge, Fact, ToolGraph, between, distinct, rounded, scalars
from mcpagent.synth.explore.invented import Inventor
from mcpagent.synth.explore.naming import (
    PASTED,
    at_step,
    column_of,
    event_of,
    expression_of,
    field_words,
    frames,
    is_adjunct,
    is_number,
    is_quantity,
    is_worth_asking,
    key_of,
    lexicon,
    noun_of,
    said_value,
    same_place,
    spaced,
    subject_of,
    subject_set,
    tables_of,
    unit_of,
    whole_of,
)
from mcpagent.synth.explore.wording import (
    Saying,
    Step,
    Walk,
    asks_for,
    compared,
    group_of,
    in_unit,
    is_beyond,
    is_labelled,
    is_named_by_call,
    leads_to,
    plainly,
    sister_of,
    totals_of,
    unrelated_fields,
    written,
)

_LONGEST = 4  # calls of a walk
_FEW = 4  # things that are compared, or gone through one by one
_ROUNDING = 2  # decimals of a converted answer


@dataclass
class Shapes:
    """Walks over what was learned of which the last call is one of `facts`; `weights` say how often each
    shape is drawn."""

    graph: ToolGraph
    facts: Sequence[Fact]
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    additions: Sequence[Addition] = ()
    _by_spec: dict[str, list[Fact]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fact in self.facts:
            self._by_spec.setdefault(fact.spec.dotted, []).append(fact)

    @cached_property
    def _by_subject(self) -> Mapping[frozenset[str], list[Fact]]:
        table: dict[frozenset[str], list[Fact]] = {}
        for fact in self.graph.facts:
            table.setdefault(subject_set(fact), []).append(fact)
        return table

    @cached_property
    def _fields(self) -> set[str]:
        """The words of every field that a tool was seen to tell."""
        return {
            word
            for fact in self.graph.facts
            for leaf in fact.leaves[:200]
            for word in field_words(leaf, fact).lower().split()
        }

    @cached_property
    def _inventor(self) -> Inventor:
        return Inventor(self.facts, self.graph.facts)

    def draw(self, rng: Random) -> Walk | None:
        """A random question about one of the facts; None where this one has nothing to ask."""
        weights = {name: w for name, w in self.weights.items() if name != "added" or self.additions}
        shape = rng.choices(list(weights), weights=list(weights.values()))[0]
        # A tool with few facts is asked about as often as one with many, half of the time.
        pool = self.facts if rng.random() < 0.5 else self._by_spec[rng.choice(sorted(self._by_spec))]
        fact = rng.choice(pool)
        if fact.page > 1:
            shape = "chain"  # nobody knows how to go on in a list before its first page was seen
        return getattr(self, shape)(rng, fact)

    # One call

    def single(self, rng: Random, fact: Fact) -> Walk | None:
        """A field of what one call says."""
        leaf = _ask(rng, fact)
        saying = asks_for(leaf, fact, rng) if leaf else None
        return self._of_leaf("single", "single", fact, leaf, saying) if leaf and saying else None

    def converted(self, rng: Random, fact: Fact) -> Walk | None:
        """A field in another unit."""
        leaves = [
            leaf for leaf in fact.leaves if is_quantity(leaf) and unit_of(leaf) and is_worth_asking(leaf)
        ]
        if not leaves:
            return None
        leaf = rng.choice(leaves)
        unit, factor = rng.choice(list(frames()["conversions"][unit_of(leaf)].items()))
        saying = asks_for(leaf, fact, rng)
        walk = self._of_leaf("single", "converted", fact, leaf, saying) if saying else None
        if walk is None or saying is None:
            return None
        reference = f"${{round({expression_of(leaf, fact, 1)} * {factor!r}, {_ROUNDING})}}"
        return replace(
            walk, answer=(reference,), saying=in_unit(saying, leaf, unit), tolerance=10**-_ROUNDING
        )

    def counted(self, rng: Random, fact: Fact) -> Walk | None:
        """How many there are, how many of them have more or less than so much, the most or the sum of it."""
        tables = tables_of(fact)
        if not tables:
            return None
        rows, leaf = rng.choice(tables)
        group = group_of(fact, place_of(leaf))
        column = f'pluck({at_step(rows, 1)}, "{place_of(leaf).field}")'
        said = field_words(leaf, fact)
        if not is_quantity(leaf) or rng.random() < 0.3:
            text = f"how many {group} there are"
            saying = Saying(
                f"how many {group} are there", f"the number of {group}", text, f"number of {group}"
            )
            return self._of_list("counted", fact, f"count({at_step(rows, 1)})", saying)
        if rng.random() < 0.5:
            values = sorted(float(value) for value in column_of(fact, leaf) if not isinstance(value, str))
            bound = between(values, rng)
            if bound is None:
                return None
            than = rng.choice(("over", "under"))
            what = is_beyond(leaf, said, is_more=than == "over", bound=bound)
            text, bare = f"how many of the {group} {what}", f"number of {group} that {what}"
            saying = Saying(text, text, text, bare)
            return self._of_list("filtered", fact, f"count_{than}({column}, {bound!r})", saying)
        name, function = rng.choice(totals_of(leaf))
        return self._of_list(
            name, fact, f"{function}({column})", plainly(f"the {name} {said} of all {group}")
        )

    def extreme(self, rng: Random, fact: Fact) -> Walk | None:
        """Which item of a list has the most or the least of something."""
        tables = [(rows, leaf) for rows, leaf in tables_of(fact) if is_quantity(leaf) and key_of(leaf, fact)]
        if not tables:
            return None
        rows, leaf = rng.choice(tables)
        key = key_of(leaf, fact)
        assert key is not None
        which, function = rng.choice(totals_of(leaf)[:2])
        group, said = group_of(fact, place_of(leaf)), field_words(leaf, fact)
        table = at_step(rows, 1)
        place = f'arg{function}(pluck({table}, "{place_of(leaf).field}"))'
        answer = f'${{at({place}, pluck({table}, "{place_of(key).field}"))}}'
        text = f"which of the {group} has the {which} {said}"
        saying = Saying(text, text, text, f"{which} {said} of the {group}, which one")
        return Walk("single", "extreme", (Step(fact),), (answer,), saying)

    # Several calls side by side

    def both(self, rng: Random, fact: Fact) -> Walk | None:
        """The same field of two things, what they differ by, or of several the one with the most of it."""
        leaf = _ask(rng, fact)
        if leaf is None or not is_named_by_call(leaf, fact):
            return None
        twins = [
            (other, same)
            for other in self._by_spec[fact.spec.dotted]
            if other is not fact
            and (same := same_place(leaf, other)) is not None
            and str(same.value) != str(leaf.value)
        ]
        if not twins:
            return None
        has_number = is_quantity(leaf)
        styles = ("both", "difference", "most", *(() if event_of(leaf) else ("sum",)))
        style = rng.choice(styles if has_number and not is_adjunct(subject_of(fact)) else ("both",))
        count = rng.randint(2, _FEW) if style == "most" else 2
        picked = distinct(rng, twins, count - 1, str(leaf.value))
        facts, leaves = [fact, *(other for other, _ in picked)], [leaf, *(same for _, same in picked)]
        names = [subject_of(each) for each in facts]
        plain = asks_for(leaf, fact, rng, subject="@")
        if plain is None or "@" not in plain.goal or len({*names} - {""}) < len(names):
            return None
        if any(map(PASTED.search, names)):
            return None  # nobody puts two of them into one question
        values = [at_step(each.expression, number) for number, each in enumerate(leaves, 1)]
        saying, answer = compared(style, plain, leaf, fact, names, values, rng)
        steps = [
            Step(each, others=self._others(each, of_each))
            for each, of_each in zip(facts, leaves, strict=True)
        ]
        return Walk(
            "parallel", style, tuple(steps), answer, saying,
            is_number=len(answer) == 1 and has_number, is_parallel=True,
            tolerance=1e-6 if style in ("difference", "sum") else 0.0,
            is_ambiguous=any(map(self._is_ambiguous, facts, leaves)),
        )  # fmt: skip

    def conditional(self, rng: Random, fact: Fact) -> Walk | None:
        """One thing is enough if it has more than so much; else another one is needed too."""
        leaf = _ask(rng, fact)
        if leaf is None or not is_quantity(leaf) or not is_named_by_call(leaf, fact):
            return None
        others = [
            o for o in self._by_spec[fact.spec.dotted] if o is not fact and same_place(leaf, o) is not None
        ]
        saying = asks_for(leaf, fact, rng)
        if not others or saying is None:
            return None
        other = rng.choice(others)
        is_enough, value = rng.random() < 0.5, float(leaf.value)
        bound = rounded(
            value * (rng.uniform(0.5, 0.9) if (value > 0) == is_enough else rng.uniform(1.1, 1.6))
        )
        second = same_place(leaf, other)
        name = subject_of(other)
        is_unsayable = is_adjunct(name) or PASTED.search(name)
        if bound == 0 or second is None or name in ("", saying.subject) or is_unsayable:
            return None
        text = f"{saying.goal}, and if that is not over {written(bound)}, the one of {name} as well"
        said = Saying(f"what is {text}", "", "", text.removeprefix("the "))
        facts = [fact] if is_enough else [fact, other]
        answer = [f"${{{at_step(leaf.expression, n)}}}" for n in range(1, len(facts) + 1)]
        steps = tuple(Step(each, others=self._others(each, same_place(leaf, each))) for each in facts)
        is_ambiguous = any(self._is_ambiguous(each, same_place(leaf, each)) for each in (fact, other))
        return Walk(
            "sequential", "conditional", steps, tuple(answer), said,
            is_number=is_enough, is_ambiguous=is_ambiguous,
        )  # fmt: skip

    # One call after the other

    def chain(self, rng: Random, fact: Fact) -> Walk | None:
        """A field of what is named only by what leads to it; both arguments of a call may be found so."""
        leaf = _ask(rng, fact)
        if leaf is None or (fact.page > 1 and key_of(leaf, fact) is None):
            return None
        steps: list[Step] = []
        phrase = self._reached(rng, fact, steps, depth=rng.randint(1, _LONGEST - 2), taken=[fact])
        if phrase is None or len(steps) < 2:
            return None
        saying = asks_for(leaf, fact, rng, subject=phrase)
        if saying is None:
            return None
        reference = f"${{{expression_of(leaf, fact, len(steps))}}}"
        steps[-1] = replace(steps[-1], others=self._others(fact, leaf))
        is_joined = len(steps[-1].links) > 1
        return Walk(
            "sequential", "joined" if is_joined else "chain", tuple(steps), (reference,), saying,
            is_number=is_number(leaf.value), is_ambiguous=self._is_ambiguous(fact, leaf),
        )  # fmt: skip

    def _reached(
        self, rng: Random, fact: Fact, steps: list[Step], *, depth: int, taken: list[Fact]
    ) -> str | None:
        """Append the calls that lead to `fact`, and the call itself; what it is about, in words."""
        phrases: dict[str, str] = {}
        links: list[tuple[str, str]] = []
        if depth > 0:
            by_parameter: dict[str, list[Edge]] = {}
            for edge in self.graph.edges_into(fact):
                if not any(edge.source is other for other in taken):
                    by_parameter.setdefault(edge.parameter, []).append(edge)
            for parameter, edges in by_parameter.items():
                if len(steps) + 2 > _LONGEST:
                    break
                edge = rng.choice(edges)
                if self._is_detour(fact, edge):
                    return None
                taken.append(edge.source)
                source = self._reached(rng, edge.source, steps, depth=depth - 1, taken=taken)
                phrase = leads_to(edge, source) if source is not None else None
                if phrase is None:
                    return None
                phrases[parameter] = phrase
                expression = expression_of(edge.leaf, edge.source, len(steps))
                links.append((edge.text, f"{edge.prefix}${{{expression}}}"))
        steps.append(Step(fact, tuple(links)))
        if fact.page > 1:  # which page it is on is not what anybody asks
            rest = {name: value for name, value in fact.arguments.items() if name not in phrases}
            return subject_of(Fact(fact.spec, rest, ()))
        return subject_of(fact, instead=phrases)

    def _is_detour(self, fact: Fact, edge: Edge) -> bool:
        """Whether the call could be made with what the question says already, or has nothing to do with what
        the edge gives: a search that does not find it."""
        key = key_of(edge.leaf, edge.source)
        if key is not None and sister_of(fact, edge, str(key.value), self.graph.facts) is not None:
            return True
        is_search = set(spaced(edge.parameter).split()) & lexicon("not_a_noun") and not edge.prefix
        told = [leaf for leaf in fact.leaves if str(leaf.value).casefold() == edge.text.casefold()]
        return bool(is_search) and not any(key_of(leaf, fact) is None for leaf in told)

    def each(self, rng: Random, fact: Fact) -> Walk | None:
        """The most, the least or the sum of a field over the things of a short list, each with its call."""
        leaf = _ask(rng, fact)
        if leaf is None or not is_quantity(leaf) or place_of(leaf).wrap:
            return None
        edges = [e for e in self.graph.edges_into(fact) if place_of(e.leaf).rows and not e.prefix]
        if not edges:
            return None
        edge = rng.choice(edges)
        place = place_of(edge.leaf)
        column = [
            other
            for other in edge.source.leaves
            if (at := place_of(other)).rows == place.rows and at.tail == place.tail and at.wrap is None
        ]
        if not 2 <= len(column) <= _FEW:
            return None
        if [place_of(other).index for other in column] != list(range(len(column))):
            return None
        facts = [sister_of(fact, edge, str(other.value), self.facts) for other in column]
        if any(each is None or same_place(leaf, each) is None for each in facts):
            return None
        steps = [Step(edge.source)]
        for other, each in zip(column, facts, strict=True):
            assert each is not None
            steps.append(Step(each, ((str(other.value), f"${{{at_step(other.expression, 1)}}}"),)))
        values = ", ".join(at_step(leaf.expression, n) for n in range(2, len(steps) + 1))
        name, function = rng.choice(totals_of(leaf))
        group = group_of(edge.source, place)
        saying = plainly(f"the {name} {field_words(leaf, fact)} of all {group}")
        is_ambiguous = any(self._is_ambiguous(each, same_place(leaf, each)) for each in facts if each)
        return Walk(
            "sequential", "each", tuple(steps), (f"${{{function}({values})}}",), saying,
            is_number=True, tolerance=1e-6, is_ambiguous=is_ambiguous,
        )  # fmt: skip

    # What cannot be done as it is asked

    def missing_function(self, rng: Random, fact: Fact) -> Walk | None:
        """A question like the others, of which the tool is taken away."""
        walk = self.single(rng, fact)
        return walk and replace(walk, kind="missing_function", shape="missing_function", lack="function")

    def missing_entity(self, rng: Random, fact: Fact) -> Walk | None:
        """A question like the others that does not say what it is about; the user may say it when asked."""
        texts = list(fact.texts)
        leaf = _ask(rng, fact)
        if leaf is None or len(texts) != 1 or len(list(scalars(fact.arguments))) != 1:
            return None
        parameter, _ = texts[0]
        noun = noun_of(fact, parameter)
        saying = asks_for(leaf, fact, rng, subject=f"the {noun}") if noun else None
        walk = self._of_leaf("missing_parameter", "told", fact, leaf, saying) if saying else None
        if walk is None:
            return None
        if rng.random() < 0.5:
            return replace(walk, names=subject_of(fact), missing=(noun,))
        words = dict.fromkeys([noun, *noun.split(), "which", "one"])
        return replace(walk, shape="asked", lack="entity", missing=tuple(words), answer=())

    def unknown_entity(self, rng: Random, fact: Fact) -> Walk | None:
        """A question like the others about a thing that there is not."""
        leaf, made = _ask(rng, fact), self._inventor.unlike(fact, rng)
        if leaf is None or made is None or place_of(leaf).rows is not None or not is_labelled(leaf):
            return None
        unlike, name = made
        saying = asks_for(leaf, fact, rng, subject=subject_of(unlike))
        others = self._inventor.also(fact, name)
        kind = "unknown_entity"
        return saying and Walk(
            kind, kind, (Step(unlike, others=tuple(others)),), (str(leaf.value),), saying,
            lack="existence", invented=name,
        )  # fmt: skip

    def unrelated(self, rng: Random, fact: Fact) -> Walk | None:
        """A question like the others about what no tool tells."""
        fields = unrelated_fields(self._fields)
        real = _ask(rng, fact)
        like = asks_for(real, fact, rng) if real else None
        if not fields or like is None or not like.subject:
            return None
        plain = asks_for(Leaf("@.wanted", "wanted", "text"), fact, rng, subject=like.subject)
        if plain is None:
            return None
        untold = fields[derive_seed(0, "unrelated", like.subject) % len(fields)]  # one of each thing
        saying = Saying(**{name: text.replace("wanted", untold) for name, text in vars(plain).items()})
        return Walk("irrelevance", "unrelated", (Step(fact),), (like.subject,), saying, lack="field")

    def forbidden(self, rng: Random, fact: Fact) -> Walk | None:
        """The wish to change what can only be read."""
        leaf = _ask(rng, fact)
        saying = asks_for(leaf, fact, rng) if leaf else None
        if leaf is None or saying is None or not saying.subject or place_of(leaf).wrap:
            return None
        twins = [
            s for o in self._by_spec[fact.spec.dotted] if (s := same_place(leaf, o)) and s.value != leaf.value
        ]
        value = (
            rng.choice(twins).value
            if twins
            else rounded(float(leaf.value) * 1.3)
            if is_quantity(leaf)
            else ""
        )
        if value == "":
            return None
        return Walk(
            "missing_function", "forbidden", (Step(fact),), (), saying, lack="right", change=said_value(value)
        )

    def added(self, rng: Random, fact: Fact) -> Walk | None:
        """The wish that something be there."""
        return draw_addition(self.additions, self.facts, self._inventor.taken, rng)

    # Parts

    def _of_leaf(self, kind: str, shape: str, fact: Fact, leaf: Leaf, saying: Saying) -> Walk:
        return Walk(
            kind, shape, (Step(fact, others=self._others(fact, leaf)),),
            (f"${{{expression_of(leaf, fact, 1)}}}",), saying,
            is_number=is_number(leaf.value), is_ambiguous=self._is_ambiguous(fact, leaf),
        )  # fmt: skip

    def _of_list(self, shape: str, fact: Fact, expression: str, saying: Saying) -> Walk:
        return Walk(
            "single", shape, (Step(fact),), (f"${{{expression}}}",), saying, is_number=True, tolerance=1e-6
        )

    def _rivals(self, fact: Fact, leaf: Leaf | None) -> Iterator[tuple[Fact, Leaf]]:
        """Other tools, asked about the same, that have a field of the same name."""
        if leaf is None:
            return
        said, place = field_words(leaf, fact), place_of(leaf)
        for other in self._by_subject.get(subject_set(fact), ()):
            if other.spec.dotted == fact.spec.dotted or (not fact.arguments and not other.arguments):
                continue
            for theirs in other.leaves:
                if place_of(theirs).wrap == place.wrap and field_words(theirs, other) == said:
                    yield other, theirs

    def _others(self, fact: Fact, leaf: Leaf | None) -> tuple[Fact, ...]:
        """Calls of other tools that answer as well."""
        same = [other for other, theirs in self._rivals(fact, leaf) if leaf and theirs.value == leaf.value]
        return tuple({id(other): other for other in same}.values())

    def _is_ambiguous(self, fact: Fact, leaf: Leaf | None) -> bool:
        """Whether another tool says something else of the same field of the same thing."""
        if leaf is None:
            return False
        place = place_of(leaf)
        return any(
            theirs.value != leaf.value
            for _, theirs in self._rivals(fact, leaf)
            if (place_of(theirs).rows is None) == (place.rows is None)
            and place_of(theirs).index == place.index
        )


def _ask(rng: Random, fact: Fact) -> Leaf | None:
    """A leaf to ask for: the third word of a text less often than what has a name of its own."""
    echoed, numbers = subject_set(fact), {v for v in scalars(fact.arguments) if is_number(v)}
    told = [leaf for leaf in fact.leaves if is_worth_asking(leaf) and str(leaf.value) not in echoed]
    askable = [leaf for leaf in told if leaf.value not in numbers]  # 49 is 49.0 too
    if not askable:
        return None
    whole = {leaf.expression for leaf in fact.leaves}
    weights = [
        4.0 if place_of(leaf).wrap is None else 0.02 if whole_of(leaf) in whole else 0.3 for leaf in askable
    ]
    return rng.choices(askable, weights=weights)[0]


# How often each is drawn, by the name of its method.
WEIGHTS: Mapping[str, float] = {
    "single": 3, "chain": 4, "both": 2, "counted": 1, "extreme": 0.7, "converted": 0.7,
    "conditional": 0.5, "each": 0.7, "missing_entity": 1, "missing_function": 0.7,
    "unknown_entity": 0.7, "unrelated": 0.3, "forbidden": 0.3, "added": 0.8,
}  # fmt: skip
