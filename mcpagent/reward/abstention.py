"""Answers where no tool is right: they say so, or ask for what is missing, and invent nothing.

`AnswerCheck.value` says what a right one does:

    cannot   says that it cannot be done, or which tool or access is missing
    asks     asks for what the question lacks; `about` holds words that name it
    replies  answers what needs no tool: thanks, small talk, a poem

None of them may hold a number or a name that neither the conversation, the offered tools nor a result gave, a
value of `without`, or the claim that something was done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import numbers_in
from mcpagent.reward.phrasing import Evidence, has_words, plain, tokens, without_markup

ABSTENTIONS = ("cannot", "asks", "replies")
MAX_ABSTENTION_WORDS = 120

_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|\n+")
_CLAUSE = re.compile(
    r",?\s+\b(?:but|however|though|although|nevertheless|still|yet|anyway|so|and|while|which|because)\b,?\s*",
    re.IGNORECASE,
)
_CANNOT = re.compile(
    r"\b(?:can ?not|could not|can only|unable|not able|not possible|impossible|unavailable|unsupported|beyond"
    r"|outside|lack(?:s|ing)?|missing|will not be able|have to decline|(?:do|does|did) not (?:\w+ ){0,2}"
    r"(?:have|has|offer|support|provide|include|cover|allow|give|see|find|exist|let|know (?:how|of|a))"
    r"|(?:have|has|is|are|was|were|there is|there are) (?:currently |simply |just )?(?:no|not|nothing)\b"
    r"|none of|no (?:\w+ ){0,4}?"
    r"(?:tools?|functions?|ways?|access|means|options?|capabilit\w+|apis?|sources?|servers?)"
    r"|not (?:\w+ )?"
    r"(?:available|supported|offered|provided|included|among|part|something|equipped|given|clear)"
    r"|nothing (?:here|that|i|among|in)|no longer|without (?:a|an|the|any|that|such|access)\b)",
)
_DENIED = re.compile(
    r"\b(?:not (?:true|correct|right|so|the case)|untrue|false|incorrect|wrong|nonsense) that\b"
)
_REQUEST = re.compile(
    r"\b(?:please|tell me|let me know|i (?:would |will |still )?need|could you|can you|would you|specify"
    r"|clarify|provide|name the|say which|missing|unclear|unspecified|which|not (?:\w+ )?"
    r"(?:say|said|given|named|specified|mentioned|stated|told|clear|know|sure))\b",
)
_HELP = re.compile(
    r"\b(?:tools?|access|provide|give|share|source|data|permission|enable|connect|instead|else|help)\b"
)
_DONE = (
    r"done|posted|sent|stored|saved|added|reacted|updated|created|deleted|removed|completed|finished|executed|booked"
    r"|ordered|changed|written|uploaded|scheduled|delivered|published|notified|successful(?:ly)?|succeeded"
)
_CLAIMS_DONE = re.compile(rf"\b(?:{_DONE})\b")
_NUMBER_WORD = re.compile(
    r"\b(?:hundreds?|thousands?|millions?|billions?|trillions?|(?:twen|thir|for|fif|six|seven|eigh|nine)ty"
    r"|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:two|three|four|five|six|seven|eight|nine|ten) (?:dollars?|euros?|percent|points?|shares?|cents?))\b"
)
_STATES = re.compile(
    r"\b(?:is|was|are|were|costs?|trades?|equals?|closed|stands|amounts|belongs|reads?|says)\b\s+\w|[=:]\s*\w"
)
_NAME = re.compile(r"[A-Z][\w.&'-]*")
_CODE = re.compile(r"\b(?:[A-Z]{2,}[\w-]*|(?=\w*\d)(?=\w*[A-Za-z])\w{2,})\b")
_URL = re.compile(r"\b(?:https?://|www\.)\S+|\S+@\S+\.\w+")
_ENUMERATOR = re.compile(r"^\s*(?:[-*•]\s*)?[0-9]{1,2}[.)]\s", re.MULTILINE)
# Capitalised words that name nothing.
_COMMON = frozenset(
    (
        *(
            "i",
            "i'm",
            "i'd",
            "i'll",
            "i've",
            "ok",
            "okay",
            "api",
            "apis",
            "url",
            "id",
            "ids",
            "mcp",
            "ai",
            "json",
        ),
        *("sorry", "unfortunately", "please", "no", "yes", "thanks", "faq", "n/a"),
    )
)
_GREETINGS = frozenset(
    (
        *(
            "sorry",
            "apologies",
            "unfortunately",
            "hello",
            "hi",
            "hey",
            "ok",
            "okay",
            "please",
            "thanks",
            "thank",
        ),
        *("you", "understood", "no", "yes", "my", "i", "am", "sure", "good", "question", "regrettably"),
        *("afraid", "apologise", "apologize", "regret"),
    )
)
_LONE_WORDS = 3  # a clause of fewer words that refuses nothing and greets nobody is an answer


def abstention_holds(check: AnswerCheck, answer: str, without: Sequence[Any], evidence: Evidence) -> bool:
    """Whether `answer` abstains as the check asks. `without` are its values, resolved."""
    text = without_markup(answer).replace("’", "'")
    limit = (check.model_extra or {}).get("max_words", MAX_ABSTENTION_WORDS)
    if re.search(r"[^\W\d_]{2,}", text) is None or len(text.split()) > limit:
        return False
    if "{" in text or any(has_words(plain(format_value(fact)), plain(text)) for fact in without):
        return False
    if _invents(text, check, evidence):
        return False
    sentences = [part for part in _SENTENCE.split(text) if tokens(part) and not _is_echo(part, evidence)]
    match check.value:
        case "cannot":
            return any(_refuses(part) or _asks_for_help(part) for part in sentences) and not any(
                _claims(clause, evidence) for clause in _clauses(sentences)
            )
        case "asks":
            return any(_asks(part, check.about) for part in sentences) and not any(
                _claims(clause, evidence) for clause in _clauses(sentences)
            )
        case _:
            return bool(sentences) and not set(tokens(text)) <= set(tokens(evidence.said))


def _invents(text: str, check: AnswerCheck, evidence: Evidence) -> bool:
    """A number, a name or a deed that comes from nowhere."""
    sources = "\n".join([evidence.said, evidence.offered, *(result.content for result in evidence.results)])
    if set(numbers_in(_ENUMERATOR.sub(" ", text))) - set(numbers_in(sources)):
        return True
    lowered, words = _spelt_out(text), {_singular(word) for word in tokens(sources)}
    said = set(tokens(evidence.said))
    if any(match[0] not in evidence.said.casefold() for match in _NUMBER_WORD.finditer(lowered)):
        return True
    for clause in _clauses([part for part in _SENTENCE.split(lowered) if part]):
        deeds = {match[0] for match in _CLAIMS_DONE.finditer(clause)} - said
        if deeds and not _refuses(clause) and " not " not in f" {clause} ":
            return True
    names = [*_CODE.findall(text), *_URL.findall(text)]
    if check.value != "replies" or _refuses(text):
        names += _names_inside(text)
    return any(
        not {_singular(word) for word in tokens(name)} <= words for name in names if not _is_common(name)
    )


def _names_inside(text: str) -> Iterator[str]:
    """Capitalised words that do not begin a sentence."""
    for match in _NAME.finditer(text):
        before = text[: match.start()].rstrip(" \t\"'“‘(*-•")
        if before and before[-1] not in ".!?:;\n" and "\n" not in text[len(before) : match.start()]:
            yield match[0].rstrip(".'-&")


def _is_common(name: str) -> bool:
    return name.casefold().removesuffix("'s") in _COMMON


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _is_echo(sentence: str, evidence: Evidence) -> bool:
    """A sentence of the question, said again."""
    words = tokens(sentence)
    return len(words) > 2 and f" {' '.join(words)} " in f" {' '.join(tokens(evidence.said))} "


def _refuses(sentence: str) -> bool:
    text = _spelt_out(sentence)
    return _CANNOT.search(_DENIED.split(text)[0]) is not None


def _asks_for_help(sentence: str) -> bool:
    return sentence.rstrip().endswith("?") and _HELP.search(_spelt_out(sentence)) is not None


def _asks(sentence: str, about: Sequence[str]) -> bool:
    """A question, or a request, that names what is missing."""
    lowered = _spelt_out(sentence)
    names = not about or any(
        {_singular(word) for word in tokens(name)} <= {_singular(word) for word in tokens(lowered)}
        for name in about
    )
    return names and (sentence.rstrip().endswith("?") or _REQUEST.search(lowered) is not None)


def _clauses(sentences: Sequence[str]) -> Iterator[str]:
    for sentence in sentences:
        if not sentence.rstrip().endswith("?"):
            yield from (_spelt_out(clause) for clause in _CLAUSE.split(sentence) if tokens(clause))


def _claims(clause: str, evidence: Evidence) -> bool:
    """Whether a clause that neither refuses nor asks tells what is asked for: "its sector is energy"."""
    if _refuses(clause) or _REQUEST.search(clause):
        return False
    words = tokens(clause)
    if len(words) < _LONE_WORDS:
        return not set(words) & (_GREETINGS | set(tokens(evidence.said)))
    subjects = {
        "it",
        "its",
        "answer",
        "value",
        "result",
        *(word for word in tokens(evidence.said) if len(word) > 3),
    }
    verb = _STATES.search(clause)
    return verb is not None and bool(subjects & set(tokens(clause[: verb.start()])))


def _spelt_out(text: str) -> str:
    text = re.sub(
        r"\b(ca|wo|sha)n't\b",
        lambda m: {"ca": "can", "wo": "will", "sha": "shall"}[m[1]] + " not",
        text.casefold(),
    )
    text = re.sub(r"\bcannot\b", "can not", text)
    return re.sub(r"n't\b", " not", text)
