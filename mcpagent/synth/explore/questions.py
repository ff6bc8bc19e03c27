"""Plain questions: what is asked for, from the field and the thing, in about a dozen frames.

    the captain of ship Mistral            a field of a thing, which is named with its kind
    the author of the first comment of task 12
    the number of ships of captain Lito

Natural wording is a language model's job (`gen-data --llm`): nothing here knows
more of English than the plural.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise
from random import Random
from typing import Any

from mcpagent.core.answer_line import folded
from mcpagent.core.tools import ToolSpec
from mcpagent.core.values import scalars
from mcpagent.synth.explore.graph import SELECT, Edge, Fact
from mcpagent.synth.explore.leaves import NEAR, Leaf, Level, is_naming
from mcpagent.synth.explore.paging import is_cursor, is_paging
from mcpagent.synth.explore.words import (
    FREE_TEXT,
    GENERIC,
    IDENTIFIERS,
    PLACES,
    name_words,
    noun_in,
    plural,
    singular,
    spaced,
    topic,
    words_of,
)
from mcpagent.tools.probes.arguments import resolved

_FRAMES = (
    *("what {are} {goal}?", "what {are} {goal}?", "{bare}", "{bare}?", "tell me {goal}.", "give me {goal}."),
    *("I need {goal}.", "find {goal}.", "please look up {goal}.", "do you know {goal}?"),
    *("can you tell me {goal}?", "I'd like to know {goal}."),
)
CHOICES = (
    "which of {things} has {most}?",
    "of {things}, which has {most}?",
    "tell me which of {things} has {most}.",
)
WISHES = ("{wish}.", "please {wish}.", "{wish}, please.", "can you {wish}?", "I need you to {wish}.")
NAMED = ("{thing}", "I mean {thing}.", "{thing}, please.", "sorry, {thing}.")
_ORDINALS = ("first", "second", "third")
_NAMES = 5  # words of a value that stands in a sentence without quotes
_YEARS = range(1000, 2101)
_SETS = words_of("set update change edit mark")
_WHEN = words_of("date time day")
_LISTING = words_of("list find search")
_DONE = re.compile(r"born|built|made|sold|sent|bought|paid|\w\w+[^e]ed")  # when something was done
_BY = re.compile(r"\w+ed by ")
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


# Frames


def ask(goal: str, rng: Random) -> str:
    """Return a question for what a noun says: `the captain of ship Mistral`."""
    bare = goal.removeprefix("the ")
    head = bare.partition(" of ")[0].rpartition(" ")[2]
    return framed(_FRAMES, rng, goal=goal, are="are" if is_several(head) else "is", bare=bare)


def framed(frames: Sequence[str], rng: Random, **parts: str) -> str:
    """Return one of the frames with its parts, as a sentence."""
    text = rng.choice(frames).format(**parts)
    return text[:1].upper() + text[1:]


def joined(texts: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def is_several(word: str) -> bool:
    """Return whether a noun names several things."""
    return word != singular(word)


# Things


def said_value(value: Any) -> str:
    """Return an argument as it stands in a sentence: in quotes if it is long or has signs of its own."""
    if isinstance(value, list):
        return joined([said_value(item) for item in value])
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    is_plain = (
        "\n" not in value and len(value.split()) <= _NAMES and value[-1:].isalnum() and '"' not in value
    )
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def kind_of(spec: ToolSpec, parameter: str) -> str:
    """Return what kind of thing a parameter names: `channel` for `channel_id`, `ship` for the `name` of a
    ship. Empty for any text."""
    if (noun := noun_in(parameter)) and len(parameter) > 1:
        return singular(noun)
    if len(parameter) == 1 or set(spaced(parameter).split()) & FREE_TEXT:
        return ""
    return singular(topic(spec).rpartition(" ")[2])


def named(kind: str, value: Any) -> str:
    """Return a thing with its kind: `ship Mistral`; a free text in quotes, a table that is read in SQL by its
    name."""
    if table := table_of(value):
        return f"table {table}"
    if kind or not isinstance(value, str):
        return f"{kind} {said_value(value)}".strip()
    return json.dumps(value, ensure_ascii=False)


def table_of(value: Any) -> str:
    """Return the table that an argument in SQL reads; empty for others."""
    return value.removeprefix(SELECT) if isinstance(value, str) and value.startswith(SELECT) else ""


def thing_of(fact: Fact, *, without: Collection[str] = ()) -> str:
    """Return what a call is about: its arguments `without` some, each with its kind: `ship Mistral`, `city
    Paris and unit celsius`. Empty for a call without arguments."""
    return joined(
        [
            named(kind_of(fact.spec, name), value)
            for name, value in fact.arguments.items()
            if not is_paging(name, value) and name not in without  # nobody asks for a part of a list
        ]
    )


def filters_of(fact: Fact) -> set[str]:
    """Return the arguments that could be left out: in a list they only pick some."""
    optional = {*fact.spec.input_schema.get("properties", {})} - {*fact.spec.input_schema.get("required", ())}
    return optional & fact.arguments.keys()


def implied(leaf: Leaf, fact: Fact) -> set[str]:
    """Return the arguments that need not be said of an item: of one with a name those that only pick it, and
    the table that it is called after."""
    tables = {name for name, value in fact.arguments.items() if leaf.levels and table_of(value)}
    return tables | (filters_of(fact) if leaf.level and leaf.level.key else set())


def is_choice(spec: ToolSpec, parameter: str) -> bool:
    """Return whether a parameter takes one of a few values."""
    schema = resolved(spec.input_schema.get("properties", {}).get(parameter, {}), spec.input_schema)
    return bool(schema.get("enum")) or schema.get("type") == "boolean"


def within(what: str, about: str) -> str:
    """Return `what` of a thing, or for a free text: `comment 7 of task 12`, `book Emma for "night"`; `the
    room booked by Ada` by what was done."""
    link = "for " if about.startswith('"') else "" if _BY.match(about) else "of "
    return f"{what} {link}{about}" if about else what


# Fields and items


def field_of(leaf: Leaf, fact: Fact) -> str:
    """Return what the field of a leaf is called: `weight kg` for `weight_kg`, `number of berths` for
    `berths` if it is a number, in quotes if it is no noun (`"client since"`); for a whole answer what the
    tool is about. Empty if neither says anything."""
    is_count = type(leaf.value) is int and is_several(leaf.name) and not leaf.is_line
    names = [name for name in leaf.tail if name.lower() not in GENERIC]
    names = names or [leaf.name] * is_count
    if not names:
        return "" if leaf.levels else topic(fact.spec)
    words = spaced("_".join(names[-2:]))
    *before, last = words.split()
    is_date = isinstance(leaf.value, str) and DATE.fullmatch(leaf.value)
    if last in PLACES and before and is_date:  # `created_at`
        last, words = before[-1], " ".join(before)
    if last in PLACES:  # but for the `to` of a relation
        return "" if leaf.levels and not before else f'"{words}"'
    if _DONE.fullmatch(last):
        is_year = type(leaf.value) is int and leaf.value in _YEARS
        return f"year {words}" if is_year else f"date {words}" if is_date else f'"{words}"'
    return f"number of {words}" if is_count and " of " not in words else words


def item_kind(level: Level, fact: Fact) -> str:
    """Return what one item of a list is: `ship` of the list `ships`, else what the tool lists if its name
    says it of several: of `describe_table` nobody knows. Empty if nothing says it."""
    kind = singular(re.split(r" (?:in|of|by|for) ", spaced(level.kind))[0])
    if kind and kind not in GENERIC | IDENTIFIERS:
        return kind
    if table := next((table for _, text in fact.texts if (table := table_of(text))), ""):
        return singular(spaced(table))
    words = topic(fact.spec)
    return singular(words) if is_several(words) and words.split()[-1] not in GENERIC else ""


def item_of(leaf: Leaf, fact: Fact, about: str) -> str | None:
    """Return the item of a list that a leaf is in, by its name or its place: `ship Aurora`, `the first
    comment of task 12`. None if it is not a phrase that people say."""
    said, given = about, set(map(str, scalars(fact.arguments)))
    for level in leaf.levels:
        kind = item_kind(level, fact)
        has_name = kind != "" and kind[:-1] in spaced(level.kind)  # `entities`
        if level.only and about:
            # The note of contact 12, but not the node of node Juno.
            names = (leaf for leaf in fact.leaves if leaf.level and leaf.level.rows == level.rows)
            same = (
                leaf.value for leaf in names if not leaf.name or is_naming(leaf.name) or kind in leaf.name
            )
            if given.isdisjoint(map(str, same)):
                is_said = has_name or not said.startswith((f"{kind} ", '"'))
                if is_of_another(leaf, fact):
                    kind, is_said = related(fact), True
                if not kind:
                    return None
                said = within(f"the {kind}", said) if is_said else said
        elif level.key and (kind or isinstance(level.called, str)):
            item = named(kind, level.called)
            said = said if said.endswith(said_value(level.called)) else within(item, said)
        elif level.index < NEAR and about and has_name:
            said = within(f"the {_ORDINALS[level.index]} {kind}", said)
        else:
            return None
    return said


def is_of_another(leaf: Leaf, fact: Fact) -> bool:
    """Return whether a leaf is of another thing of the kind that the call is about: its record has another
    value by the name of a parameter, or another identifier, as the one note that is linked to a note has."""
    rows = [level.rows for level in leaf.levels]
    record = [o for o in fact.leaves if not o.in_prose and [level.rows for level in o.levels] == rows]
    head = singular(topic(fact.spec).rpartition(" ")[2])
    for name, value in (*fact.texts, *fact.numbers):
        asked, given = {*name_words(name)}, str(value).casefold()
        told = [
            str(other.value).casefold()
            for other in record
            if (words := {*name_words(other.name)}) == asked
            or (words and words <= asked & IDENTIFIERS and head == kind_of(fact.spec, name))
        ]
        if told and not any(given in each or each in given for each in told):
            return True
    return False


def related(fact: Fact) -> str:
    """Return what a tool calls another thing of the kind that it is asked about: `linked note`; empty if its
    name does not say it."""
    thing = singular(topic(fact.spec))
    return thing if " " in thing else ""


def group_of(fact: Fact, level: Level) -> str:
    """Return all items of a list: `comments of task 12`; empty if nothing says what they are, or a filter
    picked some."""
    kind = item_kind(level, fact)
    tables = {name for name, value in fact.arguments.items() if table_of(value)}
    return within(plural(kind), thing_of(fact, without=tables)) if kind and not filters_of(fact) else ""


def goal_of(leaf: Leaf, fact: Fact, *, about: str | None = None) -> str | None:
    """Return the value of a leaf as a noun: `the captain of ship Mistral`. `about` says what the call is
    about if that is not its arguments. None if nobody would ask for it."""
    about = thing_of(fact, without=implied(leaf, fact)) if about is None else about
    field = field_of(leaf, fact)
    if leaf.level and field == item_kind(leaf.level, fact):
        return None  # the ship of ship Mistral
    if leaf.levels:
        item = item_of(leaf, fact, about)
        return within(f"the {field}", item) if item and field else None
    if is_of_another(leaf, fact):
        if not (related_thing := related(fact)):
            return None
        about = within(f"the {related_thing}", about)
    if not field:
        return f"the result of {about}" if about else None
    subject = topic(fact.spec) if topic(fact.spec) not in ("", field) else spaced(fact.spec.server)
    thing = singular(topic(fact.spec))
    told = {*map(singular, re.findall(r"[a-z]+", fact.spec.description.lower()))} or {thing}
    # Nobody asks for the date of the git of a revision, as `git_show` is called.
    is_known = {thing, field} & set(about.split()) or thing == spaced(fact.spec.server) or thing not in told
    # The date of the appointment of patient 12; the name of the client of country IT, the only one.
    is_picked = (
        not about.startswith('"')
        and not any(other.levels for other in fact.leaves)
        and not _LISTING.isdisjoint(spaced(fact.spec.name).split())
    )
    if about and (field in _WHEN or is_picked) and len(thing.split()) == 1 and not is_known:
        about = within(f"the {thing}", about)
    return None if f" {field} " in f" {about}" else within(f"the {field}", about or f"the {subject}")


def found_by(edge: Edge, about: str, *, is_itself: bool) -> str | None:
    """Return the thing that an edge leads to, as what it is to the thing that its source is about: `the ship
    of berth 12`, `the first station`; or the item of its source, if that `is_itself`. None if it is not what
    people say."""
    leaf, fact = edge.leaf, edge.source
    noun = noun_in(leaf.name) or kind_of(fact.spec, edge.parameter)
    if not noun or noun in PLACES:
        return None
    if not leaf.levels:
        whole = within(f"the {noun}", about or f"the {topic(fact.spec)}")
        return None if about.startswith(f"{noun} ") else whole
    item, kind = item_of(leaf, fact, about), item_kind(leaf.levels[-1], fact)
    is_own_name = is_itself or singular(noun_in(leaf.name)) in ("", kind)
    if item is None or (is_own_name and (not leaf.levels[-1].only or item.startswith(f"the {kind}"))):
        return item
    return within(f"the {kind if is_own_name else noun}", item)


def is_worth_asking(leaf: Leaf, fact: Fact) -> bool:
    """Return whether a value is an answer: not one that can be guessed (a short word, a small number, the
    default of a parameter, an argument given back, its place in a list), nor prose, nor what nobody would
    count to."""
    if not leaf.is_near or is_cursor(leaf.name) or is_paging(leaf.name):
        return False
    if leaf.level and not (leaf.level.key or leaf.level.only) and is_naming(leaf.name):
        return False  # the name of the second ship
    if any(str(leaf.value) in (str(level.index), str(level.index + 1)) for level in leaf.levels):
        return False
    given = {folded(str(value)) for value in scalars(fact.arguments)}
    schema = fact.spec.input_schema.get("properties", {}).get(leaf.name)
    is_default = isinstance(schema, dict) and "default" in schema and schema["default"] == leaf.value
    if is_default or {folded(str(leaf.value)), "true", "false"} & given:
        return False
    if isinstance(leaf.value, str):
        if leaf.value.rstrip().endswith(":") or is_of_today(leaf.value):
            return False  # what stands above the answer; what is another one tomorrow
        if given & set(re.findall(r"\w+(?:[.-]\w+)*", folded(leaf.value))):
            return False  # what repeats the question
        is_prose = len(leaf.value.split()) > 3 and (not leaf.name or leaf.value.rstrip().endswith((".", "!")))
        return len(leaf.value) >= 3 and any(map(str.isalnum, leaf.value)) and not is_prose
    if any(float(leaf.value) == float(value) for value in given if re.fullmatch(r"-?\d+(\.\d+)?", value)):
        return False
    return abs(leaf.value) > 2


def is_of_today(value: Any) -> bool:
    """Return whether a text is a date, or a day of the week, of now or next to it."""
    days = [date.today() + timedelta(days=n) for n in (-1, 0, 1)]
    return str(value)[:10] in map(str, days) or value in {day.strftime("%A") for day in days}


def is_amount(leaf: Leaf, values: Collection[Any]) -> bool:
    """Return whether a field has the highest of such values, by its name and by them: one that names a thing,
    counts things through (page 41, 42, 43) or is a year (`born`) is a label."""
    is_number = all(isinstance(value, int | float) for value in values)
    if not is_number or not leaf.name or set(spaced(leaf.name).split()) & IDENTIFIERS:
        return False
    is_counted = {after - before for before, after in pairwise(sorted(values))} == {1}
    return not is_counted and not all(type(value) is int and value in _YEARS for value in values)


def wish_of(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """Return what a call that changes something does, as a wish in the words of the tool: `set the status of
    task 12 to done`, `borrow book B-7`, `add a comment for task 12 with text "two words"`."""
    server = set(spaced(spec.server).split())
    words = [word for word in spaced(spec.name).split() if word not in server] or spaced(spec.name).split()
    verb, noun = words[0], singular(" ".join(words[1:]))
    kinds, values, said = list[str](), list[str](), list[str]()
    for name, value in _scalar_arguments(arguments):
        is_amount = type(value) is int and is_several(name)  # 4 stars
        kinds.append(spaced(name) if is_amount else kind_of(spec, name) or singular(spaced(name)))
        values.append(json.dumps(value, ensure_ascii=False) if " " in str(value) else said_value(value))
        said.append(f"{values[-1]} {kinds[-1]}" if is_amount else f"{kinds[-1]} {values[-1]}")
    if verb in _SETS and noun in kinds and len(said) > 1:
        place = kinds.index(noun)
        return f"{verb} the {noun} of {joined([*said[:place], *said[place + 1 :]])} to {values[place]}"
    first = next(iter(arguments), "")
    wish = " ".join(words)
    if said and (not noun or kinds[0] == noun.rpartition(" ")[2]):
        wish = f"{' '.join(words[:-1] if noun else words)} {said.pop(0)}"
    elif noun:
        wish = f"{verb} {'an' if noun[0] in 'aeiou' else 'a'} {noun}"
        if said and noun_in(first) and set(spaced(first).split()) & IDENTIFIERS:
            wish += f" for {said.pop(0)}"
    return wish + (f" with {joined(said)}" if said else "")


def _scalar_arguments(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments, of objects in lists their fields."""
    for name, value in arguments.items():
        for item in value if isinstance(value, list) else [value]:
            yield from _scalar_arguments(item) if isinstance(item, dict) else ((name, item),)
