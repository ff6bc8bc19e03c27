"""How much of a plan a question gives away: words of tools' descriptions, of parameters and of an order."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.naming import lexicon

_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_CALLING = "call|get|list|look|find|search|read|fetch|use"
_ORDER = re.compile(
    rf"\b(?:first|next|finally|afterwards?),? (?:you |please |we )?(?:{_CALLING})\b"
    rf"|,? (?:and )?then (?:{_CALLING}|take|check|echo|convert|compute)\w*\b"
    r"|\busing the\b|\bfollowed by\b|\bwith the result\b|\b(?:in|the) (?:next|previous|last) step\b|\bstep \d"
    r"|\bas the [a-z]+(?: [a-z]+)?(?:$|[.,?!])"
    r"|\bthe output of\b|\b(?:the|this|that) tools?\b|\bthe parameters?\b",
    re.IGNORECASE,
)
_COPIED_WORDS = 5  # in a row: a sentence of a description, not a phrase of the language
_MOST_SHARED = 0.8  # of the content words, where there are enough of them to tell
_ENOUGH_WORDS = 6


@dataclass(frozen=True)
class Overlap:
    """`share` of the content words that stand in descriptions, `copied` the longest run of words that stands
    in one, `order` the words that say which call comes when."""

    share: float
    content_words: int
    copied: tuple[str, ...]
    order: tuple[str, ...]


def overlap(text: str, specs: Iterable[ToolSpec], *, entities: Collection[str] = ()) -> Overlap:
    """What a question shares with the descriptions of tools and their parameters. `entities`, the values that
    it has to name, are taken out of it first."""
    descriptions = [description for spec in specs for description in descriptions_of(spec)]
    bare = _without(text, entities)
    said = words_of(bare)
    described = {_stem(word) for description in descriptions for word in words_of(description)}
    content = [word for word in said if word not in lexicon("stop")]
    shared = sum(_stem(word) in described for word in content)
    copied = max((_longest_run(said, words_of(d)) for d in descriptions), key=len, default=())
    return Overlap(
        share=shared / len(content) if content else 0.0,
        content_words=len(content),
        copied=copied,
        order=tuple(match[0].strip() for match in _ORDER.finditer(bare)),
    )


def spells_plan(text: str, specs: Sequence[ToolSpec], *, entities: Collection[str] = ()) -> str | None:
    """Why a question is a plan and not a wish; None where it is a wish."""
    shared = overlap(text, specs, entities=entities)
    lowered = text.casefold()
    for spec in specs:
        names = [spec.name, *spec.input_schema.get("properties", {})]
        if told := next(
            (n for n in names if re.search(r"_|[a-z][A-Z]", n) and n.casefold() in lowered), None
        ):
            return f"it says {told!r}"
    if shared.order:
        return f"it says what comes when: {shared.order[0]!r}"
    if len(shared.copied) >= _COPIED_WORDS:
        return f"it repeats a description: {' '.join(shared.copied)!r}"
    if shared.content_words >= _ENOUGH_WORDS and shared.share > _MOST_SHARED:
        return f"{shared.share:.0%} of its words stand in the descriptions"
    return None


def descriptions_of(spec: ToolSpec) -> list[str]:
    """What is written of a tool and of each of its parameters."""
    properties = spec.input_schema.get("properties", {})
    told = [str(p.get("description") or "") for p in properties.values() if isinstance(p, dict)]
    return [text for text in (spec.description, *told) if text]


def words_of(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return _TOKEN.findall(text.casefold().replace("’", "'"))


def _without(text: str, entities: Collection[str]) -> str:
    for entity in sorted(filter(None, entities), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(entity)}(?!\w)", " ", text)
    return text


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _longest_run(words: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """The longest run of words that two texts share."""
    best, end = 0, 0
    before = [0] * (len(other) + 1)
    for i, word in enumerate(words, 1):
        row = [0] * (len(other) + 1)
        for j, theirs in enumerate(other, 1):
            if word == theirs:
                row[j] = before[j - 1] + 1
                if row[j] > best:
                    best, end = row[j], i
        before = row
    return tuple(words[end - best : end])
