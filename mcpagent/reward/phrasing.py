"""How an answer says something: whether it denies it, and whether it only repeats what the tools returned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from mcpagent.core.placeholders import nested_value, result_value
from mcpagent.core.tools import ToolResult

PHRASE_WORDS = 12  # the longest run of words of a result that an answer may repeat
_OTHER_VALUES = 2  # values of other fields that an answer may mention beside a fact
_WORDS_BESIDE_FACTS = 3  # in a record that may be repeated as a whole
_SHORT_VALUE = 60  # characters; a longer value is a text, of which runs of words count
_MIN_VALUE = 3  # characters; "a", "of" and the like occur in any answer
_MAX_VALUES = 5000  # of the results that are looked at, so that a huge result costs no time

_TOKEN = re.compile(r"[^\W_]+")
_JSON = re.compile(r"""[{\[]\s*(?:\{\s*)?["'][^"'\n]{1,80}["']\s*:""")
_PAIR = re.compile(r"[\s*-]*[A-Za-z][\w .*-]{0,30}:\**\s+\S")  # a line that names what it tells
_ESCAPED = re.compile(r"\\[nrt]")  # a text that was put into JSON
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$)|\n")

# "n't" is written out before these are looked for.
_UNTRUE = (
    r"wrong(?:ly)?|false(?:ly)?|incorrect(?:ly)?|untrue|inaccurate|invalid|mistaken(?:ly)?|mistake|error"
    r"|nonsense|a lie|lies?|myth|fiction|rumou?r|impossible|denie[sd]|deny|doubts?|refute[sd]?"
    r"|reject(?:s|ed)?|disagree[sd]?|contrary|opposite|exclude[sd]?|excluding|ruled? out"
)
_NOT = (
    r"not|never|no|nor|neither|nobody|none|nothing|hardly|scarcely|cannot|unlike|except|without"
    r"|anything but|other than|instead of|rather than|far from"
)
_STRONG = re.compile(rf"\b(?:{_UNTRUE}|not\s+(?:\w+\s+)?(?:true|correct|right|so|the case|the fact))\b")
_NEGATOR = re.compile(rf"\b(?:{_UNTRUE}|{_NOT})\b")
_AFFIRMS = re.compile(
    r"\b(?:no|without(?: a| any)?|beyond|not in) (?:doubt|question|problem|worries|change)\b|\bno need\b"
    r"|\bno (?:less|more|fewer|later|longer|others?) than\b|\bnot (?:only|just|merely)\b"
    r"|\bwithout (?:a|its|the) sign\b"
    r"|\bcan ?not be (?:wrong|clearer)\b|\bnothing (?:else|other|more|but)\b"
    r"|\brounding error\b|\bwithout (?:any )?rounding\b|\bnot (?:rounded|including|counting)\b"
)
# "It is not Energy but Technology", "it is not Energy, it is Technology": what follows is said to be so.
_CONTRAST = re.compile(
    r"(?<!anything )(?<!nothing )\bbut\b|\binstead\b(?! of)|\brather\b(?! than)"
    r"|,\s*(?:it|this|the \w+)(?:'s| is| was)\b|,\s*(?:it|they) (?:are|were)\b"
)
_DENIED_AFTER = re.compile(
    r"^[\"')\]*_\s]*(?:,?\s*(?:which|that|this|and (?:that|this)|but (?:that|this|it))\s+)?"
    r"(?:(?!and\b|but\b|so\b)\w+\s+){0,3}?"
    rf"(?:not|never|cannot|no longer|{_UNTRUE})\b(?!\s+(?:only|just|merely|including|counting|rounded))"
    r"|^\W*(?:not|not really|no|nope|wrong|false|incorrect|untrue|just kidding|if only)\s*(?:[.!?)\]]|$)"
)
_DENIED_NEXT = re.compile(
    r"^\W*(?:(?:but|and|well|actually|however|sorry|of course|no|wait),?\s+)*(?:all (?:of )?)?"
    r"(?:that|this|it|which)(?:'s| is| was| would be| seems)\s+(?:\w+\s+){0,2}?"
    rf"(?:{_UNTRUE}|not\s+(?:true|correct|right|so|the case|the \w+))\b"
    r"|^\W*(?:no|not|nope|wrong|false|incorrect|untrue|just kidding)\s*(?:[.!?]|$)"
)


def plain(text: str) -> str:
    """`text` for a comparison: one space, no letter case, straight quotes."""
    return " ".join(text.split()).casefold().replace("’", "'")


def without_markup(text: str) -> str:
    """`text` without the marks of Markdown around words."""
    return re.sub(r"[*`]+|(?<!\w)_+|_+(?!\w)", "", text)


def tokens(text: str) -> list[str]:
    """The words and numbers of `text` without letter case, in order."""
    return _TOKEN.findall(text.casefold())


def is_denied(text: str, start: int, end: int, *, said: str = "") -> bool:
    """Whether `text[start:end]` is said not to be so: in its sentence, or in the one that comments on it.

    Words of denial that the question itself uses (`said`, plain) are read over: an answer may repeat it.
    """
    text = text.casefold().replace("’", "'")
    before = re.split(_SENTENCE_END, text[:start])[-1]
    rest = text[end:]
    stop = _SENTENCE_END.search(rest)
    after, following = (rest, "") if stop is None else (rest[: stop.end()], rest[stop.end() :])
    if _denies_what_follows(_spelt_out(before), said):
        return True
    return bool(_DENIED_AFTER.search(_spelt_out(after)) or _DENIED_NEXT.search(_spelt_out(following)))


def _denies_what_follows(before: str, said: str) -> bool:
    before = _AFFIRMS.sub(" ", before)
    if not _STRONG.search(before):
        before = _CONTRAST.split(before)[-1]
    return any(not _is_quoted(match, before, said) for match in _NEGATOR.finditer(before))


def _is_quoted(match: re.Match[str], text: str, said: str) -> bool:
    """Whether the denial and the word after it stand in the question."""
    phrase = re.match(r"\w+\s+\w+", text[match.start() :])
    return phrase is not None and f" {' '.join(phrase[0].split())} " in f" {' '.join(tokens(said))} "


def _spelt_out(text: str) -> str:
    text = re.sub(r"\b(ca|wo|sha)n't\b", r"\1n not", text).replace("cant ", "can not ")
    return re.sub(r"n't\b", " not", text)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an answer is held against besides its check: what the user `said`, the `offered` tools in the
    words of the system message, the `reference` answer, and this episode's `results`."""

    said: str = ""
    offered: str = ""
    reference: str | None = None
    results: tuple[ToolResult, ...] = ()

    @cached_property
    def token_lines(self) -> tuple[str, ...]:
        """The words of each result, between spaces."""
        return tuple(f" {' '.join(tokens(result.content))} " for result in self.results)

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """What references see of the results."""
        return tuple(result_value(result) for result in self.results if not result.is_error)


def is_dump(answer: str, facts: Sequence[str], evidence: Evidence) -> bool:
    """Whether `answer`, which has every one of `facts`, repeats results instead of answering: it holds their
    JSON, or a run of their words that is longer than a phrase, or values that compete with the facts."""
    answer = _ESCAPED.sub(" ", answer).replace("\\", "")
    if _JSON.search(answer) and not any(_JSON.search(fact) for fact in facts):
        return True
    return _repeats_results(answer, facts, evidence) or _offers_others(answer, facts, evidence)


def _repeats_results(answer: str, facts: Sequence[str], evidence: Evidence) -> bool:
    words = tokens(answer)
    line = f" {' '.join(words)} "
    # Names and values of a whole result, whatever marks stand between them.
    most = len(tokens(" ".join(facts))) + _WORDS_BESIDE_FACTS
    for result, whole in zip(evidence.results, evidence.token_lines, strict=True):
        if whole in line and len(whole.split()) > most and _is_record(result.content):
            return True
    expected = [*facts, evidence.reference or ""]
    length = max(PHRASE_WORDS, *(len(tokens(text)) + 2 for text in expected)) + 1
    if len(words) < length:
        return False
    quoted = f" {' '.join(tokens(evidence.said))} "
    for index in range(len(words) - length + 1):
        run = f" {' '.join(words[index : index + length])} "
        if run not in quoted and any(run in text for text in evidence.token_lines):
            return True
    return False


def _is_record(content: str) -> bool:
    """Whether a result is fields with their values rather than prose: JSON, or lines of `name: value`."""
    if content[:1] in "{[":
        return True
    lines = [line for line in content.splitlines() if line.strip()]
    return len(lines) > 1 and all(map(_PAIR.match, lines))


def _offers_others(answer: str, facts: Sequence[str], evidence: Evidence) -> bool:
    """Whether values of the results stand beside the facts: another one of a list, or several others."""
    given = plain(" ".join([evidence.said, evidence.reference or "", *facts]))
    plain_facts = {plain(fact) for fact in facts}
    spoken = plain(without_markup(answer))
    named: dict[str, str] = {}  # value -> its field, of the values that the answer mentions
    fields: set[str] = set()  # that hold a fact
    for count, (place, value) in enumerate(_values(evidence.values, "")):
        if count >= _MAX_VALUES:
            break
        text = plain(value)
        if text in plain_facts:
            fields.add(place)
            continue
        is_value = _MIN_VALUE <= len(text) <= _SHORT_VALUE and not any(fact in text for fact in plain_facts)
        if is_value and has_words(text, spoken) and not has_words(text, given):
            named[text] = place
    rivals = [text for text, place in named.items() if place in fields]
    # One value inside another ("Apple" in "Apple Inc.") is one mention.
    others = [text for text in named if not any(text != longer and text in longer for longer in named)]
    return bool(rivals) or len(others) > _OTHER_VALUES


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
