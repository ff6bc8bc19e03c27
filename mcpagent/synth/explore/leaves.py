"""The values of a result that can be asked for or passed on: where each stands, and what it is called there.

A result is read as the model is shown it (`core.placeholders.text_value`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from mcpagent.core.seeds import derive_seed
from mcpagent.core.shown_values import nested_value, opened_value
from mcpagent.core.values import as_number, numbers_in

Scalar = str | int | float

# Items of a list that are looked into, by how many lists it lies in: of longer ones a sample, from anywhere.
_ITEMS = (200, 24, 6)
_WORDS, _LONGEST = 300, 8000  # words and characters of a text
_SHORT = 60  # characters of a value that can be asked for
_SENTENCE = 160  # characters of one that tells a number
_TITLE = re.compile(r"[^\W\d_].* .*\w[\W_]*")  # a text of words
_MOST = 0.75  # of the things have a name of their own, if names tell them apart
NEAR = 3  # items of a list without names that a person counts to: "the third comment"
_WHOLE = ("@.text", "@.result")  # a text that is all that a result says
_FIELD = re.compile(r"[A-Za-z_]\w*")
_PLACES = re.compile(r"\[\d+\]|, -?\d+(?=\))")
_WORD = re.compile(r"[\w/~.](\S*\w)?")  # no bracket, quote or comma at its ends: it can be passed on as it is
_NOTHING = frozenset(
    ("", "none", "null", "nil", "nan", "n/a", "na", "undefined", "unknown", "true", "false", "-", "–", "—")
)
# What a person calls a thing by, the best first.
_NAMING = (
    *("name", "title", "label", "full_name", "username", "login"),
    *("symbol", "ticker", "code", "slug", "path", "key", "id"),
)


@dataclass(frozen=True)
class Level:
    """A list that a value lies in: its expression `rows`, the name `kind` that it goes by, and the item of
    it, which is number `index` or the `only` one. If one tells the items apart, `key` is the field that does,
    and `called` its value."""

    rows: str
    kind: str
    index: int
    key: str = ""
    called: Scalar = ""
    only: bool = False


@dataclass(frozen=True)
class Leaf:
    """One value of a result. `expression` is its reference with `@` for the step, `tail` are the names of the
    fields that lead to it from the result or from the innermost of the lists (`levels`) that it lies in. A
    value `in_prose` has no name: it is no answer, but may be what another tool asks for."""

    expression: str
    value: Scalar
    tail: tuple[str, ...] = ()
    levels: tuple[Level, ...] = ()
    in_prose: bool = False

    @property
    def name(self) -> str:
        """The field that the value is of; empty for an item of a list, a whole text or a part of prose."""
        has_name = self.tail and not self.in_prose and self.expression not in _WHOLE
        return self.tail[-1] if has_name else ""

    @property
    def level(self) -> Level | None:
        """The innermost list that the value lies in."""
        return self.levels[-1] if self.levels else None

    @property
    def is_near(self) -> bool:
        """Return True if a person can say which value is meant: one counts to three, in one list at most."""
        counted = [level.index for level in self.levels if not (level.key or level.only)]
        return not self.in_prose and len(counted) <= 1 and all(index < NEAR for index in counted)

    @property
    def column(self) -> str:
        """The expression without places: equal for the same field of every item."""
        return column_of(self.expression)

    @property
    def is_line(self) -> bool:
        """Return True if a line of a text tells the value, after a name."""
        return self.expression.startswith(tuple(f"{whole}." for whole in _WHOLE))

    def at_step(self, number: int) -> str:
        """Return the expression over the result of that step."""
        return at_step(self.expression, number)


def column_of(expression: str) -> str:
    """Return an expression without places."""
    return _PLACES.sub("[]", expression)


def at_step(expression: str, number: int) -> str:
    """Return an expression over the result of that step."""
    return expression.replace("@", f"step{number}")


def leaves_of(value: Any, *, seed: int = 0) -> tuple[Leaf, ...]:
    """Return the values of a result that can be referred to. Of a long list a sample of its items is taken,
    from anywhere in it, the same for the same `seed`."""
    return tuple(leaf for leaf in _walk(value, Leaf("@", ""), seed) if not _says_nothing(leaf.value))


def _says_nothing(value: Scalar) -> bool:
    return isinstance(value, str) and value.strip().casefold() in _NOTHING


def _walk(value: Any, place: Leaf, seed: int) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for name, item in value.items():
            if _FIELD.fullmatch(name):
                below = replace(place, expression=f"{place.expression}.{name}", tail=(*place.tail, name))
                yield from _walk(item, below, seed)
    elif isinstance(value, list):
        yield from _of_list(value, place, seed)
    elif isinstance(value, str):
        # A reference reads it too. In a field one line with a colon is a title more often than a record.
        opens = opened_value if "\n" in value or place.expression in _WHOLE else nested_value
        nested = opens(value)
        if not isinstance(nested, str):
            yield from _walk(nested, place, seed)
        is_line = len(value) <= _SHORT and "\n" not in value.strip() and value[:1] not in ("[", "{")
        if is_line and value.strip() and not isinstance(nested, dict):
            yield replace(place, value=value)
        if isinstance(nested, str):
            yield from _words(value, place)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield replace(place, value=value)


def _of_list(items: list[Any], place: Leaf, seed: int) -> Iterator[Leaf]:
    indices = list(range(len(items)))
    if len(items) > (most := _ITEMS[min(len(place.levels), len(_ITEMS) - 1)]):
        indices = sorted(Random(derive_seed(seed, "items", place.expression)).sample(indices, most))
    keys = _keys_of(items)
    kind = place.tail[-1] if place.tail else ""
    for index in indices:
        level = Level(place.expression, kind, index, only=len(items) == 1)
        spot = Leaf(f"{place.expression}[{index}]", "", (), (*place.levels, level))
        if not keys:
            yield from _walk(items[index], spot, seed)
            continue
        for name, value in items[index].items():
            key = next((k for k in keys if k != name and _as_key(items[index].get(k)) in keys[k]), "")
            named = replace(level, key=key, called=items[index][key]) if key else level
            yield from _walk({name: value}, replace(spot, levels=(*place.levels, named)), seed)


def _keys_of(items: list[Any]) -> dict[str, set[str]]:
    """Return the fields that people call things by, the best first, with their values that only one of these
    items has; if there is none, another text of a few words: the message of a commit."""
    if len(items) < 2 or not all(isinstance(item, dict) for item in items):
        return {}
    keys: dict[str, set[str]] = {}
    for name in sorted(items[0], key=naming_rank):
        texts = [_as_key(item.get(name)) for item in items]
        is_name = is_naming(name) or (not keys and all(map(_TITLE.fullmatch, texts)))
        is_short = all(len(text) <= _SHORT and "\n" not in text for text in texts)
        if is_name and is_short and tells_apart(name, times := Counter(texts)):
            keys[name] = {text for text in times if times[text] == 1 and text}
    return keys


def _as_key(value: Any) -> str:
    is_key = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value).casefold() if is_key else ""


def tells_apart(field: str, times: Counter[str]) -> bool:
    """Return whether a field tells things apart, by how often each of its values is there. Two things of many
    may have one name; other fields that repeat a value name something else."""
    once = sum(1 for value in times if times[value] == 1 and value)
    return once >= (_MOST if naming_rank(field) < len(_NAMING) else 1) * times.total()


def told_number(value: Any, given: Iterable[Any]) -> Iterator[Leaf]:
    """Yield the number that only a result of one sentence tells, as in `The sum of 3 and 5 is 8`."""
    text = next(iter(value.values()), None) if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(text, str) or text.startswith("["):  # what stands for an image
        return
    if len(text) <= _SENTENCE and "\n" not in text.strip():
        numbers, asked = numbers_in(text), {as_number(each) for each in given}
        new = [place for place, number in enumerate(numbers) if number not in asked]
        if len(new) == 1 and text.strip() != str(numbers[new[0]]):
            yield Leaf(f"number(@.{next(iter(value))}, {new[0]})", numbers[new[0]])


def is_naming(field: str) -> bool:
    """Return whether people call a thing by such a field."""
    return naming_rank(field) < 2 * len(_NAMING)


def naming_rank(field: str) -> int:
    """Return how little a field is what people call a thing by: 0 is `name`, 26 is not at all. `owner_name`
    comes after all that can be of no other thing."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-\s]", "_", field).lower()
    if words in _NAMING:
        return _NAMING.index(words)
    last = words.rpartition("_")[2]
    return len(_NAMING) + (_NAMING.index(last) if last in _NAMING else len(_NAMING))


def _words(text: str, place: Leaf) -> Iterator[Leaf]:
    """Yield the words of a text, by which tools may be called."""
    words = text[:_LONGEST].split()
    for at, word in enumerate(words[:_WORDS] if len(words) > 1 and not place.levels else ()):
        if _WORD.fullmatch(word):
            yield replace(place, expression=f"word({place.expression}, {at})", value=word, in_prose=True)
