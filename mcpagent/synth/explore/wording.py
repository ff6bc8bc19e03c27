"""How a walk is said: as what somebody wants to know of something, in the words of its fields and values.

A `Saying` names what is asked for; a frame of `templates/wording/intent.yaml` says it in one of the registers
in which people ask. What a tool is called, what its description says and which call comes first is not in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, Literal

from mcpagent.core.records import JsonObject
from mcpagent.synth.explore.answers import Leaf, Place, place_of
from mcpagent.synth.explore.graph import Edge, Fact, scalars
from mcpagent.synth.explore.naming import (
    CODE,
    at_of,
    counted,
    event_of,
    field_words,
    frames,
    holder_of,
    human,
    is_adjunct,
    is_amount,
    key_of,
    kind_of,
    lexicon,
    naming_rank,
    noun_in,
    of,
    plural,
    said_value,
    subject_of,
    topic,
    unit_of,
    when_of,
    whole_of,
)

_NEAR = 6  # items of a list that a person counts to
_SUPERLATIVE = {"higher": "highest", "lower": "lowest", "later": "latest", "earlier": "earliest"}
_FIRST = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class Saying:
    """What is asked for: as a question, as a noun, as a clause, in as few words as possible; `subject` is the
    one thing that it is asked of, and `its`, `indirect_its` ask the same of a thing that was named before."""

    question: str
    goal: str
    indirect: str
    bare: str
    subject: str = ""
    its: str = ""
    indirect_its: str = ""

    def parts(self) -> dict[str, str]:
        """The slots of a frame that can be filled."""
        slots = {name: text for name, text in vars(self).items() if text}
        # What something is called stays as it is at the beginning of a sentence too.
        return slots | {
            name.capitalize(): text if self.subject and text.startswith(self.subject) else _sentence(text)
            for name, text in slots.items()
        }


@dataclass(frozen=True)
class Said:
    """The first message, the user's later ones, and the register that they are in."""

    register: str
    prompt: str
    later: tuple[str, ...] = ()


def say(saying: Saying, rng: Random, *, in_one: bool = False) -> Said:
    """The wish in a register of its own; `in_one`: in one message."""
    slots = saying.parts()
    fitting = {
        register: [frame for frame in options if _fits(frame, slots, in_one=in_one)]
        for register, options in frames()["registers"].items()
    }
    register = rng.choice([name for name, options in fitting.items() if options])
    frame = rng.choice(fitting[register])
    first, *later = [frame] if isinstance(frame, str) else frame
    return Said(register, first.format(**slots), tuple(text.format(**slots) for text in later))


def _fits(frame: str | Sequence[str], slots: Mapping[str, str], *, in_one: bool) -> bool:
    texts = [frame] if isinstance(frame, str) else list(frame)
    if in_one and len(texts) > 1:
        return False
    return all(name in slots for text in texts for name in re.findall(r"\{(\w+)\}", text))


def say_named(subject: str, rng: Random) -> str:
    """What the user answers when asked which one is meant."""
    return rng.choice(frames()["named"]).format(subject=subject)


def say_change(saying: Saying, value: str, rng: Random) -> str:
    """The wish that something were otherwise."""
    return rng.choice(frames()["change"]).format(**saying.parts(), value=value)


def unrelated_fields(told: Collection[str]) -> list[str]:
    """Things to ask of what no field in `told` says."""
    return [field for field in frames()["unrelated"] if not set(field.split()) & set(told)]


def asks_for(leaf: Leaf, fact: Fact, rng: Random, *, subject: str | None = None) -> Saying | None:
    """The wish to know a leaf. `subject` is what the call is about where that is not its arguments: a thing
    that an earlier call leads to, or something vague. None where nobody would ask for it."""
    place = place_of(leaf)
    about = subject if subject is not None else subject_of(fact)
    field = field_words(leaf, fact)
    if place.wrap is not None:
        return _of_text(leaf, fact, place, about)
    event = event_of(leaf)
    if place.rows is None:
        if is_amount(about) and field == "amount":
            return plainly(about)
        return _of_field(field, leaf.value, about or f"the {topic(fact.spec)}", rng, event=event)
    item = item_of(leaf, fact, place, about)
    if item is None:
        return None
    if place.field.lower() in lexicon("speech"):
        return _of_speech(place.field.lower(), item)
    if not place.tail:
        return plainly(item)
    words = human(place.tail[-1]) if field == topic(fact.spec) else field
    return _of_field(words, leaf.value, item, rng, event=event)


def item_of(leaf: Leaf, fact: Fact, place: Place, about: str) -> str | None:
    """The item of a list that a leaf is in: by its name, else by its place. None where nobody says it."""
    if about.count(" for ") > 1 or (" for " in about and at_of(fact, about).startswith(" for ")):
        return None
    at, key = at_of(fact, about), key_of(leaf, fact)
    name = "" if key is None else said_value(key.value)
    if name and name == about:
        return name
    if name and not (about and about.casefold() in name.casefold()):
        kind, holder = kind_of(fact, place, about), holder_of(fact, place, key)
        if holder is None:
            return None
        at = f" {of(holder)}{at}" if holder else at
        is_named = kind not in ("match", "entry") and (CODE.fullmatch(name) or name.islower())
        return f"{kind} {name}{at}" if is_named else f"{name}{at}"
    return ordinal_item(fact, place, about)


def ordinal_item(fact: Fact, place: Place, about: str) -> str | None:
    """`the second message in general`; `the second of the ships`; `the second note of Aurora` where several
    have notes. None where nobody would count to it."""
    holder = holder_of(fact, place)
    if place.index >= _NEAR or holder is None:
        return None
    kind = kind_of(fact, place, about)
    if holder:
        return f"the {_FIRST[place.index]} {kind} {of(holder)}{at_of(fact, about)}"
    if about and plural(kind) == about:
        return f"the {_FIRST[place.index]} of the {about}"
    return f"the {_FIRST[place.index]} {kind}{at_of(fact, about)}"


def is_own_list(fact: Fact, place: Place) -> bool:
    """Whether the call is about the list of such things: the table `ships`, of which one is a `ship`."""
    about = subject_of(fact)
    return plural(kind_of(fact, place, about)) == about


def group_of(fact: Fact, place: Place) -> str:
    """The things of a list: `messages in general`, `ships`."""
    about = subject_of(fact)
    kind = plural(kind_of(fact, place, about))
    return kind if kind == about else f"{kind}{at_of(fact, about)}"


def is_labelled(leaf: Leaf) -> bool:
    """Whether a value has a name of its own, rather than a place in a text."""
    return " word of the " not in leaf.label and "last number" not in leaf.label


def _of_text(leaf: Leaf, fact: Fact, place: Place, about: str) -> Saying | None:
    """A word of a text: by the label that it has there, else by its place, where that is near."""
    function, index = place.wrap or ("", 0)
    if is_labelled(leaf):
        event, label = event_of(leaf), human(leaf.label)
        field = when_of(event, leaf.value) if event else counted(label, leaf.value)
        return _of_field(field, leaf.value, about or f"the {topic(fact.spec)}", Random(0), event=event)
    if place.rows is not None:
        return None
    if entry := listed(leaf, fact, about):
        return plainly(entry)
    what = "last number" if function == "number" else f"{_FIRST[index]} word" if index < _NEAR else ""
    holder = human(place.field) if place.field and place.field.lower() not in lexicon("generic") else ""
    whole = f"the {holder} {of(about) if about else ''}".strip() if holder else about
    return _of_field(what, leaf.value, whole or f"the {topic(fact.spec)}", Random(0)) if what else None


def listed(leaf: Leaf, fact: Fact, about: str) -> str | None:
    """`the second file in docs` for a word that ends the second line of a listing; None for one of a text.
    A listing has as many words in each line, of which the last alone can be passed on; or it is what a tool
    that is called after several things says."""
    place = place_of(leaf)
    if place.wrap is None or place.wrap[0] != "word":
        return None
    whole = whole_of(leaf)
    same = [place_of(other).wrap for other in fact.leaves if whole_of(other) == whole]
    at = sorted(wrap[1] for wrap in same if wrap is not None and wrap[0] == "word")
    width = at[0] + 1
    kind = topic(fact.spec)
    if any(later - earlier != width for earlier, later in pairwise(at)) or (
        width == 1 and plural(kind) != kind
    ):
        return None
    number = place.wrap[1] // width
    said = f"{kind_of(fact, place, about)}{at_of(fact, about)}"
    return f"the {_FIRST[number]} {said}" if number < _NEAR else None


def _of_speech(field: str, subject: str) -> Saying:
    """The text of a message or the like."""
    field = "text" if field in lexicon("generic") else field
    return Saying(
        f"what does {subject} say", f"the {field} of {subject}", f"what {subject} says",
        f"{field} of {_bare(subject)}", subject, "what does it say", "what it says",
    )  # fmt: skip


def _of_field(field: str, value: Any, subject: str, rng: Random, *, event: str = "") -> Saying:
    """The field of a subject, asked for as its name and type suggest; `event` is the participle of a field
    that says when something happened."""
    if is_adjunct(subject):
        return plainly(f"the {field} {subject}")
    is_name = len(subject.split()) <= 2 and subject[-1:].isalnum() and not subject.startswith(("the ", "/"))
    possessive = f"{subject}'{'' if subject.endswith('s') else 's'} {field}"
    is_count = field.startswith("number of ")
    what, _, unit = field.partition(" in ")
    whole = f"the {what} of {subject} in {unit}" if unit else f"the {field} of {subject}"
    goal = possessive if is_name and not is_count and rng.random() < 0.4 else whole
    after = f"{_bare(subject)} {field.removeprefix('number of ')}"
    shortest = whole.removeprefix("the ").replace(subject, _bare(subject))
    bare = rng.choice([shortest, after if len(subject.split()) <= 3 else shortest])
    question, indirect = _asked(field, value, subject, goal, event, rng)
    its, indirect_its = _asked(field, value, "it", f"its {field}", event, rng)
    return Saying(question, goal, indirect, bare, subject, its, indirect_its)


def _asked(field: str, value: Any, subject: str, goal: str, event: str, rng: Random) -> tuple[str, str]:
    """The question and the clause, by what the field's name and the value's type suggest."""
    last = field.split()[-1]
    first = field.removeprefix("number of ")
    is_number = isinstance(value, int | float)
    plain = rng.choice(["what is", "what's"])
    if event and event not in lexicon("intransitive") and rng.random() < 0.8:
        return f"when was {subject} {event}", f"when {subject} was {event}"
    if is_number and first != field and rng.random() < 0.7:
        return f"how many {first} does {subject} have", f"how many {first} {subject} has"
    if is_number and field in frames()["how"] and rng.random() < 0.6:
        how = frames()["how"][field]
        return f"how {how} is {subject}", f"how {how} {subject} is"
    if is_number and last in lexicon("money") and rng.random() < 0.5:
        return f"how much is {goal}", f"how much {goal} is"
    if isinstance(value, str) and last in lexicon("people"):
        return f"who is {goal}", f"who {goal} is"
    if isinstance(value, str) and field in lexicon("places") and rng.random() < 0.6:
        return f"which {field} is {subject} in", f"which {field} {subject} is in"
    return f"{plain} {goal}", f"what {goal} is"


def _bare(subject: str) -> str:
    return subject.removeprefix("the ")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def leads_to(edge: Edge, source: str) -> str | None:
    """The thing that an edge leads to, as what it is to the thing of its own call (`source`): `the ship of
    berth 12`, `the first match for Labs`. None where nobody would say so."""
    leaf, fact = edge.leaf, edge.source
    place = place_of(leaf)
    if place.wrap is not None:
        return _of_listing(leaf, fact, place, source)
    if place.rows is not None:
        if place.field and naming_rank(place.field) > 5:
            return item_of(leaf, fact, place, source)
        return ordinal_item(fact, place, source)
    noun = noun_in(place.field) if place.field and place.field.lower() not in lexicon("generic") else ""
    noun = noun or noun_in(edge.parameter)
    holder = source or (f"the {topic(fact.spec)}" if topic(fact.spec) != noun else "")
    if not noun:
        return None
    return f"the {noun} {of(holder)}" if holder else f"the {noun}"


def _of_listing(leaf: Leaf, fact: Fact, place: Place, source: str) -> str | None:
    """The thing that a word of a text names: by the word's label, else by its line, whose last word it is."""
    assert place.wrap is not None
    inner = whole_of(leaf)
    if place.rows is not None or any(other.expression == inner for other in fact.leaves):
        return None  # nobody looks for a word of a name
    if place.wrap[0] != "word" and not leaf.name:
        return None
    at = source or f"the {topic(fact.spec)}"
    if " word of the " not in leaf.label:
        return f"the {human(leaf.label)} {of(at)}"
    return listed(leaf, fact, source)


def in_unit(saying: Saying, leaf: Leaf, unit: str) -> Saying:
    """The same wish in another unit."""
    unit_in_text = re.compile(rf" in {unit_of(leaf)}\b|(?<=\w) {unit_of(leaf)}\b")
    return Saying(
        **{
            name: f"{unit_in_text.sub('', text)} in {unit}" if name != "subject" and text else text
            for name, text in vars(saying).items()
        }
    )


def is_beyond(leaf: Leaf, said: str, *, is_more: bool, bound: float) -> str:
    """What is true of a thing whose field is more, or less, than the bound: `have more than 5 platforms`,
    `were built after 1900`."""
    if event := event_of(leaf):
        verb = "have" if event in lexicon("intransitive") else "were"
        return f"{verb} {event} {'after' if is_more else 'before'} {bound:.0f}"
    if (things := said.removeprefix("number of ")) != said:
        return f"have {'more' if is_more else 'fewer'} than {written(bound)} {things}"
    return f"have a {said} {'over' if is_more else 'under'} {written(bound)}"


def totals_of(leaf: Leaf) -> Sequence[tuple[str, str]]:
    """What is asked of a whole column of such values, and the function that tells it."""
    if event_of(leaf):
        return ("latest", "max"), ("earliest", "min")
    return ("highest", "max"), ("lowest", "min"), ("total", "sum")


def plainly(goal: str) -> Saying:
    """What a noun is."""
    return Saying(f"what is {goal}", goal, f"what {goal} is", goal.removeprefix("the "))


def written(number: float) -> str:
    """A number as a person writes it."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,}"


def compared(
    style: str,
    plain: Saying,
    leaf: Leaf,
    fact: Fact,
    names: Sequence[str],
    values: Sequence[str],
    rng: Random,
) -> tuple[Saying, tuple[str, ...]]:
    """What is asked of several things, and the answer."""
    joined = " and ".join([", ".join(names[:-1]), names[-1]])
    either = " or ".join([", ".join(names[:-1]), names[-1]])
    said = field_words(leaf, fact)
    if style == "difference":
        what = f"the {said}" if said.startswith("number of ") else said
        goal = f"the difference in {what} between {joined}"
        return plainly(goal), (f"${{abs({values[0]} - {values[1]})}}",)
    if style == "sum":
        return plainly(f"the {said} of {joined} together"), (f"${{{values[0]} + {values[1]}}}",)
    if style == "most":
        which, function = rng.choice((("higher", "max"), ("lower", "min")))
        if event_of(leaf):
            which = {"higher": "later", "lower": "earlier"}[which]
        which = which if len(names) == 2 else _SUPERLATIVE[which]
        text = f"which has the {which} {said}, {either}, and how much it is"
        question = f"which has the {which} {said}, {either}, and what is it"
        bare = f"{which} {said}: {either}"
        return Saying(question, "", text, bare), (f"${{{function}({', '.join(values)})}}",)
    goal = (
        plain.goal.replace("@'s", "@").replace("of @", of(joined)).replace("@", joined)
        if plain.goal.startswith("the ")
        else f"the {said} {of(joined)}"
    )
    return plainly(goal), tuple(f"${{{value}}}" for value in values)


Lack = Literal["", "entity", "existence", "field", "function", "right"]


@dataclass(frozen=True)
class Step:
    """A call of a walk. `links` are the arguments that come out of earlier results: (value, reference);
    `others` are calls of other tools that answer as well."""

    fact: Fact
    links: tuple[tuple[str, str], ...] = ()
    others: tuple[Fact, ...] = ()

    def params(self, arguments: JsonObject) -> JsonObject:
        """The arguments with references for what earlier results give."""
        replaced: Any = arguments
        for text, reference in self.links:
            replaced = replaced_in(replaced, text, reference)
        return replaced


def replaced_in(value: Any, text: str, reference: str | int) -> Any:
    """`value` with `reference` for each of its values that is `text`."""
    if isinstance(value, dict):
        return {name: replaced_in(item, text, reference) for name, item in value.items()}
    if isinstance(value, list):
        return [replaced_in(item, text, reference) for item in value]
    return reference if not isinstance(value, bool) and str(value) == text else value


def sister_of(fact: Fact, edge: Edge, text: str, among: Sequence[Fact]) -> Fact | None:
    """The same call about another thing, if it is one of those."""
    changed = replaced_in(fact.arguments[edge.parameter], edge.text, text)
    arguments = {**fact.arguments, edge.parameter: changed}
    return next((o for o in among if o.spec.dotted == fact.spec.dotted and o.arguments == arguments), None)


def is_named_by_call(leaf: Leaf, fact: Fact) -> bool:
    """Whether the same can be asked of another call by naming its arguments instead."""
    place = place_of(leaf)
    if not list(scalars(fact.arguments)) or (place.wrap and not leaf.name):
        return False
    return place.rows is None or (key_of(leaf, fact) is None and not is_own_list(fact, place))


@dataclass(frozen=True)
class Walk:
    """A question. `kind` is the class of its task and `shape` what is asked in it; `answer` are references to
    the results of the steps. `lack` says what a question has too little of: the `missing` entity, the
    existence of the one that it names (`invented`), a field that nobody tells, a function that is withheld,
    the right to change. `reads` are calls whose answers tell what a walk has added, which is what it is for
    where there are some."""

    kind: str
    shape: str
    steps: tuple[Step, ...]
    answer: tuple[str, ...]
    saying: Saying
    is_number: bool = False
    tolerance: float = 0.0
    is_parallel: bool = False
    is_ambiguous: bool = False
    lack: Lack = ""
    missing: tuple[str, ...] = ()  # words for what is to be asked for
    change: str = ""  # the value that is wished for
    invented: str = ""
    reads: tuple[Fact, ...] = ()
    names: str = ""  # what the user says when asked which one is meant

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What each step is a repetition of."""
        return tuple(step.fact for step in self.steps)

    @property
    def key(self) -> str:
        """A text that is equal for walks that make the same calls and ask the same."""
        calls = [[step.fact.spec.dotted, step.params(step.fact.arguments)] for step in self.steps]
        return json.dumps([self.kind, self.shape, self.lack, calls, self.answer, self.change], sort_keys=True)

    @property
    def about(self) -> str:
        """What decides the split: the last call, however it is reached."""
        fact = self.steps[-1].fact
        return json.dumps([fact.spec.dotted, fact.arguments], sort_keys=True)

    @property
    def entities(self) -> tuple[str, ...]:
        """What the question has to name: every argument that no earlier result gives."""
        given = {text for step in self.steps for text, _ in step.links}
        if self.lack == "entity":
            return ()
        arguments = [value for step in self.steps for value in scalars(step.fact.arguments)]
        values = [said_value(v) for v in arguments if not isinstance(v, bool) and str(v) not in given]
        return tuple(dict.fromkeys(value.strip('"') for value in values))

    def said(self, rng: Random) -> Said:
        """The walk in words; the same for the same state of `rng`."""
        if self.reads:
            register = rng.choice(sorted(frames()["addition"]))
            frame = rng.choice(frames()["addition"][register])
            return Said(register, frame.format(**self.saying.parts()))
        if self.lack == "right":
            return Said("order", say_change(self.saying, self.change, rng))
        said = say(self.saying, rng, in_one=bool(self.names) or self.lack != "")
        return replace(said, later=(say_named(self.names, rng),)) if self.names else said
