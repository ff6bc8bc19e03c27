"""An answer that takes its value back ("52 - sorry, I meant 47") or offers another one ("Ada or Grace")."""

from __future__ import annotations

import re
from collections.abc import Set
from functools import lru_cache
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import is_json_array, is_json_object
from mcpagent.reward.text.amounts import amounts, is_conversion, is_rounded
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.grammar import BRACKETS, blanked
from mcpagent.reward.text.items import item_spans
from mcpagent.reward.text.moments import Span, agree, moments, whole_moment
from mcpagent.reward.text.names import words
from mcpagent.reward.text.naming import option_spans
from mcpagent.reward.text.phrasing import AnswerContext
from mcpagent.reward.text.reading import says
from mcpagent.reward.text.rivals import is_about_another
from mcpagent.reward.text.spans import value_spans
from mcpagent.reward.text.vocabulary import BLANK, FUNCTION_WORDS, field_labels, stem, stems
from mcpagent.reward.text.words import pattern

CORRECTION = pattern("correction")
NO_TITLE = r"(?<!\bMr\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bMrs\.)(?<!\bMme\.)(?<!\bProf\.)(?<!\bvs\.)"
_SENTENCE = re.compile(rf"(?<=[.!?;]){NO_TITLE}(?<!\b[A-Z]\.)\s+|\.{{2,}}\s*|\n+")
# What takes back more than one value, or a yes. Fewer words than `CORRECTION`: a set may have NO.
_WITHDRAWAL = re.compile(
    r"\b(?:sorry|correction|i meant?|or rather|make that|scratch that|on 2nd thoughts?|oops|nope"
    r"|wait(?=[,:;]|\.\.)|absolutely not)\b",
    re.IGNORECASE,
)
_NO = re.compile(r"\b[Nn]o,")
_REVERSED = re.compile(
    r"(?<!not )\b(?:the other way (?:a?round)|or reversed|swapped|vice versa)\b|scratch that", re.IGNORECASE
)
_ADDED = re.compile(r"\((?:and|plus) ([^()]*)\)|,? plus (.*)")
_ITEM_PART = re.compile(r"[,;|\n]|\.(?:\s|$)|\b(?:and|plus|&)\b")
_BESIDE_ITEMS = frozenset(("also", "too", "the", "a", "an", "maybe", "perhaps"))
_PART = re.compile(r"\s-\s|[()]")
_PLAIN = {word for word, letter in FUNCTION_WORDS.items() if letter in "ca,"} | {
    *("it", "that", "this", "so", "also", "final", "finally", "answer", "result", "value"),
}
_JOINING = frozenset(
    ("or", "either", "between", "possibly", "maybe", "alternatively", "as", "well", "to", "vs", "versus")
)
# "... but she has left; it is Jens Holm now."
_IT_IS = re.compile(r"[,;.]\s+(?:but )?(?:it|that)(?:'s| is| was)(?: now)? ([A-Z][\w'-]+(?: [A-Z][\w'-]+)*)")
_WORKED_OUT = re.compile(r"[=±]|\([^()]* vs\b")
_PERSON = re.compile(r"[A-Z]\w+ [A-Z][\w'-]+")
_WORD = re.compile(r"[^\W_][\w'-]*")


def is_taken_back(check: AnswerCheck, value: Any, text: str, context: AnswerContext) -> bool:
    """Return whether a text takes back the value that it says, or offers another one with it."""
    if check.type in ("number", "date", "name", "choice"):
        return _is_replaced(check, value, text, context)
    if check.type not in ("set", "list", "pairs", "yes_no"):
        return False
    is_list = check.type in ("set", "list") and is_json_array(value)
    return _are_taken_back(check, value, text) or (is_list and _names_another_item(value, text, context))


def _is_replaced(check: AnswerCheck, value: Any, text: str, context: AnswerContext) -> bool:
    """Whether a text offers two values as one, or says nothing but another one behind the value."""
    sentences = [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]
    spans_of_sentences = [_spans(check, value, sentence, context) for sentence in sentences]
    of_value = [n for n, spans in enumerate(spans_of_sentences) if spans]
    if not of_value:
        return False
    if any(_offers_both(check, value, sentences[n], text, context) for n in of_value):
        return True
    if check.type == "name":
        befores = [sentences[n][:start] for n in of_value for start, _ in spans_of_sentences[n]]
        if all(before.endswith("followed by ") for before in befores):
            return True
        if any(_is_shown_name(name, value, context) for name in _IT_IS.findall(text)):
            return True
    last = of_value[-1]
    tail = sentences[last][max(end for _, end in spans_of_sentences[last]) :]
    behind = sentences[last + 1 :]
    corrected = [part for part in (tail, *_PART.split(tail), *behind) if CORRECTION.search(part)]
    return any(
        _is_another(check, value, CORRECTION.sub(" ", part), text, context, corrects=part in corrected)
        for part in (*corrected, *behind)
    )


def _is_shown_name(name: str, value: Any, context: AnswerContext) -> bool:
    """Whether a result has a name, which is not the value."""
    named = {*words(name.removesuffix("'s"))}
    return named <= _shown_words(context) and named.isdisjoint(words(format_value(value)))


def _offers_both(check: AnswerCheck, value: Any, sentence: str, text: str, context: AnswerContext) -> bool:
    """Whether a sentence has nothing but the value, another one of its kind and words that join them."""
    spans = _spans(check, value, sentence, context)
    others = [
        span
        for span in _others(check, value, sentence, text, canonical(context.said), context)
        if not any(start < span[1] and span[0] < end for start, end in spans)
    ]
    rest = _WORD.findall(blanked(sentence, [*spans, *others], " "))
    told = [word for word in rest if word.casefold() not in _PLAIN | _JOINING]
    if check.type != "name":
        return bool(others) and not (told or _WORKED_OUT.search(sentence))
    if not _PERSON.fullmatch(format_value(value)) or "(" in sentence:
        return False
    names = {*words(" ".join(told))} - {*words(format_value(value))}
    return len(told) == len(names) == 2 and all(map(str.istitle, told)) and names <= _shown_words(context)


def _is_another(
    check: AnswerCheck, value: Any, part: str, text: str, context: AnswerContext, *, corrects: bool
) -> bool:
    """Whether a part says another value and nothing else, but words of the question if it `corrects`."""
    said = canonical(context.said)
    others = _others(check, value, part, text, said, context)
    heard = stems(said) if corrects else frozenset[str]()
    rest = [
        word
        for word in _WORD.findall(blanked(part, others, " "))
        if word.casefold() not in _PLAIN and stem(word.casefold()) not in heard
    ]
    if others or check.type != "name":
        return bool(others) and not rest
    if not corrects and is_about_another(part, [format_value(value)], context):
        return False
    labels = field_labels(context)
    if not corrects and _names_another_field(part, labels, said):
        return False  # "The officer is Bo" says nothing of the applicant
    named = {word for word in words(" ".join(rest)) if len(word) > 1}
    named -= labels | {*words(format_value(value))}
    is_name = all(word[0].isupper() for word in rest)
    is_shown = named <= _shown_words(context)
    return bool(named) and (is_shown or is_name if corrects else is_shown and is_name)


def _names_another_field(part: str, labels: Set[str], said: str) -> bool:
    """Whether a part begins with a field of the results that the question does not name."""
    first = next((word for word in words(part) if word not in _PLAIN), "")
    return first in labels and stem(first) not in stems(said)


def _are_taken_back(check: AnswerCheck, value: Any, text: str) -> bool:
    """Whether what follows a word that corrects says one of several values again, or all is withdrawn."""
    if check.type == "yes_no":
        return any(match.start() > 0 for match in _WITHDRAWAL.finditer(text))
    values = [*value, *value.values()] if is_json_object(value) else value if is_json_array(value) else []
    if _REVERSED.search(text):
        return True
    return any(
        match.start() > 0 and any(says(format_value(each), text[match.end() :]) for each in values)
        for match in (*_WITHDRAWAL.finditer(text), *_NO.finditer(text))
    )


def _names_another_item(items: Any, text: str, context: AnswerContext) -> bool:
    """Whether an enumeration begins with words that were shown and are none of the items, or a sentence or a
    bracket behind it is made of such words: "amber, dune and birch", "dune and birch. Amber too"."""
    spans = item_spans(items, text, context)
    if spans is None:
        return False
    rest = _ADDED.sub(r". \1\2.", blanked(text, spans))
    rest = BRACKETS.sub(lambda m: m[0] if BLANK in m[0] else " ", rest)
    for sentence in _SENTENCE.split(rest):
        if BLANK not in sentence and is_about_another(sentence, [*map(format_value, items)], context):
            continue
        parts = [part for part in _ITEM_PART.split(sentence) if words(part) or BLANK in part]
        first = next((n for n, part in enumerate(parts) if BLANK in part), len(parts))
        if first and all(_is_shown_alone(part, items, context) for part in parts[:first]):
            return True
    return False


def _is_shown_alone(part: str, items: Any, context: AnswerContext) -> bool:
    """Whether a part has nothing but words of the results, none of which the question or an item has."""
    labels = field_labels(context)
    told = {word for word in words(part) if word not in _BESIDE_ITEMS}
    ignored = labels | {*FUNCTION_WORDS} | {word for item in items for word in words(format_value(item))}
    is_apart = told.isdisjoint(ignored) and stems(context.said).isdisjoint(map(stem, told))
    return (
        bool(told)
        and ":" not in part
        and told <= _shown_words(context)
        and is_apart
        and all(map(str.isalpha, told))
    )


def _shown_words(context: AnswerContext) -> frozenset[str]:
    return frozenset[str]().union(*(_words_of(result.content) for result in context.results))


@lru_cache(maxsize=64)
def _words_of(content: str) -> frozenset[str]:
    return frozenset(words(content))


def _spans(check: AnswerCheck, value: Any, text: str, context: AnswerContext) -> list[Span]:
    if check.type == "choice":
        return option_spans(check, value, text)
    return value_spans(check, value, text, context, is_strict=False)


def _others(
    check: AnswerCheck, value: Any, part: str, text: str, said: str, context: AnswerContext
) -> list[Span]:
    """Where a part says another number, date or option, of which the question has not spoken."""
    if check.type == "choice":
        options = (option for option in check.options if option != value)
        return [span for option in options for span in option_spans(check, option, part)]
    if check.type == "date":
        meant = whole_moment(format_value(value))
        heard = [*moments(said), *([meant] if meant else [])]
        return [(m.start, m.end) for m in moments(part) if not any(agree(m, each) for each in heard)]
    if check.type == "number":
        spans = _spans(check, value, text, context)
        right = [a for a in amounts(text) if any(start <= a.start < end for start, end in spans)]
        heard = {amount.number for amount in (*amounts(said), *right)}
        return [
            amount.span
            for amount in amounts(part)
            if amount.number not in heard
            and not any(m.start <= amount.start < m.end for m in moments(part))
            and not any(is_conversion(amount, one) or is_rounded(amount, one) for one in right)
        ]
    return []
