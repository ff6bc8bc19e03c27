"""How an answer says something: whether it denies it, and whether it only repeats what the tools returned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from mcpagent.core.placeholders import nested_value, result_value
from mcpagent.core.tools import ToolResult
from mcpagent.reward.text.words import WORDS, pattern

WORDS_PER_REFERENCE_WORD = 8
_LONGEST_WORD = 30  # characters; a text of longer ones has no more words for it
PHRASE_WORDS = 12  # the longest run of words of a result that an answer may repeat
_OTHER_VALUES = 2  # values of other fields that an answer may mention beside a fact
_WORDS_BESIDE_FACTS = 3  # in a record that may be repeated as a whole
_SHORT_VALUE = 60  # characters; a longer value is a text, of which runs of words count
_MIN_VALUE = 3  # characters; "a", "of" and the like occur in any answer
_MAX_VALUES = 5000  # of the results that are looked at, so that a huge result costs no time

_TOKEN = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"-?\d[\d.,]*")
_JSON = re.compile(r"""[{\[]\s*(?:\{\s*)?["'][^"'\n]{1,80}["']\s*:""")
_PAIR = re.compile(r"[\s*-]*[A-Za-z][\w .*-]{0,30}:\**\s+\S")  # a line that names what it tells
_ESCAPED = re.compile(r"\\[nrt]")  # a text that was put into JSON
_HEDGES = "|".join(re.split(r"(?<!\\) +", WORDS["hedges"]))
HEDGE = re.compile(rf"\b(?:{_HEDGES})\b|\?|[<>≠≤≥不非¬❌✗✘❎🚫⛔👎✖☒]", re.IGNORECASE)
# "More than X" and "the one next to X" are not X.
_QUALIFIED_BEFORE = pattern("qualified_before")
_BOUNDED_BEFORE = re.compile(
    r"\b(?:over|under|before|above|below|beyond|(?<!add )(?<!adds )(?<!added )up to)\s+"
    r"(?:(?:the|at|in|on)\s+)?$"
)  # of an amount
_QUALIFIED_AFTER = pattern("qualified_after")
# What is said in a clause holds for it alone; what is wrong ahead of a colon is what follows.
_CLAUSE_END = re.compile(r"(?<=[.!?;])[^\w\s]*(?=\s|$)|\n| - |,(?! (?:or|and)\b)|\b(?:but|and|so)\b")
_BRACKETS = re.compile(r"\([^()]*\)")
_MODALS = frozenset(("may", "might", "could"))
NO_DENIAL = pattern("no_denial")
_DENIED_AFTER = pattern("denied_after")


def plain(text: str) -> str:
    """`text` for a comparison: one space, no letter case, straight quotes."""
    return " ".join(text.split()).casefold().replace("’", "'")


def without_markup(text: str) -> str:
    """`text` without the marks of Markdown around words."""
    return re.sub(r"[*`]+|(?<!\w)_+|_+(?!\w)", "", text)


def tokens(text: str) -> list[str]:
    """The words and numbers of `text` without letter case, in order."""
    return _TOKEN.findall(text.casefold())


def without_unless_hedged(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without what matches, unless the group of it denies or doubts something."""
    return pattern.sub(lambda match: match[0] if HEDGE.search(match[1]) else "", text)


def is_affirmed(text: str, start: int, end: int, context: AnswerContext) -> bool:
    """Whether canonical `text[start:end]` is said to be so: its clause neither denies nor doubts it, and what
    follows does not take it back. Words of the question and of results may be repeated."""
    if is_qualified(text, start, end) or denied_after(text, end):
        return False
    before, after = (NO_DENIAL.sub(" ", _BRACKETS.sub(" ", part)) for part in (text[:start], text[end:]))
    clause = f"{_CLAUSE_END.split(before)[-1]} \0 {_CLAUSE_END.split(after)[0]}"
    quoted = (f" {' '.join(tokens(context.said))} ", *context.token_lines)
    phrases = [tokens(clause[match.start() :])[:2] for match in HEDGE.finditer(clause)]
    phrases = [two for two in phrases if not is_asked_modal(two, tokens(context.said))]
    return all(len(two) > 1 and any(f" {' '.join(two)} " in told for told in quoted) for two in phrases)


def is_asked_modal(phrase: Sequence[str], asked: Sequence[str]) -> bool:
    """Return whether a phrase begins with a "could" of the question, and says what one could do: no doubt."""
    return len(phrase) > 1 and phrase[0] in _MODALS and phrase[0] in asked and phrase[1] != "be"


def denied_after(text: str, end: int) -> bool:
    """Whether what stands behind `text[:end]` says that it is not so."""
    return _DENIED_AFTER.match(text[end : end + 80].casefold()) is not None


def is_qualified(text: str, start: int, end: int, *, is_amount: bool = True) -> bool:
    """Whether `text[start:end]` is not what is said, but something that is told by it: "more than X". An
    amount, which a date is too, also has bounds: "before X"."""
    before = text[max(0, start - 40) : start].casefold().rpartition("\n")[2]
    if text[start : start + 1].isdigit():
        before = before.removesuffix("!")  # a merge request: !415
    quotes = re.findall(r"(?<!\w)'|'(?!\w)", text[max(0, start - 1) : end])
    after = text[end : end + 20].casefold()[len(quotes) % 2 :]  # a quoted end is no genitive
    if is_amount and re.search(r"\d", text[start:end]) and _BOUNDED_BEFORE.search(before):
        return True
    return _QUALIFIED_BEFORE.search(before) is not None or _QUALIFIED_AFTER.match(after) is not None


@dataclass(frozen=True, kw_only=True)
class AnswerContext:
    """What an answer is held against besides its check: what the user `said`, the `offered` tools in the
    words of the system message, the `reference` answer, and this episode's `results`. `on_line`: the answer
    line alone is read. `is_lenient`: words that nobody has shown may stand around a value."""

    said: str = ""
    offered: str = ""
    reference: str | None = None
    results: tuple[ToolResult, ...] = ()
    on_line: bool = False
    is_lenient: bool = False

    @cached_property
    def token_lines(self) -> tuple[str, ...]:
        """The words of each result, between spaces."""
        return tuple(f" {' '.join(tokens(result.content))} " for result in self.results)

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """What references see of the results."""
        return tuple(result_value(result) for result in self.results if not result.is_error)


def holds_json(text: str) -> bool:
    """Whether a text has an object of JSON in it, also one that was put into JSON as a text."""
    return _JSON.search(_ESCAPED.sub(" ", text).replace("\\", "")) is not None


def is_longer(text: str, most: int, facts: Sequence[str]) -> bool:
    """Return whether a text has more than `most` words, or more characters than such words and the facts
    take. It is asked first: to read a text takes time with the square of its length."""
    longest = _LONGEST_WORD * most + WORDS_PER_REFERENCE_WORD * sum(map(len, facts))
    return len(text.split()) > most or len(text) > longest


def is_dump(answer: str, facts: Sequence[str], context: AnswerContext, *, is_typed: bool) -> bool:
    """Whether `answer`, which has every one of `facts`, repeats results instead of answering: it holds their
    JSON, or a run of their words that is longer than a phrase, or values that compete with the facts."""
    if holds_json(answer) and not any(map(holds_json, facts)):
        return True
    answer = _ESCAPED.sub(" ", answer).replace("\\", "")
    # A numbered list may be all that was shown.
    together = " 1 ".join(facts) if is_typed else " ".join(facts)
    return _repeats_results(answer, [*facts, together], len(tokens(together)), context) or _offers_others(
        answer, facts, context, is_typed=is_typed
    )


def _repeats_results(answer: str, facts: Sequence[str], length: int, context: AnswerContext) -> bool:
    """Whether `answer` has a whole record in more words than the `length` of the facts explains, or a run of
    a result's words longer than any of the facts."""
    words = tokens(answer)
    line = f" {' '.join(words)} "
    # Names and values of a whole result, whatever marks stand between them.
    most = length + _WORDS_BESIDE_FACTS
    for result, whole in zip(context.results, context.token_lines, strict=True):
        if whole in line and len(whole.split()) > most and _is_record(result.content):
            return True
    expected = [*facts, context.reference or ""]
    run_length = max(PHRASE_WORDS, *(len(tokens(text)) + 2 for text in expected)) + 1
    if len(words) < run_length:
        return False
    quoted = f" {' '.join(tokens(context.said))} "
    for index in range(len(words) - run_length + 1):
        run = f" {' '.join(words[index : index + run_length])} "
        if run not in quoted and any(run in text for text in context.token_lines):
            return True
    return False


def _is_record(content: str) -> bool:
    """Whether a result is fields with their values rather than prose: JSON, or lines of `name: value`."""
    if content[:1] in "{[":
        return True
    lines = [line for line in content.splitlines() if line.strip()]
    return len(lines) > 1 and all(map(_PAIR.match, lines))


def _offers_others(answer: str, facts: Sequence[str], context: AnswerContext, *, is_typed: bool) -> bool:
    """Whether values of the results stand beside the facts: another one of a list, or several others. Beside
    the value of a type others may stand."""
    given = plain(" ".join([context.said, context.reference or "", *facts]))
    plain_facts = {plain(fact) for fact in facts}
    spoken = plain(without_markup(answer))
    is_number = is_typed and all(map(_NUMBER.fullmatch, plain_facts))
    named: dict[str, str] = {}  # value -> its field, of the values that the answer mentions
    fields: set[str] = set()  # that hold a fact
    for count, (place, value) in enumerate(_values(context.values, "")):
        if count >= _MAX_VALUES:
            break
        text = plain(value)
        if text in plain_facts:
            fields.add(place)
            continue
        if is_number and _NUMBER.fullmatch(text):
            continue  # a rival of a number is told by what it counts
        is_value = _MIN_VALUE <= len(text) <= _SHORT_VALUE and not any(fact in text for fact in plain_facts)
        if is_value and has_words(text, spoken) and not has_words(text, given):
            named[text] = place
    rivals = [text for text, place in named.items() if place in fields]
    # One value inside another ("Apple" in "Apple Inc.") is one mention.
    others = [text for text in named if not any(text != longer and text in longer for longer in named)]
    # A list of things may follow their number.
    return bool(rivals) or (
        not is_typed and len(others) > _OTHER_VALUES and [str(len(others))] != list(facts)
    )


def has_words(words: str, text: str) -> bool:
    """Whether plain `words` stand in plain `text` as whole words: "aap" is not in "aapl"."""
    return words in text and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _values(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """(field, text) of the strings of a result, of a list that is a text, of each line of another text and
    what it names; all of a list are one field."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _values(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from _values(item, f"{place}[]")
    elif isinstance(value, str):
        nested = nested_value(value)
        if not isinstance(nested, str):
            yield from _values(nested, place)
        else:
            yield from _of_lines(value, place)


def _of_lines(text: str, place: str) -> Iterator[tuple[str, str]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        yield place, text
        return
    for line in lines:
        yield f"{place}/", line
        if pair := _PAIR.match(line):
            # `ws-1 name` and `ws-2 name` are one field.
            name = re.sub(r"\S*\d\S*", "", line[: pair.end()].partition(":")[0])
            yield f"{place}/{plain(name)}", line[pair.end() - 1 :].strip("*_` ")
