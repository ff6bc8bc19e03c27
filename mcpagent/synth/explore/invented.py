"""Names of things that do not exist, of the same kind as those that do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from random import Random

from mcpagent.core.values import scalars
from mcpagent.synth.explore.graph import Fact

_LEAST = 3  # names of a kind, before one can be invented that looks like them
_TRIES = 24
_TOO_LIKE = 0.85  # a name that differs by a letter is a slip of the pen, and means the real thing


def invented_like(names: Sequence[str | int], taken: Collection[str], rng: Random) -> str | int | None:
    """Return a value that looks like those of `names` and is not in `taken` (in small letters); None if they
    have nothing in common that could be made again."""
    texts = [name for name in dict.fromkeys(names) if isinstance(name, str)]
    head = _shared(texts)
    end = _shared([text[len(head) :][::-1] for text in texts])[::-1]  # a folder, an ending
    highest = max((name for name in names if isinstance(name, int)), default=0)
    parts = [text[len(head) : len(text) - len(end)] for text in texts]
    for _ in range(_TRIES if len(set(names)) >= _LEAST else 0):
        made: str | int = highest + rng.randint(2, max(9, highest // 2))  # beyond what may be counted through
        if len(texts) >= _LEAST:
            one, other = rng.sample(parts, 2)
            part = _name(one, other, rng)
            is_slip = difflib.get_close_matches(part.casefold(), map(str.casefold, parts), 1, _TOO_LIKE)
            made = "" if is_slip and part.isalpha() else f"{head}{part}{end}"
        if made and str(made).casefold() not in taken:
            return made
    return None


def _shared(texts: Sequence[str]) -> str:
    """Return what all of the texts begin with."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in alike)


def _name(one: str, other: str, rng: Random) -> str:
    """Return `one` with other digits, with the last word of the other, or a single word with its end."""
    if re.search(r"\d", one):
        return re.sub(r"\d", lambda _: rng.choice("123456789"), one)
    first, _, last = one.rpartition(" ")
    theirs = other.rpartition(" ")[2]
    if first:
        return f"{first} {theirs}"
    cut = rng.randint(min(2, len(last) - 1), max(2, len(last) - 1))
    return last[:cut] + theirs[-max(2, len(theirs) - cut) :]


def known_values(facts: Iterable[Fact]) -> set[str]:
    """Return every value that is known, in small letters."""
    values = (v for fact in facts for v in (*scalars(fact.arguments), *(leaf.value for leaf in fact.leaves)))
    return {str(value).casefold() for value in values}
