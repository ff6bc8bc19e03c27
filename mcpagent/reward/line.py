"""The answer line, graded alone: it says the value, as the kind of thing that it is, and nothing else.

What may stand around the value is what says nothing of its own: words of the question and of the tools,
units, an amount in another unit, and in brackets or behind a preposition what the same record of a result
shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from mcpagent.core.answer_line import written_answer
from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import as_number, is_json_array, is_json_object
from mcpagent.reward.evidence import shown_records
from mcpagent.reward.phrasing import HEDGE, AnswerContext, holds_json, is_qualified
from mcpagent.reward.reading import (
    ANY_UNITS,
    LEGAL,
    UNSAID,
    WORDS,
    Moment,
    Span,
    Units,
    american,
    amounts,
    canonical,
    is_conversion,
    is_number_word,
    moment_is,
    moments,
    pattern,
    says,
    spans_of,
    units_of,
    whole_moment,
    words,
)

MAX_LINE_WORDS = 40  # and what the value takes
_MAX_OTHER_WORDS = 8  # of the value's record
_FEW_WORDS = 5
_BLANK, _ODD = "\0", "\x01"

# ", not B" and "than B" say nothing of what is right.
_CONTRAST = pattern("contrast")
_SAFE = frozenset(WORDS["filler"].split()) | UNSAID | LEGAL
_LABEL = re.compile(r"(?:^|[\"'{,;|\n])\s*([A-Za-z_][A-Za-z_ ]{0,30})[\"']?\s*[:=]")
_HEAD = re.compile(r"\A[^\n]*[|;][^\n]*\n|^[^\n]*\|[^\n]*\n(?=[ |:-]*-[ |:-]*\n)", re.MULTILINE)
_PREPOSITION = pattern("preposition")
_BRACKETS = re.compile(r"\([^()]*\)")
_FALLING = pattern("falling")
_RATE = pattern("rate")
_OUT_OF = re.compile(r"(?<=\d) (?:out )?of (?:the )?\d+\b(?![-.,/:]\d)|(?<=\d) ?/ ?(?:5|10|100)\b(?![\w./])")
_ENUMERATOR = re.compile(r"(?:^|(?<=[\s,;(\"]))\(?(\d{1,2})[.)]\s+(?=[^\d\s])", re.MULTILINE)
_TABLE_HEAD = re.compile(r"^.*\|.*\n[ |:-]*-[ |:-]*\n", re.MULTILINE)
_TERM = r"[\s()€$£]*\d[\d.,]*\s?[^\W\d_]{0,9}[\s()€$£%]*"
_SUM = re.compile(rf"^(?:{_TERM}[-+*/×÷])+{_TERM}=\s*(?=\S)|\((?:{_TERM}[-+*/×÷])+{_TERM}\)")
_HOURS = pattern("hours")
_THEN = re.compile(r"\s*(?:->|→|⟶|[<>])\s*")
# Words that nobody has shown: a verb before the value ("it weighs 3 kg"), what is counted ("3 seats left").
_TOLD = pattern("told")
_COUNTED = pattern("counted")
_LONGER = re.compile(r"\0 ?\x01[a-z]+(?<![sd])(?=\W*(?:and\b|,|$))")  # "folk rock" is no folk
_PARTS = re.compile(r"([,;&|/\n]|\band\b)")
_PART = re.compile(r"(?:(?!\band\b)[^,;&|/\n])+")
_KIN = re.compile(r"of (?:the )?\0")
_CLAUSE = re.compile(r"[,!:] (?:it|that|this|they|there|the \w+)(?:'s| is| are)\b", re.IGNORECASE)
_ADVERBIAL = pattern("adverbial")
_SEPARATOR = re.compile(r"[,;&|\n]|\band\b")
_MODIFIERS = frozenset(WORDS["modifiers"].split())
_UNIT_OF_TIME = {"s", "second", "seconds", "min", "minute", "minutes", "h", "hour", "hours", "days"}
_PERIODS = ("second", "minute", "hour", "day", "week", "month")
_PER = re.compile(rf"\s*(?:[a-z]+ )?(?:per|an?|each|every|/)\s*({'|'.join(_PERIODS)})\b")
_REASON = pattern("reason")
_NEGATED = re.compile(r"\b(?:not|no|never|none|cannot|without|\w+n't)\b", re.IGNORECASE)
_YES = pattern("says_yes")
_NO = pattern("says_no")
_COMPARED = pattern("compared")
_LITTLE = tuple(WORDS["little"].split())  # how such words begin
_ORDINAL = re.compile(r"1st|2nd|3rd|\dth")
_ORDINALS = (("first", "former", "1st"), ("second", "latter", "2nd"), ("third", "3rd"), ("fourth", "4th"))


def read_answer(text: str, check: AnswerCheck) -> str:
    """Return an answer as it is read: canonical, "2 out of 5" as 2, "12 + 3 = 15" as 15, 2h05 as 2 hours and
    5 minutes, a numbered list without its numbers, an object of one field as what it holds."""
    text = canonical(unwrapped(text.strip(), check)).strip()
    if check.type in ("set", "list", "pairs"):
        text = _TABLE_HEAD.sub("", text)
    numbers = [int(match[1]) for match in _ENUMERATOR.finditer(text)]
    if numbers and numbers == [*range(1, len(numbers) + 1)] and (len(numbers) > 1 or check.type == "set"):
        text = _ENUMERATOR.sub("", text)
    if check.type in ("list", "pairs"):
        text = _THEN.sub(", ", text)
    if check.type == "number":
        text = _without_or(_OUT_OF.sub("", _SUM.sub("", text)))
    unit = check.unit if check.type == "number" else check.value if check.type in ("name", "pairs") else ""
    is_time = bool(_UNIT_OF_TIME & units_of(str(unit or "")))
    if is_time or re.search(r"\d:\d\d", str(unit or "")):
        text = re.sub(r"\b(\d+):(\d\d) ?min(?:utes)?\b", r"\1 min \2 s", text)
        text = re.sub(r"(?<=\d) ?m\b(?= ?\d+ ?s)|(?<=h)( ?\d+) ?m\b", r"\1 min", text)
    if is_time:
        text = _HOURS.sub(lambda m: f"{m[1]} h {m[2]} min" + (f" {m[3]} s" if m[3] else ""), text)
    return text


def _without_or(text: str) -> str:
    """A text in which no "or" stands before an amount that says the one before in another unit."""
    told = amounts(text)
    for before, after in reversed([*pairwise(told)]):
        if is_conversion(after, before) and text[before.end : after.start].strip(" ,(") == "or":
            text = f"{text[: before.end]}, {text[after.start :]}"
    return text


def unwrapped(text: str, check: AnswerCheck) -> str:
    """A text, or what an object of one field holds; pairs may be an object themselves."""
    inner = re.sub(r"^[\w *]*:\W*(?=\{)", "", text.strip("`*. \n").removeprefix("json").strip())
    if not (inner[:1] == "{" and inner[-1:] == "}"):
        return text
    try:
        value = json.loads(inner)
    except ValueError:
        return text
    while is_json_object(value) and len(value) == 1 and (check.type != "pairs" or "{" in inner[1:]):
        value = next(iter(value.values()))
    items = [*value.values()] if is_json_object(value) and check.type == "pairs" else [value]
    most = max(_FEW_WORDS, 2 * len(re.findall(r"\w+", written_answer(check.value))) + 2)
    flat = [leaf for item in items for leaf in (item if is_json_array(item) else [item])]
    if any(is_json_object(leaf) or is_json_array(leaf) or len(str(leaf).split()) > most for leaf in flat):
        return text  # a result, and no value
    return written_answer(value)


def line_holds(check: AnswerCheck, values: Sequence[Any], line: str, context: AnswerContext) -> bool:
    """Whether an answer line gives one of `values`: that of the check, and others that are right too."""
    return is_given(check, values, read_answer(line, check), context)


def is_given(check: AnswerCheck, values: Sequence[Any], text: str, context: AnswerContext) -> bool:
    """The same of a text that has been read."""
    if check.unit:
        context = replace(context, said=f"{context.said} {check.unit}")
    if holds_json(text) and not any(holds_json(format_value(value)) for value in values):
        return False
    if len(text.split()) > MAX_LINE_WORDS + 2 * sum(len(words(format_value(v))) for v in values):
        return False
    return any(_gives(check, value, text, context) for value in values)


def _gives(check: AnswerCheck, value: Any, text: str, context: AnswerContext) -> bool:
    match check.type:
        case "yes_no":
            return polarity(text, context.said) is (
                value if isinstance(value, bool) else polarity(str(value))
            )
        case "choice":
            text = _REASON.sub(" ", without_contrast(text))
            spans = _option_spans(check, value, text)
            others = [option for option in check.options if option != value]
            if not spans or any(_option_spans(check, option, text) for option in others):
                return False
            text = text.replace(f" of the {len(check.options)}", "")
            targets = [_short(value, check.options)]
            return not _is_opposite(text, context.said) and _is_bare(text, spans, targets, context)
        case "pairs":
            text = re.sub(r"'s? (?=\w)", " ", text)
            units = _units_for(check, context, may_be_percent=True)
            spans = pair_spans(value, text, tolerance=check.tolerance, units=units)
            things = list(value) if is_json_object(value) else []
            targets = [part for t in things for part in (_short(t, things), value[t])]
            return spans is not None and _is_bare(text, spans, targets, context, is_quoted=False)
        case "set" | "list" | "must_include":
            items: list[Any] = list(value) if is_json_array(value) else [value]
            if not items:
                return (
                    re.fullmatch(
                        r"\W*(?:(?:there|it|they) \w+ )?(?:none|no \w+|nothing|empty)\W*", text, re.I
                    )
                    is not None
                )
            context = replace(context, is_lenient=False)  # a word may be one item more
            spans = item_spans(items, text, tolerance=check.tolerance, in_order=check.type == "list")
            if spans is None or not _is_bare(text, spans, items, context):
                return False
            return check.type == "must_include" or not _other_parts(text, spans)
        case _:
            text = without_contrast(text)
            spans = value_spans(check, value, text, context)
            said = [text[start:end].casefold() for start, end in spans]
            if check.type == "name" and len(set(said)) < len(said):
                return False  # fields with their values, or a plea
            return bool(spans) and _is_bare(text, spans, [value], context)


def _is_opposite(text: str, said: str) -> bool:
    """Whether a text compares otherwise than a question for the one that is more does."""
    asked, told = _COMPARED.findall(canonical(said)), _COMPARED.findall(text)
    if not asked or not told or {word[:4] for word in told} & {word[:4] for word in asked}:
        return False
    return any(word.startswith(_LITTLE) for word in told) is not any(w.startswith(_LITTLE) for w in asked)


def _other_parts(text: str, spans: Sequence[Span]) -> list[str]:
    """The parts of an enumeration, from its first item on, that are none of the items but say something."""
    rest = _BRACKETS.sub(" ", blanked(text, spans))[min(start for start, _ in spans) :]
    return [part for part in _SEPARATOR.split(rest) if _BLANK not in part and set(words(part)) - _SAFE]


def value_spans(
    check: AnswerCheck, value: Any, text: str, context: AnswerContext, *, is_strict: bool = True
) -> list[Span]:
    """Return where canonical `text` says the value of a number, a date or a name. `is_strict`: what has
    decimals is no per cent, unless the question or a result counts in it; what has none never is."""
    if check.type == "date" and (moment := whole_moment(format_value(value))) is not None:
        spans = [(m.start, m.end) for m in moments(text) if moment_is(m, moment, precision=check.precision)]
        year = moment.readings[0].year if check.precision == "year" else "no"
        return spans or [m.span() for m in re.finditer(rf"\b{year}\b", text)]
    if check.type in ("name", "string"):
        return spans_of(format_value(value), text)
    is_whole = (as_number(value) or 0.0).is_integer()
    units = _units_for(check, context, may_be_percent=not (is_strict or is_whole))
    spans = spans_of(value, text, tolerance=check.tolerance, units=units)
    target = as_number(value)
    if not spans and target is not None and target < 0 and _FALLING.search(text):
        spans = spans_of(-target, text, tolerance=check.tolerance, units=units)
    shown = {word for result in context.results for word in words(result.content)} & set(_PERIODS)
    said = set(words(context.said)) & set(_PERIODS) or shown
    return [
        span
        for span in spans
        if not ((rate := _PER.match(text, span[1])) and target and said and rate[1] not in said)
    ]


def _units_for(check: AnswerCheck, context: AnswerContext, *, may_be_percent: bool) -> Units:
    """What a number may be counted in: the unit of the check, else those that the question names."""
    if check.unit:
        names = units_of(canonical(check.unit)) or units_of(canonical(f"degrees {check.unit}"))
        return Units(frozenset(names), is_exact=bool(names))
    names = units_of(canonical(context.said))
    if not names and re.search(r"(?i)\b(?:how many|number of)\b", context.said):
        return Units(frozenset(("pieces",)), is_exact=True)
    if any("%" in result.content for result in context.results):
        names = names | {"%"}
    return Units(frozenset(names), may_be_percent=may_be_percent or bool(_RATE.search(context.said)))


def without_contrast(text: str) -> str:
    """Return a canonical text without what it compares with or says not to be so: ", not B", "than B"."""
    return _CONTRAST.sub(" ", text) if not re.match(r"\W*not\b", text, re.IGNORECASE) else text


def polarity(text: str, said: str = "") -> bool | None:
    """Return what a text says to a question for yes or no; None if it says neither, or both. It may also say
    in the words of the question (`said`) that it is so, or not: "There is no minibar."."""
    label, _, rest = text.partition(":")
    text = rest if rest and len(label.split()) <= 3 and not _NEGATED.search(label) else text
    is_yes, is_no = _YES.search(text) is not None, _NO.search(text) is not None
    other = r"\bno(?=\W*$|[.,;!])|\b(?:and|or|but) no\b" if is_yes else r"\byes\b"
    if is_yes is is_no or re.search(other, text, re.IGNORECASE):
        return _echoed(text, said) if not (is_yes or is_no) else None
    return is_yes


def _echoed(text: str, said: str) -> bool | None:
    said = canonical(said)
    asked = [_stem(word) for word in words(said) if word not in _SAFE]
    told = [
        _stem(word) for word in words(_NEGATED.sub(" ", text)) if word not in _SAFE | {"yet", "any", "more"}
    ]
    ends = {word.rstrip("s") for word in words(text)} & {word.rstrip("s") for word in words(said)[-1:]}
    is_echo = ends and told and asked and asked[-1] in told and set(told) <= set(asked) and " or " not in said
    return None if not is_echo else _NEGATED.search(text) is None


def _short(name: Any, names: Sequence[Any]) -> Any:
    """A name without the words that all `names` begin with: "lot 7" of lots."""
    split = [str(each).split() for each in names]
    shared = 0
    while len(names) > 1 and all(shared < len(each) and each[shared] == split[0][shared] for each in split):
        shared += 1
    bare = " ".join(str(name).split()[shared:])
    return bare if shared and re.search(r"\w\w|\d", bare) else name


def _option_spans(check: AnswerCheck, option: Any, text: str) -> list[Span]:
    if spans := spans_of(option, text) or spans_of(_short(option, check.options), text):
        return spans
    place = check.options.index(option) if option in check.options else len(_ORDINALS)
    named = _ORDINALS[place] if place < len(_ORDINALS) else ()
    return [m.span() for word in named for m in re.finditer(rf"\b{word}\b", text, re.IGNORECASE)]


def item_spans(
    items: Sequence[Any], text: str, *, tolerance: float = 0.0, in_order: bool = False
) -> list[Span] | None:
    """Return where a text says the items, each of them; None if one is missing or out of order."""
    spans: dict[int, list[Span]] = {}
    # Longer ones first: "Apple" is not in "Apple Pie".
    for place in sorted(range(len(items)), key=lambda i: -len(format_value(items[i]))):
        here = spans_of(items[place], text, tolerance=tolerance)
        if not here and items[place] not in [items[other] for other in spans]:
            return None
        spans[place] = here
        text = blanked(text, here)
    firsts = [spans[place][0][0] for place in range(len(items)) if spans[place]]
    if in_order and firsts != sorted(firsts):
        return None
    return [span for of_item in spans.values() for span in of_item]


def pair_spans(
    pairs: Any, text: str, *, tolerance: float = 0.0, units: Units = ANY_UNITS
) -> list[Span] | None:
    """Return where a text says things and their values, if each value is said of its thing; else None.

    It may say them in turn ("A is high, B low"; "high for A, low for B"), or things and then values ("A and B
    are high and low"), or the values alone in the order of the pairs.
    """
    if not is_json_object(pairs) or not pairs:
        return None
    marks: list[tuple[int, int, str, list[str]]] = []  # start, end, kind, things that it is or is true of
    rest = text
    for thing in sorted(pairs, key=lambda name: -len(name)):
        of_thing = spans_of(thing, rest) or spans_of(_short(thing, list(pairs)), rest)
        marks += [(start, end, "thing", [thing]) for start, end in of_thing]
        rest = blanked(rest, of_thing)
    for value in sorted(
        {format_value(v): v for v in pairs.values()}.values(), key=lambda v: -len(format_value(v))
    ):
        owners = [thing for thing, other in pairs.items() if format_value(other) == format_value(value)]
        of_value = spans_of(value, rest, tolerance=tolerance, units=units)
        marks += [(start, end, "value", owners) for start, end in of_value]
        rest = blanked(rest, of_value)
    marks.sort(key=lambda mark: mark[:2])
    return [mark[:2] for mark in marks] if _belong_together(marks, list(pairs)) else None


def _belong_together(marks: list[tuple[int, int, str, list[str]]], things: list[str]) -> bool:
    runs: list[tuple[str, list[list[str]]]] = []
    for _, _, kind, names in marks:
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(names)
    if [kind for kind, _ in runs] == ["value"]:
        values = runs[0][1]
        return len(values) == len(things) and all(
            thing in owners for thing, owners in zip(things, values, strict=True)
        )
    if len(runs) % 2:
        return False
    told: set[str] = set()
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        named = [names[0] for names in (first if first[0] == "thing" else second)[1]]
        values = (second if first[0] == "thing" else first)[1]
        if len(values) == 1:
            values = values * len(named)
        if len(values) != len(named) or any(
            thing not in owners for thing, owners in zip(named, values, strict=True)
        ):
            return False
        told |= set(named)
    return told == set(things)


def _agree(moment: Moment, target: Moment) -> bool:
    """Whether all that both say of a date is the same."""
    shared = moment.said & target.said - {"zone"}
    return bool(shared) and all(
        getattr(moment.readings[0], name) == getattr(target.readings[0], name) for name in shared
    )


def blanked(text: str, spans: Sequence[Span], mark: str = _BLANK) -> str:
    """Return a text with marks in place of the spans."""
    for start, end in spans:
        text = text[:start] + mark * (end - start) + text[end:]
    return text


def _is_bare(
    text: str,
    spans: Sequence[Span],
    targets: Sequence[Any],
    context: AnswerContext,
    *,
    is_quoted: bool | None = None,
) -> bool:
    """Whether nothing but the value is said: what is left says nothing of its own."""
    rest = blanked(text, spans)
    if HEDGE.search(rest) or any(is_qualified(text, *span) for span in spans):
        return False
    said = canonical(context.said)
    if is_quoted is None:  # whether the question has the values to choose from
        is_quoted = any(says(target, said) for target in targets)
    weekdays = {f"{m.readings[0]:%A}" for m in moments(text) if "day" in m.said}
    rest = re.sub(rf"\b(?:{'|'.join(weekdays)})\b", " ", rest) if weekdays else rest
    dates = [date for target in targets if (date := whole_moment(format_value(target)))]
    dates_shown = (
        [m for result in context.results for m in moments(canonical(result.content))] if not dates else []
    )
    for moment in moments(rest):
        is_asked = not is_quoted and any(moment_is(moment, m, precision=None) for m in moments(said))
        is_strict = bool(dates) or context.on_line
        if is_strict and not (is_asked or any(_agree(moment, value) for value in dates or dates_shown)):
            return False
        rest = blanked(rest, [(moment.start, moment.end)], " ")
    is_name = not any(
        as_number(target) is not None or whole_moment(format_value(target)) for target in targets
    )
    told = [a for t in _record_texts(targets, context) for a in amounts(t)] if is_name else []
    stated = [a for a in amounts(text) if any(start <= a.start < end for start, end in spans)]
    for amount in amounts(rest):
        is_count = len(targets) > 1 and amount.number == len(targets)
        is_repeated = not is_quoted and any(amount.number == other.number for other in amounts(said))
        is_beside = any(amount.number == other.number for other in told) and _is_within(
            amount.start, [match.span() for match in _PREPOSITION.finditer(rest)]
        )
        if is_count or is_repeated or is_beside or any(is_conversion(amount, other) for other in stated):
            rest = blanked(rest, [amount.span])
    return _says_nothing_else(rest, targets, said, is_quoted, context)


def _says_nothing_else(
    rest: str, targets: Sequence[Any], said: str, is_quoted: bool, context: AnswerContext
) -> bool:
    tools = " ".join(result.tool.replace("_", " ") for result in context.results)
    heard = {_stem(word) for word in (*words(said), *words(context.offered), *words(tools))}
    heard |= {"more", "less", "fewer", "lower"} if "differ" in said.casefold() else set()
    labels = {word for result in context.results for word in _labels(result.content)}
    strange = [
        (match.start(), match[0])
        for match in re.finditer(r"\d+(?:[.,]\d+)+|[^\W_]+", rest)
        if not (_is_known(match[0], heard, is_quoted) or match[0] in labels)
        and not (len(targets) > 1 and _ORDINAL.fullmatch(match[0]))
    ]
    if not strange or ("who" in words(said) and _KIN.search(rest)):
        return not strange
    anywhere = {word for result in context.results for word in words(canonical(result.content))}
    shown = {word for text in _record_texts(targets, context) for word in words(text)}
    of_value = {word for target in targets for word in words(canonical(format_value(target)))}
    is_number = any(as_number(t) is not None for t in targets)
    is_amount = all(as_number(t) is not None or whole_moment(format_value(t)) for t in targets)
    beside = [match.span() for match in _PREPOSITION.finditer(rest)]
    if is_amount and not shown:
        shown = anywhere  # what was worked out is of all that was seen
    bracketed = [match.span() for match in _BRACKETS.finditer(rest)] if context.is_lenient else []
    adverbial = [match.span() for match in _ADVERBIAL.finditer(rest)]
    told = [match.span() for match in _PART.finditer(rest) if _BLANK in match[0]]
    is_sentence = bool(told) and bool(words(rest[slice(*told[0])]))  # the value is no bare item of a list

    def is_first(at: int, word: str) -> bool:
        after = rest[at + len(word) :].lstrip(" ")
        return not rest[:at].strip(" *\"'(") and (not _SEPARATOR.match(after) or bool(_CLAUSE.match(after)))

    def is_shown(at: int, word: str) -> bool:
        """Whether a word is of the record of the value, and no value that competes with it."""
        if word.isdigit() and not is_number and word in shown and len(targets) == 1:
            return True
        is_name = word[0].isdigit() or not (word.islower() or is_first(at, word))
        is_code = word.isdigit() and re.search(r"[^\W\d_]-$", rest[:at]) is not None
        is_free = (not word[0].isdigit() or is_code) and (is_amount or (is_sentence and at < told[0][0]))
        return set(words(word)) <= shown and (
            is_free or _is_within(at, beside if is_name else [*beside, *told])
        )

    def is_plain(at: int, word: str) -> bool:
        """Whether a word names nothing."""
        is_lower = word.islower() or (is_first(at, word) and word.istitle()) or _is_within(at, bracketed)
        is_said = words(word)[0] in anywhere or (
            context.on_line and (word in _MODIFIERS or is_number_word(word))
        )
        return is_lower and word.isascii() and word.isalpha() and not is_said

    odd: list[tuple[int, str]] = []
    for at, word in strange:
        is_label = (word.islower() or is_first(at, word)) and words(word)[0] in labels
        is_opening = is_first(at, word) and _CLAUSE.match(rest[at + len(word) :].lstrip(" "))
        is_again = words(word)[0] in of_value and not (is_number and word.isdigit())
        if is_again or is_label or is_opening or is_shown(at, word):
            continue
        if not is_plain(at, word):
            return False
        if not _is_within(at, adverbial):
            odd.append((at, word))
    for at, _ in reversed(odd):
        rest = f"{rest[:at]}{_ODD}{rest[at:]}"
    if not context.on_line or context.is_lenient:
        return (len(odd) <= _MAX_OTHER_WORDS or context.is_lenient) and not (
            len(targets) > 1 and _LONGER.search(rest)
        )
    for form in (_TOLD, _COUNTED) if is_amount else (_TOLD,):
        parts = _PARTS.split(rest)
        rest = "".join(form.sub(lambda m: m[0].replace(_ODD, ""), part) for part in parts)
    return len(strange) <= _MAX_OTHER_WORDS and _ODD not in rest


def _is_within(place: int, spans: Sequence[Span]) -> bool:
    return any(start <= place < end for start, end in spans)


def _labels(content: str) -> set[str]:
    """The words by which a result names its fields."""
    labels = [*_LABEL.findall(content), *_HEAD.findall(content)]
    return {word for label in labels for word in words(label.replace("_", " "))}


def _is_known(word: str, heard: set[str], is_quoted: bool) -> bool:
    plain = words(word)[0]
    if plain in _SAFE or (len(plain) > 1 and plain in units_of(plain)):
        return True
    return _stem(plain) in heard and not (is_quoted and word[:1].isupper())


def _stem(word: str) -> str:
    word = american(word)
    return word[:5] if len(word) > 5 else word.rstrip("s") or word


def _record_texts(targets: Sequence[Any], context: AnswerContext) -> Iterator[str]:
    """What the records that show the values say."""
    for result in context.results:
        for record in shown_records(result.content):
            if any(says(target, text) for target in targets for text in record.texts):
                yield from record.texts
