"""Whether a text says yes or no, in these words or in those of the question."""

from __future__ import annotations

import re

from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.names import words
from mcpagent.reward.text.phrasing import HEDGE
from mcpagent.reward.text.vocabulary import NEGATED, SAFE, stem, stems
from mcpagent.reward.text.words import WORDS, pattern

_ANY_MORE = re.compile(r"\bany ?(?:more|longer)\b", re.IGNORECASE)
_STATES = pattern("states")
_UNTOLD = pattern("untold")
_FLAG = re.compile(
    r"(?:\b(?:is|are|was|set to|says|shows)|[=:])\s*[\"']?(true|false|yes|no)\b", re.IGNORECASE
)
_NAMED = re.compile(  # what ends a question: "in the Okonkwo matter yet"
    r"(?: (?:(?:in|on|at|of|for|by|with|the) )*(?=\S*[A-Z\d])\S+)+\?$"
    r"| (?:in|on|at|for|by|with) the (?=\S*[A-Z\d])\S+(?: [a-z]+){1,2}\?$"
)
_PART = re.compile(r"[,;] ")
# "No changes were added"
_NO_THING = re.compile(
    r"\W*(?:there(?:'s| (?:is|are|was|were)) )?no (?!such|way|longer|more|one|body)"
    r"([^\W\d_]+(?: [^\W\d_]+)?)",
    re.IGNORECASE,
)
_ELLIPSIS = re.compile(r"(?:n't|\bnot)\W*$", re.IGNORECASE)  # "The consignee isn't."
_FILLER = WORDS["filler"]
_YES = pattern("says_yes")
_YES_IT_IS = re.compile(r"\W*yes\W+(?:it|that|this|he|she|they)(?:'s| is| are)\b", re.IGNORECASE)
_NO = pattern("says_no")
# What is said instead of "no" if the first one is asked.
_OPPOSITES = [
    (
        re.compile(rf"\b(?:{asked})\b", re.IGNORECASE),
        re.compile(rf"(n't |not )?\b(?:{told})\b", re.IGNORECASE),
    )
    for asked, told in (
        (r"on(?= for| in| at|\W*$)|enabled|activated|active", "off|disabled|deactivated|inactive"),
        ("pass(?:ed)?|succeed(?:ed)?|successful", "fail(?:ed|s|ure)?|unsuccessful"),
        ("open", "closed|shut"),
        ("permitted|allowed|permissible|legal", "forbidden|prohibited|banned|illegal"),
    )
]


def polarity(text: str, said: str = "") -> bool | None:
    """Return what a text says to a question for yes or no; None if it says neither, or both. It may also say
    in the words of the question (`said`) that it is so, or not: "There is no minibar."."""
    label, _, rest = text.partition(":")
    is_label = rest and len(label.split()) <= 3 and not (NEGATED.search(label) or _YES.search(label))
    text = rest if is_label else text
    if (untold := _UNTOLD.search(text)) and stem(words(untold[0])[-1]) not in stems(said):
        return None
    if (flag := _FLAG.search(text)) and stems(text[: flag.start()].replace("_", " ")) & stems(said) - stems(
        _FILLER
    ):
        return flag[1].casefold() in ("true", "yes")
    is_yes, is_no = _YES.search(text) is not None, _NO.search(text) is not None
    if thing := _NO_THING.match(text):  # of which nothing was asked
        named = words(thing[1])
        is_no = any(word in SAFE for word in named[:1]) or any(
            stem(word) in stems(said) for word in named if word not in SAFE
        )
    other = r"\bno(?=\W*$|[.,;!])|\b(?:and|or|but) no\b" if is_yes else r"\byes\b"
    opposites = [match for asked, told in _OPPOSITES if asked.search(said) and (match := told.search(text))]
    if any(m[1] and not HEDGE.search(text[: m.start()] + text[m.end() :]) for m in opposites):
        return True  # "it didn't fail"
    if opposites and _YES_IT_IS.match(text):
        return None
    if not (is_yes or is_no or HEDGE.search(text)):
        if opposites:
            return False
        heard = stems(said) | stems(_FILLER)
        for asked, _ in _OPPOSITES:  # "enabled", and nothing of another
            if asked.search(said) and asked.search(text) and stems(asked.sub(" ", text)) <= heard:
                return True
    if is_yes is is_no or re.search(other, text, re.IGNORECASE):
        return _echoed(text, said) if not (is_yes or is_no) else None
    return is_yes


def _echoed(text: str, said: str) -> bool | None:
    """What a statement says that has the last words of the question: "It hasn't been paid."."""
    text = _ANY_MORE.sub(" ", text)
    told = words(NEGATED.sub(" ", text))
    is_other = " than " in said and not re.match(r"(?:it|he|she|they)\b", text.strip(), re.IGNORECASE)
    if is_other or " or " in said or "?" in text or "whether" in told or HEDGE.search(" ".join(told)):
        return None
    question = canonical(_NAMED.sub("?", said.partition(" than ")[0].strip()))
    asked = [stem(word) for word in words(question) if word not in SAFE]
    is_plain = not _STATES.search(text)  # "works remotely"
    if is_plain and not {stem(word) for word in told if word not in SAFE} <= {*asked}:
        return None
    asked = asked[-1:] if is_plain else asked[-2:]
    opposed = [word for word in told if word.startswith("un") and stem(word[2:]) in asked]
    is_echo = bool(opposed) or any(stem(word) in asked for word in told)
    is_echo |= bool(_ELLIPSIS.search(text)) and not stems(said).isdisjoint(map(stem, told))
    echoes = [part for part in _PART.split(text) if any(stem(word) in asked for word in words(part))]
    return (len(NEGATED.findall(" ".join(echoes) or text)) + len(opposed)) % 2 == 0 if is_echo else None
