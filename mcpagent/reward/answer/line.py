"""Find the answer line of a message: exactly one line begins with `Answer:`, and it is the last with text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from mcpagent.core.hidden_text import without_hidden

_LABEL = re.compile(r"[\s>#*_`-]*?([*_`]*)answer([*_`]*):([*_`]*)", re.IGNORECASE)
# What the eye takes for the label too: a second line of it is a second answer.
_LIKE_LABEL = re.compile(r"[\W_]*(?:\d+[.)])?[\W_]*(?:\[[ x]\])?[\W_]*answer[\s*_`~]*:", re.IGNORECASE)
_BLANK = re.compile(r"[\s>#*_`-]*")  # Markdown alone is no text
_AROUND = ("***", "**", "__", "*", "_", "`", '""', "''", "“”", "‘’", "«»")  # alike at both ends, or a pair
_MOST_LAYERS = 6


def answer_values(message: str) -> tuple[str, ...] | None:
    """Return what the answer line gives: as it stands, then without Markdown around it, quotes around it and
    one full stop behind it, a layer at a time. Empty if there are several such lines, or text behind; None if
    there is none."""
    lines = [line for line in message.splitlines() if not _BLANK.fullmatch(line)]
    likely = [line for line in lines if _LIKE_LABEL.match(_seen(line[:200]))]
    labels = [match for line in likely if (match := _LABEL.match(line))]
    if not labels:
        return None
    if len(likely) > 1 or labels[0].string is not lines[-1]:
        return ()
    (label,) = labels
    value = label.string[label.end() :].strip()
    opened, *closed = label.groups()
    if opened and not any(closed):  # **Answer: 42**
        value = value.removesuffix(opened[::-1]).rstrip()
    return tuple(_peeled(value)) if value.strip("*_`") else ()


def _seen(line: str) -> str:
    return unicodedata.normalize("NFKC", without_hidden(line)[0])


def _peeled(value: str) -> Iterator[str]:
    has_stop = False
    for _ in range(_MOST_LAYERS):
        yield value
        bare = _without_layer(value)
        if bare == value and value.endswith(".") and not has_stop:
            bare, has_stop = value[:-1].rstrip(), True
        if bare in (value, ""):
            return
        value = bare


def _without_layer(value: str) -> str:
    for marks in _AROUND:
        first, last = (marks[0], marks[1]) if len(marks) == 2 and marks[0] not in "*_" else (marks, marks)
        if len(value) > len(first + last) and value.startswith(first) and value.endswith(last):
            return value[len(first) : -len(last)].strip()
    return value
