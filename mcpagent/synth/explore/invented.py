"""Names of things that do not exist, of the same kind as those that do: what a near miss is about, and what
something new is called."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from random import Random

from mcpagent.core.values import scalars
from mcpagent.synth.explore.candidates import value_form
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.explore.paging import is_paging
from mcpagent.synth.explore.questions import is_choice
from mcpagent.synth.explore.subjects import Subjects
from mcpagent.synth.explore.words import FREE_TEXT, spaced
from mcpagent.synth.tasks.run import replaced_in

LEAST_KNOWN = 3  # names of a kind, before one can be invented that looks like them
_TRIES = 24
_TOO_LIKE = 0.85  # a name that differs by a letter is a slip of the pen, and means the real thing
_PARTS = re.compile(r"[^\W\d_]+|\d+|[\W_]+")
_MOST_PARTS = 4  # in which names differ: of more it is a sentence
_SHORTEST = 3  # letters of a word of which a part is a beginning
_NO_NAMES = frozenset(("url", "date", "time", "timezone"))


def invented_like(names: Sequence[str | int], taken: Collection[str], rng: Random) -> str | int | None:
    """Return a value that looks like those of `names` and is not in `taken` (in small letters); None if they
    have nothing in common that could be made again."""
    for _ in range(_TRIES if len(names) >= LEAST_KNOWN else 0):
        one = rng.choice(names)
        if isinstance(one, int):  # beyond what may be counted through, or of as many digits
            highest = max(each for each in names if isinstance(each, int))
            made: str | int | None = highest + rng.randint(1, max(9, highest // 2))
        else:
            made = _name(one, [other for other in names if isinstance(other, str) and other != one], rng)
        if made is not None and str(made).casefold() not in taken:
            return made
    return None


def _name(one: str, others: Sequence[str], rng: Random) -> str | None:
    """Return `one` with other digits, the last word of another name, or of a single word the beginning with
    the end of another. What all names share, such as a folder or an ending, stays."""
    if value_form(one) in _NO_NAMES:
        return None
    parts = _PARTS.findall(one)
    alike = [theirs for other in others if len(theirs := _PARTS.findall(other)) == len(parts)]
    places = [n for n, part in enumerate(parts) if part.isalnum() and any(t[n] != part for t in alike)]
    if not 0 < len(places) <= _MOST_PARTS:
        return None
    digits, last = [n for n in places if parts[n].isdigit()], places[-1]
    word, other = parts[last], rng.choice(alike)[last]
    if digits:
        for n in digits:
            parts[n] = "".join(rng.choice("123456789") for _ in parts[n])
    elif len(places) > 1:
        parts[last] = other
    elif len(word) > _SHORTEST - word.isupper():
        least = 1 if word.isupper() else 2
        cut = rng.randint(least, len(word) - 1)
        mixed = word[:cut] + other[-max(least, len(other) - cut) :]
        parts[last] = mixed[: len(word)] if word.isupper() else mixed
    words = [word.casefold(), *(theirs[last].casefold() for theirs in alike)]
    is_mixed = not digits and len(places) == 1 and not word.isupper()
    is_slip = is_mixed and difflib.get_close_matches(parts[last].casefold(), words, 1, _TOO_LIKE)
    return None if is_slip else "".join(parts)


class Inventor:
    """Calls about things that there are not. Their names are made from those that `facts` were asked about,
    and are nowhere in `everything`."""

    def __init__(self, facts: Sequence[Fact], everything: Sequence[Fact]) -> None:
        self._facts, self._everything = facts, everything
        self._subjects = Subjects(everything)

    @cached_property
    def taken(self) -> set[str]:
        """Every value that is known, in small letters."""
        return known_values(self._everything)

    def unlike(self, fact: Fact, rng: Random) -> tuple[Fact, str] | None:
        """Return the call about a thing that there is not, of which nothing is told, and what that is
        called."""
        real = self._name(fact)
        names = dict.fromkeys(self._name(other) for other in self._facts if other.spec is fact.spec)
        value = invented_like([name for name in names if name is not None], self.taken, rng)
        if real is None or value is None:
            return None
        return Fact(fact.spec, replaced_in(fact.arguments, str(real), value)), str(value)

    def also(self, fact: Fact, name: str) -> list[Fact]:
        """Return the same of every other tool that was asked about things of the kind of that of `fact`."""
        kind = {str(self._name(other)) for other in self._everything if other.spec is fact.spec}
        made: dict[str, Fact] = {}
        for other in self._everything:
            real = None if other.spec.dotted in (fact.spec.dotted, *made) else self._name(other)
            if real is not None and str(real) in kind:
                value = int(name) if isinstance(real, int) and name.isdigit() else name
                made[other.spec.dotted] = Fact(other.spec, replaced_in(other.arguments, str(real), value))
        return list(made.values())

    def _name(self, fact: Fact) -> str | int | None:
        """Return what the thing that a call is about is called; None if it is not by a name."""
        parameter = self._subjects.parameter_of(fact)
        given = list(scalars(fact.arguments.get(parameter)))
        is_name = not (set(spaced(parameter).split()) & FREE_TEXT or is_choice(fact.spec, parameter))
        if not is_name or len(given) != 1 or is_paging(parameter, given[0]):
            return None
        return given[0] if isinstance(given[0], str | int) else None


def known_values(facts: Iterable[Fact]) -> set[str]:
    """Return every value that is known, in small letters."""
    values = (v for fact in facts for v in (*scalars(fact.arguments), *(leaf.value for leaf in fact.leaves)))
    return {str(value).casefold() for value in values}
