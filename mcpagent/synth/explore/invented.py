"""Names of things that do not exist, of the same kind as those that do: what a near miss is about, and what
something new is called."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from random import Random

from mcpagent.synth.explore.answers import is_paging
from mcpagent.synth.explore.candidates import argument_shape, value_form
from mcpagent.synth.explore.graph import Fact, scalars
from mcpagent.synth.explore.naming import CODE, lexicon, spaced
from mcpagent.synth.explore.wording import replaced_in

LEAST_KNOWN = 3  # names of a kind, before one can be invented that looks like them
_TRIES = 24
_MOST_WORDS = 4  # of a name; what is longer is a sentence
_TOO_LIKE = 0.85  # a name that differs by a letter is a slip of the pen, and means the real thing
_WORD = re.compile(r"[^\W\d_]{3,}(?:'[^\W\d_]+)?")
_VOWELS = frozenset("aeiouyäöüåøæéèáóíú")
_NUMBERED = re.compile(r"\d")
# Forms of values that cannot name what does not exist, or that a sentence does not hold.
_NO_NAMES = frozenset(("url", "date", "time", "date-time", "timezone", "mime", "color", "uuid"))


def invented_like(names: Sequence[str | int], taken: Collection[str], rng: Random) -> str | int | None:
    """A value that looks like those of `names` and is not in `taken` (in small letters); None where they have
    nothing in common that could be made again."""
    if len(names) < LEAST_KNOWN:
        return None
    for _ in range(_TRIES):
        made = _made(names, rng)
        if made is not None and str(made).casefold() not in taken:
            return made
    return None


def _made(names: Sequence[str | int], rng: Random) -> str | int | None:
    one = rng.choice(names)
    if isinstance(one, int):
        return _number(one, names, rng)
    others = [other for other in names if isinstance(other, str) and other != one]
    form = value_form(one)
    if form in _NO_NAMES or not others:
        return None
    if form == "email":
        local, _, host = one.partition("@")
        made = _name(local, [other.partition("@")[0] for other in others], rng)
        return made and f"{made}@{host}"
    if form == "path":
        return _path(one, others, rng)
    return _name(one, others, rng)


def _number(one: int, names: Sequence[str | int], rng: Random) -> int:
    """One of as many digits; of small numbers, which may be counted through, one beyond them."""
    highest = max(each for each in names if isinstance(each, int))
    if abs(highest) < 1000:
        return highest + rng.randint(1, max(9, highest // 2))
    digits = len(str(abs(one)))
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


def _path(one: str, others: Sequence[str], rng: Random) -> str | None:
    """Another file of the same folder, of the same type."""
    folder, _, name = one.rpartition("/")
    stem, dot, ending = name.partition(".")
    stems = [other.rpartition("/")[2].partition(".")[0] for other in others]
    made = _name(stem, [other for other in stems if other != stem], rng)
    return made and f"{folder}/{made}{dot}{ending}" if folder else made and f"{made}{dot}{ending}"


def _name(one: str, others: Sequence[str], rng: Random) -> str | None:
    """A code with other digits, the beginning of a name with the end of another, or two words in one."""
    if CODE.fullmatch(one) or (_NUMBERED.search(one) and " " not in one):
        alike = [other for other in others if len(other) == len(one)]
        return "".join(
            rng.choice("123456789" if character != "0" else "0123456789")
            if character.isdigit() and (not alike or any(other[place] != character for other in alike))
            else character  # what all of them share belongs to the kind
            for place, character in enumerate(one)
        )
    words = one.split()
    if not words or len(words) > _MOST_WORDS or not all(_WORD.fullmatch(word) for word in words):
        return None
    alike = [split for other in others if len(split := other.split()) == len(words)]
    alike = [split for split in alike if all(_WORD.fullmatch(word) for word in split)]
    if not alike:
        return None
    if len(words) == 1:
        made = _blended(one, rng.choice(alike)[0], rng)
    else:
        made = " ".join([*words[:-1], rng.choice(alike)[-1]])
    return made if made and not _is_slip(made, [one, *others]) else None


def _blended(one: str, other: str, rng: Random) -> str | None:
    """The head of a word and the tail of another, where a vowel and a consonant meet; in capitals, where any
    letters do."""
    if one.isupper() and other.isupper():
        cut = rng.randint(1, len(one) - 1)
        return one[:cut] + other[-(len(one) - cut) :]
    joints = [
        (head, tail)
        for head in range(2, len(one) - 1)
        for tail in range(2, len(other) - 1)
        if (one[head - 1].lower() in _VOWELS) != (other[tail].lower() in _VOWELS)
        and 4 <= head + len(other) - tail <= 12
    ]
    if not joints:
        return None
    head, tail = rng.choice(joints)
    return one[:head] + other[tail:].lower()


def _is_slip(made: str, names: Sequence[str]) -> bool:
    """Whether a person would take the name for a real one, written wrongly."""
    lowered = [each.casefold() for each in names]
    return bool(difflib.get_close_matches(made.casefold(), lowered, 1, _TOO_LIKE))


class Inventor:
    """Calls about things that there are not. Their names are made from those that `facts` were asked about,
    and are nowhere in `everything`."""

    def __init__(self, facts: Sequence[Fact], everything: Sequence[Fact]) -> None:
        self._known = _values(facts)
        self._everything = everything

    @cached_property
    def taken(self) -> set[str]:
        """Every value that is known, in small letters."""
        values = (
            value
            for fact in self._everything
            for value in (*scalars(fact.arguments), *(leaf.value for leaf in fact.leaves))
        )
        return {str(value).casefold() for value in values}

    def unlike(self, fact: Fact, rng: Random) -> tuple[Fact, str] | None:
        """The call about a thing that there is not, of which nothing is told, and what that is called."""
        parameter = self._naming_parameter(fact)
        if parameter is None:
            return None
        value = invented_like(list(self._known.get((fact.spec.dotted, parameter), ())), self.taken, rng)
        return None if value is None else (_about(fact, parameter, value), str(value))

    def also(self, fact: Fact, name: str) -> list[Fact]:
        """The same of every other tool that was asked about things of the kind of that of `fact`."""
        parameter = self._naming_parameter(fact)
        kind = set(map(str, self._all_known.get((fact.spec.dotted, parameter or ""), ())))
        made: dict[str, Fact] = {}
        for other in self._everything:
            theirs = None if other.spec.dotted in (fact.spec.dotted, *made) else self._naming_parameter(other)
            values = self._all_known.get((other.spec.dotted, theirs or ""), {})
            if theirs is None or set(map(str, values)).isdisjoint(kind):
                continue
            (real,) = scalars(other.arguments[theirs])
            value = int(name) if isinstance(real, int) and name.isdigit() else name
            made[other.spec.dotted] = _about(other, theirs, value)
        return list(made.values())

    @cached_property
    def _all_known(self) -> dict[tuple[str, str], dict[str | int, None]]:
        return _values(self._everything)

    def _naming_parameter(self, fact: Fact) -> str | None:
        """The parameter that names what a call is about: that of which the most values are known."""
        closed = {slot.parameter for slot in argument_shape(fact.spec).slots if slot.schema.get("enum")}
        names = [
            name
            for name, value in fact.arguments.items()
            if name not in closed
            and not is_paging(name, value)
            and not set(spaced(name).split()) & lexicon("not_a_noun")
            and len(list(scalars(value))) == 1
        ]
        values = self._all_known
        return max(names, key=lambda name: len(values.get((fact.spec.dotted, name), ())), default=None)


def _values(facts: Iterable[Fact]) -> dict[tuple[str, str], dict[str | int, None]]:
    """By tool and parameter, the texts and whole numbers that it was given, in order."""
    values: dict[tuple[str, str], dict[str | int, None]] = {}
    for fact in facts:
        for parameter, argument in fact.arguments.items():
            given = [v for v in scalars(argument) if isinstance(v, str | int) and not isinstance(v, bool)]
            values.setdefault((fact.spec.dotted, parameter), {}).update(dict.fromkeys(given))
    return values


def _about(fact: Fact, parameter: str, value: str | int) -> Fact:
    (before,) = scalars(fact.arguments[parameter])
    changed = replaced_in(fact.arguments[parameter], str(before), value)
    return Fact(fact.spec, {**fact.arguments, parameter: changed}, ())
