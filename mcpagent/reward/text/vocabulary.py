"""Words that tell nothing by themselves, words that deny, and the stems of inflected words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from mcpagent.reward.text.canonical import LEGAL
from mcpagent.reward.text.names import UNSAID, american, words
from mcpagent.reward.text.phrasing import AnswerContext
from mcpagent.reward.text.words import WORDS

BLANK = "\0"
SAFE = frozenset(WORDS["filler"].split()) | UNSAID | LEGAL
_ASKABLE = re.compile(r"\b(?:exclu|reject|false|wrong|invalid|incorrect|fake|mistak)\w*", re.IGNORECASE)
_LABEL = re.compile(r"(?:^|[\"'{,;|\n])\s*([A-Za-z_][A-Za-z_ ]{0,30})[\"']?\s*[:=]")
_HEAD = re.compile(r"\A[^\n]*[|;][^\n]*\n|^[^\n]*\|[^\n]*\n(?=[ |:+-]*-[ |:+-]*\n)", re.MULTILINE)
_COLUMNS = re.compile(r" {2,}")
FUNCTION_WORDS = {word: letter for letter, some in WORDS["function_words"].items() for word in some.split()}
NEGATED = re.compile(r"\b(?:not|no|never|none|nobody|nothing|cannot|without|\w+n't)\b", re.IGNORECASE)


def without_asked(text: str, said: str) -> str:
    """Return a text without words that deny but are asked for: "Which are excluded?" - "Excluded are A"."""
    heard = stems(said)
    return _ASKABLE.sub(lambda m: " " if stem(m[0].casefold()) in heard else m[0], text)


def field_labels(context: AnswerContext) -> frozenset[str]:
    """Return the words by which the results name their fields."""
    return frozenset[str]().union(*(_labels(result.content) for result in context.results))


@lru_cache(maxsize=512)
def _labels(content: str) -> frozenset[str]:
    labels = [*_LABEL.findall(content), *_HEAD.findall(content), *_heads(content)]
    return frozenset(word for label in labels for word in words(label.replace("_", " ")))


def _heads(content: str) -> Iterator[str]:
    """The lines without a number that name columns below them."""
    for line, below in pairwise(content.splitlines()):
        is_above = line[:1].isalpha() and below[:1].strip() and not any(map(str.isdigit, line))
        if is_above and min(len(_COLUMNS.split(line)), len(_COLUMNS.split(below))) > 2:
            yield line


@lru_cache(maxsize=512)
def stems(text: str) -> frozenset[str]:
    """Return the stems of the words of a text."""
    return frozenset(map(stem, words(text)))


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """Return how a word begins, spelt as Americans do: equal for most inflections of it. A code has none."""
    word = american(word)
    if any(map(str.isdigit, word)):
        return word
    return word[:5] if len(word) > 5 else word.rstrip("s") or word
