"""Plain questions: a field of a thing, each called as the server calls it.

    What is the captain of Mistral?            a thing that is called by words
    What is the due date of task 12?           any other, after its kind
    What is the rain of station ws-12 (month july)?

Natural wording is a language model's job (`gen-data --llm`): nothing here knows English.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any

from mcpagent.core.answer_line import folded
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.graph import SELECT, Edge, Fact, Relations
from mcpagent.synth.explore.leaves import SHORT, Leaf, Level, is_words
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.tools.probes.arguments import resolved
from mcpagent.tools.words import name_words, spaced, stem

FRAMES = ("what is {goal}?", "tell me {goal}.", "I need {goal}.", "can you look up {goal}?", "{goal}?")
WISHES = ("{goal}.", "please {goal}.", "can you {goal}?", "I need you to {goal}.")
NAMED = ("It is {goal}.", "I mean {goal}.", "That of {goal}, please.")
_FIELD_WORDS = 3  # of a field that is called by its words, not as it is written


def framed(frames: Sequence[str], rng: Random, goal: str) -> str:
    """Return what is asked for in one of the frames, as a sentence."""
    text = rng.choice(frames).format(goal=goal)
    return text[:1].upper() + text[1:]


def said_value(value: Any) -> str:
    """Return a value as it stands in a sentence: in quotes if it has signs of its own, or several words of
    which one is not written as a name."""
    if not isinstance(value, str) or (is_words(value) and " " not in value):
        return str(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    is_name = all(word[:1].isupper() or word[:1].isdigit() for word in value.split())
    is_plain = (is_words(value) and is_name) or (value.isprintable() and not {*value} & {*" \"'?.,;"})
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def table_of(value: Any) -> str:
    """Return the table that an argument in SQL reads; empty for others."""
    return value.removeprefix(SELECT) if isinstance(value, str) and value.startswith(SELECT) else ""


def is_choice(spec: ToolSpec, parameter: str) -> bool:
    """Return whether a parameter takes one of a few values."""
    schema = resolved(spec.input_schema.get("properties", {}).get(parameter, {}), spec.input_schema)
    return bool(schema.get("enum")) or schema.get("type") == "boolean"


def subject_of(fact: Fact) -> tuple[str, Any]:
    """Return the parameter and the value that say what a call is about: of the only argument, the only one
    that is not a choice of a few values, or the one that was seen to tell calls apart (`Fact.about`); the
    parameter is empty if there is no such one."""
    free = [(name, value) for name, value in fact.given if not is_choice(fact.spec, name)]
    free = [(name, value) for name, value in free if name == fact.about] or free
    given = free or [*fact.given]
    return given[0] if len(given) == 1 else ("", None)


def called_by(leaf: Leaf, fact: Fact) -> str:
    """Return what the thing that a value is of goes by: its item in a list, or what the call is about."""
    names = [level.called for level in leaf.levels if level.called is not None]
    return str([*names, subject_of(fact)[1]][0])


def choices_of(fact: Fact) -> str:
    """Return in brackets what a call is given besides its subject: ` (month july)`; empty if that is nothing,
    or if the call has no one subject."""
    subject = subject_of(fact)
    return _in_brackets([each for each in fact.given if each != subject] if subject[0] else [])


def _in_brackets(given: Sequence[tuple[str, Any]]) -> str:
    said = ", ".join(f"{spaced(name)} {said_value(value)}" for name, value in given)
    return f" ({said})" if said else ""


def field_of(leaf: Leaf) -> str:
    """Return what the field of a leaf is called: `due date` for `due_date`, `wind speed` for `wind.speed`.
    Empty if nobody would say it: for none, and for what is no words, such as `temp2m`."""
    words = spaced("_".join(leaf.tail[-2:]))
    is_plain = words.replace(" ", "").isalpha() and len(words.split()) <= _FIELD_WORDS
    return words if leaf.name and is_plain else ""


@dataclass(frozen=True)
class Namer:
    """What things are called; `kinds` says what kind of thing a parameter names (`ToolGraph.kinds`)."""

    kinds: Mapping[tuple[str, str], str]
    relations: Relations

    def kind_of(self, fact: Fact) -> str:
        """Return what kind of thing a call is about; empty if nothing says it."""
        return self._kind(fact.spec, subject_of(fact)[0])

    def _kind(self, spec: ToolSpec, parameter: str) -> str:
        return "" if is_choice(spec, parameter) else self.kinds.get((spec.dotted, parameter), "")

    def thing_of(self, fact: Fact, *, is_bare: bool = True) -> str:
        """Return what a call is about: `Mistral` (or `ship Mistral`), `task 12`, `city Paris and day Monday`;
        empty for a call without arguments."""
        parameter, value = subject_of(fact)
        if not parameter:
            return " and ".join(f"{spaced(name)} {said_value(value)}" for name, value in fact.given)
        name = spaced(parameter)
        if table := table_of(value):
            return f"table {table}"
        if is_bare and is_words(value) and not is_choice(fact.spec, parameter):
            return said_value(value)
        words = ("", *self.relations.tool_words[fact.spec.dotted])
        is_id = " " not in name and name not in words and len(words) > 2 and str(value).isdecimal()
        return f"{self.kind_of(fact) or (f'{words[-1]} {name}' if is_id else name)} {said_value(value)}"

    def item_of(self, level: Level, fact: Fact, leaf: Leaf) -> str:
        """Return what an item of a list is called: `Aurora`, `ship 4013`, `ship id 4013`."""
        key, value = level.key, level.called
        tables = [name_words(table) for _, given in fact.given if (table := table_of(given))]
        around = tables[0] if tables else self.relations.around(fact.spec, leaf)
        named = [*(word for word in around if word in name_words(key)), spaced(key)]
        is_field = " " not in spaced(key) and [stem(word) for word in around] != [stem(key)]
        kind = f"{around[0]} {key}" if is_field and len(around) == 1 else named[0]
        return said_value(value) if is_words(value) else f"{kind} {said_value(value)}"

    def owner_of(self, leaf: Leaf, fact: Fact, about: str | None = None, *, is_brief: bool = False) -> str:
        """Return what a value is of: the item of a list, or what the call is about (`about`, if that is not
        its arguments), and in brackets what else the call is given, unless of an item `is_brief`. Empty if
        nobody can say it: lists in lists, items without names, and another thing of the kind that was asked
        about."""
        level, is_table = leaf.levels[0] if leaf.levels else None, any(table_of(v) for _, v in fact.given)
        if len(leaf.levels) > 1 or len(leaf.tail) > 2 or _is_of_another(leaf, fact):
            return ""
        if level is None or (level.only and _is_the_one(leaf, fact)):
            about = self.thing_of(fact) if about is None else about
            return f" {'of' if subject_of(fact)[0] else 'for'} {about}{choices_of(fact)}" if about else ""
        is_place = level.called in (level.index, level.index + 1) and fact.arguments and not is_table
        if level.called is None or is_place:
            return ""
        # A table says where to look: two rows that are called alike are not asked about.
        said = folded(str(level.called))
        is_brief = is_brief and any(c.isupper() or c.isspace() for c in str(level.called))
        given = [(self._kind(fact.spec, name) or name, value) for name, value in fact.given]
        rest = [
            (name, v) for name, v in given if not table_of(v) and folded(str(v)) not in said and not is_brief
        ]
        return f" of {self.item_of(level, fact, leaf)}{_in_brackets(rest)}"

    def goal_of(self, leaf: Leaf, fact: Fact, *, about: str | None = None, is_brief: bool = False) -> str:
        """Return the value of a leaf as a noun: `the captain of Mistral`; empty if it cannot be said."""
        field, owner = field_of(leaf), self.owner_of(leaf, fact, about, is_brief=is_brief)
        return f"the {field}{owner}" if field and owner else ""

    def reached(self, edge: Edge, about: str | None) -> str:
        """Return the thing that an edge leads to: `the captain of Mistral`, or of a thing itself its name.
        Empty if it cannot be said."""
        owner = self.owner_of(edge.leaf, edge.source, about)
        if edge.is_named or not owner:
            return f"the {edge.kind}{owner}" if owner else ""
        return owner.partition(" of ")[2]


def _is_of_another(leaf: Leaf, fact: Fact) -> bool:
    """Whether a record has another value in a field that is called as a parameter, as the one task that comes
    after a task has another id."""
    rows = [level.rows for level in leaf.levels]
    record = [o for o in fact.leaves if [level.rows for level in o.levels] == rows and len(o.tail) < 2]
    for name, value in () if leaf.levels and leaf.levels[0].key else fact.given:
        told = {folded(str(other.value)) for other in record if name_words(other.name) == name_words(name)}
        if told and folded(str(value)) not in told:
            return True
    return False


def _is_the_one(leaf: Leaf, fact: Fact) -> bool:
    """Whether the only item that was found is what was asked for: its first field, or the first of words, is
    what the call was given. Another one names what it belongs to."""
    rows = leaf.levels[0].rows
    record = [other for other in fact.leaves if other.levels and other.levels[0].rows == rows]
    names = [*record[:1], *[other for other in record if is_words(other.value)][:1]]
    given = {folded(str(value)) for _, value in fact.given}
    return any(folded(str(name.value)) in given for name in names)


def is_worth_asking(leaf: Leaf, fact: Fact) -> bool:
    """Return whether a value is an answer: not its place in a list, the length of one, an argument given
    back or repeated, the default of a parameter, or of today."""
    places = [value for level in leaf.levels for value in (level.index, level.index + 1)]
    places += [level.index + 1 for other in fact.leaves for level in other.levels if not leaf.levels]
    given = {folded(str(value)) for _, value in fact.given}
    schema = fact.spec.input_schema.get("properties", {}).get(leaf.name)
    is_default = isinstance(schema, dict) and "default" in schema and schema["default"] == leaf.value
    is_told = any(stands_in(value, str(leaf.value)) for value in given if value.strip())
    if is_default or is_told or str(leaf.value) in map(str, places):
        return False
    text = str(leaf.value)
    is_whole = text[:1] not in "[{(" and text[-1:] not in ".,;:"  # no part of a sentence, no list
    return is_whole and 1 < len(text) <= SHORT and any(map(str.isalnum, text)) and not is_of_today(text)


def is_of_today(text: str) -> bool:
    """Return whether a text has a date or the day of the week of now or next to it."""
    days = (date.today() + timedelta(days=days) for days in (-1, 0, 1))
    return any(form in text for day in days for form in (f"{day}", f"{day:%b %d %Y}", f"{day:%A}"))


def wish_of(spec: ToolSpec, arguments: JsonObject, words: Sequence[str]) -> str:
    """Return what a call that changes something does, in the words of the tool (`words`, without those of its
    server): `add comment with task id 12 and text "two words"`."""
    said = " and ".join(f"{spaced(name)} {said_value(v)}" for name, v in Fact(spec, arguments).given)
    return f"{' '.join(words)} with {said}" if said else " ".join(words)
