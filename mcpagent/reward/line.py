"""The answer line, graded alone: it says the value, as the kind of thing that it is, and nothing against it.

Next to the value no other of its kind may stand (number, date, name), nor a word that denies, doubts or
bounds it. Other words are free if a small word opens them ("from bow to stern"), as a verb, or as what is
counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
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
    unit_named,
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
_ENUMERATOR = re.compile(
    r"(?:^|(?<=[\s,;(\"]))\(?(\d{1,2})[.)]\s+(?=[^\d\s])|^\s*(\d)[.)] +(?=\d)", re.MULTILINE
)
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
_BEFORE = re.compile(r"(?:^|[,:c])a?s+,+V")  # "timber, V" names another one first
_KIN = re.compile(r"[xz][ak]*oa?V")
_FUNCTION_WORDS = {word: letter for letter, some in WORDS["function_words"].items() for word in some.split()}
_BETWEEN_STEMS = frozenset({*_FUNCTION_WORDS, "it", "yet", "still", "also", "to", "be", "being"}) - {"or"}
_SUBJECTS = frozenset(WORDS["subjects"].split())
_RANGE = re.compile(r"\0 ?(?:-|to|through|until) ?\0")  # "41 to 43" has 42 too
_NAME_BEFORE, _NAME_AFTER = (
    re.compile(r"(?:(?:\b[A-Z][\w']*[.]?|\0)[ -]+)+$"),
    re.compile(r"(?:(?: d[aeiu]| d[eo]s| v[ao]n| de[nr]| la)*[ -]+(?:[A-Z][\w']*|\0))+"),
)
_NONE_WORDS = re.compile(
    r"\b(?:no|none|nothing|nobody|empty|0|keine?n?|aucune?)\b|(?:n't|\bnot)\b.{0,30}\bany", re.IGNORECASE
)
_AROUND_VALUE = re.compile(r"\(([^()]*V[^()]*)\)")  # such brackets are marks
_BRACKETS = re.compile(r"\([^()]*\)")
_BREAK = r", |[;|\n]|\b(?:and|then)\b"
_SEGMENT = re.compile(rf"(?:{_BREAK})?((?:(?!{_BREAK}).)+)", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,;&|\n]|\band\b")
_UNIT_OF_TIME = {"s", "second", "seconds", "min", "minute", "minutes", "h", "hour", "hours", "days"}
_MONEY_UNITS = frozenset(
    name for names in WORDS["money"].values() for some in names.values() for name in some.split()
)
_OTHER_MONEY = re.compile(r"(?<=\d)\s?([A-Z]{3})\b")
_COUNTED = re.compile(r" (?:([a-z]+) )?([a-z]{2,}[^\Ws]s)\b")
_FIELD = re.compile(r"([A-Za-z_][\w ]{0,40})[\"']?\s*[:=]\s*[\"']?(-?\d[\d.]*)")
_PERIODS = {name: period for period, names in WORDS["periods"].items() for name in (period, *names.split())}
_RATES = "|".join(sorted(_PERIODS, key=len, reverse=True))
_PER = re.compile(
    rf"\s*(?:[a-z]+ )?(?:(?:per|an?|each|every|pro|par|je)\s+|/\s?)(\d+ )?({_RATES})\b|\s*()(\w+ly)\b",
    re.IGNORECASE,
)
_CLAUSE_MARK = re.compile(r"[.;,\n]")
_PERIODIC = re.compile(r"\b(?:\w+ly|annual)\b", re.IGNORECASE)
_EVERY = re.compile(r"\b(?:once )?(?:every|each|per|an?|pro|par|je)\s+(\w+)", re.IGNORECASE)
_ENUMERATED = re.compile(r"[a-z]+(?:_[a-z0-9]+|-[a-z]+)*|[A-Z]+(?:_[A-Z0-9]+)*|[a-z]+(?:[A-Z][a-z]+)+")
_ENDING = re.compile(r"s|ed|ing|ment|er|or|able|ly")
_OF = re.compile(r"'s? (?=\w)")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_REASON = pattern("reason")
_NEGATED = re.compile(r"\b(?:not|no|never|none|cannot|without|\w+n't)\b", re.IGNORECASE)
_ANY_MORE = re.compile(r"\bany ?(?:more|longer)\b", re.IGNORECASE)
_STATES = pattern("states")
_UNTOLD = pattern("untold")
_FLAG = re.compile(
    r"(?:\b(?:is|are|was|set to|says|shows)|[=:])\s*[\"']?(true|false|yes|no)\b", re.IGNORECASE
)
_FILLER = WORDS["filler"]
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
    numbers = [int(match[1] or match[2]) for match in _ENUMERATOR.finditer(text)]
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
        text = _HOURS.sub(
            lambda m: f"{m[1]} h {m[2]} min" + (f" {m[3] or m[4]} s" if m[3] or m[4] else ""), text
        )
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
            text = _REASON.sub(" ", text if "not" in _value_parts(value) else without_contrast(text))
            spans = _option_spans(check, value, text)
            others = [s for o in check.options if o != value for s in _option_spans(check, o, text)]
            if not spans or any(
                not any(a <= s[0] and s[1] <= b and (a, b) != s for a, b in spans) for s in others
            ):
                return False
            text = text.replace(f" of the {len(check.options)}", "")
            targets = [_short(value, check.options)]
            return not _is_opposite(text, context.said) and _is_bare(
                text, spans, targets, context, kind="choice"
            )
        case "pairs":
            text = _OF.sub(" ", text)
            units = _units_for(check, context, may_be_percent=True)
            spans = pair_spans(value, text, context, tolerance=check.tolerance, units=units)
            things = list(value) if is_json_object(value) else []
            targets = [part for t in things for part in (_short(t, things), value[t])]
            kind = "amounts" if things and all(map(_is_amount, value.values())) else "names"
            return spans is not None and _is_bare(text, spans, targets, context, kind=kind, is_quoted=False)
        case "set" | "list" | "must_include":
            items: list[Any] = list(value) if is_json_array(value) else [value]
            if not items:
                return _says_none(text, context)
            spans = item_spans(items, text, context, tolerance=check.tolerance, in_order=check.type == "list")
            if spans is None or not _is_bare(text, spans, items, context, kind="items"):
                return False
            rest = _without_annotations(text, spans, items, context, is_list=True)
            if check.type == "set" and _RANGE.search(rest):
                return False
            return check.type == "must_include" or not _other_parts(rest)
        case _:
            text = without_contrast(text if "whose" not in words(context.said) else _OF.sub(" ", text))
            spans = value_spans(check, value, text, context)
            said = [text[start:end].casefold() for start, end in spans]
            if check.type == "name" and len(set(said)) < len(said):
                return False  # fields with their values, or a plea
            return bool(spans) and _is_bare(text, spans, [value], context)


def _says_none(text: str, context: AnswerContext) -> bool:
    """Whether a text says that there is none: each clause that tells something of it denies it."""
    labels = {_stem(word) for result in context.results for word in words(result.content.replace("_", " "))}
    heard = labels | _stems(context.said)
    is_denied = False
    for clause in re.split(r"[,;:.\n](?!\d)|\b(?:but|and)\b", text):
        told = [w for w in words(clause) if w not in _SAFE and _stem(w) not in heard]
        if denied := _NONE_WORDS.search(clause):
            is_denied, told = True, [w for w in told if w not in words(denied[0])]
        elif clause.strip().lower().startswith(("i ", "sorry")):
            continue
        if len(told) > (
            _FEW_WORDS if denied and denied[0].strip().lower() != clause.strip().lower() else 0
        ) or HEDGE.search(_NONE_WORDS.sub(" ", clause)):
            return False
    return is_denied


def _is_opposite(text: str, said: str) -> bool:
    """Whether a text compares otherwise than a question for the one that is more does."""
    if _LESS & set(words(text)) and not _LESS & set(words(canonical(said))):
        return True
    asked, told = _COMPARED.findall(canonical(said)), _COMPARED.findall(text)
    if not asked or not told or {word[:4] for word in told} & {word[:4] for word in asked}:
        return False
    return any(word.startswith(_LITTLE) for word in told) is not any(w.startswith(_LITTLE) for w in asked)


def _other_parts(rest: str) -> list[str]:
    """The parts of an enumeration with marks for its items that are none of the items but say something."""
    rest = _BRACKETS.sub(lambda m: m[0] if _BLANK in m[0] else " ", rest)[rest.find(_BLANK) :]
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
        written = format_value(value)
        return (
            spans_of(written, text)
            or worded_spans(written, text)
            or (part_spans(written, text, context) if _is_person(written, context.said) else [])
        )
    is_whole = (as_number(value) or 0.0).is_integer()
    units = _units_for(check, context, may_be_percent=not (is_strict or is_whole))
    spans = spans_of(value, text, tolerance=check.tolerance, units=units)
    target = as_number(value)
    if not spans and target is not None and target < 0 and _FALLING.search(text):
        spans = spans_of(-target, text, tolerance=check.tolerance, units=units)
    others = _fields_of_others(target, context)
    return [
        _with_rate(text, span)
        for span in spans
        if not (target and _is_other_rate(text, span, target, f"{context.said} {check.unit or ''}", context))
        and not (
            _MONEY_UNITS & units.names
            and (money := _OTHER_MONEY.match(text, span[1]))
            and unit_named(money[1]) is None
        )
        and not (
            (thing := _COUNTED.match(text, span[1]))
            and thing[1] not in _FUNCTION_WORDS
            and _stem(thing[2]) in others
        )
    ]


def _with_rate(text: str, span: Span) -> Span:
    rate = _PER.match(text, span[1])
    return (span[0], rate.end()) if rate and (rate[2] or rate[4]).casefold() in _PERIODS else span


def _is_other_rate(text: str, span: Span, value: float, said: str, context: AnswerContext) -> bool:
    """Whether a number is said of a period that neither the question (`said`) nor, if it names none, a result
    has. Interest is by the year."""
    shown = _periods("\n".join(result.content for result in context.results)) - _fields_of_others(
        value, context
    )
    asked = _periods(said)
    shown |= {"year"} if "%" in units_of(text) else frozenset()
    if rate := _PER.match(text, span[1]):
        period = _PERIODS.get((rate[2] or rate[4]).casefold())
        return period is not None and (
            period not in (asked or shown) or bool(rate[1] and rate[1] not in said)
        )
    before, after = _CLAUSE_MARK.split(text[: span[0]])[-1], _CLAUSE_MARK.split(text[span[1] :])[0]
    told = _periods(" ".join(match[1] for match in _EVERY.finditer(after)))
    return bool(told - (asked or shown) or _periods(" ".join(_PERIODIC.findall(before))) - asked - shown)


@lru_cache(maxsize=512)
def _periods(text: str) -> frozenset[str]:
    return frozenset(_PERIODS[word] for word in words(canonical(text)) if len(word) > 1 and word in _PERIODS)


def worded_spans(value: Any, text: str) -> list[Span]:
    """Return where canonical `text` says a value of an enumeration in its own words: "in need of repair" is
    needs_repair, "located, but it hasn't been sent" LOCATED_NOT_SENT, "every week" WEEKLY."""
    if not isinstance(value, str) or not _ENUMERATED.fullmatch(value):
        return []
    if period := _PERIODS.get(value.casefold()):
        return [m.span() for m in _EVERY.finditer(text) if _PERIODS.get(m[1].casefold()) == period]
    needed = _value_parts(value)
    if len(needed) < 2:
        return []
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


def _value_parts(value: Any) -> list[str]:
    return _word_parts(canonical(re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", format_value(value))))


def _word_parts(text: str, *, is_all: bool = False) -> list[str]:
    """The words that tell something (`is_all`: all words), a denial as "not": "unpaid" is "not", "paid"."""
    parts: list[str] = []
    for word in (m[0].casefold() for m in _WORD.finditer(text)):
        if _NEGATED.fullmatch(word) or word == "non":
            parts.append("not")
        elif word.startswith("un") and len(word) > 5:
            parts += ["not", word[2:]]
        elif is_all or word not in _FUNCTION_WORDS:
            parts.append(_PERIODS.get(word, word) if len(word) > 1 else word)
    return parts


def _is_inflected(word: str, of: str) -> bool:
    alike = next(
        (i for i, (a, b) in enumerate(zip(word, of, strict=False)) if a != b), min(len(word), len(of))
    )
    is_longer = alike == min(len(word), len(of)) >= 3 and _ENDING.fullmatch(max(word, of, key=len)[alike:])
    return word == of or alike >= max(4, min(len(word), len(of)) - 2) or bool(is_longer)


def _is_person(name: str, said: str) -> bool:
    return bool({"who", "whom", "whose"} & {*words(said)}) or words(name)[0] in UNSAID - {"the", "a", "an"}


def part_spans(name: str, text: str, context: AnswerContext) -> list[Span]:
    """Return where a text has a first or a family name alone, if no other name that is shown has it."""
    parts = [m[0] for m in _WORD.finditer(name.partition(",")[0]) if m[0].casefold() not in UNSAID | LEGAL]
    parts = [
        part for part in parts if len(part) > 2 and part[:1].isupper() and part.replace("'", "").isalpha()
    ]
    if len(name.split()) < 2 or not parts:
        return []
    if re.search(r"\d", name):
        parts = [name[name.index(parts[0]) :]]  # "Zhen Hua 23" of a ship
    contents = [canonical(result.content) for result in context.results]
    whole = [len(spans_of(name, told)) for told in contents]
    unique = [part for part in parts if [len(spans_of(part, told)) for told in contents] == whole]
    allowed = {*words(name), *UNSAID, *_SAFE}
    spans: list[Span] = []
    for start, end in sorted(span for part in unique for span in spans_of(part, text)):
        around = [m[0] for m in (_NAME_BEFORE.search(text[:start]), _NAME_AFTER.match(text[end:])) if m]
        if all(_BLANK not in word and set(words(word)) <= allowed for word in around):
            spans.append((start, end))
    return spans


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
    if (untold := _UNTOLD.search(text)) and _stem(words(untold[0])[-1]) not in _stems(said):
        return None
    if (flag := _FLAG.search(text)) and _stems(text[: flag.start()].replace("_", " ")) & _stems(
        said
    ) - _stems(_FILLER):
        return flag[1].casefold() in ("true", "yes")
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
        return spans + [
            span
            for span in worded_spans(option, text)
            if not any(a < span[1] and span[0] < b for a, b in spans)
        ]
    if spans := worded_spans(option, text):
        return spans
    place = check.options.index(option) if option in check.options else len(_ORDINALS)
    named = _ORDINALS[place] if place < len(_ORDINALS) else ()
    return [m.span() for word in named for m in re.finditer(rf"\b{word}\b", text, re.IGNORECASE)]


def item_spans(
    items: Sequence[Any], text: str, context: AnswerContext, *, tolerance: float = 0.0, in_order: bool = False
) -> list[Span] | None:
    """Return where a text says the items, each of them; None if one is missing or out of order."""
    spans: dict[int, list[Span]] = {}
    # Longer ones first: "Apple" is not in "Apple Pie".
    for place in sorted(range(len(items)), key=lambda i: -len(format_value(items[i]))):
        here = _item_spans(items[place], text, context, tolerance)
        if not here and items[place] not in [items[other] for other in spans]:
            return None
        spans[place] = here
        text = blanked(text, here)
    firsts = [spans[place][0][0] for place in range(len(items)) if spans[place]]
    if in_order and firsts != sorted(firsts):
        return None
    return [span for of_item in spans.values() for span in of_item]


def _item_spans(
    item: Any, text: str, context: AnswerContext, tolerance: float, units: Units = ANY_UNITS
) -> list[Span]:
    spans = spans_of(item, text, tolerance=tolerance, units=units) or worded_spans(item, text)
    return spans or (part_spans(item, text, context) if isinstance(item, str) else [])


def pair_spans(
    pairs: Any, text: str, context: AnswerContext, *, tolerance: float = 0.0, units: Units = ANY_UNITS
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
        of_thing = spans_of(_short(thing, list(pairs)), rest) if not spans_of(thing, rest) else []
        of_thing = of_thing or _item_spans(thing, rest, context, 0.0)
        marks += [(start, end, "thing", [thing]) for start, end in of_thing]
        rest = blanked(rest, of_thing, "|")
    for value in sorted(
        {format_value(v): v for v in pairs.values()}.values(), key=lambda v: -len(format_value(v))
    ):
        owners = [thing for thing, other in pairs.items() if format_value(other) == format_value(value)]
        of_value = _item_spans(value, rest, context, tolerance, units)
        marks += [(start, end, "value", owners) for start, end in of_value]
        rest = blanked(rest, of_value, "|")
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
    told, meant = moment.readings[0], target.readings[0]
    shared = moment.said & target.said - {"zone"}
    if "hour" in shared and "zone" in moment.said & target.said:
        if "day" not in shared:
            told = told.replace(year=meant.year, month=meant.month, day=meant.day)
            return ((told - meant).total_seconds() + 60) % 86400 <= 120
        return abs(told - meant).total_seconds() < 60
    return bool(shared) and all(getattr(told, name) == getattr(meant, name) for name in shared)


def blanked(text: str, spans: Sequence[Span], mark: str = _BLANK) -> str:
    """Return a text with marks in place of the spans."""
    for start, end in spans:
        text = text[:start] + mark * (end - start) + text[end:]
    return text


def _without_annotations(
    text: str, spans: Sequence[Span], targets: Sequence[Any], context: AnswerContext, *, is_list: bool
) -> str:
    """Return a text with marks in place of the spans, without what the record of one shows and stands in
    brackets behind it, or next to an item: its identifier, score, date, name."""
    rest = blanked(text, spans)
    for match in _BRACKETS.finditer(rest):
        before = [text[start:end] for start, end in spans if end <= match.start()]
        if _BLANK not in match[0] and before and _is_remark(match[0], before[-1], targets, context):
            rest = blanked(rest, [match.span()], " ")
    is_name = len(targets) == 1 and not re.search(r"\d", format_value(targets[0]))
    for segment in _SEGMENT.finditer(rest):
        inside = [text[start:end] for start, end in spans if segment.start() <= start < segment.end()]
        if is_name and not inside and segment[0][0] in ",;" and re.search(r"\d", segment[1]):
            inside = [text[slice(*spans[0])]]  # ", card MT-205"
        elif not is_list or len(inside) != 1:
            continue
        for part in re.finditer(r"[^\0]+", segment[1]):
            if _is_remark(part[0], inside[0], targets, context):
                start = segment.start(1)
                rest = blanked(rest, [(start + part.start(), start + part.end())], " ")
    return rest


def _is_remark(remark: str, said: str, targets: Sequence[Any], context: AnswerContext) -> bool:
    """Whether all of a remark stands in a record that shows the value that is `said`, or explains a code."""
    if HEDGE.search(remark) or len(remark.split()) > _MAX_OTHER_WORDS:
        return False
    seen = {word for result in context.results for word in words(canonical(result.content))}
    told = [word for word in re.findall(r"[^\W_]+", remark) if word.casefold() not in _SAFE]
    if said.isupper() and all(map(str.istitle, told)) and told and not seen & {*words(remark)}:
        return True
    values = [target for target in targets if spans_of(target, said)] or [said]
    heard = {_stem(word) for result in context.results for word in _labels(result.content)} | _stems(
        context.said
    )
    return any(
        _tells(texts, remark, heard, seen)
        for texts in _records_with(tuple(map(format_value, values)), context)
    )


def _tells(texts: Sequence[str], remark: str, heard: Set[str], seen: Set[str]) -> bool:
    """Whether the texts of a record tell the numbers, the dates and the words of a remark. A number may have
    a name that nothing has shown."""
    told = " \n ".join(texts)
    rest = remark
    for moment in moments(rest):
        if not any(_agree(moment, shown) for shown in moments(told)):
            return False
        rest = blanked(rest, [(moment.start, moment.end)], " ")
    for amount in amounts(rest):
        near = 0.5 * 10.0**-amount.decimals
        if not any(
            abs(amount.number - shown.number) <= near * bool(amount.decimals) for shown in amounts(told)
        ):
            return False
        rest = blanked(rest, [amount.span], " ")
    of_record = words(told)
    unknown = [
        word
        for word in words(rest)
        if not (word in _SAFE or _stem(word) in heard or word in units_of(word))
        and not any(other.startswith(word) for other in of_record)
    ]
    return not unknown or (rest != remark and len(unknown) <= 2 and not seen & {*unknown})


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
    rest = _without_annotations(text, spans, targets, context, is_list=kind == "items")
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
    if dates and not context.on_line:
        rest = blanked(rest, [a.span for a in amounts(rest) if a.unit or not 1000 < a.number < 2200], " ")
    numbers = [number for target in targets if (number := as_number(target)) is not None]
    if not kind:
        is_code = all(re.search(r"\d", format_value(target)) for target in targets)
        kind = "amount" if all(map(_is_amount, targets)) else "code" if is_code else "name"
    record = [amount for text in _record_texts(targets, context) for amount in amounts(text)]
    shown = record or [a for result in context.results for a in amounts(canonical(result.content))]
    labels = {word for result in context.results for word in _labels(result.content)}
    stated = [a for a in amounts(text) if any(start <= a.start < end for start, end in spans)]
    for amount in amounts(rest):
        is_count = len(targets) > 1 and amount.number == len(targets) // (
            2 if kind in ("names", "amounts") else 1
        )
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
    if kind == "name" and (_BEFORE.search(tags) or ("who" in words(said) and _KIN.search(tags))):
        return False
    if kind in ("names", "amounts") and _FIELDS.search(tags):
        return False  # pasted records
    if not context.on_line or context.is_lenient:
        tags = "".join("k" if _is_free(tags, i, kind) else tag for i, tag in enumerate(tags))
        free = tags.count("x") <= _MAX_OTHER_WORDS or context.is_lenient
        tags = _SPARE.get(kind, _ANY_WORD).sub("k", tags) if free else tags
        lead, mark, behind = tags.partition("V")
        lead = re.sub(r"[op]S+|S(?!S*,$)", lambda match: match[0].lower(), lead)  # "Go, Rust" has a rival
        tags = lead.replace("(", ",").replace(")", ",") + mark + re.sub("(?<=k)a", "k", behind)
    lead, tail, between = _AROUND[kind]
    while (unwrapped := _AROUND_VALUE.sub(r",\1,", tags)) != tags:
        tags = unwrapped
    tags = tags if tags.count("(") == tags.count(")") else tags.replace("(", ",").replace(")", ",")
    parts = re.split("V+", tags)
    if max(map(len, parts)) > _MAX_PIECES:
        return False
    forms = (lead, *[between] * (len(parts) - 2), tail)
    return all(form.fullmatch(part) for form, part in zip(forms, parts, strict=True))


def _is_free(tags: str, at: int, kind: str) -> bool:
    """Whether a free text cannot mean a name instead: next to an amount, or apart from the value."""
    if kind.startswith("amount"):
        return tags[at] in "NXS"
    before, after = tags[:at].rstrip("aokN,("), tags[at + 1 :].lstrip("aokN,(")
    return tags[at] == "N" and not before.endswith("V") and not after.startswith("V")


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
        if text == "with" and before in ("together", "along", "jointly"):
            text = ","  # a second one
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
                or (text.endswith("s") and (is_first or tags[-1:] in ("k", "s", "V"[context.on_line :])))
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
    return tuple(
        text for texts in _records_with(tuple(map(format_value, targets)), context) for text in texts
    )


def _records_with(values: tuple[str, ...], context: AnswerContext) -> tuple[tuple[str, ...], ...]:
    return _texts_with(values, tuple(result.content for result in context.results))


@lru_cache(maxsize=512)
def _texts_with(values: tuple[str, ...], contents: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The texts of each record that says one of the values."""
    records = [record for content in contents for record in shown_records(content)]
    return tuple(
        record.texts
        for record in records
        if any(says(value, text) for value in values for text in record.texts)
    )
