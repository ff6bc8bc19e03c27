"""Find the answer line of a message: exactly one line begins with `Answer:`, and it is the last with text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARKS = "*_`"
_LABEL = re.compile(r"[\s>#*_`-]*answer[*_`]*:[*_`]*", re.IGNORECASE)
_BLANK = re.compile(r"[\s>#*_`-]*")  # Markdown alone is no text
_QUOTES = ('""', "''", "“”", "‘’", "«»")


def answer_values(message: str) -> tuple[str, ...] | None:
    """Return what the answer line gives: as it stands, then without Markdown around it, quotes around it and
    one full stop behind it. Empty if there are several such lines, or text behind; None if there is none."""
    lines = [line for line in message.splitlines() if not _BLANK.fullmatch(line)]
    labels = [match for line in lines if (match := _LABEL.match(line))]
    if not labels:
        return None
    if len(labels) > 1 or labels[0].string is not lines[-1]:
        return ()
    value = lines[-1][labels[0].end() :].strip()
    return tuple(_peeled(value)) if value.strip(_MARKS) else ()


def _peeled(value: str) -> Iterator[str]:
    has_stop = False
    while value:
        yield value
        bare = value.strip(_MARKS).strip()
        if bare == value and len(value) > 1 and value[0] + value[-1] in _QUOTES:
            bare = value[1:-1].strip()
        if bare == value and value.endswith(".") and not has_stop:
            bare, has_stop = value[:-1].rstrip(), True
        if bare == value:
            return
        value = bare
