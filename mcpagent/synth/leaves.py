"""What of a result can be asked for and referred to, and what a person calls it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcpagent.core.numbers import numbers_in

_ITEMS = 12  # of a list that are looked into
_WORDS = 60  # of a text
_SHORT = 60  # characters of a value that can be asked for
_FIRST = ("first", "second", "third", "fourth", "fifth", "sixth")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(r"[\w/~.](\S*\w)?")  # no bracket, quote or comma at its ends: it can be passed on as it is
_PAIR = re.compile(r"^\s*([A-Za-z][\w .-]{0,30}):\s+(\S+)\s*$")


@dataclass(frozen=True)
class Leaf:
    """One value of a result. `expression` is its reference with `@` for the step, `label` its name for a
    person."""

    expression: str
    label: str
    value: str | int | float

    def of_step(self, number: int) -> str:
        return "${" + self.expression.replace("@", f"step{number}") + "}"


def leaves(value: Any) -> list[Leaf]:
    """The values of a result that can be referred to."""
    return list(_walk(value, "@", ()))


def _walk(value: Any, expression: str, path: tuple[str, ...]) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for key, item in value.items():
            if _NAME.fullmatch(key):
                yield from _walk(item, f"{expression}.{key}", (*path, key))
    elif isinstance(value, list):
        *above, kind = path or ("entries",)
        if " " in kind:  # one of a list, and itself a list
            above, kind = [*above, kind], "entries"
        for index, item in enumerate(value[:_ITEMS]):
            yield from _walk(item, f"{expression}[{index}]", (*above, f"{_ordinal(index)} {_one_of(kind)}"))
    elif isinstance(value, str):
        yield from _of_text(value, expression, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield Leaf(expression, _label(path), value)


def _of_text(text: str, expression: str, path: tuple[str, ...]) -> Iterator[Leaf]:
    words = text.split()
    if len(text) <= _SHORT and "\n" not in text.strip() and text.strip():
        yield Leaf(expression, _label(path), text)
    if len(words) < 2:
        return
    pairs = {match[2]: match[1] for line in text.splitlines() if (match := _PAIR.match(line))}
    for index, word in enumerate(words[:_WORDS]):
        if not _WORD.fullmatch(word):
            continue
        label = pairs.get(word) or f"{_ordinal(index)} word of the {_label(path)}"
        yield Leaf(f"word({expression}, {index})", label, word)
    if numbers := numbers_in(text):
        yield Leaf(f"number({expression}, -1)", f"last number of the {_label(path)}", numbers[-1])


def _label(path: tuple[str, ...]) -> str:
    return " of the ".join(part.replace("_", " ") for part in reversed(path)) or "answer"


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
