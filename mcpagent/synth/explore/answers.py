"""What can be referred to in an answer: its values, what each is called, and whether more pages follow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from random import Random
from typing import Any

from mcpagent.core.placeholders import nested_value
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.values import numbers_in

# Items of a list that are looked into, by how many lists it lies in: of longer ones a sample, from anywhere.
_ITEMS = (200, 24, 6)
_WORDS = 300  # of a text
_SHORT = 60  # characters of a value that can be asked for
_NEAR = 12  # items of a list that a person would count to: "the third ship", not "the 87th ship"
_FIRST = ("first", "second", "third", "fourth", "fifth", "sixth")
_NAME = re.compile(r"[A-Za-z_]\w*")
_KEY = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]")
_WRAPPED = re.compile(r"(word|number|rest)\((.*), (-?\d+)\)")
_WORD = re.compile(r"[\w/~.](\S*\w)?")  # no bracket, quote or comma at its ends: it can be passed on as it is
_PAIR = re.compile(r"^[\s*-]*([A-Za-z][\w .*-]{0,30}):\**\s+(\S.{0,59})$")
_HEADING = re.compile(r"^#{1,6}\s+(\S.{0,59})$")
# Lists of values in a description or in a refusal.
_QUOTED = re.compile(r"(?<!\w)['\"`‘“]([^'\"`’”\n]{1,60})['\"`’”](?!\w)")
_LISTED = re.compile(
    r"(?:e\.g\.?,?|such as|one of|options?(?: are)?|supported(?: \w+)?|valid(?: \w+)?|available(?: \w+)?"
    r"|must be|should be|choose from|either|examples?|like)\s*:?\s*\[?([^.;()\n\]]{2,600})",
    re.I,
)
_BARE = re.compile(r"[A-Za-z0-9_°/+.#-]+(?: [A-Za-z0-9_-]+)?")
_PROPER = r"(?:[A-Z][a-z][\w'-]*(?: [A-Z][a-z][\w'-]*)*)"
_NAMES = re.compile(rf"{_PROPER}(?:(?:, (?:and |or )?| and | or ){_PROPER})+")
_MOST_LISTED = 60  # values that a text names
_FAULT = re.compile(
    r"name '\w+' is not defined|has no attribute '|No module named|unexpected keyword argument|NoneType"
    r"|\w+ is not (?:defined|a function|iterable)\b|Cannot (?:read propert|find module)|not implemented",
    re.I,
)
_NOW = re.compile(r"\b(now|today|todays|current|clock)\b")
_KEYS = ("name", "title", "label")  # what a person calls a thing by
_OTHER_KEYS = ("symbol", "ticker", "code", "key", "slug", "path", "url", "id")


@dataclass(frozen=True)
class Leaf:
    """One value of a result. `expression` is its reference with `@` for the step, `label` its name for a
    person, `name` the field that it is the value of, `key` the field and the value that tell its item of a
    list from the others, `place` the last item that `label` counts to."""

    expression: str
    label: str
    value: str | int | float
    name: str = ""
    key: tuple[str, str | int | float] | None = None
    place: int = 0

    def of_step(self, number: int) -> str:
        """The placeholder of this value in the result of step `number` of a plan."""
        return "${" + self.expression.replace("@", f"step{number}") + "}"

    @property
    def is_near(self) -> bool:
        """Whether a person could say which value is meant: nobody counts to the 87th item of a list."""
        return self.place < _NEAR

    @property
    def field(self) -> str:
        """The expression without the places in lists and texts: equal for the same field of every item."""
        return re.sub(r"\[\d+\]|, -?\d+(?=\))", "[]", self.expression) + (
            f" {self.name}" if "(" in self.expression else ""
        )

    @property
    def item(self) -> str:
        """The item of a list that the value is a field of: what its expression says before the last place."""
        head, place, _ = self.expression.rpartition("]")
        return head + place


@dataclass(frozen=True)
class Place:
    """Where a leaf stands: `rows` is the expression of the innermost list that it is in (None: in no list),
    `index` its item there, `tail` the names below it, `kind` the name of the list."""

    rows: str | None
    index: int
    tail: tuple[str, ...]
    kind: str
    wrap: tuple[str, int] | None

    @property
    def field(self) -> str:
        """The name of the field; empty for an item that has none."""
        return self.tail[-1] if self.tail else ""


def place_of(leaf: Leaf) -> Place:
    """Where the expression of a leaf leads."""
    return _place(leaf.expression)


@lru_cache(maxsize=65536)
def _place(expression: str) -> Place:
    wrapped = _WRAPPED.fullmatch(expression)
    path = wrapped[2] if wrapped else expression
    rows, index, kind, tail = None, 0, "", ()
    for match in _KEY.finditer(path):
        if match[2] is not None:
            rows, index, kind, tail = path[: match.start()], int(match[2]), tail[-1] if tail else "", ()
        else:
            tail = (*tail, match[1])
    return Place(rows, index, tail, kind, (wrapped[1], int(wrapped[3])) if wrapped else None)


@dataclass(frozen=True)
class _Position:
    """Where a value stands in a result."""

    expression: str = "@"
    path: tuple[str, ...] = ()
    name: str = ""
    key: tuple[str, str | int | float] | None = None
    count: int = 0
    depth: int = 0

    @property
    def label(self) -> str:
        return " of the ".join(part.replace("_", " ") for part in reversed(self.path)) or "answer"

    def leaf(self, value: str | int | float, **changed: Any) -> Leaf:
        parts = {"expression": self.expression, "label": self.label, "name": self.name, "place": self.count}
        return Leaf(value=value, key=self.key, **{**parts, **changed})


def answer_fields(value: Any, *, seed: int = 0) -> list[Leaf]:
    """The values of a result that can be referred to. Of a long list a sample of its items is taken, from
    anywhere in it, the same for the same `seed`."""
    return list(_walk(value, _Position(), seed))


def _walk(value: Any, place: _Position, seed: int) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for key, item in value.items():
            if _NAME.fullmatch(key):
                below = _Position(
                    f"{place.expression}.{key}", (*place.path, key), key, place.key, place.count, place.depth
                )
                yield from _walk(item, below, seed)
    elif isinstance(value, list):
        yield from _of_list(value, place, seed)
    elif isinstance(value, str):
        nested = nested_value(value)  # a reference reads it too
        if not isinstance(nested, str):
            yield from _walk(nested, place, seed)
        if isinstance(nested, str) or _is_of_phrases(nested, value):
            yield from _of_text(value, place)
        elif len(value) <= _SHORT and "\n" not in value and value[0] not in "[{":
            yield place.leaf(value)  # of a few words in a line somebody may ask for all
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place.leaf(value)


def _is_of_phrases(items: Any, text: str) -> bool:
    """Whether a text lists lines of several words, each of which may be what another tool asks for."""
    is_listed = isinstance(items, list) and text[:1] not in ("[", "{")
    return is_listed and any(isinstance(item, str) and " " in item for item in items)


def _of_list(items: list[Any], place: _Position, seed: int) -> Iterator[Leaf]:
    *above, kind = place.path or ("entries",)
    if " " in kind:  # one of a list, and itself a list
        above, kind = [*above, kind], "entries"
    most = _ITEMS[min(place.depth, len(_ITEMS) - 1)]
    indices = list(range(len(items)))
    if len(items) > most:
        rng = Random(derive_seed(seed, "items", place.expression))
        indices = sorted(rng.sample(indices, most))
    keys = _keys_of(items)
    for index in indices:
        item, expression = items[index], f"{place.expression}[{index}]"
        counted = f"{_ordinal(index)} {one_of(kind)}"
        spot = _Position(
            expression, (*above, counted), place.name, place.key, max(place.count, index), place.depth + 1
        )
        if not keys or not isinstance(item, dict):
            yield from _walk(item, spot, seed)
            continue
        for name, value in item.items():
            key = next((k for k in keys if k != name), None)
            # What a thing is called by is itself asked for by its place, where that is near.
            if key is None or (name == keys[0] and index < _NEAR):
                under, at = spot, None
            else:
                at = (key, item[key])
                under = _Position(expression, (*above, _called(kind, *at)), key=at, count=place.count)
            below = {name: value}
            inner = _Position(expression, under.path, place.name, at, under.count, place.depth + 1)
            yield from _walk(below, inner, seed)


def _keys_of(items: list[Any]) -> list[str]:
    """The fields whose values tell the items of a list apart, those that a person would use first."""
    if len(items) < 2 or not all(isinstance(item, dict) for item in items):
        return []
    ranked: list[tuple[int, str]] = []
    for position, name in enumerate(items[0]):
        values = [item.get(name) for item in items]
        if not all(
            isinstance(v, str | int) and not isinstance(v, bool) and 0 < len(str(v)) <= _SHORT for v in values
        ):
            continue
        if len({str(value) for value in values}) < len(values) or any("\n" in str(v) for v in values):
            continue
        word = name.lower().rpartition("_")[2]
        if word in _KEYS:
            rank = _KEYS.index(word)
        elif word in _OTHER_KEYS or name.endswith("Id"):
            rank = 10
        else:
            rank = 20 if isinstance(values[0], str) else 30
        ranked.append((rank * 100 + position, name))
    return [name for _, name in sorted(ranked)]


def _called(kind: str, key: str, value: str | int | float) -> str:
    """`ship Aurora` for a ship whose `name` that is, `ship with the id 12` for one that has no name."""
    one = one_of(kind)
    return (
        f"{one} {value}"
        if key.lower().rpartition("_")[2] in _KEYS
        else f"{one} with the {_words(key)} {value}"
    )


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]", " ", name).lower()


def _of_text(text: str, place: _Position) -> Iterator[Leaf]:
    if len(text) <= _SHORT and "\n" not in text.strip() and text.strip():
        yield place.leaf(text)
    words = text.split()
    if len(words) < 2:
        return
    lines = text.splitlines()
    has_fields = sum(_PAIR.match(line) is not None for line in lines) > 1
    first, counts = 0, Counter[str]()  # of the words of a line; of the lines that begin with a name
    for number, line in enumerate(lines):
        in_line = line.split()
        if match := _PAIR.match(line):
            name = match[1].strip(" *")
            value_at = first + len(line[: match.start(2)].split())
            if match[2].lower() not in ("true", "false"):  # nobody asks for a word of yes or no
                yield _of_pair(name, match[2], value_at, counts[name], place)
            counts[name] += 1
        elif not has_fields:
            yield from _of_line(in_line, first, place)
        elif number == 0 and (match := _HEADING.match(line)):
            yield _of_pair("name", match[1], first + 1, 0, place)
        first += len(in_line)
        if first >= _WORDS:
            break
    if (numbers := numbers_in(text)) and not has_fields:
        yield place.leaf(
            numbers[-1],
            expression=f"number({place.expression}, -1)",
            label=f"last number of the {place.label}",
            name="",
        )


def _of_pair(name: str, value: str, index: int, count: int, place: _Position) -> Leaf:
    """What a line says after `name:`; the `count`-th line of that name."""
    function = "rest" if " " in value else "word"
    named = name if count == 0 else f"{_ordinal(count)} {name}"
    return place.leaf(
        value,
        expression=f"{function}({place.expression}, {index})",
        label=f"{named} of the {place.label}" if place.path[1:] else named,
        name=name,
        place=max(place.count, count),
    )


def _of_line(words: list[str], first: int, place: _Position) -> Iterator[Leaf]:
    for index, word in enumerate(words, first):
        if _WORD.fullmatch(word):
            yield place.leaf(
                word,
                expression=f"word({place.expression}, {index})",
                label=f"{_ordinal(index)} word of the {place.label}",
                name="",
                place=max(place.count, index),
            )


_CURSOR = re.compile(r"cursor|page_?token|continuation|starting_?after|^after$", re.I)
_PAGE = re.compile(r"^(page|page_?(no|num|number|index))$", re.I)
_OFFSET = re.compile(r"^(offset|skip|start|start_?(index|at|from)|from_?index)$", re.I)
_LIMIT = re.compile(r"^(limit|page_?size|per_?page|max_?results|count|size|top|first|max_?length)$", re.I)
_NEXT = re.compile(r"^(next|next_?(cursor|token|page|page_?token)|cursor|continuation)$", re.I)
_MORE = re.compile(r"^(has_?more|has_?next(_?page)?|more|is_?truncated)$", re.I)
_TOTAL = re.compile(r"^(total(_?(count|items|results))?|count_?total)$", re.I)
_LAST_PAGE = re.compile(r"^(pages|(total|num|n|last|max)_?pages?|page_?(count|total))$", re.I)
# `Page 1 of 4`, `Showing 1-20 of 48`, below or above a list in a text.
_OF_ALL = re.compile(
    r"\b(?:page|showing|results?|items?)\b\D{0,12}(?:\d+\s*(?:-|–|to)\s*)?(\d+)\s*(?:of|/)\s*(\d+)", re.I
)


def is_paging(parameter: str, value: object = 0) -> bool:
    """Whether a parameter says which part of a list is given, by its name and what it is given: `start` may
    be a date too."""
    if _CURSOR.search(parameter):
        return re.match(r"\d{4}-\d\d", str(value)) is None
    is_number = not isinstance(value, str) or value.isdigit()
    return is_number and any(pattern.search(parameter) for pattern in (_PAGE, _OFFSET, _LIMIT))


def is_cursor(name: str) -> bool:
    """Whether a field tells where a list goes on, which is nothing to ask for."""
    return _NEXT.search(name) is not None and name.lower() != "next"


def next_page(parameters: Sequence[str], arguments: JsonObject, value: Any) -> JsonObject | None:
    """The arguments that ask for what follows the answer `value`; None where that was the last page, or none
    of the parameters is for pages."""
    counts = [match for text in _texts(value) for match in _OF_ALL.finditer(text)]
    value = _opened(value)
    lists = _lists(value)
    said = dict(_scalars_named(value))
    token = next((v for k, v in said.items() if _NEXT.search(k) and v not in (None, "", False)), None)
    more = next((bool(v) for k, v in said.items() if _MORE.search(k)), None)
    if more is None and counts:
        more = any(int(match[1]) < int(match[2]) for match in counts)
    total = next((v for k, v in said.items() if _TOTAL.search(k) and isinstance(v, int)), None)
    last = next((v for k, v in said.items() if _LAST_PAGE.search(k) and isinstance(v, int)), None)
    if more is False or (not lists and token is None):
        return None
    length = max(map(len, lists), default=0)
    for name in parameters:
        if _CURSOR.search(name):
            return None if token is None else {name: token}
    for name in parameters:
        if _PAGE.search(name):
            page = arguments.get(name, 1)
            if isinstance(page, int) and (
                more or token or (page < last if last is not None else page * length < (total or 0))
            ):
                return {name: page + 1}
            return None
    for name in parameters:
        if _OFFSET.search(name):
            start = arguments.get(name, 0)
            if isinstance(start, int) and length and (more or (total or 0) > start + length):
                return {name: start + length}
    return None


def _texts(value: Any) -> Iterator[str]:
    """The texts of an answer that lie in no list."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)


def _opened(value: Any) -> Any:
    """An answer with what its texts hold in place of them."""
    if isinstance(value, dict):
        return {key: _opened(item) for key, item in value.items()}
    return nested_value(value) if isinstance(value, str) else value


def _lists(value: Any) -> list[list[Any]]:
    """The lists of an answer that lie in no other list."""
    if isinstance(value, list):
        return [value]
    return [part for item in value.values() for part in _lists(item)] if isinstance(value, dict) else []


def _scalars_named(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict):
                yield from _scalars_named(item)
            elif not isinstance(item, list):
                yield key, item


def _ordinal(index: int) -> str:
    """`first` for 0."""
    number = index + 1
    if number <= len(_FIRST):
        return _FIRST[index]
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def one_of(kind: str) -> str:
    """One thing of a list, by the list's name: `messages` has a `message`."""
    if kind.endswith("ies"):
        return kind[:-3] + "y"
    if kind.endswith(("ses", "xes", "ches", "shes")):
        return kind[:-2]
    return kind.removesuffix("s") if not kind.endswith(("ss", "us", "is")) else kind


def listed_values(text: str) -> list[str]:
    """The values that a text names: in quotes, or in a list after "one of", "e.g." and the like."""
    values = _QUOTED.findall(text)
    for match in _LISTED.finditer(text):
        parts = re.split(r",\s*(?:or |and )?|\s+(?:or|and)\s+|\||\s/\s", match[1].strip())
        parts = [part.strip(" '\"`*<>[]") for part in parts]
        values += [part for part in parts if _BARE.fullmatch(part) and len(part) <= 40]
    return list(dict.fromkeys(value.strip() for value in values if value.strip()))[:_MOST_LISTED]


def named_in(text: str) -> list[str]:
    """The names that a text lists in a sentence: `Mars, Saturn and Uranus`."""
    names: list[str] = []
    for listed in _NAMES.finditer(text):
        names += re.split(r",\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+", listed[0])
    return list(dict.fromkeys(names))[:_MOST_LISTED]


def speaks_of(parameter: str, value: Any, refusal: str) -> bool:
    """Whether a refusal speaks of a parameter or of what was given for it."""
    is_quoted = len(str(value)) > 2 and str(value) in refusal
    return is_quoted or re.search(rf"\b{re.escape(parameter)}\b", refusal) is not None


def is_fault(refusal: str) -> bool:
    """Whether a refusal is what Python or JavaScript says of a program that fails."""
    return _FAULT.search(refusal) is not None


def is_asked_for(parameter: str, refusal: str) -> bool:
    """Whether a refusal says that a parameter should have been given, as programs write that."""
    name = re.escape(parameter)
    if not parameter.isalpha() or not parameter.islower():
        return re.search(rf"\b{name}\b", refusal) is not None
    before = r"\b(?:parameter|param|argument|option|field|property)s?:?\s+"
    after = r"\s+(?:is|was not|must be|needs? to be)\s+(?:required|missing|given|provided|specified|set)\b"
    return re.search(rf"['\"`]{name}['\"`]|{before}{name}\b|\b{name}{after}", refusal) is not None


def tells_the_time(leaves: Iterable[Leaf], tool: str = "") -> bool:
    """Whether a moment of the last minutes stands in an answer, or the day of today where its name, or that
    of the tool, says that it is this: asked again, it will be another one."""
    for leaf in leaves:
        if _NOW.search(_words(f"{tool} {leaf.name}")) and _is_today(leaf.value):
            return True
        try:
            moment = datetime.fromisoformat(str(leaf.value)) if isinstance(leaf.value, str) else None
        except ValueError:
            continue
        if moment is not None and len(str(leaf.value)) > len("2026-01-01T00"):
            now = datetime.now(moment.tzinfo) if moment.tzinfo else datetime.now()
            if abs(now - moment) < timedelta(minutes=2):
                return True
    return False


def _is_today(value: Any) -> bool:
    """Whether a value is a day that it is now somewhere on earth."""
    try:
        return isinstance(value, str) and abs(date.fromisoformat(value) - date.today()) <= timedelta(days=1)
    except ValueError:
        return False
