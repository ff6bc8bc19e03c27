"""Where a text says all items of a set or a list, or things with their values, which must belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.values import as_number, is_json_object, numbers_in
from mcpagent.reward.text.amounts import ANY_UNITS, Units
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.grammar import blanked
from mcpagent.reward.text.moments import Span
from mcpagent.reward.text.names import is_weekday, words
from mcpagent.reward.text.naming import (
    number_range_spans,
    part_spans,
    short_spans,
    without_measure,
    worded_spans,
)
from mcpagent.reward.text.phrasing import HEDGE, AnswerContext
from mcpagent.reward.text.reading import says, spans_of
from mcpagent.reward.text.shown import shown_leaves
from mcpagent.reward.text.vocabulary import SAFE, stem
from mcpagent.reward.text.words import WORDS

_LONG = 6  # words: what is longer is no name
Mark = tuple[int, int, str, list[str]]
_SMALL = frozenset(WORDS["enumerating"].split())
_BETWEEN = re.compile(r"[,;\n]|\band\b")
_NUMBER = re.compile(r"(?<!\w)\d[\d.,]*(?!\w)")
_NAME = re.compile(r"(?<=\W)[A-Z]\w+|^[A-Z]\w+")
_CLAUSE = re.compile(r"[,;.\n]|\b(?:and|while|whereas|but)\b")


def item_spans(
    items: Sequence[Any], text: str, context: AnswerContext, *, tolerance: float = 0.0, in_order: bool = False
) -> list[Span] | None:
    """Return where a text says the items, each of them; None if one is missing or out of order."""
    as_named = _named_in_order(items, text, context, tolerance, in_order=in_order)
    return as_named or _spans_by_part(items, text, context, in_order=in_order)


def _named_in_order(
    items: Sequence[Any], text: str, context: AnswerContext, tolerance: float, *, in_order: bool
) -> list[Span] | None:
    spans: dict[int, list[Span]] = {}
    # Longer ones first: "Apple" is not in "Apple Pie".
    for place in sorted(range(len(items)), key=lambda i: -len(format_value(items[i]))):
        here = _item_spans(items[place], text, context, tolerance)
        here = here or short_spans(items[place], items, text)
        same = [other for other in range(len(items)) if items[other] == items[place]]
        if in_order and len(same) > 1 and len(here) >= len(same):  # each of them is one of the list
            spans |= {other: [span] for other, span in zip(same, sorted(here), strict=False)}
        elif not here and not any(other in spans for other in same):
            return None
        spans.setdefault(place, here)
        text = blanked(text, here)
    firsts = [spans[place][0][0] for place in range(len(items)) if spans[place]]
    if in_order and firsts != sorted(firsts):
        return None
    return [span for of_item in spans.values() for span in of_item]


def _spans_by_part(
    items: Sequence[Any], text: str, context: AnswerContext, *, in_order: bool
) -> list[Span] | None:
    """The parts of an enumeration, if each tells one of the items by words of its own: "the parachute valve"
    of "parachute valve checked", "Friday" of "Fri 13 Mar". None if a part has another word or could be
    another value that is shown."""
    of_items = [_tokens_of(format_value(item)) for item in items]
    marks = [m.span() for m in _BETWEEN.finditer(text)]
    starts, stops = [0, *(end for _, end in marks)], [*(start for start, _ in marks), len(text)]
    spans = [span for span in zip(starts, stops, strict=True) if text[slice(*span)].strip(" .:")]
    told: list[int] = []
    parts = [_tokens_of(text[start:stop]) for start, stop in spans]
    for said, span in zip(parts, spans, strict=True):
        fitting = [place for place, tokens in enumerate(of_items) if said <= tokens]
        if len(fitting) != 1 or HEDGE.search(text[slice(*span)]):
            return None
        unsaid = of_items[fitting[0]] - said
        is_less = len(unsaid) >= len(said) or any(map(str.isdigit, "".join(unsaid)))
        if is_less and not any(map(is_weekday, said)):
            return None  # "blue" is no petrol blue
        told += fitting
    if sorted(told) != [*range(len(items))] or (in_order and told != sorted(told)):
        return None
    leaves = map(_tokens_of, shown_leaves(context))
    others = [leaf for leaf in leaves if not any(leaf >= tokens for tokens in of_items)]
    return None if any(said <= other for said in parts for other in others) else spans


def _tokens_of(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in words(canonical(text).replace("_", " ")) if word not in _SMALL)


def _item_spans(
    item: Any, text: str, context: AnswerContext, tolerance: float, units: Units = ANY_UNITS
) -> list[Span]:
    spans = spans_of(item, text, tolerance=tolerance, units=units) or worded_spans(item, text)
    spans = spans or number_range_spans(format_value(item), text)
    if spans or not isinstance(item, str):
        return spans
    return part_spans(item, text, context) or (
        without_measure(item, text, context) if item[:1].isupper() or item.endswith(("%", ")")) else []
    )


def pair_spans(
    pairs: Any, text: str, context: AnswerContext, *, tolerance: float = 0.0, units: Units = ANY_UNITS
) -> list[Span] | None:
    """Return where a text says things and their values, if each value is said of its thing; else None.

    It may say them in turn ("A is high, B low"; "high for A, low for B"), or things and then values ("A and B
    are high and low"), or the values alone in the order of the pairs.
    """
    if not is_json_object(pairs) or not pairs:
        return None
    marks: list[Mark] = []  # start, end, kind, things that it is or is true of
    rest = text
    told = {format_value(value): value for value in pairs.values()}
    # Things first, the longer ones before others; but a value that holds a thing: board 1 is not in "1-0".
    holding = [name for name in told if name not in pairs and any(thing in name for thing in pairs)]
    names = [("value", holding), ("thing", [*pairs]), ("value", [n for n in told if n not in holding])]
    for kind, name in ((kind, n) for kind, of_kind in names for n in sorted(of_kind, key=lambda n: -len(n))):
        if kind == "thing":
            here, owners = _thing_spans(name, [*pairs], [*pairs.values()], rest, context), [name]
        else:
            here = _item_spans(told[name], rest, context, tolerance, units)
            here = here or short_spans(told[name], [*pairs.values()], rest)
            owners = [thing for thing, other in pairs.items() if format_value(other) == name]
        marks += [(start, end, kind, owners) for start, end in here]
        rest = blanked(rest, here, "|")
    marks.sort(key=lambda mark: mark[:2])
    if {mark[2] for mark in marks} == {"value"} and _is_turned_round(marks, text, context.said):
        return None
    is_told = _belong_together(marks, list(pairs)) or _are_in_turn(marks, list(pairs), text)
    if not is_told and (with_last := _with_unsaid(marks, list(pairs), text, context)):
        is_told = _are_in_turn(with_last, list(pairs), text)
    return [mark[:2] for mark in marks] if is_told else None


def _thing_spans(
    thing: str, things: list[str], values: list[Any], text: str, context: AnswerContext
) -> list[Span]:
    """Where a text says a thing of pairs, and no longer one that was shown and begins with it."""
    spans = short_spans(thing, things, text) if not spans_of(thing, text) else []
    spans = spans or _item_spans(thing, text, context, 0.0) or _initials(thing, things, text)
    longer = [
        leaf
        for leaf in shown_leaves(context)
        if leaf.casefold().startswith(f"{thing.casefold()} ")
        and len(leaf.split()) < _LONG
        and not any(says(value, leaf) or as_number(value) in numbers_in(leaf) for value in values)
    ]
    whole = [span for leaf in longer for span in spans_of(leaf, text)]  # the refractor FLT98
    return [span for span in spans if not any(a <= span[0] < b for a, b in whole)] + whole


def _initials(thing: str, things: list[str], text: str) -> list[Span]:
    """Where a text says a thing by its first letter, in front of a number: "W 98" of width."""
    if not thing.isalpha() or sum(other.startswith(thing[0]) for other in things) > 1:
        return []
    return [m.span() for m in re.finditer(rf"\b{thing[0].upper()}\b(?=[ :=]+\d)", text)]


def _is_turned_round(marks: list[Mark], text: str, said: str) -> bool:
    """Whether words of the question next to two values come in it the other way round: asked for cadmium and
    lead, "lead is at 0.42, cadmium at 55.6" swaps them although neither is called as in the pairs."""
    heard = [stem(word) for word in words(canonical(said)) if word not in SAFE]
    places = {word: heard.index(word) for word in heard if heard.count(word) == 1}
    edges = [0, *(match.end() for match in _CLAUSE.finditer(text)), len(text)]
    told: list[set[int]] = []
    for mark in marks:
        start, end = max(e for e in edges if e <= mark[0]), min(e for e in edges if e > mark[0])
        told.append({places[stem(w)] for w in words(text[start:end]) if stem(w) in places})
    return any(one and other and max(other) < min(one) for one, other in pairwise(told))


def _with_unsaid(marks: list[Mark], things: list[str], text: str, context: AnswerContext) -> list[Mark]:
    """The marks with the one thing that is not said, at the one clause that has a value alone: "It listens on
    80; its admin port is 81". Empty if there is no such clause, or it names something else that was shown, or
    another one has no pair."""
    said = {mark[3][0] for mark in marks if mark[2] == "thing"}
    unsaid = [thing for thing in things if thing not in said]
    clauses: list[list[Mark]] = []
    for mark in marks:
        if clauses and not _CLAUSE.search(text[clauses[-1][-1][1] : mark[0]]):
            clauses[-1].append(mark)
        else:
            clauses.append([mark])
    alone = [clause[0] for clause in clauses if [mark[2] for mark in clause] == ["value"]]
    if (len(unsaid), len(alone)) != (1, 1) or any(len(c) != 2 for c in clauses if c[0] not in alone):
        return []
    start = alone[0][0]
    end = alone[0][1]
    clause = _CLAUSE.split(text[:start])[-1] + text[start:end] + _CLAUSE.split(text[end:])[0]
    if alone[0] is not clauses[0][0] and not re.search(r"[^\W\d]", clause):
        return []  # "A has 80 and 81"
    named, value = {*_NAME.findall(_CLAUSE.split(text[:start])[-1])}, text[slice(*alone[0][:2])]
    rows = [row for row in shown_leaves(context) if _NUMBER.search(row) and named & {*_NAME.findall(row)}]
    if rows and not any(says(value, row) for row in rows):
        return []
    return sorted([*marks, (start, start, "thing", unsaid)], key=lambda mark: mark[:2])


def _are_in_turn(marks: list[Mark], things: list[str], text: str) -> bool:
    """Whether each clause has one thing and its value, in whatever order: "A's coach is C; D coaches B"."""
    for (_, end, *_), (start, *_) in zip(marks[1::2], marks[2::2], strict=False):
        if not _CLAUSE.search(text[end:start]):
            return False
    told: set[str] = set()
    for first, second in zip(marks[::2], marks[1::2], strict=False):
        thing, value = (first, second) if first[2] == "thing" else (second, first)
        if (thing[2], value[2]) != ("thing", "value") or thing[3][0] not in value[3]:
            return False
        told.add(thing[3][0])
    return len(marks) % 2 == 0 and told == set(things)


def _belong_together(marks: list[Mark], things: list[str]) -> bool:
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
