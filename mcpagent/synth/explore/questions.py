"""Plain questions: what is asked for, from the field and the thing, in about a dozen frames.

    the captain of ship Mistral            a field of a thing, which is named with its kind
    the author of the first comment of task 12
    the number of ships with tons over 500

Natural wording is a language model's job (`gen-data --rewrite`, `explore/rewrite.py`): nothing here knows
more of English than the plural.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from random import Random
from typing import Any

from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.graph import Edge, Fact, scalars
from mcpagent.synth.explore.leaves import NEAR, Leaf, Level, is_naming
from mcpagent.synth.explore.paging import is_cursor, is_paging
from mcpagent.synth.explore.words import (
    FREE_TEXT,
    GENERIC,
    IDENTIFIERS,
    PLACES,
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
_NOT_SEVERAL = words_of(
    "status address series species means news sales earnings expenses funds savings goods lens gps"
)
UNITS = words_of("kg g t ly km m cm mm mi ft l ml s ms min h usd eur gbp chf mb gb kb kwh mw percent")
_SQL = re.compile(r"\s*SELECT\s.*?\sFROM\s+[\"'`\[]?(?P<table>\w+)", re.I | re.S)
_LABELS = IDENTIFIERS | words_of("year version page")
# Rates and levels: two of them may be compared, but their sum says nothing.
_NOT_ADDED = words_of(
    "rating rate ratio percent percentage share price per average mean median temperature depth height "
    "altitude elevation width level speed age year years interval score rank grade index humidity pressure "
    "m cm mm ft dl c mps kmh"
)
_YEARS = range(1000, 2101)
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


# Frames


def ask(goal: str, rng: Random) -> str:
    """Return a question for what a noun says: `the captain of ship Mistral`."""
    bare = goal.removeprefix("the ")
    head = re.split(" (?:of|in|for|on|with) ", bare)[0]
    are = "are" if is_several(head.rpartition(" ")[2]) else "is"
    return framed(_FRAMES, rng, goal=goal, are=are, bare=bare)


def framed(frames: Sequence[str], rng: Random, **parts: str) -> str:
    """Return one of the frames with its parts, as a sentence."""
    text = rng.choice(frames).format(**parts)
    return text[:1].upper() + text[1:]


def joined(texts: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


# Values and things


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


def thing_of(fact: Fact, *, instead: Mapping[str, str] | None = None) -> str:
    """Return what a call is about: its arguments, each with its kind, some by a phrase `instead` of them:
    `ship Mistral`, `city Paris with unit celsius`. Empty for a call without arguments."""
    phrases = instead or {}
    things: list[str] = []
    details: list[str] = []
    choices: list[str] = []
    for name, value in fact.arguments.items():
        if is_paging(name, value):
            continue  # nobody asks for a part of a list
        if name in phrases:
            things.append(phrases[name])
        elif table := table_of(value):
            things.append(f"table {table}")
        else:
            first = spaced(name).partition(" ")[0]
            if first in PLACES:
                details.append(f"{first} {said_value(value)}")
            elif DATE.fullmatch(str(value)) and spaced(name) in ("date", "day"):
                details.append(f"on {value}")
            elif not is_choice(fact.spec, name) and (not things or isinstance(value, str) or len(name) == 1):
                things.append(named(kind_of(fact.spec, name), value))
            else:
                choices.append(f"{spaced(name)} {said_value(value)}")
    if not things and not details and not phrases:
        things, choices = choices[:1], choices[1:]
    rest = f" with {joined(choices)}" if choices else ""
    return f"{' '.join([joined(things), *details])}{rest}".strip()


def named(kind: str, value: Any) -> str:
    """Return a thing with its kind: `ship Mistral`; a free text in quotes."""
    said = said_value(value)
    return f"{kind} {said}" if kind else json.dumps(value, ensure_ascii=False)


def is_choice(spec: ToolSpec, parameter: str) -> bool:
    """Return whether a parameter takes one of a few values."""
    schema = resolved(spec.input_schema.get("properties", {}).get(parameter, {}), spec.input_schema)
    return bool(schema.get("enum")) or schema.get("type") == "boolean"


def table_of(value: Any) -> str:
    """Return the table that an argument in SQL reads, by which a question names it; empty for others."""
    match = _SQL.match(value) if isinstance(value, str) else None
    return match["table"] if match else ""


# Fields and items


def field_of(leaf: Leaf, fact: Fact) -> str:
    """Return what the field of a leaf is called: `weight in kg` for `weight_kg`, in quotes if it is no noun
    (`"client since"`); for a whole answer what the tool is about. Empty if neither says anything."""
    names = [leaf.line] if leaf.line else [name for name in leaf.tail if name.lower() not in GENERIC]
    if not names:
        return "" if leaf.levels else topic(fact.spec)
    words = spaced("_".join(names[-2:])).split()
    if words[-1] in PLACES:  # but for the `to` of a relation
        return "" if leaf.levels and len(words) == 1 else f'"{" ".join(words)}"'
    if len(words) > 1 and words[-1] in UNITS:
        words[-1:] = ["in", words[-1]]
    return counted(" ".join(words), leaf.value)


def counted(words: str, value: Any) -> str:
    """Return `number of berths` for the field `berths` if its value is a number."""
    first, _, rest = words.partition(" ")
    if first in ("n", "num", "nr") and rest:
        return f"number of {plural(rest)}"
    last = words.rpartition(" ")[2]
    is_count = type(value) is int and is_several(last) and last not in UNITS
    return f"number of {words}" if is_count and " in " not in words and " of " not in words else words


def is_several(word: str) -> bool:
    """Return whether a noun names several things."""
    return word.endswith("s") and not word.endswith(("ss", "us", "is")) and word not in _NOT_SEVERAL


def item_kind(level: Level, fact: Fact) -> str:
    """Return what one item of a list is: `ship` of the list `ships`, else what the tool lists."""
    kind = singular(spaced(level.kind))
    if kind and kind not in GENERIC and singular(kind) not in IDENTIFIERS:
        return kind
    if table := next((table for _, text in fact.texts if (table := table_of(text))), ""):
        return singular(spaced(table))
    words = singular(topic(fact.spec))
    asked = {kind_of(fact.spec, name) for name in fact.arguments}  # of a table that is described columns
    return words if words and words.split()[-1] not in GENERIC and words not in asked else "entry"


def item_of(leaf: Leaf, fact: Fact, about: str) -> str | None:
    """Return the item of a list that a leaf is in, by its name or its place: `ship Aurora`, `the first
    comment of task 12`. None if it is not a phrase that people say."""
    said = about
    for level in leaf.levels:
        kind = item_kind(level, fact)
        if level.only and about:
            continue
        if level.key:
            item = f"{kind} {said_value(level.called)}"
            is_told = said.endswith(said_value(level.called))
        elif level.index < NEAR and about:
            item, is_told = f"the {_ORDINALS[level.index]} {kind}", False
        else:
            return None
        said = said if is_told else within(item, said)
    return said


def within(what: str, about: str) -> str:
    """Return `what` of a thing, or for a free text: `comment 7 of task 12`, `book Emma for "night"`."""
    if not about:
        return what
    link = "for" if about.startswith('"') else "" if about.split()[0] in {*PLACES, "with"} else "of"
    return f"{what} {link} {about}".replace("  ", " ")


def around(level: Level, fact: Fact) -> str:
    """Return what a list is of, if its items do not say that: the table of a row is named with the row."""
    about = thing_of(fact)
    return "" if about == f"table {plural(item_kind(level, fact))}" else about


def group_of(fact: Fact, level: Level) -> str:
    """Return all items of a list: `comments of task 12`."""
    return within(plural(item_kind(level, fact)), around(level, fact))


def goal_of(leaf: Leaf, fact: Fact, *, about: str | None = None) -> str | None:
    """Return the value of a leaf as a noun: `the captain of ship Mistral`. `about` says what the call is
    about if that is not its arguments. None if nobody would ask for it."""
    about = thing_of(fact) if about is None else about
    field = field_of(leaf, fact)
    if leaf.level and field == item_kind(leaf.level, fact):
        return None  # the ship of ship Mistral
    if leaf.levels:
        item = item_of(
            leaf, fact, about and (around(leaf.levels[0], fact) if about == thing_of(fact) else about)
        )
        return within(f"the {field}", item) if item and field else None
    if not field:
        return f"the result of {about}" if about else None
    if not about:
        about = (
            f"the {topic(fact.spec)}"
            if topic(fact.spec) not in ("", field)
            else f"the {spaced(fact.spec.server)}"
        )
    return None if about.startswith(f"{field} ") else within(f"the {field}", about)


def found_by(edge: Edge, about: str) -> str | None:
    """Return the thing that an edge leads to, as what it is to the thing that its source is about: `the ship
    of berth 12`, `the first station`. None if it is not what people say."""
    leaf, fact = edge.leaf, edge.source
    noun = noun_in(leaf.name) or kind_of(fact.spec, edge.parameter)
    if noun in PLACES:
        return None
    if not leaf.levels:
        if not noun or about.startswith(f"{noun} "):
            return None
        return within(f"the {noun}", about or (f"the {topic(fact.spec)}" if topic(fact.spec) != noun else ""))
    item = item_of(leaf, fact, about)
    kind = item_kind(leaf.levels[-1], fact)
    is_own_name = not noun_in(leaf.name) or singular(noun_in(leaf.name)) == kind
    if leaf.levels[-1].only and is_own_name:
        noun, is_own_name = kind, False
    return item if item is None or is_own_name else within(f"the {noun}", item)


def is_worth_asking(leaf: Leaf, fact: Fact) -> bool:
    """Return whether a value is an answer: not one that can be guessed (a short word, a small number, the
    default of a parameter, an argument given back), nor prose, nor what nobody would count to."""
    if not leaf.is_near or is_cursor(leaf.name) or is_paging(leaf.name):
        return False
    if leaf.level and not leaf.level.key and is_naming(leaf.name):
        return False  # the name of the second ship
    given = {str(value).casefold() for value in scalars(fact.arguments)}
    defaults = fact.spec.input_schema.get("properties", {})
    schema = defaults.get(leaf.name)
    is_default = isinstance(schema, dict) and "default" in schema and schema["default"] == leaf.value
    if is_default or str(leaf.value).casefold() in given:
        return False
    if isinstance(leaf.value, str):
        if leaf.value.rstrip().endswith(":") or _is_of_today(leaf.value):
            return False  # what stands above the answer; what is another one tomorrow
        is_prose = len(leaf.value.split()) > 3 and (not leaf.name or leaf.value.rstrip().endswith((".", "!")))
        return len(leaf.value) >= 3 and any(map(str.isalnum, leaf.value)) and not is_prose
    if any(float(leaf.value) == float(value) for value in given if re.fullmatch(r"-?\d+(\.\d+)?", value)):
        return False
    return abs(leaf.value) > 2


def _is_of_today(value: str) -> bool:
    """Whether a text is a date, or a day of the week, of now or next to it."""
    days = [date.today() + timedelta(days=n) for n in (-1, 0, 1)]
    return value[:10] in map(str, days) or value in {day.strftime("%A") for day in days}


def is_amount(leaf: Leaf, column: Collection[Any]) -> bool:
    """Return whether a number is more or less of something, by its name and by all values of its field: one
    that names a thing, or a year (`born`), is a label."""
    if not isinstance(leaf.value, int | float) or not leaf.name or set(spaced(leaf.name).split()) & _LABELS:
        return False
    return not all(type(value) is int and value in _YEARS for value in column)


def is_added(leaf: Leaf) -> bool:
    """Return whether the sum of such amounts is one too: no rate, price of one, or level."""
    return not set(spaced(leaf.name).split()) & _NOT_ADDED


def wish_of(spec: ToolSpec, arguments: Mapping[str, Any], existing: Mapping[str, str]) -> str:
    """Return what a call that changes something does, as a wish: `set status of task 12 to done`. `existing`
    has the kind of each parameter that names what is there already."""
    server = set(spaced(spec.server).split())
    words = [word for word in spaced(spec.name).split() if word not in server] or spaced(spec.name).split()
    verb, things, values = " ".join(words), list[str](), list[str]()
    for name, value in arguments.items():
        said, kind = said_value(value), existing.get(name)
        if kind is None and isinstance(value, str) and " " in value:
            said = json.dumps(value, ensure_ascii=False)
        if kind is not None and not things and (kind == singular(words[-1]) or len(words) == 1):
            things.append(f"{verb} {said if kind == singular(words[-1]) else named(kind, value)}")
        elif kind is not None:
            link = next((word for word in spaced(name).split() if word in PLACES), "for")
            values.append(f"{link} {named(kind, value)}")
        elif singular(spaced(name)) == singular(words[-1]):
            values.append(f"to {said}")
        else:
            values.append(f"with {spaced(name)} {said}")
    values.sort(key=lambda text: text.startswith(("with ", "to ")))
    return " ".join([things[0] if things else verb, *values])
