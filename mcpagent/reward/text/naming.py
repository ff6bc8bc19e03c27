"""Names said otherwise than written: enumerations in words, parts of names, options by their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import as_number
from mcpagent.reward.text.amounts import amounts
from mcpagent.reward.text.canonical import LEGAL, canonical
from mcpagent.reward.text.moments import Span
from mcpagent.reward.text.names import UNSAID, words
from mcpagent.reward.text.phrasing import AnswerContext
from mcpagent.reward.text.rates import EVERY, PERIODS
from mcpagent.reward.text.reading import spans_of
from mcpagent.reward.text.shown import shown_leaves
from mcpagent.reward.text.vocabulary import BLANK, FUNCTION_WORDS, NEGATED, SAFE, stem, stems

_BETWEEN_STEMS = frozenset({*FUNCTION_WORDS, "it", "yet", "still", "also", "to", "be", "being"}) - {"or"}
_NAME_BEFORE, _NAME_AFTER = (
    re.compile(r"(?:(?:\b[A-Z][\w']*[.]?|\0)[ -]+(?:(?:d[aeiu]|d[eo]s|v[ao]n|de[nr]|la)[ -]+)*)+$"),
    re.compile(r"(?:(?: d[aeiu]| d[eo]s| v[ao]n| de[nr]| la)*[ -]+(?:[A-Z][\w']*|\0))+"),
)
_LONG = 4  # words: what is longer is no name
_CAPITALISED = re.compile(r"(?:[A-Z][^\W\d_]+ ){1,3}[A-Z][^\W\d_]+")
_MEASURE = re.compile(
    r"(?<=[^\W\d_]{3}) (?:(\d+(?:[.,]\d+)?) ?(?:%|[a-zµ]{1,3}(?:/[a-z]{1,2}[²³23]?)?)|\([^()]*\))$"
)
_RANGE = re.compile(r"(\d+) ?(?:-|to) ?(\d+)")
_NEXT_NUMBER = re.compile(r"[\s,]*(\d[\d.,]*)\s?([^\W\d_]*)")
_ENUMERATED = re.compile(r"[a-z]+(?:_[a-z0-9]+|-[a-z]+)*|[A-Z]+(?:_[A-Z0-9]+)*|[a-z]+(?:[A-Z][a-z]+)+")
_POINTS = {"N": "north", "E": "east", "S": "south", "W": "west"}
_COMPASS = re.compile(r"[NESW]|[NS][EW]|[NS][NS][EW]|[EW][NS][EW]")
_PREFIXED = re.compile(r"([^\W\d_](?:.*\D)?)(\d{2,})")
_MARKED_START = re.compile(r"^(?:[^\W\d_]+[_:/])+(?=\w\w)")
_MARKED_END = re.compile(r"(?<=\w\w)_[^\W\d_]+$")
_VERBS = r"(?:is|was|has|and|or)\b"
_ENDING = re.compile(r"s|ed|ing|ment|er|or|able|ly")
_NOUN_OF_VERB = re.compile(r"^[a-z]{3,}(?:ure|ess|ion|al|ing|ment)$")
_UNDOUBLED = re.compile(r"([b-df-hj-np-tv-z])\1(ing|ed)$")  # dropping
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_PARTED = re.compile(r"\W+")
_ORDINALS = (("first", "former", "1st"), ("second", "latter", "2nd"), ("third", "3rd"), ("fourth", "4th"))


def named_spans(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Return where canonical `text` says a name: as it is written, else in other words."""
    return (
        number_range_spans(name, text)
        or spans_of(name, text)
        or worded_spans(name, text)
        or _with_heard_words(name, text, context)
        or without_measure(name, text, context)
        or _own_words(name, text, context)
        or _inflected(name, text, context)
        or (part_spans(name, text, context) if _may_be_person(name, context.said) else [])
    )


def number_range_spans(name: str, text: str) -> list[Span]:
    """Return where a text says a range: "between 2 and 5" and "2 to 5" of 2-5."""
    ends = _RANGE.fullmatch(canonical(name))
    if ends is None:
        return []
    low, high = ends[1], ends[2]
    between = rf"\b(?:between {low} and|(?:from )?{low} ?(?:-|(?:up )?(?:to|through))) ?{high}(?![\w.,]*\d)"
    return [match.span() for match in re.finditer(between, text, re.IGNORECASE)]


def _with_heard_words(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Where a text says a name with words of the question in it: "Apache License 2.0" of Apache-2.0."""
    heard, of_name = stems(canonical(context.said)), stems(name)
    if len(of_name) < 2:
        return []
    return spans_of(
        name, _WORD.sub(lambda m: " " * len(m[0]) if stem(m[0].casefold()) in heard - of_name else m[0], text)
    )


def _own_words(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Where a text says a name without words that the question or other names that are shown have, if no
    other has the rest: "Furnas" of Furnas County, asked for a county, "Ahorn" of Room Ahorn next to a Room
    Linden."""
    short_leaves = (leaf for leaf in shown_leaves(context) if leaf != name and len(leaf.split()) < _LONG)
    others = {canonical(context.said), *short_leaves}
    shared = frozenset[str]().union(*map(stems, others))
    bare = " ".join(word for word in name.split() if stem(word.casefold()) not in shared)
    if bare == name or not bare.istitle() or not bare.replace(" ", "").isalpha():
        return []
    contents = [canonical(result.content) for result in context.results]
    if any(len(spans_of(bare, told)) != len(spans_of(name, told)) for told in contents):
        return []
    return [span for span in _alone(bare, name, text) if text[span[0]].isupper()]


def _inflected(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Where a text says a name of several words with other endings, if no other name that is shown is like it
    either: "dropping off the car" of Drop off the car."""
    told = [m for m in _WORD.finditer(text) if m[0].casefold() not in FUNCTION_WORDS]
    needed = [word for word in _WORD.findall(name.casefold()) if word not in FUNCTION_WORDS]
    if len(needed) < 2 or not name.replace(" ", "").isalpha() or name.istitle():
        return []

    def starts(said: Sequence[str]) -> list[int]:
        runs = range(len(said) - len(needed) + 1)
        return [at for at in runs if all(map(_has_other_ending, said[at : at + len(needed)], needed))]

    like = [leaf for leaf in shown_leaves(context) if starts(_WORD.findall(leaf.casefold()))]
    places = starts([m[0].casefold() for m in told]) if len(like) <= 1 else []
    return [(told[at].start(), told[at + len(needed) - 1].end()) for at in places]


def _has_other_ending(word: str, of: str) -> bool:
    """Whether two words are the same but for an ending of a verb or of several things."""
    longer, shorter = sorted((_UNDOUBLED.sub(r"\1\2", word), _UNDOUBLED.sub(r"\1\2", of)), key=len)[::-1]
    begin = shorter.removesuffix("e") if len(shorter) > 3 else shorter
    return word == of or (longer.startswith(begin) and bool(_ENDING.fullmatch(longer[len(begin) :])))


def without_measure(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Return where a text says a name without its measure, and no other number behind it, or without what
    is in brackets behind it, if no other name that is shown begins so: "bottom bracket" of "Bottom bracket
    68 mm"."""
    if (measure := _MEASURE.search(name)) is None:
        return []
    bare, contents = name[: measure.start()], [canonical(result.content) for result in context.results]
    if any(len(spans_of(bare, told)) != len(spans_of(name, told)) for told in contents):
        return []
    following = [(span, _NEXT_NUMBER.match(text, span[1])) for span in spans_of(bare, text)]
    return [
        span
        for span, number in following
        if number is None or (number[1] == measure[1] and (not number[2] or number[2] in FUNCTION_WORDS))
    ]


def worded_spans(value: Any, text: str) -> list[Span]:
    """Return where canonical `text` says a value of an enumeration in its own words: "in need of repair" is
    needs_repair, "located, but it hasn't been sent" LOCATED_NOT_SENT, "every week" WEEKLY."""
    if not isinstance(value, str):
        return []
    if not _ENUMERATED.fullmatch(value) or _COMPASS.fullmatch(value) or value in _POINTS.values():
        return _spelt_out(value, text)
    if period := PERIODS.get(value.casefold()):
        return [m.span() for m in EVERY.finditer(text) if PERIODS.get(m[1].casefold()) == period]
    needed = value_parts(value)
    if needed == ["not"]:  # "no mugwort" of none
        return [m.span() for m in re.finditer(r"\b(?:no|none|nothing)\b", text, re.IGNORECASE)]
    if len(needed) < 2:
        said = [m for m in re.finditer(r"\b[a-z]+ed\b", text) if _NOUN_OF_VERB.search(value)]
        spans = [m.span() for m in said if _is_inflected(m[0], value)]  # "it failed" of failure
        bare = re.escape(value.removesuffix("e"))  # "hazy" of haze
        return spans or [m.span() for m in re.finditer(rf"\b{bare}{bare[-1]}?y\b", text, re.IGNORECASE)]
    told = [
        (part, m.start(), m.end()) for m in _WORD.finditer(text) for part in _word_parts(m[0], is_all=True)
    ]
    spans: list[Span] = []
    for first in range(len(told)):
        if spans and told[first][1] < spans[-1][1]:
            continue
        left = list(needed)
        for part, _, end in told[first:]:
            if needed_part := next((other for other in left if _is_inflected(part, other)), None):
                left.remove(needed_part)
            elif len(left) == len(needed) or part not in _BETWEEN_STEMS:
                break
            if not left:
                spans.append((told[first][1], end))
                break
    return spans


def _spelt_out(name: str, text: str) -> list[Span]:
    """Where a text has a name with what its abbreviation stands for: "Thornmere Rowing Club" of Thornmere RC,
    "PlayStation 5" of PS5, "severity 2" of SEV2, "south-east" of SE."""
    if place := re.fullmatch(r"([a-z]+) (\d+)", name):  # "the third act" of act 3
        return [m.span() for m in re.finditer(rf"\b0?{place[2]}(?:st|nd|rd|th) {place[1]}\b", text)]
    if _COMPASS.fullmatch(name) or name in _POINTS.values():
        said = "[ -]?".join(_POINTS[point] for point in name) if name.isupper() else name
        return [
            m.span() for m in re.finditer(rf"(?<!\w|-){said}(?:er(?:n|ly))?(?!\w|-)", text, re.IGNORECASE)
        ]
    code = re.fullmatch(r"([A-Z]{2,})[- ]?(\d[\d.]*)", name)
    parts = ["", code[1], "", code[2]] if code else re.split(r"\b([A-Z]{2,4})\b", name)
    if len(parts) < 3 or not re.search(r"[^\W_]", name.replace(parts[1], "", 1)):
        return []
    initials = r"[ -]?".join(rf"[{letter}{letter.lower()}][a-z]+" for letter in parts[1])
    begun = rf"(?i:{parts[1]})[a-z]+"
    before, after = re.escape(parts[0]), re.escape("".join(parts[2:]))
    gap = "[ -]?" if code else ""
    return [m.span() for m in re.finditer(rf"\b{before}(?:{initials}|{begun}){gap}{after}(?!\w)", text)]


def value_parts(value: Any) -> list[str]:
    """Return the words of an enumeration that tell something: `NEEDS_REPAIR`, `isOpen`."""
    return _word_parts(canonical(re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", format_value(value))))


def _word_parts(text: str, *, is_all: bool = False) -> list[str]:
    """The words that tell something (`is_all`: all words), a denial as "not": "unpaid" is "not", "paid"."""
    parts: list[str] = []
    for word in (m[0].casefold() for m in _WORD.finditer(text)):
        if NEGATED.fullmatch(word) or word == "non":
            parts.append("not")
        elif word.startswith("un") and len(word) > 5:
            parts += ["not", word[2:]]
        elif is_all or word not in FUNCTION_WORDS:
            parts.append(PERIODS.get(word, word) if len(word) > 1 else word)
    return parts


def _is_inflected(word: str, of: str) -> bool:
    alike = next(
        (i for i, (a, b) in enumerate(zip(word, of, strict=False)) if a != b), min(len(word), len(of))
    )
    is_longer = alike == min(len(word), len(of)) >= 3 and _ENDING.fullmatch(max(word, of, key=len)[alike:])
    return word == of or alike >= max(4, min(len(word), len(of)) - 2) or bool(is_longer)


def _may_be_person(name: str, said: str) -> bool:
    """Whether a question asks for a person, or a name has a title or is two capitalised words."""
    is_double = len(name.split()) == 2 and name.istitle() and all(w.isalpha() and w[1:] for w in name.split())
    has_title = not UNSAID.isdisjoint({*words(name)[:1]} - {"the", "a", "an"})
    return is_double or has_title or bool({"who", "whom", "whose"} & {*words(said)})


def part_spans(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Return where a text has a first or a family name alone, or initials ("UK"), if no other name that is
    shown has them, or the end of a path: as the question calls it, or a file's name."""
    place = name.rpartition("/")[2].replace("_", " ")
    if place != name and spans_of(place, canonical(context.said)):  # Lagos of Africa/Lagos
        return spans_of(place, text)
    contents = [canonical(result.content) for result in context.results]
    whole = [len(spans_of(name, told)) for told in contents]
    if place != name and "." in place and [len(spans_of(place, told)) for told in contents] == whole:
        return spans_of(place, text)  # a file's name
    initials = "".join(word[0] for word in name.split()) if _CAPITALISED.fullmatch(name) else ""
    if initials and (spans := [m.span() for m in re.finditer(rf"\b{initials}\b", text)]):
        others = (leaf for leaf in shown_leaves(context) if _CAPITALISED.fullmatch(leaf) and leaf != name)
        return [] if any("".join(w[0] for w in leaf.split()) == initials for leaf in others) else spans
    parts = [m[0] for m in _WORD.finditer(name.partition(",")[0]) if m[0].casefold() not in UNSAID | LEGAL]
    parts = [
        part for part in parts if len(part) > 2 and part[:1].isupper() and part.replace("'", "").isalpha()
    ]
    is_thing = any(word in FUNCTION_WORDS or (word.islower() and len(word) > 3) for word in name.split())
    if len(name.split()) < 2 or not parts or is_thing:
        return []
    if re.search(r"\d", name):
        parts = [name[name.index(parts[0]) :]]  # "Zhen Hua 23" of a ship
    unique = [part for part in parts if [len(spans_of(part, told)) for told in contents] == whole]
    return sorted(span for part in unique for span in _alone(part, name, text))


def _alone(part: str, name: str, text: str) -> list[Span]:
    """Where a text has a part of a name, and no words of another name around it."""
    allowed, spans = {*words(name), *UNSAID, *SAFE}, list[Span]()
    for start, end in spans_of(part, text):
        around = [m[0] for m in (_NAME_BEFORE.search(text[:start]), _NAME_AFTER.match(text[end:])) if m]
        if all(BLANK not in word and set(words(word)) <= allowed for word in around):
            spans.append((start, end))
    return spans


def short(name: Any, names: Sequence[Any]) -> Any:
    """Return a name without the words or the letters that all `names` begin with, or the word that they end
    in: "lot 7" of lots, "INV-7" of codes, "left eye" of eyes, "queue:mail" of queues, "A" of Field A."""
    split = [str(each).split() for each in names]
    shared = 0
    while len(names) > 1 and all(shared < len(each) and each[shared] == split[0][shared] for each in split):
        shared += 1
    bare = " ".join(str(name).split()[shared:])
    if len(names) > 1 and not shared and all(len(each) > 1 and each[-1] == split[0][-1] for each in split):
        return " ".join(str(name).split()[:-1])
    if shared and re.search(r"\w\w|[\dA-Z]", bare):
        return bare
    written = [*map(str, names)]
    codes = [_PREFIXED.fullmatch(each) for each in written]
    if len(names) > 1 and len({code and code[1] for code in codes}) == 1 and codes[0]:
        return _PREFIXED.sub(r"\2", str(name))
    for marked, cut in ((_MARKED_START, str.removeprefix), (_MARKED_END, str.removesuffix)):
        shared_parts = {match and match[0] for match in map(marked.search, written)}
        if len(names) > 1 and len(shared_parts) == 1 and (part := shared_parts.pop()):
            return cut(str(name), part)
    return name


def short_spans(name: Any, names: Sequence[Any], text: str) -> list[Span]:
    """Return where a text says what `short` leaves of a name: a letter as a capital, a number bare."""
    bare = short(name, names)
    if bare == name or not isinstance(bare, str):
        return []
    if re.fullmatch("[A-Z]", bare):
        return [m.span() for m in re.finditer(rf"\b{bare}\b(?!')(?! (?!{_VERBS})[a-z])", text)]
    number, whole = as_number(canonical(bare)), amounts(canonical(str(name)))
    if number is not None and (str(name).startswith(bare) or (whole and whole[0].unit)):
        return [amount.span for amount in amounts(text) if amount.unit is None and amount.number == number]
    return spans_of(bare, text)


def option_spans(check: AnswerCheck, option: Any, text: str) -> list[Span]:
    """Return where a text says an option of a choice: by itself, in words, or as "the second"."""
    written = format_value(option)  # "awaiting a permit" of "awaiting permit", which no name is
    if written in ("A", "I"):  # "A is right", not "a record"
        return [m.span() for m in re.finditer(rf"\b{written}\b(?! (?!{_VERBS})\w)|\ban {written}\b", text)]
    worded = worded_spans(written.replace(" ", "_") if written.islower() else written, text)
    if spans := spans_of(option, text) or short_spans(option, check.options, text):
        return spans + [span for span in worded if not any(a < span[1] and span[0] < b for a, b in spans)]
    if worded or (worded := _of_own_part(written, check.options, text)):
        return worded
    if any(spans_of(other, text) for other in check.options):
        return []  # "B was opened first"
    if written.isalpha() and written.islower():  # "repair it" of repaired
        told = [m for m in _WORD.finditer(text) if not m[0].endswith(("er", "est"))]  # which compare
        alike = [m for m in told if _is_inflected(m[0].casefold(), written)]
        others = [str(other) for other in check.options if other != option]
        alike = [m for m in alike if not any(_is_inflected(m[0].casefold(), other) for other in others)]
        if alike:
            return [m.span() for m in alike]
    place = check.options.index(option) if option in check.options else len(_ORDINALS)
    named = _ORDINALS[place] if place < len(_ORDINALS) else ()
    return [m.span() for word in named for m in re.finditer(rf"\b{word}\b", text, re.IGNORECASE)]


def _of_own_part(option: str, options: Sequence[Any], text: str) -> list[Span]:
    """Where a text has a part of an option that no other one has: "Mr. Pask's" of Lionel Pask, "by weights"
    of weight-driven."""
    told = [_PARTED.split(str(other)) for other in options]
    parts = [part for part in _PARTED.split(option) if sum(part in other for other in told) == 1]
    parts = [part for part in parts if part.isalpha() and part.casefold() not in SAFE]
    spans = [span for part in parts for span in spans_of(part, text)]
    if re.match(r"[A-Z] \(", option):  # A (sequential scan)
        spans += [m.span() for m in re.finditer(rf"\b{option[0]}\b(?! [a-z])", text)]
    return [span for span in spans if text[span[0]].isupper() or not option.istitle()]
