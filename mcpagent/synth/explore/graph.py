"""What the read-only tools of a server were seen to do: facts, their values, and which feeds which call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from mcpagent.core.placeholders import nested_value
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tools import ToolSpec
from mcpagent.core.values import numbers_in

# Items of a list that are looked into, by how many lists it lies in: of longer ones a sample, from anywhere.
_ITEMS = (200, 24, 6)
_WORDS = 60  # of a text
_SHORT = 60  # characters of a value that can be asked for
_NEAR = 12  # items of a list that a person would count to: "the third ship", not "the 87th ship"
_FIRST = ("first", "second", "third", "fourth", "fifth", "sixth")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(r"[\w/~.](\S*\w)?")  # no bracket, quote or comma at its ends: it can be passed on as it is
_PAIR = re.compile(r"^\s*([A-Za-z][\w .-]{0,30}):\s+(\S+)\s*$")
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
        return re.sub(r"\[\d+\]|, -?\d+(?=\))", "[]", self.expression)

    @property
    def item(self) -> str:
        """The item of a list that the value is a field of: what its expression says before the last place."""
        head, place, _ = self.expression.rpartition("]")
        return head + place


@dataclass(frozen=True)
class _Place:
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
    return list(_walk(value, _Place(), seed))


def _walk(value: Any, place: _Place, seed: int) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for key, item in value.items():
            if _NAME.fullmatch(key):
                below = _Place(
                    f"{place.expression}.{key}", (*place.path, key), key, place.key, place.count, place.depth
                )
                yield from _walk(item, below, seed)
    elif isinstance(value, list):
        yield from _of_list(value, place, seed)
    elif isinstance(value, str):
        nested = nested_value(value)  # a reference reads it too
        yield from _of_text(value, place) if isinstance(nested, str) else _walk(nested, place, seed)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place.leaf(value)


def _of_list(items: list[Any], place: _Place, seed: int) -> Iterator[Leaf]:
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
        counted = f"{_ordinal(index)} {_one_of(kind)}"
        spot = _Place(
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
                under = _Place(expression, (*above, _called(kind, *at)), key=at, count=place.count)
            below = {name: value}
            inner = _Place(expression, under.path, place.name, at, under.count, place.depth + 1)
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
    one = _one_of(kind)
    return (
        f"{one} {value}"
        if key.lower().rpartition("_")[2] in _KEYS
        else f"{one} with the {_words(key)} {value}"
    )


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]", " ", name).lower()


def _of_text(text: str, place: _Place) -> Iterator[Leaf]:
    words = text.split()
    if len(text) <= _SHORT and "\n" not in text.strip() and text.strip():
        yield place.leaf(text)
    if len(words) < 2:
        return
    pairs = {match[2]: match[1] for line in text.splitlines() if (match := _PAIR.match(line))}
    for index, word in enumerate(words[:_WORDS]):
        if not _WORD.fullmatch(word):
            continue
        paired = pairs.get(word)
        yield place.leaf(
            word,
            expression=f"word({place.expression}, {index})",
            label=paired or f"{_ordinal(index)} word of the {place.label}",
            name=paired or "",
            place=place.count if paired else max(place.count, index),
        )
    if numbers := numbers_in(text):
        yield place.leaf(
            numbers[-1],
            expression=f"number({place.expression}, -1)",
            label=f"last number of the {place.label}",
            name="",
        )


_CURSOR = re.compile(r"cursor|page_?token|continuation|starting_?after|^after$", re.I)
_PAGE = re.compile(r"^(page|page_?(no|num|number|index))$", re.I)
_OFFSET = re.compile(r"^(offset|skip|start|start_?(index|at|from)|from_?index)$", re.I)
_LIMIT = re.compile(r"^(limit|page_?size|per_?page|max_?results|count|size|top|first|max_?length)$", re.I)
_NEXT = re.compile(r"^(next|next_?(cursor|token|page|page_?token)|cursor|continuation)$", re.I)
_MORE = re.compile(r"^(has_?more|has_?next(_?page)?|more|is_?truncated)$", re.I)
_TOTAL = re.compile(r"^(total(_?(count|items|results|pages))?|count_?total)$", re.I)


def is_paging(parameter: str) -> bool:
    """Whether a parameter says which part of a list is given, by its name."""
    return any(pattern.search(parameter) for pattern in (_CURSOR, _PAGE, _OFFSET, _LIMIT))


def next_page(parameters: Sequence[str], arguments: JsonObject, value: Any) -> JsonObject | None:
    """The arguments that ask for what follows the answer `value`; None where that was the last page, or none
    of the parameters is for pages."""
    lists = _lists(value)
    said = dict(_scalars_named(value))
    token = next((v for k, v in said.items() if _NEXT.search(k) and v not in (None, "", False)), None)
    more = next((bool(v) for k, v in said.items() if _MORE.search(k)), None)
    total = next((v for k, v in said.items() if _TOTAL.search(k) and isinstance(v, int)), None)
    if more is False or (not lists and token is None):
        return None
    length = max(map(len, lists), default=0)
    for name in parameters:
        if _CURSOR.search(name):
            return None if token is None else {name: token}
    for name in parameters:
        if _PAGE.search(name):
            page = arguments.get(name, 1)
            if (
                (more or token or total)
                and isinstance(page, int)
                and (more or token or page * length < (total or 0))
            ):
                return {name: page + 1}
            return None
    for name in parameters:
        if _OFFSET.search(name):
            start = arguments.get(name, 0)
            if isinstance(start, int) and length and (more or (total or 0) > start + length):
                return {name: start + length}
    return None


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


def _one_of(kind: str) -> str:
    """One thing of a list, by the list's name: `messages` has a `message`."""
    return kind.removesuffix("ies") + "y" if kind.endswith("ies") else kind.removesuffix("s")


SELECT = "SELECT * FROM "  # the statement that is tried where SQL is asked for


@dataclass(frozen=True)
class Fact:
    """A call that gave an answer of its own. `page` is more than 1 where its arguments say how far to go on
    in the answer of a call before it."""

    spec: ToolSpec
    arguments: JsonObject
    leaves: tuple[Leaf, ...]
    page: int = 1

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """(parameter, text) of the arguments, those in lists and objects too."""
        return ((name, item) for name, item in self._scalars() if isinstance(item, str))

    @property
    def numbers(self) -> Iterator[tuple[str, int]]:
        """(parameter, number) of the whole numbers among the arguments."""
        return (
            (name, item)
            for name, item in self._scalars()
            if isinstance(item, int) and not isinstance(item, bool)
        )

    def _scalars(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.arguments.items():
            yield from ((name, item) for item in _scalars(value))


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _scalars(item)
    else:
        yield value


@dataclass(frozen=True)
class Edge:
    """`source` gives the text that is `parameter` of another fact: `leaf`, after `prefix` where that is the
    folder or the like that `source` was asked about."""

    source: Fact
    leaf: Leaf
    parameter: str
    text: str
    prefix: str = ""


def given_by(fact: Fact) -> list[tuple[str | int, Leaf, str]]:
    """(value, leaf, prefix) of what a fact gives to other calls: its texts, its whole numbers, and the paths
    of what is in the folder that it was asked about."""
    given: list[tuple[str | int, Leaf, str]] = [
        (leaf.value, leaf, "") for leaf in fact.leaves if not isinstance(leaf.value, float)
    ]
    folders = [text for _, text in fact.texts if "/" in text and not re.search(r"\s|://", text)]
    for folder in folders:
        prefix = folder.rstrip("/") + "/"
        given += [
            (prefix + text, leaf, prefix)
            for text, leaf, _ in given[: len(fact.leaves)]
            if isinstance(text, str) and not re.search(r"[/\s]", text)
        ]
    return given


@dataclass(frozen=True)
class Silence:
    """Why tools gave nothing: `reason` for a program, `text` for a person, after the tool's name; `detail` is
    what the first of them said."""

    reason: str
    text: str
    tools: tuple[str, ...]
    detail: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        if self.reason == "not_read_only" and len(self.tools) > 1:
            count = f"{len(self.tools)} tools do not say that they only read and were never called"
            return f"{count}: {', '.join(self.tools)}; name those that do with --read-only"
        named = " and ".join(
            [", ".join(self.tools[:-1]), self.tools[-1]] if len(self.tools) > 1 else self.tools
        )
        hint = (
            " and was never called; name it with --read-only if it does"
            if self.reason == "not_read_only"
            else ""
        )
        return f"{named} {self.text}{hint}" + (f" ({self.detail})" if self.detail else "")


@dataclass
class ToolGraph:
    """`facts` by tool, in the order in which they were learned; `not_tried` says why a tool has none. `calls`
    were made to learn them, of which `failed` gave nothing."""

    facts: list[Fact] = field(default_factory=list)
    not_tried: dict[str, str] = field(default_factory=dict)
    silences: list[Silence] = field(default_factory=list)
    calls: int = 0
    failed: int = 0
    _givers: dict[str | int, list[tuple[Fact, Leaf, str]]] = field(default_factory=dict)

    def add(self, fact: Fact) -> None:
        """Keep a fact."""
        self.facts.append(fact)
        for value, leaf, prefix in given_by(fact):
            self._givers.setdefault(value, []).append((fact, leaf, prefix))

    def leave_out(self, silence: Silence) -> None:
        """Note why tools gave nothing, together with others of which the same is to be said."""
        self.not_tried |= dict.fromkeys(silence.tools, silence.text)
        for place, other in enumerate(self.silences):
            if (other.reason, other.text) == (silence.reason, silence.text):
                tools = tuple(sorted((*other.tools, *silence.tools)))
                self.silences[place] = replace(other, tools=tools, detail=other.detail or silence.detail)
                return
        self.silences.append(silence)

    def edges_into(self, fact: Fact) -> list[Edge]:
        """Every way to learn an argument of `fact` from another fact that did not have it to begin with, and
        of which a person could say what it is."""
        edges = [
            Edge(source, leaf, name, text, start + prefix)
            for name, text in fact.texts
            for start in ("", SELECT)
            if text.startswith(start)
            for source, leaf, prefix in self._givers.get(text.removeprefix(start), ())
            if leaf.is_near and source is not fact and text not in {given for _, given in source.texts}
        ]
        for name, number in fact.numbers:
            edges += [
                Edge(source, leaf, name, str(number))
                for source, leaf, _ in self._givers.get(number, ())
                if leaf.is_near
                and source is not fact
                and is_named_alike(leaf.name, name)
                and number not in {given for _, given in source.numbers}
            ]
        return edges

    def tool_edges(self) -> dict[str, dict[str, int]]:
        """`server.tool` -> `server.tool.parameter` -> number of facts that show it."""
        table: dict[str, dict[str, int]] = {}
        for fact in self.facts:
            for edge in self.edges_into(fact):
                row = table.setdefault(edge.source.spec.dotted, {})
                target = f"{fact.spec.dotted}.{edge.parameter}"
                row[target] = row.get(target, 0) + 1
        return table


def name_words(name: str) -> tuple[str, ...]:
    """The words of a field or parameter, each for one thing: `shipIDs` and `ship_id` are `ship`, `id`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+", " ", name)
    return tuple(_one_of(word) if len(word) > 3 or word == "ids" else word for word in spaced.lower().split())


def is_named_alike(field_name: str, parameter: str) -> bool:
    """Whether a field may hold what a parameter asks for, by their names: `id` and `ship_id`, not `id` and
    `limit`."""
    one, other = set(name_words(field_name)), set(name_words(parameter))
    return bool(one) and bool(other) and (one <= other or other <= one)
