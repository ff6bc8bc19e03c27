"""The values of a result that can be asked for or passed on: where each stands, and what it is called there.

A result is read as the model is shown it (`core.shown_values`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from mcpagent.core.seeds import derive_seed
from mcpagent.core.shown_values import nested_value, opened_value

Scalar = str | int | float

# Items of a list that are looked into, by how many lists it lies in: of longer ones a sample, from anywhere.
_ITEMS = (200, 24, 6)
SHORT = 80  # characters of a value that can be asked for
_NAME = 60  # and of one by which a thing is called, which has
_WORDS = 5  # words at most
_FIRST = 2  # fields of an item by one of which it is called: others are of it, and differ by chance
_WHOLE = ("@.text", "@.result")  # a text that is all that a result says
_FIELD = re.compile(r"[A-Za-z_]\w*")
_KEYS = "{}"  # ends the expression of the keys of a table
_PLACES = re.compile(r"\[\d+\]")
_NOTHING = ("", "none", "null", "nan", "n/a", "undefined", "true", "false")  # as programs print them


@dataclass(frozen=True)
class Level:
    """A list that a value lies in: its expression `rows`, the name `kind` that it goes by, and the item of
    it, which is number `index` or the `only` one. `called` is the value of the field `key` that tells the
    items apart, if there is one, and `names` are those of all fields that do."""

    rows: str
    kind: str
    index: int
    only: bool = False
    key: str = ""
    called: Scalar | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leaf:
    """One value of a result. `expression` is its reference with `@` for the step, `tail` are the names of the
    fields that lead to it from the result or from the innermost of the lists (`levels`) that it lies in."""

    expression: str
    value: Scalar
    tail: tuple[str, ...] = ()
    levels: tuple[Level, ...] = ()

    @property
    def name(self) -> str:
        """The field that the value is of; empty for an item of a list or a whole text."""
        return self.tail[-1] if self.tail and self.expression not in _WHOLE else ""

    @property
    def holder(self) -> str:
        """What the object or the list that the value stands in goes by; empty if it is the result."""
        return self.tail[-2] if len(self.tail) > 1 else self.levels[-1].kind if self.levels else ""

    @property
    def column(self) -> str:
        """The expression without places: equal for the same field of every item."""
        return column_of(self.expression)

    @property
    def spot(self) -> tuple[Any, ...]:
        """What is equal for a field of one item, wherever that stands; without a name the value itself."""
        items = (level.called if level.key or level.only else self.value for level in self.levels)
        return (self.column, *items)

    def is_of_same(self, leaves: Sequence[Leaf], others: Sequence[Leaf]) -> bool:
        """Return whether nothing that is told next to it (`leaves`) is told otherwise in `others`."""
        record = self.expression.rpartition(".")[0]
        told = {o.name: o.value for o in leaves if o.expression.rpartition(".")[0] == record}
        return all(told.get(o.name, o.value) == o.value for o in others if o.name and not o.is_of_item)

    @property
    def is_of_item(self) -> bool:
        """Whether it is told of one of several items of a list."""
        return any(not level.only for level in self.levels)

    @property
    def is_own_code(self) -> bool:
        """Whether it is the first code of an item that has a name: others may be of what it belongs to."""
        names = self.levels[-1].names if self.levels else ()
        codes = [name for name in names if not is_words(name)]
        return len(codes) < len(names) and codes[:1] == [str(self.value)]

    @property
    def is_key(self) -> bool:
        """Whether the value is the key of a table, which no reference reads."""
        return self.expression.endswith(_KEYS)

    def at_step(self, number: int) -> str:
        """Return the reference to it in the result of that step."""
        return f"${{{self.expression.replace('@', f'step{number}')}}}"


def column_of(expression: str) -> str:
    """Return an expression without places."""
    return _PLACES.sub("[]", expression)


_ROOT = Leaf("@", "")  # the whole of a result


def is_words(value: Any) -> bool:
    """Return whether a value is a few words without digits, as names are, and no code in capitals."""
    if not isinstance(value, str) or re.search(r"[\d\n\"]", value) or value.isupper():
        return False
    is_short = len(value) <= _NAME and len(value.split()) <= _WORDS
    return is_short and value[:1].isalpha() and value[-1:].isalpha()


def leaves_of(value: Any, *, seed: int = 0) -> tuple[Leaf, ...]:
    """Return the values of a result that can be referred to. Of a long list a sample of its items is taken,
    from anywhere in it, the same for the same `seed`."""
    return tuple(_walk(value, _ROOT, seed))


def _walk(value: Any, place: Leaf, seed: int) -> Iterator[Leaf]:
    if isinstance(value, dict):
        told = [item for item in value.values() if not isinstance(item, bool | None)]
        is_wrapper = len(told) == 1 and isinstance(told[0], dict)
        if len(value) > 1 and not any(map(_FIELD.fullmatch, value)):  # {"151252": "Software Developers"}
            yield from (replace(place, expression=f"{place.expression}{_KEYS}", value=key) for key in value)
        for name, item in value.items():
            if _FIELD.fullmatch(name):
                tail = place.tail if is_wrapper else (*place.tail, name)
                below = replace(place, expression=f"{place.expression}.{name}", tail=tail)
                yield from _walk(item, below, seed)
    elif isinstance(value, list):
        yield from _of_list(value, place, seed)
    elif isinstance(value, str):
        # A reference reads it too. In a field one line with a colon is a title more often than a record.
        opens = opened_value if "\n" in value or place.expression in _WHOLE else nested_value
        nested = opens(value)
        if not isinstance(nested, str):
            is_all = place.expression in _WHOLE
            yield from _walk(nested, replace(place, tail=()) if is_all else place, seed)
        elif len(value) <= SHORT and "\n" not in value.strip() and value.strip().casefold() not in _NOTHING:
            yield replace(place, value=value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield replace(place, value=value)


def _of_list(items: list[Any], place: Leaf, seed: int) -> Iterator[Leaf]:
    indices = list(range(len(items)))
    if len(items) > (most := _ITEMS[min(len(place.levels), len(_ITEMS) - 1)]):
        indices = sorted(Random(derive_seed(seed, "items", place.expression)).sample(indices, most))
    fields = _fields_of(items)
    keys = _keys_of(fields)
    called = next((key for key in keys if key in [*items[0]][:_FIRST]), "")
    for index in indices:
        names = tuple(str(fields[key][index]) for key in keys)
        level = Level(place.expression, place.name, index, len(items) == 1, names=names)
        spot = Leaf(f"{place.expression}[{index}]", "", (), (*place.levels, level))
        if not called:
            yield from _walk(items[index], spot, seed)
            continue
        named = level if level.only else replace(level, key=called, called=fields[called][index])
        for name in filter(_FIELD.fullmatch, items[index]):
            itself = level if name == called else named
            below = Leaf(f"{spot.expression}.{name}", "", (name,), (*place.levels, itself))
            yield from _walk(items[index][name], below, seed)


def _fields_of(items: Sequence[Any]) -> dict[str, list[Scalar]]:
    """Return the values of each field that all of the items have a short text or a whole number in."""
    if not items or not all(isinstance(item, dict) for item in items):
        return {}
    told = {name: [item.get(name) for item in items] for name in items[0] if _FIELD.fullmatch(name)}
    return {
        name: values
        for name, values in told.items()
        if all(type(value) in (str, int) and 0 < len(str(value)) <= _NAME for value in values)
    }


def _keys_of(fields: Mapping[str, Sequence[Scalar]]) -> list[str]:
    """Return the fields that tell items apart: first those whose values are words without digits, as names
    are, each group in the order of the server. Names that two fields have are of other things."""
    texts = {name: {str(value).casefold() for value in values} for name, values in fields.items()}
    words = {name: {str(v).casefold() for v in values if is_words(v)} for name, values in fields.items()}
    keys = [
        name
        for name, values in fields.items()
        if len(texts[name]) == len(values)
        and all(words[name].isdisjoint(theirs) for other, theirs in texts.items() if other != name)
    ]
    return sorted(keys, key=lambda name: len(words[name]) < len(texts[name]))
