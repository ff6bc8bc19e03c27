"""What may stand around a value: words of its record, remarks, and small words in a grammar of letters.

Next to the value no other of its kind may stand (number, date, name), nor a word that denies, doubts or
bounds it. Other words are free if a small word opens them ("from bow to stern"), as a verb, or as what is
counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Any

from mcpagent.core.answer_line import written_answer
from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import as_number, is_json_array, is_json_object
from mcpagent.reward.text.amounts import (
    Amount,
    amounts,
    are_comparable,
    clocks,
    is_conversion,
    units_of,
    with_first_day,
)
from mcpagent.reward.text.canonical import canonical, is_number_word
from mcpagent.reward.text.moments import Span, agree, moment_is, moments, whole_moment
from mcpagent.reward.text.names import words
from mcpagent.reward.text.phrasing import HEDGE, AnswerContext, is_qualified
from mcpagent.reward.text.reading import says, spans_of
from mcpagent.reward.text.shown import shown_records
from mcpagent.reward.text.vocabulary import (
    BLANK,
    FUNCTION_WORDS,
    SAFE,
    field_labels,
    stem,
    stems,
    without_asked,
)
from mcpagent.reward.text.words import WORDS, pattern

_MAX_OTHER_WORDS = 8  # of the value's record
_MAX_NEW_WORDS = 5  # next to a number that the record has
_MAX_PIECES = 100  # next to a value: matching takes time by the cube of them
FEW_WORDS = 5
# ", not B" and "than B" say nothing of what is right.
_CONTRAST = pattern("contrast")
_MODIFIERS = frozenset(WORDS["modifiers"].split())
_PIECE = re.compile(
    r"\0[\0 ]*|[\1\2]+|\d+(?:[.,]\d+)+|[^\W_]+(?:[-'_][^\W_]+)*(?:/[A-Za-z]{1,3}\b)?|[():]|[,;&|/+\n]"
    r"|(?<=\s)-(?=\s)|(?<!\b[A-Z])(?<!\b[A-Z][a-z])(?<!\b[A-Z][a-z][a-z])[.!?](?=\s|$)"
)
# What may stand ahead of the first value, behind the last one, and between two: letters as `_tags` says.
_OPENING = r"(?:z?[op][ackopszSxXN]+[,:])?[ackops,:]*"
_LEAD = _OPENING + r"(?:(?:(?:[acks]x[acks]*)?z|^x[op])[ackops,:]*|[acks]x%s)?"
_VERB, _NOUN = _LEAD % "[ackops,:]*", _LEAD % "[ackops,:]+"  # "folk rock" is no rock
_REMARK = r"\((?:#x|x#|[ackopszSxN,:])*+\)[ks]*+"
_TAIL = rf"x?[ks]*(?:[op][acksSxN]*+|c[aks]*+|,(?:a[aksSx]*+|k++z?|x(?=p))?|:|{_REMARK})*"
_LISTED = _TAIL.replace("N", "")  # a name that no result has shown is a rival there
_AFTER = rf"(?:[op][acksSXNzx]*+|c[aks]*+|,(?:a[aksSXzx]*+|[ks]++z?|x(?=p))?|:|{_REMARK})*"
_AMOUNT_TAIL = rf"(?:[xz]?|N(?=,))(?:[aks]+[xz]?)?[ks]*{_AFTER}"
_UNIT_TAIL = rf"N|{_AMOUNT_TAIL}"  # "2187 Elo"
_OPEN_TAIL = r"x?[ackszSXN#,:]*(?:[op(].*)?"
_ITEMS = r"[aks,:]*(?:[op][aks]*+[,:]?|c[aks]*+[,:]?|\([akopsS,:]*+\)[aks,:]*+)*"
_AROUND = {
    kind: tuple(map(re.compile, patterns))
    for kind, patterns in {
        "amount": (rf"axxp[ackops]*|{_VERB}", _UNIT_TAIL, _AMOUNT_TAIL + _VERB),
        "amounts": (_VERB, _UNIT_TAIL, rf"x[ackops]*|{_AMOUNT_TAIL}{_VERB}"),
        "name": (_NOUN, _TAIL, _TAIL + _NOUN),
        "names": (_NOUN, _LISTED, rf"[xz][ackops]+|{_LISTED}{_NOUN}"),
        "code": (rf"[xN]k?|{_VERB}", rf"S*{_TAIL}", _TAIL + _VERB),
        "choice": (_NOUN, _OPEN_TAIL, _OPEN_TAIL + _NOUN),
        "items": (_NOUN, _ITEMS, _ITEMS),
    }.items()
}
AMOUNTS = ("amount", "amounts")
FIELDS = re.compile(":[ak]*[sSX]")  # "ship: Wind"
_BEFORE = re.compile(r"(?:^|[,:c])a?s+,+V")  # "timber, V" names another one first
KIN = re.compile(r"[xz][ak]*oa?V")
_SUBJECTS = frozenset(WORDS["subjects"].split())
_AROUND_VALUE = re.compile(r"\(([^()]*V[^()]*)\)")  # such brackets are marks
_TITLE = re.compile(r"\b[A-Z]{2,3} (?=\0)")
BRACKETS = re.compile(r"\([^()]*\)")
DATE, NUMBER = "\1", "\2"  # marks in place of such as nothing has said or shown
_MARKS = dict(zip(f"{BLANK}{DATE}{NUMBER}():&/|+.!?", "VM#():&&&&...", strict=True))
_BREAK = r", (?!\d{4}\b)|[;|\n]|\b(?:and|then)\b"
_SEGMENT = re.compile(rf"(?:{_BREAK})?((?:(?!{_BREAK}).)+)", re.IGNORECASE)
_CODE = re.compile(r"[^\W_]-.$|[^\W\d_].$|[^\W\d_]-?-$", re.DOTALL)
_CODE_VALUE = re.compile(r"\d|^[a-z]+(?:[._@-][a-z]+)+$")  # of an account: ruiz-yamile
_CODE_WORD = re.compile(r"[\w-]+")  # i-0d10
ORDINAL = re.compile(r"\d*(?:1st|2nd|3rd|\dth)")


def unwrapped(text: str, check: AnswerCheck) -> str:
    """Return a text, or what an object of one field holds; pairs may be an object themselves."""
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
    most = max(FEW_WORDS, 2 * len(re.findall(r"\w+", written_answer(check.value))) + 2)
    flat = [leaf for item in items for leaf in (item if is_json_array(item) else [item])]
    if any(is_json_object(leaf) or is_json_array(leaf) or len(str(leaf).split()) > most for leaf in flat):
        return text  # a result, and no value
    return written_answer(value)


def without_contrast(text: str) -> str:
    """Return a canonical text without what it compares with or says not to be so: ", not B", "than B"."""
    return _CONTRAST.sub(" ", text) if not re.match(r"\W*not\b", text, re.IGNORECASE) else text


def blanked(text: str, spans: Sequence[Span], mark: str = BLANK) -> str:
    """Return a text with marks in place of the spans."""
    for start, end in spans:
        text = text[:start] + mark * (end - start) + text[end:]
    return text


def without_annotations(
    text: str, spans: Sequence[Span], targets: Sequence[Any], context: AnswerContext, *, is_list: bool
) -> str:
    """Return a text with marks in place of the spans, without what the record of one shows and stands in
    brackets behind it, or next to an item: its identifier, score, date, name; or as letters ahead of a name:
    its title."""
    rest = blanked(text, spans)
    said_at = {start: text[start:end] for start, end in spans}
    for match in _TITLE.finditer("" if any(map(is_amount, targets)) else rest):
        if _is_remark(match[0], said_at.get(match.end(), ""), targets, context):
            rest = blanked(rest, [match.span()], " ")
    for match in BRACKETS.finditer(rest):
        before = [text[start:end] for start, end in spans if end <= match.start()]
        if BLANK not in match[0] and before and _is_remark(match[0], before[-1], targets, context):
            rest = blanked(rest, [match.span()], " ")
    is_list &= not all(map(is_amount, targets))
    is_name = len(targets) == 1 and not re.search(r"\d", format_value(targets[0]))
    for segment in _SEGMENT.finditer(rest):
        inside = [text[start:end] for start, end in spans if segment.start() <= start < segment.end()]
        is_apart = not inside and segment[0][0] in ",;|" and re.search(r"\d", segment[1])
        is_of_item = is_list and re.search("[A-Z]", segment[1]) is None and " " in segment[1].strip()
        if is_apart and (is_name or is_of_item):
            before = [span for span in sorted(spans) if span[1] <= segment.start()] or spans
            inside = [text[slice(*before[-1])]]  # ", card MT-205"
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
    told = [word for word in re.findall(r"[^\W_]+", remark) if word.casefold() not in SAFE]
    if said.isupper() and all(map(str.istitle, told)) and told and not seen & {*words(remark)}:
        return True
    items = [item.strip() for item in re.split(r",(?: and)?|\band\b|;", remark.strip("() ")) if item.strip()]
    shown = [canonical(result.content) for result in context.results]
    if as_number(said) == len(items) > 1 and all(any(says(item, text) for text in shown) for item in items):
        return True  # the things that were counted
    values = [target for target in targets if spans_of(target, said)] or [said]
    heard = {*map(stem, field_labels(context))} | stems(context.said)
    return any(_tells(texts, remark, heard, seen) for texts in _records_with(values, context))


def _tells(texts: Sequence[str], remark: str, heard: Set[str], seen: Set[str]) -> bool:
    """Whether the texts of a record tell the numbers, the dates and the words of a remark. A number may have
    a name that nothing has shown."""
    told = " \n ".join(texts)
    rest = remark
    for moment in moments(rest):
        if not any(agree(moment, shown) for shown in moments(told)):
            return False
        rest = blanked(rest, [(moment.start, moment.end)], " ")
    dateless = rest
    for amount in amounts(dateless):
        code = next(match for match in _CODE_WORD.finditer(dateless) if match.end() > amount.start)
        if is_in_code(dateless, amount) or code.end() > amount.end > code.start():
            if code[0].casefold() not in told.casefold():
                return False
            rest = blanked(rest, [code.span()], " ")
            continue
        near = 0.5 * 10.0**-amount.decimals
        if not any(
            abs(amount.number - shown.number) <= near * bool(amount.decimals) for shown in amounts(told)
        ) and not any(is_conversion(amount, other) for other in (*clocks(told), *amounts(told))):
            return False
        rest = blanked(rest, [amount.span], " ")
    of_record = words(told)
    codes = tuple(text.casefold() for text in texts if re.fullmatch("[A-Z]{3}", text))  # SWE, for Sweden
    unknown = [
        word
        for word in words(rest)
        if not (word in SAFE or stem(word) in heard or word in units_of(word) or word.startswith(codes))
        and not any(other.startswith(word) for other in of_record)
    ]
    return not unknown or (rest != remark and len(unknown) <= _MAX_NEW_WORDS and not seen & {*unknown})


def is_amount(value: Any) -> bool:
    """Return whether a value is a number, a date or a time, which 2:21.93 is too."""
    written = format_value(value)
    return (
        as_number(value) is not None
        or whole_moment(written) is not None
        or re.fullmatch(r"(?:\d+:)?\d+:\d\d(?:\.\d+)?", written) is not None
    )


def kind_of(targets: Sequence[Any]) -> str:
    """Return what single values are: an amount, a code or a name."""
    is_code = all(_CODE_VALUE.search(format_value(target)) for target in targets)
    return "amount" if all(map(is_amount, targets)) else "code" if is_code else "name"


def is_bare(
    text: str,
    spans: Sequence[Span],
    targets: Sequence[Any],
    context: AnswerContext,
    *,
    kind: str = "",
    is_quoted: bool | None = None,
) -> bool:
    """Whether nothing but the value is said: what is left says nothing of its own."""
    rest = without_annotations(text, spans, targets, context, is_list=kind == "items")
    kind = kind or kind_of(targets)
    said = canonical(context.said)
    rest = without_asked(rest, said)
    if HEDGE.search(rest) or is_any_qualified(text, spans, context, kind):
        return False
    if is_quoted is None:  # whether the question has the values to choose from
        is_quoted = any(says(target, said) for target in targets)
    weekdays = {f"{m.readings[0]:%A}" for m in moments(text) if "day" in m.said}
    rest = re.sub(rf"\b(?:{'|'.join(weekdays)})\b", " ", rest) if weekdays else rest
    dates = [date for target in targets if (date := whole_moment(format_value(target)))]
    shown_dates = [m for result in context.results for m in moments(canonical(result.content))]
    for moment in moments(rest):
        is_asked = not is_quoted and any(moment_is(moment, m, precision=None) for m in moments(said))
        if not (is_asked or any(agree(moment, value) for value in dates or shown_dates)):
            return False
        rest = blanked(rest, [with_first_day(rest, moment)], " ")
    numbers = [number for target in targets if (number := as_number(target)) is not None]
    record = [amount for text in record_texts(targets, context) for amount in amounts(text)]
    shown = record or [a for result in context.results for a in amounts(canonical(result.content))]
    labels = field_labels(context)
    stated = [a for a in amounts(text) if any(start <= a.start < end for start, end in spans)]
    for amount in amounts(rest):
        if is_in_code(text, amount):
            continue
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
            and (
                bool((not numbers and rest[amount.start - 1 : amount.start] != BLANK) or before & labels)
                or any(amount.unit and a.unit and not are_comparable(amount.unit, a.unit) for a in stated)
            )
        )
        is_beside |= bool(before & {"the", "all", "these"}) and amount.number in range(2, 10)
        if is_count or is_repeated or is_beside or is_converted(amount, stated, said):
            rest = blanked(rest, [amount.span], " ")
    return _says_nothing_else(rest, targets, said, is_quoted, context, kind)


def is_any_qualified(text: str, spans: Sequence[Span], context: AnswerContext, kind: str) -> bool:
    """Return whether one of several values is not what is said (see `is_qualified`). A value qualifies no
    other one ("double 145" of a single and a double room), nor does a field's name: "best before"."""
    rest = blanked(text, spans)
    return any(
        is_qualified(rest[:start] + text[start:end] + rest[end:], start, end, is_amount=kind in AMOUNTS)
        and not (len(told := words(rest[:start])[-2:]) == 2 and {*told} <= field_labels(context))
        for start, end in spans
    )


def is_converted(amount: Amount, stated: Sequence[Amount], said: str) -> bool:
    """Return whether an amount says one of `stated` in another unit. If the question (`said`) counts in per
    cent, 0.12 is no 12%."""
    is_share = "%" in said and amount.unit == "%"
    return not is_share and any(is_conversion(amount, other) for other in stated)


def _says_nothing_else(
    rest: str, targets: Sequence[Any], said: str, is_quoted: bool, context: AnswerContext, kind: str
) -> bool:
    """Whether the words around the blanked values stand where words say nothing against them."""
    tags = tags_of(rest, targets, context, is_quoted=is_quoted, kind=kind)
    tags = tags.replace("&", ",").replace(".", "")
    if kind == "name" and (_BEFORE.search(tags) or ("who" in words(said) and KIN.search(tags))):
        return False
    if kind in ("names", "amounts") and FIELDS.search(tags):
        return False  # pasted records
    lead, tail, between = _AROUND[kind]
    while (unwrapped := _AROUND_VALUE.sub(r",\1,", tags)) != tags:
        tags = unwrapped
    tags = tags if tags.count("(") == tags.count(")") else tags.replace("(", ",").replace(")", ",")
    parts = re.split("V+", tags)
    if max(map(len, parts)) > _MAX_PIECES:
        return False
    forms = (lead, *[between] * (len(parts) - 2), tail)
    return all(form.fullmatch(part) for form, part in zip(forms, parts, strict=True))


def tags_of(rest: str, targets: Sequence[Any], context: AnswerContext, *, is_quoted: bool, kind: str) -> str:
    """Return the pieces of a text by what they are, a letter each.

    V a value; k a word that says nothing, of the question or of the tools; a an article; c is, has and the
    like; p a preposition, o of; s a word of the record of the value, S a name of it; x a word that no
    result has shown, z such a verb, N such a name; X a word of something else; # a number; , : ( ) marks,
    & one that joins, and a full stop.
    """
    said = canonical(context.said)
    is_number = any(as_number(target) is not None for target in targets)
    of_value = {word for target in targets for word in words(canonical(format_value(target)))}
    labels = field_labels(context)
    # A name among the labels ("Bremen": 14) has rivals there.
    labels = frozenset[str]() if kind == "name" and of_value <= labels else labels
    abbreviated = tuple(label for label in labels if len(label) > 2)
    tools = " ".join(result.tool.replace("_", " ") for result in context.results)
    heard = {*stems(said), *stems(context.offered), *stems(tools), *map(stem, labels)}
    heard |= {stem(word) for word in of_value if not (is_number and word.isdigit())}
    heard |= {"more", "less", "fewer", "lower"} if "differ" in said.casefold() else set()
    anywhere = {word for result in context.results for word in words(canonical(result.content))}
    # What was worked out is of all that was seen.
    shown = {word for text in record_texts(targets, context) for word in words(text)}
    shown = shown or (anywhere if kind.startswith("amount") else shown)
    tags = before = ""
    for piece in _PIECE.finditer(rest):
        text = piece[0]
        if text == "with" and before in ("together", "along", "jointly"):
            text = ","  # a second one
        if not text[0].isalnum():
            tags += _MARKS.get(text[0], ",")
            continue
        is_first, parts = not tags.strip("("), words(text)
        is_plain = text.islower() or (is_first and text.istitle())
        if letter := FUNCTION_WORDS.get(text.casefold() if is_plain else text):
            tags += "&" if text.casefold() in ("and", "or") else letter
        elif (is_plain and text.casefold().startswith(abbreviated)) or _is_known(
            text, parts, heard, is_quoted=is_quoted, kind=kind
        ):
            tags += "k"
        elif set(parts) <= shown and (not is_number or re.search(r"[^\W\d]", text)):
            is_word = is_plain and not text[0].isdigit() and "_" not in text
            other = "X" if kind == "code" and "_" in text else "S"
            tags += "s" if kind.startswith("amount") or is_word else other
        else:
            is_verb = (
                (text.endswith("ly") and len(text) > (4 if text.islower() else 5))  # Poly, Lily
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


def _is_known(word: str, parts: Sequence[str], heard: set[str], *, is_quoted: bool, kind: str) -> bool:
    if (kind == "choice" and word.endswith(("er", "est"))) or (kind != "choice" and ORDINAL.fullmatch(word)):
        return True
    if "_" in word and not any(stem(part) in heard - SAFE for part in parts):
        return False
    return all(
        part in SAFE
        or (len(part) > 1 and part in units_of(part))
        or (stem(part) in heard and not (is_quoted and word[:1].isupper()))
        for part in parts
    )


def is_in_code(text: str, amount: Amount) -> bool:
    """Return whether digits are a part of a code: PK-70980."""
    return _CODE.search(text[max(0, amount.start - 2) : amount.start + 1]) is not None


def record_texts(targets: Sequence[Any], context: AnswerContext) -> tuple[str, ...]:
    """What the records that show the values say."""
    return tuple(text for texts in _records_with(targets, context) for text in texts)


def _records_with(values: Sequence[Any], context: AnswerContext) -> tuple[tuple[str, ...], ...]:
    return _texts_with(tuple(map(format_value, values)), tuple(result.content for result in context.results))


@lru_cache(maxsize=512)
def _texts_with(values: tuple[str, ...], contents: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The texts of each record that says one of the values."""
    records = [record for content in contents for record in shown_records(content)]
    return tuple(
        record.texts
        for record in records
        if any(spans_of(value, text) for value in values for text in record.texts)  # which are canonical
    )
