"""The words in names of tools, parameters and fields, and what they say of each other."""

from __future__ import annotations

import re
from functools import lru_cache

from mcpagent.core.tools import ToolSpec
from mcpagent.tools.languages import takes_language


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


# Of tools: what they do, of whatever they do it to.
_LOOKS = words_of(
    "get list search find read fetch look lookup show describe view count query check compare calculate "
    "compute convert evaluate validate verify retrieve display tell browse resolve report scan analyze "
    "extract inspect explain parse suggest select"
)
VERBS = _LOOKS | words_of(
    "run execute load open return give ask process print echo test call trigger do is all the my"
)
_ENDS = words_of("by for from with in of to at on and or using via near between within matching per")
# Of fields and parameters: what says nothing of the thing.
GENERIC = words_of(
    "result results item items entry entries data row rows output response value values text content "
    "contents record records list answer object objects payload body structured match matches hits node "
    "nodes"
)
IDENTIFIERS = words_of(
    "id ids identifier pk cid pid oid key uid uuid guid slug handle ref name title label no nr code number "
    "which who what"
)
FREE_TEXT = words_of(
    "query q search text input term keyword keywords string filter expression sql pattern message body"
)
PLACES = words_of("from to since until after before between in on at by")
_SAME = ("species", "series", "means")  # one is called as several are

_READING = (_LOOKS - words_of("evaluate query")) | words_of(
    "is has next previous tree info schema stat stats statistics status history"
)
_WRITING = words_of(
    "set add create new insert make update upsert edit write append delete remove clear drop reset move copy "
    "rename merge send post put save store load import export upload close start stop run execute restore "
    "undo redo commit push init clone bulk batch mark assign complete archive apply install borrow return "
    "book cancel renew"
)
# Begins a description of what a tool gives, not of what it does.
_GIVES = words_of(
    "a an the one all any every each everything everybody everyone who what which where when whether how"
)
# What people outside hear of, or what cannot be undone by a copy of the data.
_REACHES_OUT = words_of(
    "buy call email invite mail notify order pay publish push sell send submit transfer trigger sms tweet "
    "upload deploy charge refund install execute exec eval run shutdown reboot kill"
)


@lru_cache(maxsize=4096)
def spaced(name: str) -> str:
    """Return the words of a name: `repo path` for `repo_path` and `repoPath`."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\-./]", " ", name)
    return " ".join(parts.lower().split())


@lru_cache(maxsize=4096)
def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a name, each for one thing: `ship`, `id` for `shipIDs` and `ship_id`."""
    words = re.findall(r"[a-z0-9]+", spaced(name))
    return tuple(singular(word) if len(word) > 3 or word == "ids" else word for word in words)


def singular(word: str) -> str:
    """Return one thing of those that a word names: `message` for `messages`."""
    if word.endswith(_SAME):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "uses", "xes", "ches", "shes")):
        return word[:-2]
    return word.removesuffix("s") if not word.endswith(("ss", "us", "is")) else word


def plural(words: str) -> str:
    """Return several of what the words name."""
    if words.endswith("s") and not words.endswith("ss"):
        return words
    if words.endswith(("ch", "sh", "x", "ss")):
        return words + "es"
    return words[:-1] + "ies" if words.endswith("y") and words[-2:-1] not in "aeiou" else words + "s"


def topic(spec: ToolSpec) -> str:
    """Return what a tool is about, by its name: `market gainers` for `fmp_get_market_gainers`; empty if it
    says only what the tool does."""
    words: list[str] = []
    for word in spaced(spec.name).split():
        if words and word in _ENDS:
            break
        words += [word] if word not in VERBS | _ENDS else []
    server = spaced(spec.server).split()
    return " ".join([word for word in words if word not in server] or words)


def noun_in(name: str) -> str:
    """Return the noun that the name of a parameter holds: `channel` for `channel_id`; empty for `id` or
    `query`."""
    return " ".join(word for word in spaced(name).split() if singular(word) not in IDENTIFIERS | FREE_TEXT)


def is_order(parameter: str) -> bool:
    """Return whether a parameter only says how an answer is sorted: `by`, `order_by`, `sort`."""
    words = {*spaced(parameter).split()}
    return "sort" in words or ("by" in words and words <= _ENDS | {"order"})


def seems_to_read(spec: ToolSpec) -> bool:
    """Return whether a tool only reads, by what it says of itself, else by the verb that its name or its
    description begins with, or if that begins with what the tool gives ("One runner by bib number"). One that
    may execute what it is told does not seem to, whatever it is called."""
    if spec.annotations.effect != "unmarked" or takes_language(spec):
        return spec.annotations.read_only
    server = set(spaced(spec.server).split())
    named = next((word for word in spaced(spec.name).split() if word not in server), "")
    if named in _READING:
        return True
    told = re.findall(r"[a-z]+", re.split(r"[.\n]", spec.description, maxsplit=1)[0].lower())
    words = {*spaced(spec.name).split()}
    if told and singular(told[0]) in _READING:
        return words.isdisjoint(_WRITING)
    said = {*words, *(form for word in told for form in (word, singular(word), word[:-1], word[:-2]))}
    return not _GIVES.isdisjoint(told[:1]) and said.isdisjoint(_WRITING | _REACHES_OUT)  # "is deleted"


def stays_here(spec: ToolSpec) -> bool:
    """Return whether what a tool changes is in its server alone, by what it says of itself, else by its
    name."""
    return not spec.annotations.open_world or not set(spaced(spec.name).split()) & _REACHES_OUT
