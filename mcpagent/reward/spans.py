"""Where a text says a value: numbers with their units and rates, enumerations in words, parts of names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.text_records import text_records
from mcpagent.core.values import as_number, is_json_object
from mcpagent.reward.amounts import Units, amounts, is_money, is_same_unit, measure, unit_named, units_of
from mcpagent.reward.canonical import LEGAL, canonical
from mcpagent.reward.evidence import shown_records
from mcpagent.reward.moments import Moment, Span, agree, moment_spans, moments, whole_moment
from mcpagent.reward.names import UNSAID, american, words
from mcpagent.reward.phrasing import AnswerContext, tokens
from mcpagent.reward.reading import spans_of
from mcpagent.reward.words import WORDS, pattern

BLANK = "\0"
_DAY_FIELDS = frozenset(("year", "month", "day"))
_TIME_OF_DAY = re.compile(r"\b(?:what|which) (?:time|hour)\b", re.IGNORECASE)
SAFE = frozenset(WORDS["filler"].split()) | UNSAID | LEGAL
_LABEL = re.compile(r"(?:^|[\"'{,;|\n])\s*([A-Za-z_][A-Za-z_ ]{0,30})[\"']?\s*[:=]")
_HEAD = re.compile(r"\A[^\n]*[|;][^\n]*\n|^[^\n]*\|[^\n]*\n(?=[ |:-]*-[ |:-]*\n)", re.MULTILINE)
_FALLING = pattern("falling")
_CHANGE = re.compile(r"\bchanged?\b", re.IGNORECASE)
_RATE = pattern("rate")
FUNCTION_WORDS = {word: letter for letter, some in WORDS["function_words"].items() for word in some.split()}
_BETWEEN_STEMS = frozenset({*FUNCTION_WORDS, "it", "yet", "still", "also", "to", "be", "being"}) - {"or"}
_NAME_BEFORE, _NAME_AFTER = (
    re.compile(r"(?:(?:\b[A-Z][\w']*[.]?|\0)[ -]+(?:(?:d[aeiu]|d[eo]s|v[ao]n|de[nr]|la)[ -]+)*)+$"),
    re.compile(r"(?:(?: d[aeiu]| d[eo]s| v[ao]n| de[nr]| la)*[ -]+(?:[A-Z][\w']*|\0))+"),
)
_CAPITALISED = re.compile(r"(?:[A-Z][^\W\d_]+ ){1,3}[A-Z][^\W\d_]+")
_OTHER_MONEY = re.compile(r"(?<=\d)\s?([A-Z]{3})\b")
_SYMBOL = re.compile(r" ?([b-df-hj-np-tv-xz]{2,3}|[a-z]?[A-Z]{1,2}[a-z]?)\b")  # of another unit: hp, dB
_MEASURE = re.compile(r"(?<=[^\W\d_]{3}) (\d+(?:[.,]\d+)?) ?[a-zµ]{1,3}(?:/[a-z]{1,2}[²³23]?)?$")
_NEXT_NUMBER = re.compile(r"[\s,]*(\d[\d.,]*)\s?([^\W\d_]*)")
_COUNTED = re.compile(r" (?:([a-z]+) )?([a-z]{2,}[^\Ws]s)\b")
_FIELD = re.compile(r"([A-Za-z_][\w ]{0,40})[\"']?\s*[:=]\s*[\"']?(-?\d[\d.]*)")
_PERIODS = {name: period for period, names in WORDS["periods"].items() for name in (period, *names.split())}
_RATES = "|".join(sorted(_PERIODS, key=len, reverse=True))
_PER = re.compile(
    rf"\s*(?:[a-z]+ )?(?:(?:per|an?|each|every|pro|par|je)\s+|/\s?)(\d+ )?({_RATES})\b|\s*()(\w+ly)\b",
    re.IGNORECASE,
)
_PER_OTHER = re.compile(r"\s*per ([a-z]+\d?)", re.IGNORECASE)
_CLAUSE_MARK = re.compile(r"[.;,\n]")
_ASKS_MORE = re.compile(r"\b(?:what|which|how (?!many))\b", re.IGNORECASE)  # than how many
_COUNTED_TIME = re.compile(r"\d+[ _-]?[^\W\d_]+")  # "the last 30 days" is no rate
_PERIODIC = re.compile(r"\b(?:\w+ly|annual)\b", re.IGNORECASE)
_EVERY = re.compile(r"(?:\b(?:once )?(?:every|each|per|an?|pro|par|je)\s+|/\s?)(\w+)", re.IGNORECASE)
_ENUMERATED = re.compile(r"[a-z]+(?:_[a-z0-9]+|-[a-z]+)*|[A-Z]+(?:_[A-Z0-9]+)*|[a-z]+(?:[A-Z][a-z]+)+")
_PREFIXED = re.compile(r"([^\W\d_](?:.*\D)?)(\d{2,})")
_ENDING = re.compile(r"s|ed|ing|ment|er|or|able|ly")
_NOUN_OF_VERB = re.compile(r"^[a-z]{3,}(?:ure|ess|ion|al|ing|ment)$")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
NEGATED = re.compile(r"\b(?:not|no|never|none|nobody|nothing|cannot|without|\w+n't)\b", re.IGNORECASE)
_ORDINALS = (("first", "former", "1st"), ("second", "latter", "2nd"), ("third", "3rd"), ("fourth", "4th"))


def value_spans(
    check: AnswerCheck, value: Any, text: str, context: AnswerContext, *, is_strict: bool = True
) -> list[Span]:
    """Return where canonical `text` says the value of a number, a date or a name. `is_strict`: what has
    decimals is no per cent, unless the question or a result counts in it; what has none never is."""
    if check.type == "date" and (moment := whole_moment(format_value(value))) is not None:
        spans = moment_spans(
            text, moment, precision=check.precision, unasked=_unasked_of(moment, context.said)
        )
        if spans or check.precision != "year":
            return spans
        return [m.span() for m in re.finditer(rf"\b{moment.readings[0].year}\b", text)]
    if check.type in ("name", "string"):
        written = format_value(value)
        return (
            spans_of(written, text)
            or worded_spans(written, text)
            or _with_heard_words(written, text, context)
            or _without_kind(written, text, context)
            or (part_spans(written, text, context) if _is_person(written, context.said) else [])
        )
    is_whole = (as_number(value) or 0.0).is_integer()
    units = units_for(check, context, may_be_percent=not (is_strict or is_whole))
    spans = spans_of(value, text, tolerance=check.tolerance, units=units)
    target = as_number(value)
    if not spans and target is not None and target < 0 and (falling := _FALLING.search(text)):
        spans = spans_of(-target, text, tolerance=check.tolerance, units=units)
        told = falling.span()  # "down 4", "4 below zero"
        spans = [(told[0] if told[1] + 1 == a else a, told[1] if b + 1 == told[0] else b) for a, b in spans]
    if target and target > 0 and _CHANGE.search(context.said) and _FALLING.search(text):
        return []
    others = _fields_of_others(target, context)
    is_measured = measure(canonical(check.unit or "")) is not None
    # An abbreviation of a unit may be said as what it means.
    is_named = len(check.unit or "") > 3 and not units_of(canonical(str(check.unit)))
    return [
        _with_rate(text, span)
        for span in spans
        if not (target and _is_other_rate(text, span, target, f"{context.said} {check.unit or ''}", context))
        and not (
            any(map(is_money, units.names))
            and (money := _OTHER_MONEY.match(text, span[1]))
            and unit_named(money[1]) is None
        )
        and not (is_measured and _has_other_symbol(text, span, context))
        and not (
            (thing := _COUNTED.match(text, span[1]))
            and thing[1] not in FUNCTION_WORDS
            and (stem(thing[2]) in others or (is_named and _is_unheard(thing, check, context)))
        )
    ]


def shown_leaves(context: AnswerContext) -> frozenset[str]:
    """Return the values of the records that were shown."""
    return frozenset(leaf for result in context.results for leaf in _leaves(result.content))


@lru_cache(maxsize=256)
def _leaves(content: str) -> frozenset[str]:
    return frozenset(leaf for record in shown_records(content) for leaf in record.leaves)


def _with_heard_words(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Where a text says a name with words of the question in it: "Apache License 2.0" of Apache-2.0."""
    heard, of_name = stems(canonical(context.said)), stems(name)
    if len(of_name) < 2:
        return []
    return spans_of(
        name, _WORD.sub(lambda m: " " * len(m[0]) if stem(m[0].casefold()) in heard - of_name else m[0], text)
    )


def _without_kind(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Where a text says a name without the word with which other names that are shown begin, or without its
    measure: "Ahorn" of Room Ahorn, if there is a Room Linden."""
    kind, _, bare = name.partition(" ")
    if _MEASURE.search(name):
        return without_measure(name, text, context)
    if not bare.replace(" ", "").isalpha() or not bare.istitle():
        return []
    others = [
        leaf
        for leaf in shown_leaves(context)
        if leaf.startswith(f"{kind} ") and leaf != name and len(leaf.split()) < 4
    ]
    return spans_of(bare, text) if others else []


def without_measure(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Return where a text says a name without its measure, and no other number behind it, if no other name
    that is shown begins so: "bottom bracket" of "Bottom bracket 68 mm"."""
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


def _unasked_of(moment: Moment, said: str) -> Set[str]:
    """The fields of a time that a question has, or does not ask for: its day, if it asks at what time."""
    is_of_day = _TIME_OF_DAY.search(said) or any(
        "day" in asked.said and "hour" not in asked.said and agree(asked, moment)
        for asked in moments(canonical(said))
    )
    return _DAY_FIELDS if "hour" in moment.said and is_of_day else frozenset()


def _is_unheard(thing: re.Match[str], check: AnswerCheck, context: AnswerContext) -> bool:
    """Whether what is counted has no word of the unit, the question or a result."""
    told = " ".join(result.content for result in context.results).replace("_", " ")
    if re.match(".*".join(thing[0].split()[0]), str(check.unit)):
        return False  # "btls" of bottles
    return stems(thing[0]).isdisjoint(stems(f"{check.unit} {context.said} {told}"))


def _has_other_symbol(text: str, span: Span, context: AnswerContext) -> bool:
    """Whether a mark of a unit that nothing has shown stands behind a bare number: hp, but not the dwt of a
    deadweight."""
    symbol = _SYMBOL.match(text, span[1]) if text[span[1] - 1].isdigit() else None
    if symbol is None:
        return False
    shown = (context.said, *(result.content for result in context.results))
    return not any(re.match(".*".join(symbol[1].casefold()), word) for said in shown for word in tokens(said))


def _with_rate(text: str, span: Span) -> Span:
    rate = _PER.match(text, span[1])
    return (span[0], rate.end()) if rate and (rate[2] or rate[4]).casefold() in _PERIODS else span


def _is_other_rate(text: str, span: Span, value: float, said: str, context: AnswerContext) -> bool:
    """Whether a number is said of a period that neither the question (`said`) nor, if it names none, a result
    has. Interest is by the year."""
    shown = _periods("\n".join(result.content for result in context.results)) - _fields_of_others(
        value, context
    )
    asked = {_PERIODS.get(m[1].casefold()) for m in _EVERY.finditer(said)}
    asked |= _periods(" ".join(_PERIODIC.findall(said)))
    shown |= {"year"} if "%" in units_of(text) else frozenset()
    results = " ".join(canonical(result.content.replace("_", " ")) for result in context.results)
    if (of := _PER_OTHER.match(text, span[1])) and of[1].casefold() not in _PERIODS:
        has_basis = bool(shown or asked) or re.search(r"\bper\b", results) is not None
        lines = [line for result in context.results for line in canonical(result.content).splitlines()]
        of_others = [line for line in lines if of[0].strip() in line]
        if any(amount.number == value for line in of_others for amount in amounts(line)):
            of_others = []
        told = words(f"{said} {results}")
        is_told = not of_others and any(
            stem(word) == stem(of[1].casefold()) or is_same_unit(word, of[1]) for word in told
        )
        return has_basis and not is_told
    if rate := _PER.match(text, span[1]):
        period = _PERIODS.get((rate[2] or rate[4]).casefold())
        is_asked = period in (asked or shown) or (period == "second" and not asked)
        return period is not None and (not is_asked or bool(rate[1] and rate[1] not in said))
    before, after = _CLAUSE_MARK.split(text[: span[0]])[-1], _CLAUSE_MARK.split(text[span[1] :])[0]
    told = _periods(" ".join(match[1] for match in _EVERY.finditer(after)))
    return bool(told - (asked or shown) or _periods(" ".join(_PERIODIC.findall(before))) - asked - shown)


@lru_cache(maxsize=512)
def _periods(text: str) -> frozenset[str]:
    text = _COUNTED_TIME.sub(" ", canonical(text))
    return frozenset(_PERIODS[word] for word in words(text) if len(word) > 1 and word in _PERIODS)


def worded_spans(value: Any, text: str) -> list[Span]:
    """Return where canonical `text` says a value of an enumeration in its own words: "in need of repair" is
    needs_repair, "located, but it hasn't been sent" LOCATED_NOT_SENT, "every week" WEEKLY."""
    if not isinstance(value, str):
        return []
    if not _ENUMERATED.fullmatch(value):
        return _spelt_out(value, text)
    if period := _PERIODS.get(value.casefold()):
        return [m.span() for m in _EVERY.finditer(text) if _PERIODS.get(m[1].casefold()) == period]
    needed = value_parts(value)
    if len(needed) < 2:
        said = [m for m in re.finditer(r"\b[a-z]+ed\b", text) if _NOUN_OF_VERB.search(value)]
        return [m.span() for m in said if _is_inflected(m[0], value)]  # "it failed" of failure
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
    "PlayStation 5" of PS5, "severity 2" of SEV2."""
    code = re.fullmatch(r"([A-Z]{2,})[- ]?(\d+)", name)
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
            parts.append(_PERIODS.get(word, word) if len(word) > 1 else word)
    return parts


def _is_inflected(word: str, of: str) -> bool:
    alike = next(
        (i for i, (a, b) in enumerate(zip(word, of, strict=False)) if a != b), min(len(word), len(of))
    )
    is_longer = alike == min(len(word), len(of)) >= 3 and _ENDING.fullmatch(max(word, of, key=len)[alike:])
    return word == of or alike >= max(4, min(len(word), len(of)) - 2) or bool(is_longer)


def _is_person(name: str, said: str) -> bool:
    return bool({"who", "whom", "whose"} & {*words(said)}) or not UNSAID.isdisjoint(
        {*words(name)[:1]} - {"the", "a", "an"}
    )


def part_spans(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Return where a text has a first or a family name alone, or initials ("UK"), if no other name that is
    shown has them."""
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
    contents = [canonical(result.content) for result in context.results]
    whole = [len(spans_of(name, told)) for told in contents]
    unique = [part for part in parts if [len(spans_of(part, told)) for told in contents] == whole]
    allowed = {*words(name), *UNSAID, *SAFE}
    spans: list[Span] = []
    for start, end in sorted(span for part in unique for span in spans_of(part, text)):
        around = [m[0] for m in (_NAME_BEFORE.search(text[:start]), _NAME_AFTER.match(text[end:])) if m]
        if all(BLANK not in word and set(words(word)) <= allowed for word in around):
            spans.append((start, end))
    return spans


def _fields_of_others(number: float | None, context: AnswerContext) -> set[str]:
    """The fields of the results that do not have the number, nor does the question name them."""
    fields = [field for result in context.results for field in _number_fields(result.content)]
    of_value = {word for name, told in fields if told == number for word in name}
    labels = {stem(word) for result in context.results for word in field_labels(result.content)}
    return labels - of_value - stems(context.said) if of_value else set()


def _units_of_field(number: float | None, context: AnswerContext) -> set[str]:
    """The unit that the name of the field with the number ends in: price_gbp, inclination_deg."""
    fields = [
        name
        for result in context.results
        for name, told in _FIELD.findall(result.content)
        if as_number(told) == number
    ]
    fields += [
        name
        for result in context.results
        for record in _table(result.content)
        for name, told in record.items()
        if as_number(told) == number
    ]
    ends = {name.split("_")[-1] for name in fields if "_" in name}
    return {unit for end in ends if (unit := unit_named(end))} if len(ends) == 1 == len({*fields}) else set()


@lru_cache(maxsize=64)
def _table(content: str) -> list[Mapping[str, Any]]:
    return [record for record in text_records(content) or [] if is_json_object(record)]


@lru_cache(maxsize=512)
def _number_fields(content: str) -> tuple[tuple[frozenset[str], float | None], ...]:
    return tuple((stems(name.replace("_", " ")), as_number(told)) for name, told in _FIELD.findall(content))


def units_for(check: AnswerCheck, context: AnswerContext, *, may_be_percent: bool) -> Units:
    """Return what a number may be counted in: the unit of the check, else those that the question names."""
    if check.unit:
        names = units_of(canonical(check.unit))
        if not names and len(check.unit) == 1:  # C, F
            names = units_of(canonical(f"degrees {check.unit}"))
        names = names or units_of(canonical(check.unit.partition("/")[0]))  # EUR/person/night
        return Units(frozenset(names or {check.unit}), is_exact=True)
    names = units_of(canonical(context.said))
    values = [*check.value.values()] if is_json_object(check.value) else [check.value]
    of_fields = [_units_of_field(as_number(value), context) for value in values]
    if not names and re.search(r"(?i)\b(?:how many|number of)\b", context.said):
        others = set[str]().union(*of_fields) if len(values) > 1 else set[str]()
        is_exact = len(values) == 1 or not _ASKS_MORE.search(context.said)
        return Units(frozenset(("pieces", *others)), is_exact=is_exact)
    names = names or (of_fields[0] if all(units == of_fields[0] for units in of_fields) else names)
    if any("%" in result.content for result in context.results):
        names = names | {"%"}
    return Units(frozenset(names), may_be_percent=may_be_percent or bool(_RATE.search(context.said)))


def short(name: Any, names: Sequence[Any]) -> Any:
    """Return a name without the words or the letters that all `names` begin with, or the word that they end
    in: "lot 7" of lots, "INV-7" of codes, "left eye" of eyes."""
    split = [str(each).split() for each in names]
    shared = 0
    while len(names) > 1 and all(shared < len(each) and each[shared] == split[0][shared] for each in split):
        shared += 1
    bare = " ".join(str(name).split()[shared:])
    if len(names) > 1 and not shared and all(len(each) > 1 and each[-1] == split[0][-1] for each in split):
        return " ".join(str(name).split()[:-1])
    if shared and re.search(r"\w\w|\d", bare):
        return bare
    codes = [_PREFIXED.fullmatch(str(each)) for each in names]
    if len(names) > 1 and len({code and code[1] for code in codes}) == 1 and codes[0]:
        return _PREFIXED.sub(r"\2", str(name))
    return name


def option_spans(check: AnswerCheck, option: Any, text: str) -> list[Span]:
    """Return where a text says an option of a choice: by itself, in words, or as "the second"."""
    written = format_value(option)  # "awaiting a permit" of "awaiting permit", which no name is
    if written in ("A", "I"):  # "A is right", not "a record"
        verbs = r"(?:is|was|has|and|or)\b"
        return [m.span() for m in re.finditer(rf"\b{written}\b(?! (?!{verbs})\w)|\ban {written}\b", text)]
    worded = worded_spans(written.replace(" ", "_") if written.islower() else written, text)
    if spans := spans_of(option, text) or spans_of(short(option, check.options), text):
        return spans + [span for span in worded if not any(a < span[1] and span[0] < b for a, b in spans)]
    if worded or (worded := _of_own_part(written, check.options, text)):
        return worded
    place = check.options.index(option) if option in check.options else len(_ORDINALS)
    named = _ORDINALS[place] if place < len(_ORDINALS) else ()
    return [m.span() for word in named for m in re.finditer(rf"\b{word}\b", text, re.IGNORECASE)]


def _of_own_part(option: str, options: Sequence[Any], text: str) -> list[Span]:
    """Where a text has a name of an option that no other one has: "Mr. Pask's" of Lionel Pask."""
    told = [str(other).split() for other in options]
    parts = [part for part in option.split() if sum(part in other for other in told) == 1]
    parts = [part for part in parts if part.istitle() and part.isalpha() and part.casefold() not in SAFE]
    spans = [span for part in parts if len(option.split()) > 1 for span in spans_of(part, text)]
    return [span for span in spans if text[span[0]].isupper()]


@lru_cache(maxsize=512)
def field_labels(content: str) -> frozenset[str]:
    """Return the words by which a result names its fields."""
    labels = [*_LABEL.findall(content), *_HEAD.findall(content)]
    return frozenset(word for label in labels for word in words(label.replace("_", " ")))


@lru_cache(maxsize=512)
def stems(text: str) -> frozenset[str]:
    """Return the stems of the words of a text."""
    return frozenset(map(stem, words(text)))


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """Return how a word begins, spelt as Americans do: equal for most inflections of it. A code has none."""
    word = american(word)
    if any(map(str.isdigit, word)):
        return word
    return word[:5] if len(word) > 5 else word.rstrip("s") or word
