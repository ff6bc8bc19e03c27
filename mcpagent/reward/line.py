"""The answer line, graded alone: it says the value, as the kind of thing that it is, and nothing against it.

Next to the value no other of its kind may stand (number, date, name), nor a word that denies, doubts or
bounds it. Other words are free if a small word opens them ("from bow to stern"), as a verb, or as what is
counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
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
_MAX_PIECES = 100  # next to a value: matching takes time by the cube of them
_FEW_WORDS = 5
_BLANK = "\0"

# ", not B" and "than B" say nothing of what is right.
_CONTRAST = pattern("contrast")
_SAFE = frozenset(WORDS["filler"].split()) | UNSAID | LEGAL
_LABEL = re.compile(r"(?:^|[\"'{,;|\n])\s*([A-Za-z_][A-Za-z_ ]{0,30})[\"']?\s*[:=]")
_HEAD = re.compile(r"\A[^\n]*[|;][^\n]*\n|^[^\n]*\|[^\n]*\n(?=[ |:-]*-[ |:-]*\n)", re.MULTILINE)
_FALLING = pattern("falling")
_RATE = pattern("rate")
_OUT_OF = re.compile(r"(?<=\d) (?:out )?of (?:the )?\d+\b(?![-.,/:]\d)|(?<=\d) ?/ ?(?:5|10|100)\b(?![\w./])")
_ENUMERATOR = re.compile(r"(?:^|(?<=[\s,;(\"]))\(?(\d{1,2})[.)]\s+(?=[^\d\s])", re.MULTILINE)
_TERM = r"[\s()€$£]*\d[\d.,]*\s?[^\W\d_]{0,9}[\s()€$£%]*"
_SUM = re.compile(rf"^(?:{_TERM}[-+*/×÷])+{_TERM}=\s*(?=\S)|\((?:{_TERM}[-+*/×÷])+{_TERM}\)")
_SYMBOL = re.compile(r"^[A-Za-z]{1,2} ?= ?")
_HOURS = pattern("hours")
_THEN = re.compile(r"\s*(?:->|→|⟶|[<>])\s*")
_MODIFIERS = frozenset(WORDS["modifiers"].split())
_PIECE = re.compile(
    r"\0[\0 ]*|\d+(?:[.,]\d+)+|[^\W_]+(?:[-'][^\W_]+)*(?:/[a-z]{1,3}\b)?|[():]|[,;&|/\n]|(?<=\s)-(?=\s)"
)
# What may stand ahead of the first value, behind the last one, and between two: letters as `_tags` says.
_OPENING = r"(?:z?[op][ackopszSxXN]+[,:])?[ackops,:]*"
_LEAD = _OPENING + r"(?:(?:(?:[acks]x[acks]*)?z|^x[op])[ackops,:]*|[acks]x%s)?"
_VERB, _NOUN = _LEAD % "[ackops,:]*", _LEAD % "[ackops,:]+"  # "folk rock" is no rock
_REMARK = r"\((?:#x|x#|[ackopszSxN,:])*+\)[ks]*+"
_SHOWN = _REMARK.replace("N", "")  # next to a name, a name that no result has shown is a rival
_TAIL = rf"[ks]*(?:[op][acksSx]*+|c[aks]*+|,(?:a[aksSx]*+|k++z?|x(?=p))?|:|{_SHOWN})*"
_AFTER = rf"(?:[op][acksSXzx]*+|c[aks]*+|,(?:a[aksSXzx]*+|[ks]++z?|x(?=p))?|:|{_REMARK})*"
_AMOUNT_TAIL = rf"[xz]?(?:[aks]+[xz]?)?[ks]*{_AFTER}"
_OPEN_TAIL = r"[ackszSXN#,:]*(?:[op(].*)?"
_ITEMS = r"[aks,:]*(?:[op][aks]*+[,:]?|c[aks]*+[,:]?|\([akopsS,:]*+\)[aks,:]*+)*"
_AROUND = {
    kind: tuple(map(re.compile, patterns))
    for kind, patterns in {
        "amount": (rf"axxp[ackops]*|{_VERB}", _AMOUNT_TAIL, _AMOUNT_TAIL + _VERB),
        "amounts": (_VERB, _AMOUNT_TAIL, rf"x[ackops]*|{_AMOUNT_TAIL}{_VERB}"),
        "name": (_NOUN, _TAIL, _TAIL + _NOUN),
        "names": (_NOUN, _TAIL, rf"[xz][ackops]+|{_TAIL}{_NOUN}"),
        "code": (rf"x|{_VERB}", _TAIL, _TAIL + _VERB),
        "choice": (_NOUN, _OPEN_TAIL, _OPEN_TAIL + _NOUN),
        "items": (_NOUN, _ITEMS, _ITEMS),
    }.items()
}
# In free text: alone, or right behind a name, a word may be another name ("Go and Rust", "folk rock").
_ANY_WORD, _NO_ITEM = re.compile("[xz]"), re.compile(r"(?<=[^V,])x|x(?=[ckopxzV])|z")
_SPARE = {"name": re.compile("x(?!,V)|z"), "names": _NO_ITEM, "items": _NO_ITEM}
_FIELDS = re.compile(":[ak]*[sSX]")  # "ship: Wind"
_KIN = re.compile(r"[xz][ak]*oa?V")
_FUNCTION_WORDS = {word: letter for letter, some in WORDS["function_words"].items() for word in some.split()}
_SUBJECTS = frozenset(WORDS["subjects"].split())
_RANGE = re.compile(r"\0 ?(?:-|to|through|until) ?\0")  # "41 to 43" has 42 too
_FIRST_NAME = re.compile(rf"\b(?!(?:{'|'.join(UNSAID)})\b)(?-i:[A-Z])[^\W\d_]*[. -]+$", re.IGNORECASE)
_EMPTY = re.compile(r"\W*(?:(?:there|it|they) \w+ )?(?:none|no \w+|nothing|empty)\W*", re.IGNORECASE)
_AROUND_VALUE = re.compile(r"\(([^()]*V[^()]*)\)")  # such brackets are marks
_BRACKETS = re.compile(r"\([^()]*\)")
_SEPARATOR = re.compile(r"[,;&|\n]|\band\b")
_UNIT_OF_TIME = {"s", "second", "seconds", "min", "minute", "minutes", "h", "hour", "hours", "days"}
_COUNTED = re.compile(r" ([a-z]{2,}[^\Ws]s)\b")
_FIELD = re.compile(r"([A-Za-z_][\w ]{0,40})[\"']?\s*[:=]\s*[\"']?(-?\d[\d.]*)")
_PERIODS = ("second", "minute", "hour", "day", "week", "month")
_PER = re.compile(rf"\s*(?:[a-z]+ )?(?:per|an?|each|every|/)\s*({'|'.join(_PERIODS)})\b")
_REASON = pattern("reason")
_NEGATED = re.compile(r"\b(?:not|no|never|none|cannot|without|\w+n't)\b", re.IGNORECASE)
_ANY_MORE = re.compile(r"\bany ?(?:more|longer)\b", re.IGNORECASE)
_STATES = pattern("states")
_YES = pattern("says_yes")
_NO = pattern("says_no")
_COMPARED = pattern("compared")
_LESS = frozenset(("less", "least", "fewer", "fewest"))
_LITTLE = tuple(WORDS["little"].split())  # how such words begin
_ORDINAL = re.compile(r"1st|2nd|3rd|\dth")
_ORDINALS = (("first", "former", "1st"), ("second", "latter", "2nd"), ("third", "3rd"), ("fourth", "4th"))


def read_answer(text: str, check: AnswerCheck) -> str:
    """Return an answer as it is read: canonical, "2 out of 5" as 2, "12 + 3 = 15" as 15, 2h05 as 2 hours and
    5 minutes, a numbered list without its numbers, an object of one field as what it holds."""
    text = canonical(unwrapped(text.strip(), check)).strip()
    numbers = [int(match[1]) for match in _ENUMERATOR.finditer(text)]
    if numbers and numbers == [*range(1, len(numbers) + 1)] and (len(numbers) > 1 or check.type == "set"):
        text = _ENUMERATOR.sub("", text)
    if check.type in ("list", "pairs"):
        text = _THEN.sub(", ", text)
    if check.type == "number":
        text = _OUT_OF.sub("", _SUM.sub("", _SYMBOL.sub("", text)))
    unit = check.unit if check.type == "number" else check.value if check.type in ("name", "pairs") else ""
    is_time = bool(_UNIT_OF_TIME & units_of(str(unit or "")))
    if is_time or re.search(r"\d:\d\d", str(unit or "")):
        text = re.sub(r"\b(\d+):(\d\d) ?min(?:utes)?\b", r"\1 min \2 s", text)
        text = re.sub(r"(?<=\d) ?m\b(?= ?\d+ ?s)|(?<=h)( ?\d+) ?m\b", r"\1 min", text)
    if is_time:
        text = _HOURS.sub(lambda m: f"{m[1]} h {m[2]} min" + (f" {m[3]} s" if m[3] else ""), text)
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


def is_given(check: AnswerCheck, values: Sequence[Any], text: str, context: AnswerContext) -> bool:
    """Whether a text that has been read gives one of `values`, which are all right."""
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
            return not _is_opposite(text, context.said) and _is_bare(
                text, spans, targets, context, kind="choice"
            )
        case "pairs":
            text = re.sub(r"'s? (?=\w)", " ", text)
            units = _units_for(check, context, may_be_percent=True)
            spans = pair_spans(value, text, tolerance=check.tolerance, units=units)
            things = list(value) if is_json_object(value) else []
            targets = [part for t in things for part in (_short(t, things), value[t])]
            kind = "amounts" if things and all(map(_is_amount, value.values())) else "names"
            return spans is not None and _is_bare(text, spans, targets, context, kind=kind, is_quoted=False)
        case "set" | "list" | "must_include":
            items: list[Any] = list(value) if is_json_array(value) else [value]
            if not items:
                return _EMPTY.fullmatch(text) is not None
            spans = item_spans(items, text, tolerance=check.tolerance, in_order=check.type == "list")
            if spans is None or not _is_bare(text, spans, items, context, kind="items"):
                return False
            if check.type == "set" and _RANGE.search(blanked(text, spans)):
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
    if _LESS & set(words(text)) and not _LESS & set(words(canonical(said))):
        return True
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
        return spans_of(format_value(value), text) or _family_name_spans(format_value(value), text, context)
    is_whole = (as_number(value) or 0.0).is_integer()
    units = _units_for(check, context, may_be_percent=not (is_strict or is_whole))
    spans = spans_of(value, text, tolerance=check.tolerance, units=units)
    target = as_number(value)
    if not spans and target is not None and target < 0 and _FALLING.search(text):
        spans = spans_of(-target, text, tolerance=check.tolerance, units=units)
    shown = {word for result in context.results for word in words(result.content)} & set(_PERIODS)
    said = set(words(context.said)) & set(_PERIODS) or shown
    others = _fields_of_others(target, context)
    return [
        span
        for span in spans
        if not ((rate := _PER.match(text, span[1])) and target and said and rate[1] not in said)
        and not ((thing := _COUNTED.match(text, span[1])) and _stem(thing[1]) in others)
    ]


def _family_name_spans(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Where a text has the family name alone of whom a question asks for, if no other one shown has it."""
    parts = re.findall(r"[^\W\d_][\w'-]+\b", name.partition(",")[0])
    if "who" not in words(context.said) or len(name.split()) < 2 or not all(part.istitle() for part in parts):
        return []
    contents = [canonical(result.content) for result in context.results]
    is_shared = any(len(spans_of(parts[-1], told)) != len(spans_of(name, told)) for told in contents)
    alone = [span for span in spans_of(parts[-1], text) if not _FIRST_NAME.search(text[: span[0]])]
    return [] if is_shared else alone


def _fields_of_others(number: float | None, context: AnswerContext) -> set[str]:
    """The fields of the results that do not have the number, nor does the question name them."""
    fields = [field for result in context.results for field in _number_fields(result.content)]
    of_value = {word for name, told in fields if told == number for word in name}
    labels = {_stem(word) for result in context.results for word in _labels(result.content)}
    return labels - of_value - _stems(context.said) if of_value else set()


@lru_cache(maxsize=512)
def _number_fields(content: str) -> tuple[tuple[frozenset[str], float | None], ...]:
    return tuple((_stems(name.replace("_", " ")), as_number(told)) for name, told in _FIELD.findall(content))


def _units_for(check: AnswerCheck, context: AnswerContext, *, may_be_percent: bool) -> Units:
    """What a number may be counted in: the unit of the check, else those that the question names."""
    if check.unit:
        names = units_of(canonical(check.unit)) or units_of(canonical(f"degrees {check.unit}"))
        return Units(frozenset(names or {check.unit}), is_exact=True)
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
    """What a statement says that has the last words of the question: "It hasn't been paid."."""
    text = _ANY_MORE.sub(" ", text)
    told = words(_NEGATED.sub(" ", text))
    is_other = " than " in said and not re.match(r"(?:it|he|she|they)\b", text.strip(), re.IGNORECASE)
    if is_other or " or " in said or "?" in text or HEDGE.search(" ".join(told)):
        return None
    asked = [_stem(word) for word in words(canonical(said.partition(" than ")[0])) if word not in _SAFE]
    is_bare = not _STATES.search(text)  # "works remotely"
    if is_bare and not {_stem(word) for word in told if word not in _SAFE} <= {*asked}:
        return None
    asked = asked[-1:] if is_bare else asked[-2:]
    opposed = [word for word in told if word.startswith("un") and _stem(word[2:]) in asked]
    is_echo = opposed or any(_stem(word) in asked for word in told)
    return (len(_NEGATED.findall(text)) + len(opposed)) % 2 == 0 if is_echo else None


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


def _is_amount(value: Any) -> bool:
    return as_number(value) is not None or whole_moment(format_value(value)) is not None


def _is_bare(
    text: str,
    spans: Sequence[Span],
    targets: Sequence[Any],
    context: AnswerContext,
    *,
    kind: str = "",
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
    shown_dates = [m for result in context.results for m in moments(canonical(result.content))]
    for moment in moments(rest):
        is_asked = not is_quoted and any(moment_is(moment, m, precision=None) for m in moments(said))
        is_strict = bool(dates) or context.on_line
        if is_strict and not (is_asked or any(_agree(moment, value) for value in dates or shown_dates)):
            return False
        rest = blanked(rest, [(moment.start, moment.end)], " ")
    numbers = [number for target in targets if (number := as_number(target)) is not None]
    if not kind:
        is_code = all(re.search(r"\d", format_value(target)) for target in targets)
        kind = "amount" if all(map(_is_amount, targets)) else "code" if is_code else "name"
    record = [amount for text in _record_texts(targets, context) for amount in amounts(text)]
    shown = record or [a for result in context.results for a in amounts(canonical(result.content))]
    labels = {word for result in context.results for word in _labels(result.content)}
    stated = [a for a in amounts(text) if any(start <= a.start < end for start, end in spans)]
    for amount in amounts(rest):
        is_count = len(targets) > 1 and amount.number == len(targets)
        is_repeated = not is_quoted and any(amount.number == other.number for other in amounts(said))
        is_shown = any(amount.number == other.number for other in shown)
        before = {*words(rest[max(0, amount.start - 40) : amount.start])[-1:]}
        # Several values among others of their records are a paste of these.
        is_beside = (
            is_shown
            and len(targets) == 1
            and bool((not numbers and rest[amount.start - 1 : amount.start] != _BLANK) or before & labels)
        )
        is_beside |= bool(before & {"the", "all", "these"}) and amount.number in range(2, 10)
        if is_count or is_repeated or is_beside or any(is_conversion(amount, other) for other in stated):
            rest = blanked(rest, [amount.span], " ")
    return _says_nothing_else(rest, targets, said, is_quoted, context, kind)


def _says_nothing_else(
    rest: str, targets: Sequence[Any], said: str, is_quoted: bool, context: AnswerContext, kind: str
) -> bool:
    """Whether the words around the blanked values stand where words say nothing against them."""
    tags = _tags(rest, targets, said, is_quoted, context, kind)
    if kind == "name" and "who" in words(said) and _KIN.search(tags):
        return False
    if kind in ("names", "amounts") and _FIELDS.search(tags):
        return False  # pasted records
    if not context.on_line or context.is_lenient:
        free = tags.count("x") <= _MAX_OTHER_WORDS or context.is_lenient
        tags = _SPARE.get(kind, _ANY_WORD).sub("k", tags) if free else tags
        lead, mark, behind = tags.partition("V")
        lead = re.sub(r"[op]S+|S(?!S*,$)", lambda match: match[0].lower(), lead)  # "Go, Rust" has a rival
        tags = lead.replace("(", ",").replace(")", ",") + mark + behind
    lead, tail, between = _AROUND[kind]
    while (unwrapped := _AROUND_VALUE.sub(r",\1,", tags)) != tags:
        tags = unwrapped
    tags = tags if tags.count("(") == tags.count(")") else tags.replace("(", ",").replace(")", ",")
    parts = re.split("V+", tags)
    if max(map(len, parts)) > _MAX_PIECES:
        return False
    forms = (lead, *[between] * (len(parts) - 2), tail)
    return all(form.fullmatch(part) for form, part in zip(forms, parts, strict=True))


def _tags(
    rest: str, targets: Sequence[Any], said: str, is_quoted: bool, context: AnswerContext, kind: str
) -> str:
    """Return the pieces of a text by what they are, a letter each.

    V a value; k a word that says nothing, of the question or of the tools; a an article; c is, has and the
    like; p a preposition, o of; s a word of the record of the value, S a name of it; x a word that no
    result has shown, z such a verb, N such a name; X a word of something else; # a number; , : ( ) marks.
    """
    is_number = any(as_number(target) is not None for target in targets)
    of_value = {word for target in targets for word in words(canonical(format_value(target)))}
    labels = {word for result in context.results for word in _labels(result.content)}
    # A name among the labels ("Bremen": 14) has rivals there.
    labels = set[str]() if kind == "name" and of_value <= labels else labels
    abbreviated = tuple(label for label in labels if len(label) > 2)
    tools = " ".join(result.tool.replace("_", " ") for result in context.results)
    heard = {*_stems(said), *_stems(context.offered), *_stems(tools), *map(_stem, labels)}
    heard |= {_stem(word) for word in of_value if not (is_number and word.isdigit())}
    heard |= {"more", "less", "fewer", "lower"} if "differ" in said.casefold() else set()
    anywhere = {word for result in context.results for word in words(canonical(result.content))}
    # What was worked out is of all that was seen.
    shown = {word for text in _record_texts(targets, context) for word in words(text)}
    shown = shown or (anywhere if kind.startswith("amount") else shown)
    tags = before = ""
    for piece in _PIECE.finditer(rest):
        text = piece[0]
        if not text[0].isalnum():
            tags += "V" if text[0] == _BLANK else text if text in "():" else ","
            continue
        is_first, parts = not tags.strip("("), words(text)
        is_plain = text.islower() or (is_first and text.istitle())
        if letter := _FUNCTION_WORDS.get(text.casefold() if is_plain else text):
            tags += letter
        elif (is_plain and text.casefold().startswith(abbreviated)) or _is_known(
            text, parts, heard, is_quoted=is_quoted, kind=kind
        ):
            tags += "k"
        elif set(parts) <= shown and (not is_number or re.search(r"[^\W\d]", text)):
            tags += "s" if kind.startswith("amount") or (is_plain and not text[0].isdigit()) else "S"
        else:
            is_verb = (
                text.endswith("ly")
                or before in _SUBJECTS
                or (text.endswith("s") and (is_first or tags[-1:] in ("k", "s")))
            )
            is_new = not set(parts) & anywhere
            tags += _letter(text, is_plain and is_new, is_new, is_verb, context.on_line)
        before = text.casefold()
    return tags


def _letter(word: str, is_plain: bool, is_new: bool, is_verb: bool, is_strict: bool) -> str:
    """The letter of a word that nothing has said."""
    parts = words(word)
    if re.search(r"\d", word) or (is_strict and (_MODIFIERS & {*parts} or any(map(is_number_word, parts)))):
        return "#"
    if not (is_plain and word.isascii()):
        return "N" if is_new else "X"
    return "z" if is_verb or (word.endswith(("ed", "en", "ing")) and not word.startswith("un")) else "x"


@lru_cache(maxsize=512)
def _labels(content: str) -> frozenset[str]:
    """The words by which a result names its fields."""
    labels = [*_LABEL.findall(content), *_HEAD.findall(content)]
    return frozenset(word for label in labels for word in words(label.replace("_", " ")))


@lru_cache(maxsize=512)
def _stems(text: str) -> frozenset[str]:
    return frozenset(map(_stem, words(text)))


def _is_known(word: str, parts: Sequence[str], heard: set[str], *, is_quoted: bool, kind: str) -> bool:
    if (kind == "choice" and word.endswith(("er", "est"))) or (kind != "choice" and _ORDINAL.fullmatch(word)):
        return True
    return all(
        part in _SAFE
        or (len(part) > 1 and part in units_of(part))
        or (_stem(part) in heard and not (is_quoted and word[:1].isupper()))
        for part in parts
    )


@lru_cache(maxsize=4096)
def _stem(word: str) -> str:
    word = american(word)
    return word[:5] if len(word) > 5 else word.rstrip("s") or word


def _record_texts(targets: Sequence[Any], context: AnswerContext) -> tuple[str, ...]:
    """What the records that show the values say."""
    return _texts_with(tuple(map(format_value, targets)), tuple(result.content for result in context.results))


@lru_cache(maxsize=512)
def _texts_with(values: tuple[str, ...], contents: tuple[str, ...]) -> tuple[str, ...]:
    records = [record for content in contents for record in shown_records(content)]
    told = [
        record for record in records if any(says(value, text) for value in values for text in record.texts)
    ]
    return tuple(text for record in told for text in record.texts)
