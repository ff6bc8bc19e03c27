"""The words in names of tools, parameters and fields, and what they say of a tool."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import takewhile

from mcpagent.core.tools import ToolSpec
from mcpagent.tools.languages import takes_language


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What a tool that nobody marked begins with, or says that it does, before it is taken for a reader.
_READING = _words(
    "get list search find read fetch look lookup show describe view count check compare calculate compute "
    "convert validate verify retrieve display tell browse scan analyze extract inspect "
    "explain parse suggest is has tree info schema stat stats statistics status history"
)
_WRITING = _words(
    "set add create new insert make update upsert edit write append delete remove clear drop reset move copy "
    "rename merge send post put save store load import export upload close start stop run execute restore "
    "undo redo commit push init clone bulk batch mark assign complete archive apply install borrow return "
    "book cancel renew"
)
# What people outside hear of, or what cannot be undone by a copy of the data.
_REACHES_OUT = _words(
    "buy call email invite mail notify order pay publish push sell send submit transfer trigger sms tweet "
    "upload deploy charge refund install execute exec eval run shutdown reboot kill"
)


_VERBS = _READING | _WRITING | _REACHES_OUT


@lru_cache(maxsize=4096)
def spaced(name: str) -> str:
    """Return the words of a name: `repo path` for `repo_path` and `repoPath`."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\-./]", " ", name)
    return " ".join(parts.lower().split())


@lru_cache(maxsize=4096)
def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a name, each for one thing: `ship`, `id` for `shipIDs` and `ship_id`."""
    return tuple(map(_singular, re.findall(r"[a-z0-9]+", spaced(name))))


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    is_one = len(word) < 3 or word.endswith(("ss", "us", "is"))
    return word if is_one else word.removesuffix("s")


def stem(word: str) -> str:
    """Return what the forms of a noun have in common: `shel` of `shelf` and `shelves`."""
    return _singular(word).removesuffix("e").rstrip("vfy")


def lead(spec: ToolSpec, peers: Iterable[ToolSpec]) -> int:
    """Return how many words the names of all tools of its server begin with: 2 of `mcp_cook_get_recipe`."""
    names = {name_words(peer.name) for peer in peers if peer.server == spec.server} | {name_words(spec.name)}
    alike = takewhile(lambda words: len(set(words)) == 1, zip(*names, strict=False))
    return len(list(alike)) if len(names) > 1 else 0


def own_words(spec: ToolSpec, peers: Iterable[ToolSpec]) -> tuple[str, ...]:
    """Return the words of a tool's name without those that it shares with its server, and with the beginning
    of every other name there: `get`, `recipe` for `mcp_cook_get_recipe`."""
    words = name_words(spec.name)
    rest = (word for word in words[lead(spec, peers) :] if word not in name_words(spec.server))
    return tuple(rest) or words


def seems_to_read(spec: ToolSpec, peers: Iterable[ToolSpec] = ()) -> bool:
    """Return whether a tool only reads, by what it says of itself, else by the verb that its name (after what
    all of its `peers` begin with) or its description begins with. One that may execute what it is told does
    not seem to."""
    if spec.annotations.effect != "unmarked" or takes_language(spec):
        return spec.annotations.read_only
    words = name_words(spec.name)
    n, peers = lead(spec, peers), [peer for peer in peers if peer.server == spec.server]
    verbs = [word for peer in peers for word in name_words(peer.name)[n : n + 1] if word in _VERBS]
    is_prefix = 2 * len(verbs) > len(peers)  # `mcp_cook_`, after which most names have a verb
    named = [word for word in words[n if is_prefix else 0 :] if word not in name_words(spec.server)]
    if named and named[0] in _READING:
        return True
    told = re.findall(r"[a-z]+", spec.description.lower())[:1]
    return any(_singular(word) in _READING for word in told) and _WRITING.isdisjoint(words)


def stays_here(spec: ToolSpec) -> bool:
    """Return whether what a tool changes is in its server alone, by what it says of itself, else by its
    name."""
    return not spec.annotations.open_world or _REACHES_OUT.isdisjoint(name_words(spec.name))
