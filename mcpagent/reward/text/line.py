"""The answer line, graded alone: it says the value, as the kind of thing that it is, and nothing against it.

Where a text says a value is in `spans`, what may stand around it in `grammar`; here is what an answer of each
type has to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from os.path import commonprefix
from typing import Any

from mcpagent.core.answer_line import written_answer
from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import as_number, is_json_array, is_json_object, numbers_equal
from mcpagent.reward.text.amounts import amounts, as_durations, is_conversion, is_rounded, units_of
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.corrections import is_taken_back
from mcpagent.reward.text.grammar import (
    BRACKETS,
    FEW_WORDS,
    blanked,
    is_amount,
    unwrapped,
    without_annotations,
    without_contrast,
)
from mcpagent.reward.text.items import item_spans, pair_spans
from mcpagent.reward.text.moments import whole_moment
from mcpagent.reward.text.names import is_weekday, words
from mcpagent.reward.text.naming import option_spans, short, value_parts
from mcpagent.reward.text.phrasing import (
    HEDGE,
    AnswerContext,
    holds_json,
    is_longer,
    without_unless_hedged,
)
from mcpagent.reward.text.reading import spans_of
from mcpagent.reward.text.rivals import is_denied_apart, stands
from mcpagent.reward.text.shown import line_heads, shown_leaves
from mcpagent.reward.text.spans import units_for, value_spans
from mcpagent.reward.text.vocabulary import BLANK, FUNCTION_WORDS, NEGATED, SAFE, stem, stems
from mcpagent.reward.text.words import WORDS, pattern
from mcpagent.reward.text.yes_no import polarity

MAX_LINE_WORDS = 40  # and what the value takes
_OUT_OF = re.compile(
    r"(?<=\bone) of the \d+\b"
    r"|(?<=\d) \(?(?:out )?of (?:the |its |their |your |our |all )?\d+\b\)?(?![-.,/:]\d)"
    r"|(?<=\d) ?/ ?(?:5|10|100)\b(?![\w./])"
    r"|,? out of (?:[a-z]+ ){0,2}\d+\b(?![-.,/:]\d)"
    r"|,? of an? (?:estimated|expected|planned|possible|maximum|total)(?: of)? \d+\b(?![-.,/:]\d)"
    r"|,? on (?:\S+ ){1,2}scale (?:of|from) \d+ to \d+\b"
)
_FRACTION = re.compile(r"\b(\d+) (?:out )?of (?:the )?([1-9]\d*)\b")  # "36 out of 2400" are 1.5%
_OF_ALL = re.compile(r"(?<=[\s(]\d)/\d+\b(?![\w./])|(?<=[\s(]\d\d)/\d+\b(?![\w./])")  # "cart 6/6"
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+")
_SAME = re.compile(r"(?<!\d)(\d+)(/\1)\b")
_OF_TOTAL = re.compile(r"(\d ?([A-Za-z]{1,5}|%)) (?:out )?of (?:the |a total (?:of )?)?\d[\d.]* ?\2(?!\w)")
_OF_SOME = re.compile(r"^(?:out )?of (?:the|your|its|our|these|all) [^,.;:\n]{1,30}, ", re.IGNORECASE)
_BARE_NUMBER = re.compile(r"(?:^|(?<=[,;] )|(?<=\n))(\d{1,2}) (?=[^\W\d])")  # "1 Ana, 2 Ben"
_ENUMERATOR = re.compile(
    r"(?:^|(?<=[\s,;(\"]))\(?(\d{1,2})[.)]\s+(?=[^\d\s])|^\s*(\d)[.)] +(?=\d)", re.MULTILINE
)
_DOTTED_TIME = re.compile(r"(?<![\d.])([01]?\d|2[0-3])\.([0-5]\d)(?![\d.]*\d| h)")  # 9.20, which is asked for
_TERM = r"[\s()€$£]*\d[\d.,]*\s?[^\W\d_]{0,9}[\s()€$£%]*"
_SUM = re.compile(rf"^(?:{_TERM}[-+*/×÷])+{_TERM}=\s*(?=\S)|\((?:{_TERM}[-+*/×÷])+{_TERM}\)")
_TABLE_HEAD = re.compile(r"^[^\n]*\|[^\n]*\n[ |:-]*-[ |:-]*\n", re.MULTILINE)
_SYMBOL = re.compile(r"^[A-Za-z]{1,2} ?= ?")
_CLOCKS = re.compile(r"\d+:\d\d(?::\d\d)?(?: ?(?:min|h)\b)?")
_TEMPERATURES = {"celsius", "fahrenheit", "kelvin", "K"}
_DEGREES = re.compile(r"(?<=\d) ?([CF])\b")
_PART_OF = re.compile(r"(?<=\w),? (?:and )?(?:\d+|one) of (?:them|these|which|whom)\b([^.;\n]*)")
_TABLE_NUMBER = re.compile(r"^(\|) *(#|\d{1,2}) *\|(?=.*\|)", re.MULTILINE)
_SCORE = re.compile(r"^([^\d\n]+?) (\d+) ?[-:] ?(\d+) ([^\d\n]+)$")  # Port Valen 2-3 Ashby United
_ASKS_WHY = re.compile(r"\b(?:why|cause[sd]?|reason)\b", re.IGNORECASE)
_ASKS_BOUND = re.compile(r"\b(after|before|within|by|until) (?:how|what|which|when)\b", re.IGNORECASE)
_ASKS_WHO = re.compile(r"(?:who|which [a-z]+|what) ([a-z]+s\b.*?)\W*$", re.IGNORECASE)
_IF_LIKED = re.compile(r"\A,? if you(?:'d| would)? (?:rather|prefer|like|want)[^.;,\n]*")
_ASKS_ONE = re.compile(r"\b(?:one|each|single|apiece|per unit)\b", re.IGNORECASE)
_ASKS_FROM = re.compile(
    r"\b(?:from|start|begin|leave|depart|origin|was|were|before|previous)\w*\b", re.IGNORECASE
)
_EACH = re.compile(r"(?<=\d) (?:each|apiece|a piece)\b")
_OR = re.compile(
    r"(?: [a-z]{3,9})?,? (?:or|which is|that is|equal to) (?:about |roughly |approximately |around |~)?"
)
_ABOUT = re.compile(
    r"[\s,;:-]*\(?(?:so|or|(?:that|which|this) is|that's)?,? ?"
    r"(?:about|roughly|approximately|around|nearly|almost|~|≈) ?"
)
_SHARE = {"half": 50, "halfway": 50, "quarter": 25, "three quarters": 75, "3 quarters": 75}
_SHARES = re.compile(rf"\b(?:an? )?({'|'.join(_SHARE)})\b(?! (?:an?|past|to)\b)", re.IGNORECASE)
_THEN = re.compile(r"\s*(?:->|→|⟶|[<>])\s*")
_RANGE = re.compile(r"\0 ?(?:-|to|through|until) ?\0")  # "41 to 43" has 42 too
_NONE_WORDS = re.compile(
    r"\b(?:no|none|nothing|nobody|empty|0|keine?n?|aucune?)\b|(?:n't|\bnot)\b.{0,30}\bany", re.IGNORECASE
)
_ITEM = re.compile(r"(?<=\s)(?:[A-Z]\w+|\d+)\b")
_OF_PER = re.compile(r" of [\w.,-]+ (?=per )")  # micrograms of ozone per cubic metre
_INCHES = re.compile(r"(?<=\d) in(?=\W*$)")
_PREDICATE = re.compile(r":|\b(?:are|is|were|was)\b")
_JOINED_LAST = re.compile(r",? (?:and|&) ((?:[^,.;\n]|\.(?=\d))+)")
_SEPARATOR = re.compile(r"[,;&|\n]|\band\b")
_UNIT_OF_TIME = {"s", "second", "seconds", "min", "minute", "minutes", "h", "hour", "hours", "days"}
CHANGED_FROM = re.compile(r"\bfrom [^,;.\n]{1,60} (?=to\b)", re.IGNORECASE)
_PAST = re.compile(
    r"\b(?:after(?: the)?|previously|formerly|until then|used to be"
    r"|had (?:first|1st|originally) \w+(?: for)?(?: an?| the)?) $",
    re.IGNORECASE,
)
_OWNED = re.compile(r"(?<=\w)(?<![Ii]t)'s? (\w+)")  # "A's order" of the orders that are asked about
_ASKS_FIRST = re.compile(r"\b(?:first|earlier|before|sooner)\b", re.IGNORECASE)
_FOLLOWED = re.compile(
    r",? (?:before|ahead of) [^;.\n]*"
    r"|[^,;.\n]{0,60}\b(?:follow(?:s|ed)|c[ao]mes? (?:second|2nd|next|later|after|before))\b(?! by\b)[^;.\n]*"
)
_OF = re.compile(r"'s? (?=\w)")
_REASON = pattern("reason")
_COMPARED = pattern("compared")
_LESS = frozenset(("less", "least", "fewer", "fewest"))
_LITTLE = tuple(WORDS["little"].split())  # how such words begin


def read_answer(text: str, check: AnswerCheck) -> str:
    """Return an answer as it is read: canonical, "2 out of 5" as 2, "12 + 3 = 15" as 15, 2h05 as 2 hours and
    5 minutes, a numbered list without its numbers, an object of one field as what it holds."""
    text = canonical(unwrapped(text.strip(), check)).strip()
    rows = [int(number) for _, number in _TABLE_NUMBER.findall(text) if number != "#"]
    if rows == [*range(1, len(rows) + 1)]:  # numbered, not called by a number
        text = _TABLE_NUMBER.sub(r"\1", text)
    text = _OF_SOME.sub("", text)
    numbers = [int(number) for number in _BARE_NUMBER.findall(text)]
    is_numbered = len(numbers) > 1 and numbers == [*range(1, len(numbers) + 1)]
    if check.type == "list" and is_numbered and not _BARE_NUMBER.search(written_answer(check.value)):
        text = _BARE_NUMBER.sub("", text)
    numbers = [int(match[1] or match[2]) for match in _ENUMERATOR.finditer(text)]
    if numbers and numbers == [*range(1, len(numbers) + 1)] and (len(numbers) > 1 or check.type == "set"):
        text = _ENUMERATOR.sub("", text)
    if check.type in ("list", "pairs"):
        text = _THEN.sub(", ", text)
    if check.type in ("list", "pairs", "set"):
        text = _TABLE_HEAD.sub("", text)
    if check.type == "pairs" and is_json_object(check.value):
        text = _read_pairs(text, check.value)
    if check.type == "number":
        text = _OF_PER.sub(" ", _INCHES.sub(" inches", text))
        if check.unit == "%":
            text = _with_percent(text, as_number(check.value))
        text = _OUT_OF.sub("", _OF_TOTAL.sub(r"\1", _SUM.sub("", _SYMBOL.sub("", text))))
        if units_of(canonical(check.unit or "")) & _TEMPERATURES:
            text = _DEGREES.sub(lambda m: " celsius" if m[1] == "C" else " fahrenheit", text)
        text = _without_conversions(text, check.value)
        if check.unit == "%":
            text = _SHARES.sub(lambda m: f"{_SHARE[m[1].lower()]}%", text)
        elif check.unit and check.unit.istitle():
            text = re.sub(rf"\bdegrees? (?={re.escape(check.unit)}\b)", "", text)  # Brix
    if check.type == "date" and (moment := whole_moment(format_value(check.value))):
        text = text if "day" in moment.said else _DOTTED_TIME.sub(r"\1:\2", text)
    unit = check.unit if check.type == "number" else check.value if check.type in ("name", "pairs") else ""
    is_time = bool(_UNIT_OF_TIME & units_of(str(unit or "")))
    if is_time or re.search(r"\d:\d\d", str(unit or "")):
        text = re.sub(r"\b(\d+):(\d\d)(?: ?min(?:utes)?\b(?!/)|(\.\d+)\b)", r"\1 min \2\3 s", text)
        text = re.sub(r"(?<=\d) ?m ?(?=\d+ ?s\b)|(?<=h)( ?\d+) ?m(?:\b|(?=\d)) ?", r"\1 min ", text)
    if is_time and (apart := _CLOCKS.sub(" ", text)) != text:
        # If the time that it takes is said with its unit, clocks are times of day.
        is_time = not any(amount.unit in _UNIT_OF_TIME for amount in amounts(apart))
    return as_durations(text, is_short=_is_short_time(check, unit)) if is_time else text


def _read_pairs(text: str, pairs: Mapping[str, Any]) -> str:
    """A text about pairs without conversions and what their values are out of; "2:1" of two as both."""
    text = _without_conversions(text, None)
    if _has_total(text, pairs):
        return text
    text = _OUT_OF.sub("", text)
    if all(isinstance(value, int) for value in pairs.values()):
        text = _OF_ALL.sub("", text)
        text = _SCORE.sub(r"\1 \2, \4 \3", text) if len(pairs) == 2 else text
    return text


def _with_percent(text: str, value: float | None) -> str:
    """A text with "36 out of 2400" in percent, or without it if it says the share in percent too."""
    decimals = len(format_value(value).partition(".")[2])
    is_told = any(amount.unit == "%" for amount in amounts(text))

    def said(match: re.Match[str]) -> str:
        share = 100 * int(match[1]) / int(match[2])
        return f"{share:.10g}%" if not is_told else "" if round(share, decimals) == value else match[0]

    return _FRACTION.sub(said, text)


def _without_conversions(text: str, value: Any) -> str:
    """A text without amounts that say the one before them in another unit, or rounded: "1610612736 bytes, or
    1.6 GB", "594.34 (about 594)"."""
    for first, second in reversed([*pairwise(amounts(text))]):
        rounded = replace(first, decimals=min(first.decimals, second.decimals))
        is_same = first.rate == second.rate is not None and numbers_equal(first.number, second.number)
        between = text[first.end : second.start]
        is_or = _OR.fullmatch(between) or (value is None and between == " (")
        if (is_or and (is_same or is_conversion(second, rounded))) or (
            _ABOUT.fullmatch(between) and is_rounded(second, first)
        ):
            rest = _IF_LIKED.sub("", text[second.end :].removeprefix(")"))
            target = None if value is None else as_number(value)
            kept = second if second.number == target != first.number else first
            text = text[: first.start] + text[kept.start : kept.end] + rest
    return text


def _has_total(text: str, pairs: Mapping[str, Any]) -> bool:
    """Whether what something is out of is a value too: "5 of the 6 wanted are ready"."""
    values = {as_number(value) for value in pairs.values()}
    if any(as_number(match[0].split()[-1]) in values for match in _OUT_OF.finditer(text)):
        return True
    totals = {match[0]: as_number(match[0][1:]) for match in _OF_ALL.finditer(text)}
    same = {match[2] for match in _SAME.finditer(text)}
    return len(totals) > 1 and any(number in values for total, number in totals.items() if total not in same)


def _is_short_time(check: AnswerCheck, unit: Any) -> bool:
    """Whether 0:07 are minutes and seconds: what is asked for is counted in seconds, and is no hour."""
    number = as_number(check.value)
    return check.type == "number" and unit in ("s", "sec", "seconds") and number is not None and number < 3600


def is_short_line(text: str, values: Sequence[Any]) -> bool:
    """Return whether a line is not much longer than the values that it may give."""
    written = [*map(format_value, values)]
    return not is_longer(text, MAX_LINE_WORDS + 2 * sum(len(words(value)) for value in written), written)


def is_given(check: AnswerCheck, values: Sequence[Any], text: str, context: AnswerContext) -> bool:
    """Return whether a text that has been read gives one of `values`, which are all right."""
    if holds_json(text) and not any(holds_json(format_value(value)) for value in values):
        return False
    if not is_short_line(text, values):
        return False
    return any(
        _gives(check, value, text, context)
        and not (context.on_line and is_taken_back(check, value, text, context))
        for value in values
    )


def _gives(check: AnswerCheck, value: Any, text: str, context: AnswerContext) -> bool:
    match check.type:
        case "yes_no":
            meant = value if isinstance(value, bool) else polarity(str(value))
            later = _SENTENCE_END.split(text)[1:] if context.on_line else []
            return polarity(text, context.said) is meant and not any(
                polarity(sentence, context.said) is (not meant) for sentence in later
            )
        case "choice":
            text = text if "not" in value_parts(value) else without_contrast(text)
            if not _ASKS_WHY.search(context.said):  # "is behind B" is a reason, if "behind" is no answer
                text = _REASON.sub(
                    lambda m: m[0] if option_spans(check, value, m[0]) or _offers(check, m[0]) else " ", text
                )
            text = CHANGED_FROM.sub(" ", text)
            text = _without_asked_phrases(text, check.options, context.said)
            asked = stems(context.said) - stems(" ".join(map(str, check.options)))
            text = _OWNED.sub(lambda m: " " if stem(m[1].casefold()) in asked else m[0], text)
            if _ASKS_FIRST.search(context.said) and not any(map(_ASKS_FIRST.search, map(str, check.options))):
                text = _FOLLOWED.sub(" ", text)
            spans = [s for s in option_spans(check, value, text) if not _PAST.search(text[: s[0]])]
            others = [
                span
                for option in check.options
                if option != value
                for span in option_spans(check, option, text)
                if not (_PAST.search(text[: span[0]]) or is_denied_apart(text, span, spans))
            ]
            if not spans or any(
                not any(a <= s[0] and s[1] <= b and (a, b) != s for a, b in spans) for s in others
            ):
                return False
            text = text.replace(f" of the {len(check.options)}", "")
            targets = [short(value, check.options)]
            return not _is_opposite(text, context.said) and stands(
                text, spans, targets, context, kind="choice"
            )
        case "pairs":
            text = _without_owners(text, [*value, *value.values()] if is_json_object(value) else [])
            units = units_for(check, context, may_be_percent=True)
            spans = pair_spans(value, text, context, tolerance=check.tolerance, units=units)
            things = list(value) if is_json_object(value) else []
            targets = [part for t in things for part in (short(t, things), value[t])]
            kind = "amounts" if things and all(map(is_amount, value.values())) else "names"
            return spans is not None and stands(text, spans, targets, context, kind=kind, is_quoted=False)
        case "set" | "list" | "must_include":
            items: list[Any] = list(value) if is_json_array(value) else [value]
            if not items:
                return _says_none(text, context)
            spans = item_spans(items, text, context, tolerance=check.tolerance, in_order=check.type == "list")
            if spans is None or not stands(text, spans, items, context, kind="items"):
                return False
            rest = without_annotations(text, spans, items, context, is_list=True)
            if check.type == "set" and _RANGE.search(rest) and not all(map(_is_time, items)):
                return False
            if check.type == "must_include":
                return True
            others = blanked(text, spans)
            is_days = all(map(is_weekday, map(format_value, items)))
            if (
                _siblings(others, items, context)
                or _shown_beside(others, items, context)
                or _shown_among(others, items, context)
                or (is_days and any(map(is_weekday, words(others))))
            ):
                return False
            return not (context.on_line and _other_parts(rest))
        case _:
            text = _as_asked(text, check, context)
            if not NEGATED.search(format_value(value)):  # "active, not recruiting" is one value
                text = without_contrast(text)
            spans = value_spans(check, value, text, context)
            said = [text[start:end].casefold() for start, end in spans]
            if check.type == "name" and len(set(said)) < len(said):
                return False  # fields with their values, or a plea
            kind = "code" if check.type == "name" and str(value).isdigit() else ""
            return bool(spans) and stands(text, spans, [value], context, kind=kind)


def _offers(check: AnswerCheck, text: str) -> bool:
    """Whether a text says an option with a doubt: "though some say B", not "although A never had B"."""
    spans = [span for option in check.options for span in option_spans(check, option, text)]
    hedges = HEDGE.finditer(blanked(text, spans)) if spans else ()
    return any(not NEGATED.fullmatch(hedge[0]) for hedge in hedges)


def _without_asked_phrases(text: str, options: Sequence[Any], said: str) -> str:
    """A text without two words of the question of which one is a part of an option, but both together of
    none: "the merge method" says nothing of "merge commit"."""
    names = [str(option).casefold() for option in options]
    parts = {part for name in names if " " in name for part in words(name)} - {*names}
    for first, second in pairwise(re.findall(r"[\w-]+", said.casefold())):
        phrase, pair = f"{first} {second}", {first, second}
        is_asked = phrase in said.casefold() and not any(phrase in name for name in names)
        if is_asked and pair & parts and not pair & {*FUNCTION_WORDS, *names}:
            text = re.sub(rf"\b{re.escape(phrase)}\b", " ", text, flags=re.IGNORECASE)
    return text


def _as_asked(text: str, check: AnswerCheck, context: AnswerContext) -> str:
    """A text without what the question makes plain: its predicate, parts of a count, "each" of one, where
    from if it asks where to, "of" and "'s" if it asks whose."""
    text = without_asked_bound(text, context.said)
    if asked := _ASKS_WHO.match(canonical(context.said)):  # "Who plays the Clerk?" - "A plays the Clerk"
        text = re.sub(rf" {re.escape(asked[1])}\W*$", "", text, flags=re.IGNORECASE)
    if check.type == "number" and context.on_line:
        text = without_unless_hedged(_PART_OF, text)
    if check.type == "number" and _ASKS_ONE.search(context.said):
        text = _EACH.sub("", text)
    if check.type == "name" and not (_ASKS_FROM.search(context.said) or re.search(r"\d", str(check.value))):
        text = CHANGED_FROM.sub(" ", text)
    return _without_owners(text, [check.value]) if "whose" in words(context.said) else text


def without_asked_bound(text: str, said: str) -> str:
    """Return a text without the word that the question begins with: "After how many days?" - "After 3"."""
    asked = _ASKS_BOUND.search(said)
    return text if asked is None else re.sub(rf"\b{asked[1]} (?=\d)", "", text, flags=re.IGNORECASE)


def _without_owners(text: str, values: Sequence[Any]) -> str:
    """A text without "of" and "'s", but for those of the values: Let's Encrypt."""
    of_values = [s for v in values if _OF.search(format_value(v)) for s in spans_of(v, text)]
    return _OF.sub(lambda m: m[0] if any(a <= m.start() < b for a, b in of_values) else " " * len(m[0]), text)


def _is_time(item: Any) -> bool:
    moment = whole_moment(format_value(item))
    return moment is not None and "hour" in moment.said  # from 9:30 to 11:00 none is between


def _says_none(text: str, context: AnswerContext) -> bool:
    """Whether a text says that there is none: each clause that tells something of it denies it."""
    labels = {stem(word) for result in context.results for word in words(result.content.replace("_", " "))}
    heard = labels | stems(context.said)
    shown = {word for result in context.results for word in words(result.content)}
    is_denied = False
    for clause in re.split(r"[,;:\n](?!\d)|\.(?=\s|$)|\b(?:but|and)\b", text):
        told = [w for w in words(clause) if w not in SAFE and stem(w) not in heard]
        if denied := _NONE_WORDS.search(clause):
            is_denied, told = True, [w for w in told if w not in words(denied[0])]
        elif clause.strip().lower().startswith(("i ", "sorry")):
            continue
        elif is_denied and not context.on_line:  # words are no items, names and what was shown are
            told = [w for w in _ITEM.findall(clause.strip()) if not w.isdigit() or w in shown]
            told = [w for w in told if stem(w.casefold()) not in heard]
            if not told and not HEDGE.search(NEGATED.sub(" ", clause)):
                continue
        if len(told) > (
            FEW_WORDS if denied and denied[0].strip().lower() != clause.strip().lower() else 0
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
    rest = BRACKETS.sub(lambda m: m[0] if BLANK in m[0] else " ", rest)[rest.find(BLANK) :]
    return [part for part in _SEPARATOR.split(rest) if BLANK not in part and set(words(part)) - SAFE]


def _own_name(value: str) -> str:
    """A value without its brackets, or a key without its beginning."""
    return value.partition(" (")[0].rpartition(":")[2].casefold()


def _shown_beside(rest: str, items: Sequence[Any], context: AnswerContext) -> bool:
    """Whether a part of an enumeration is a shown value without its brackets or what its key begins with, and
    none of the items is: "English" of "English (auto-generated)", "beta" of "flags:beta"."""
    leaves = shown_leaves(context)
    names = {_own_name(leaf) for leaf in leaves} - {leaf.casefold() for leaf in leaves}
    names = {name for name in names if not name[:1].isdigit()}  # 08:30 is no key
    names -= {"", *(_own_name(format_value(item)) for item in items)}
    parts = [f"{part.strip(' .').casefold()} " for part in _SEPARATOR.split(rest)]
    return any(part.startswith(f"{name} ") for part in parts for name in names)


def _shown_among(rest: str, items: Sequence[Any], context: AnswerContext) -> bool:
    """Whether a shown value that is none of the items is told before one of them, or joined to the last, in a
    line that tells several."""
    told = {format_value(item).casefold() for item in items}
    heads = {head for result in context.results for head in line_heads(result.content)}
    shown = {leaf.casefold() for leaf in shown_leaves(context)}
    leaves = (shown | heads if told <= heads else shown) - told
    for line in rest.splitlines():
        behind = line[line.rfind(BLANK) + 1 :]
        before = line[: len(line) - len(behind)].rstrip(BLANK)  # the last item
        if BLANK in before and "|" not in line:
            others = [part for part in _SEPARATOR.split(before)[:-1] if BLANK not in part]
            others = [_PREDICATE.split(part)[-1] for part in others]
            if joined := _JOINED_LAST.match(behind):
                last = joined[1].casefold().removeprefix("the ")
                others += [last, *(leaf for leaf in leaves if len(leaf) > 3 and last.startswith(f"{leaf} "))]
            if leaves & {part.strip(" .*`\"'").casefold() for part in others} - {""}:
                return True
    return False


def _siblings(rest: str, items: Sequence[Any], context: AnswerContext) -> list[str]:
    """The parts of an enumeration that end in what all its items begin with and another ending: "HR 7 A"
    next to "HR 7 B" and "HR 7 C", 2.9 next to 2.7 and 2.8, or that are what another shown name has in place
    of what tells the items apart: "attic" next to study_window and kitchen_window."""
    written = [format_value(item) for item in items]
    begin = re.sub(r"[^\W\d_]+$", "", commonprefix(written))  # noqa: RUF071 - letter by letter
    end = re.sub(r"^[^\W\d_]+", "", commonprefix([each[::-1] for each in written])[::-1])  # noqa: RUF071
    sibling = re.compile(rf"(?:^|\s){re.escape(begin)}[\w.-]+\W*$", re.IGNORECASE)
    rest = BRACKETS.sub(" ", rest)
    last = rest.rfind(BLANK) + 1
    is_alike = bool(begin or end)
    parts = _SEPARATOR.split(rest[:last]) if is_alike else []
    parts += [part for part in _SEPARATOR.split(rest[last:]) if is_alike and len(part.split()) == 1]
    shown = "\n".join(result.content for result in context.results).casefold()
    return [
        part
        for part in parts
        if BLANK not in part
        and not HEDGE.search(part)
        and (
            (begin and sibling.search(part))
            or ((begin[-1:] == " " or end[:1] in (" ", "_")) and _is_between(part, begin, end, shown))
        )
    ]


def _is_between(part: str, begin: str, end: str, shown: str) -> bool:
    """Whether one word of a text goes with the words that items begin or end with: the 5 of Room 5."""
    word = part.strip(" .*`").casefold()
    written = rf"\b{re.escape((begin + word + end).casefold())}(?!\w)"
    return word.isalnum() and re.search(written, shown) is not None
