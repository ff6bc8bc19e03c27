"""Names of people and things in canonical text, in the ways in which they are said."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

from mcpagent.reward.text.amounts import amounts
from mcpagent.reward.text.canonical import LEGAL, canonical
from mcpagent.reward.text.moments import Span
from mcpagent.reward.text.words import WORDS

UNSAID = frozenset(WORDS["titles"].split())
_TOKEN = re.compile(r"[^\W_]+(?:\+{1,2}(?!\w)|#|(?<=\b[A-Z])[-−](?![\w-]))?")
_LETTERS = str.maketrans({"ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i"})
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe"})
_WEEKDAY_NAME = re.compile(r"(mon|tue|wed|thu|fri|sat|sun)(?:s|nes|rs?|ur)?(?:days?)?")
_VERSION = re.compile(r"v\d+")
_VERSION_OF = re.compile(r"([a-z]{2,}?)(v?)(\d+\.\d.*)")  # TLSv1.3
_TITLES = re.compile(r"(?:[^\W\d_]{2,5}\.(?:\s+|(?=[A-Z])))+(?=[^\W\d_])")  # no part of a host's name
_HOUSE_LAST = re.compile(r"([A-ZÀ-Þ]\D+) (\d+[a-z]?),(.+)")  # Rue Vautier 27, Carouge
_FILE = re.compile(r"\w+[^\s\w]\w")  # a.txt has no article
_APART = re.compile(r"(?<=\d)[,;](?=\s*v?\d)")
_OPERATOR, _FORMULA = re.compile(r"[-+*/=<>]"), re.compile(r"[\w)] ?[+*^=] ?[\w(]")
# Two parts that are also said the other way round.
_SWAPPED = (
    re.compile(r"([^()]+) \(([^()\d]+)\)"),  # wheelbarrow (red)
    re.compile(r"([a-z]+), ([a-z]+)"),  # glove, left
    re.compile(r"([^,]+ [^,]+), ([^,]+ [^,]+)"),  # Old Hall, room 2: room 2 of the Old Hall
    re.compile(r"([a-z ]+) (?:in|for|of|with|at|on) ([a-z ]+)"),  # shower in compartment
    re.compile(r"([a-z ]+) ([A-Z]+-?\d+)"),  # derailleur hanger PH-17
)
_GENITIVE = re.compile(r"(.+) of (.+)")
_DOTTED = re.compile(r"[a-z]+(?:[._](?:in|on|at|of|with|and|but|the|is))")  # returns.in is not returns.out
_EMAIL = re.compile(r"[^\s@]+@[^\s@]+\.[^\W\d]+")  # but no checkout-web@4.12.1
_SIGNS = {"+": ("plus", "positive"), "-": ("minus", "negative")}
_LEADING_MARKS = re.compile(r"[^\w\s]+(?=\w)")
_BETWEEN_WORDS = frozenset(
    ("and", "but", "on", "in", "at", "of", "the", "with", "number", "is", "are", "was", "were")
)


def words(text: str) -> list[str]:
    """The words and numbers of canonical `text`, without letter case and diacritics."""
    return [word for word, _, _ in _tokens(text)]


@lru_cache(maxsize=4096)
def _tokens(text: str, umlauts: bool = False) -> tuple[tuple[str, int, int], ...]:
    return tuple((_folded(m[0], umlauts), m.start(), m.end()) for m in _TOKEN.finditer(text))


def _folded(word: str, umlauts: bool = False) -> str:
    word = word.casefold()
    if word.isascii():
        return word[1:] if _VERSION.fullmatch(word) else word
    if umlauts:
        word = word.translate(_UMLAUTS)
    bare = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
    return bare.translate(_LETTERS)


def name_spans(value: str, text: str) -> list[Span]:
    """Return where canonical `text` has a name: its words in order, whatever stands between them, letter case
    and diacritics apart. "Tom Weiss" is tom.weiss, "Fire and Flying" is "Fire, Flying", and a title, a legal
    form or the order of a person's names is not a part of it."""
    if not value.strip():
        return []  # what is left of "/" without the words that its like have
    if not _tokens(value) or _EMAIL.fullmatch(value) or _DOTTED.fullmatch(value):  # and a path such as "/"
        exact = rf"(?<![\w/.\0-]){re.escape(value)}(?![\w/\0-]|\.\w)"
        return [m.span() for m in re.finditer(exact, text, re.IGNORECASE)]
    spans: list[Span] = []
    read = {_tokens(text, umlauts) for umlauts in (False, not text.isascii())}  # "Åsen" is Aasen too
    for form, is_rotated in _spellings(value):
        if is_rotated and spans:
            continue  # "Ramon Rossi, Ingrid Rossi" has no "Rossi, Ingrid"
        apart = r"[/;&|\n\0]|\band\b" if is_rotated else r"\0"
        runs = [run for tokens in read for run in _runs(form, tokens)]
        spans += [(a, b) for a, b in runs if not re.search(apart, text[a:b])]
    if not _APART.search(value):  # "v1.1, v1.2" has no 1.1.1
        spans = [(a, b) for a, b in spans if not _APART.search(text[a:b])]
    if _FORMULA.search(value):  # x + 1 is no x - 1
        marks = _OPERATOR.findall(value)
        spans = [(a, b) for a, b in spans if _OPERATOR.findall(text[a:b]) == marks]
    if lead := _LEADING_MARKS.match(value):  # ">=0.9", "/etc"
        marks = re.compile(rf"{re.escape(lead[0])} ?$")
        leads = [marks.search(text[:start]) for start, _ in spans]
        spans = [(before.start() if before else a, b) for before, (a, b) in zip(leads, spans, strict=True)]
    return _outermost(spans)


@lru_cache(maxsize=4096)
def _spellings(value: str) -> tuple[tuple[str, bool], ...]:
    """The ways to say a name, each as its words put together, and whether the last ones come first in it."""
    spellings: dict[tuple[str, bool], None] = {}
    for umlauts in (False, True) if not value.isascii() else (False,):
        tokens = [american(word) for word, _, _ in _tokens(canonical(value), umlauts)]
        spellings |= {(form, False): None for form in _forms(tokens, value) if form}
        spellings |= {(form, True): None for form in _rotations(tokens, value)}
    return tuple(spellings)


def _forms(tokens: list[str], value: str) -> Iterator[str]:
    """The ways to say a name, each as its words put together: all of it, and without titles and the like."""
    for some in (tokens, _bare_name(tokens, value)):
        yield _put_together(word for word in some if word not in _BETWEEN_WORDS) or _put_together(some)
    if (
        len(tokens) > 1
        and len(tokens[-1]) > 1  # not Field A
        and re.fullmatch(r"(?:[A-Z][^\W\d_]*\.?[ -]?)+", value)
        and not re.match("[A-Z]{2}", value)
    ):
        yield "".join(word[0] for word in tokens[:-1]) + tokens[-1]  # J. S. Bach
        whole = [word for word in tokens if len(word) > 1 and word not in UNSAID]
        if len(whole) > 1 or "." in value:  # an initial is left out, but not the class of "M Open"
            yield "".join(whole)
    if len(tokens) == 1 and (sign := _SIGNS.get(tokens[0][1:])):  # A minus, B negative
        yield from (tokens[0][0] + word for word in sign)
    if version := _VERSION_OF.fullmatch(_put_together(tokens)):
        yield version[1] + ("" if version[2] else "v") + version[3]  # TLS 1.3
    if address := _HOUSE_LAST.fullmatch(value):
        street, house, place = map(words, address.groups())
        yield _put_together(map(american, [*house, *street, *place]))
    if bare := re.fullmatch(r"[A-Z\d] ?[-–—:] ([a-z ]+)|https?://(.+?)/?", value):  # B - light wear
        yield _put_together(map(american, words(bare[1] or bare[2])))
    if re.search(r"\d \d", value):  # DE 09 487
        yield "".join(tokens)
    if of := _GENITIVE.fullmatch(value):  # Lear's daughters
        thing, owner = map(words, of.groups())
        yield _put_together(map(american, [*owner, "s", *thing]))
    if re.fullmatch(r"[A-Z][a-z]+ [a-z]{4,}", value):  # T. uncinatum
        yield tokens[0][0] + tokens[1]
    if re.fullmatch(r"[a-df-z]-[^\W\d_]{4,}", value):
        yield tokens[-1]  # hexane of n-hexane
    if len(tokens) > 1 and value.islower() and value.replace(" ", "").isalpha():
        yield "".join(tokens) + "s"  # leopard sharks
        yield "".join(tokens[::-1]) + "s"  # a list of medications
        # "bleeding the front brake"
        yield from (tokens[0].removesuffix("e") + ending + "".join(tokens[1:]) for ending in ("ing", "ed"))
    if len(tokens) == 1 and len(value) > 2 and value.isalpha() and not value.istitle():
        yield from (tokens[0] + ending for ending in ("ed", "d", "s", "ful"))  # "pass": it passed


def _put_together(some: Iterable[str]) -> str:
    """Words without what stands between them, but for numbers: 3.11.2 is not 3.1.12."""
    return re.sub(r"(?<=\d) (?=\d)", ".", " ".join(some)).replace(" ", "")


def _bare_name(tokens: list[str], value: str) -> list[str]:
    abbreviated = len(re.findall(r"\w+", match[0])) if (match := _TITLES.match(value)) else 0
    tokens = tokens[min(abbreviated, len(tokens) - 1) :]
    while len(tokens) > 1 and tokens[0] in UNSAID and not _FILE.match(value):
        tokens = tokens[1:]
    if len(tokens) > 1 and re.match(r"[A-Z]\. ?[^\W\d]{2}", value):
        tokens = tokens[1:]
    while len(tokens) > 1 and tokens[-1] in LEGAL and value[:1].isupper():
        tokens = tokens[:-1]
    return tokens


def _rotations(tokens: list[str], value: str) -> Iterator[str]:
    """A person's names with the last ones first, a thing with its measure first, and what is `_SWAPPED`."""
    bare = _bare_name(tokens, value)
    is_made = len(bare) == 2 and value[:1].isupper() and re.search(r"\d", bare[1])  # QA23 (Lalvin)
    for pattern in _SWAPPED:
        if parts := pattern.fullmatch(value):
            yield _put_together(map(american, [*words(parts[2]), *words(parts[1])]))
    is_person = is_made or (
        2 <= len(bare) <= 4 and value[:1].isupper() and all(word.isalpha() for word in bare)
    )
    is_plain = 3 <= len(bare) <= 5 and value.islower()
    if is_person or (is_plain and amounts(canonical(value))):  # hex key 5 mm
        for at in range(1, len(bare)):
            yield "".join(bare[at:] + bare[:at])
    elif is_plain and value.replace(" ", "").isalpha():
        yield "".join(bare[-1:] + bare[:-1])  # "rear tyre worn": a worn rear tyre


def _outermost(spans: list[Span]) -> list[Span]:
    """Spans that are not within others, in order."""
    outermost: list[Span] = []
    for start, end in sorted(set(spans), key=lambda span: (span[0], -span[1])):
        if not outermost or end > outermost[-1][1]:
            outermost.append((start, end))
    return outermost


def _runs(joined: str, tokens: tuple[tuple[str, int, int], ...]) -> Iterator[Span]:
    """Runs of tokens that are `joined` put together, in British or American spelling; small words between
    them are read over."""
    for first, (word, start, _) in enumerate(tokens):
        if not joined.startswith(american(word)) or (word in _BETWEEN_WORDS and joined != word):
            continue
        rest, last = joined, ""
        for other, _, end in tokens[first:]:
            part = "." * (rest[:1] == ".") + american(other)
            # "load1: 5" is no load15.
            is_split = last[-1:].isdigit() and not last.isdigit() and part[0].isdigit()
            if rest.startswith(part) and not is_split and not (other in _BETWEEN_WORDS and rest != joined):
                rest, last = rest[len(part) :], part
            elif other not in _BETWEEN_WORDS:
                break
            if not rest:
                yield start, end
                break


def is_weekday(word: str) -> bool:
    """Return whether a word is a day of the week."""
    return _WEEKDAY_NAME.fullmatch(word.casefold()) is not None


@lru_cache(maxsize=4096)
def american(word: str) -> str:
    """Return a word in a spelling that is the same for all; a weekday as its first three letters."""
    if weekday := _WEEKDAY_NAME.fullmatch(word):
        return weekday[1]
    for british, american in WORDS["american"].items():
        word = word.replace(british, american)
    return word
