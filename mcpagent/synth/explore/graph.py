"""What the tools of a server were seen to do: facts, and which of them feeds which call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.core.values import scalars
from mcpagent.synth.explore.leaves import Leaf
from mcpagent.synth.explore.paging import is_cursor, is_paging
from mcpagent.synth.explore.words import VERBS, is_order, name_words

# The words by which a tool that lists what is in a folder, and a field with its names, are called.
LISTS_FILES = frozenset(("list", "dir", "directory", "folder", "tree", "ls", "browse", "glob"))
_FILE_NAMES = frozenset(("name", "file", "filename", "file_name", "path", "entry", "folder", "directory"))

# Numbers that somebody has in mind: no tool tells them.
_BOUNDS = frozenset(("min", "max", "minimum", "maximum", "least", "most", "threshold", "amount"))

# What a tool works on, which is no thing that somebody could name in another way.
_MATTER = frozenset(("text", "input", "string", "expression", "message", "body"))

SELECT = "SELECT * FROM "  # the statement that is tried where SQL is asked for


@dataclass(frozen=True)
class Fact:
    """A call that gave an answer of its own. `page` counts from 1; `is_whole`: the lists of the answer are
    all that there is. `prose` is an answer that is no JSON. A call with a value that `is_drawn` is of nothing
    that a schema, a result or the user names."""

    spec: ToolSpec
    arguments: JsonObject
    leaves: tuple[Leaf, ...] = ()
    page: int = 1
    is_whole: bool = True
    prose: str = ""
    is_drawn: bool = False

    @property
    def is_sayable(self) -> bool:
        """Return True if a person would say what the call is about: not of a later page, nor of a list that
        is sorted in some way, nor with a drawn value."""
        return self.page == 1 and not self.is_drawn and not any(map(is_order, self.arguments))

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """(parameter, text) of the arguments, those in lists and objects too."""
        return ((name, item) for name, item in self._scalars() if isinstance(item, str))

    @property
    def numbers(self) -> Iterator[tuple[str, int]]:
        """(parameter, number) of the whole numbers among the arguments."""
        return ((name, item) for name, item in self._scalars() if type(item) is int)

    def same_as(self, leaf: Leaf) -> Leaf | None:
        """Return the leaf of the same field as one of another result."""
        return self._by_column.get(leaf.column)

    @cached_property
    def _by_column(self) -> dict[str, Leaf]:
        return {leaf.column: leaf for leaf in reversed(self.leaves) if not leaf.in_prose}

    def _scalars(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.arguments.items():
            yield from ((name, item) for item in scalars(value))


@dataclass(frozen=True)
class Edge:
    """`source` gives the text that is `parameter` of another fact: `leaf`, after `prefix` if that is the
    folder or the like that `source` was asked about."""

    source: Fact
    leaf: Leaf
    parameter: str
    text: str
    prefix: str = ""


def given_by(fact: Fact) -> list[tuple[str | int, Leaf, str]]:
    """(value, leaf, prefix) of what a fact gives to other calls: its texts, its whole numbers, and the paths
    of what is in the folder that it was asked about."""
    given: list[tuple[str | int, Leaf, str]] = [
        (leaf.value, leaf, "") for leaf in fact.leaves if not isinstance(leaf.value, float)
    ]
    if not LISTS_FILES & set(name_words(fact.spec.name)):
        return given
    for folder in (text for _, text in fact.texts if "/" in text and not re.search(r"\s|://", text)):
        prefix = folder.rstrip("/") + "/"
        given += [
            (prefix + text, leaf, prefix)
            for text, leaf, _ in given[: len(fact.leaves)]
            if isinstance(text, str)
            and len(leaf.levels) < 2  # not what lies in a folder below
            and re.fullmatch(r"[^/\s\d][^/\s]*|\d[^/\s]*\.[A-Za-z]\w*", text)
            and (leaf.in_prose or not leaf.tail or leaf.name.lower() in _FILE_NAMES)
        ]
    return given


@dataclass(frozen=True)
class Silence:
    """The reason why tools gave nothing: `reason` for a program, `text` for a person, after the tool's name;
    `detail` is what the first of them said."""

    reason: str
    text: str
    tools: tuple[str, ...]
    detail: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        if self.reason == "not_read_only":
            count = "1 tool does" if len(self.tools) == 1 else f"{len(self.tools)} tools do"
            return (
                f"{count} not say that they only read and were never called: {', '.join(self.tools)}; name "
                "those that do with --read-only (--yes-read-only takes those that look safe). What writes is "
                "tried if each episode gets a copy of its data: --set tools.per_server.NAME.workspace=FOLDER"
            )
        *others, last = self.tools
        named = f"{', '.join(others)} and {last}" if others else last
        return f"{named} {self.text}" + (f" ({self.detail})" if self.detail else "")


def grouped(silences: Iterable[Silence]) -> list[Silence]:
    """Return the silences with the tools of which the same is to be said in one."""
    by_text: dict[tuple[str, str], Silence] = {}
    for silence in silences:
        first = by_text.setdefault((silence.reason, silence.text), silence)
        if first is not silence:
            tools, detail = tuple(sorted((*first.tools, *silence.tools))), first.detail or silence.detail
            by_text[silence.reason, silence.text] = replace(first, tools=tools, detail=detail)
    return list(by_text.values())


@dataclass
class ToolGraph:
    """`facts` by tool, in the order in which they were learned; `silences` say why tools have none. `calls`
    were made to learn them, of which `failed` gave nothing."""

    facts: list[Fact] = field(default_factory=list)
    silences: list[Silence] = field(default_factory=list)
    calls: int = 0
    failed: int = 0
    _givers: dict[str | int, list[tuple[Fact, Leaf, str]]] = field(default_factory=dict)

    def add(self, fact: Fact) -> None:
        """Keep a fact."""
        self.facts.append(fact)
        for value, leaf, prefix in given_by(fact) if fact.is_sayable else ():
            self._givers.setdefault(value, []).append((fact, leaf, prefix))

    def edges_into(self, fact: Fact) -> list[Edge]:
        """Every way to learn an argument of `fact` from another fact that did not have it to begin with, and
        of which a person could say what it is."""
        edges: list[Edge] = []
        for name, value in (*fact.texts, *fact.numbers):
            start = SELECT if isinstance(value, str) and value.startswith(SELECT) else ""
            told = value.removeprefix(start) if isinstance(value, str) else value
            for source, leaf, prefix in self._givers.get(told, ()):
                if source is fact or not leaf.is_near or not _may_feed(source, leaf, fact, name, value):
                    continue
                if value not in {given for _, given in (*source.texts, *source.numbers)}:
                    edges.append(Edge(source, leaf, name, str(value), start + prefix))
        return edges


def _may_feed(source: Fact, leaf: Leaf, target: Fact, parameter: str, value: str | int) -> bool:
    """Return True if a value leads on: where a list goes on does not, what a tool works out of two values is
    not put into it again, and a number is for a parameter of its name that is no bound."""
    if is_paging(parameter, value) or is_cursor(leaf.name) or _MATTER & {*name_words(parameter)}:
        return False
    if isinstance(value, int) and (
        _BOUNDS & {*name_words(parameter)} or not is_number_for(source.spec, leaf, target.spec, parameter)
    ):
        return False
    is_same = source.spec.dotted == target.spec.dotted
    return not (is_same and leaf.expression in ("@.result", "@.text") and len(target.arguments) > 1)


def is_number_for(source: ToolSpec, leaf: Leaf, target: ToolSpec, parameter: str) -> bool:
    """Return whether a whole number that `source` gave may be what `target` asks for, by the names: `id` for
    `ship_id`, not for `limit`. An item of a list has none of its own: those of its tool and its list count,
    `recent_orders` for `order`."""
    one, other = set(name_words(leaf.name)), set(name_words(parameter))
    if one and other and (one <= other or other <= one):
        return True
    given = {*one, *name_words(source.name)} - VERBS - {"number"}
    return not leaf.tail and bool(leaf.levels) and bool(given & {*name_words(target.name), *other})
