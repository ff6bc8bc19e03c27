"""What the tools of a server were seen to do: facts, and which of them feeds which call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.core.values import scalars
from mcpagent.synth.explore.leaves import Leaf
from mcpagent.tools.words import name_words, stem

SELECT = "SELECT * FROM "  # the statement that is tried where SQL is asked for


@dataclass(frozen=True)
class Fact:
    """A call that gave an answer. It `is_sayable` if names say that its arguments are meant for it; `about`
    is the parameter that has the most values, which tells the calls of its tool apart."""

    spec: ToolSpec
    arguments: JsonObject
    leaves: tuple[Leaf, ...] = ()
    is_sayable: bool = True
    about: str = ""

    @property
    def given(self) -> Iterator[tuple[str, Any]]:
        """(parameter, value) of the scalars among the arguments, those in lists and objects too."""
        return ((name, item) for name, value in self.arguments.items() for item in scalars(value))

    @property
    def subject(self) -> str:
        """What the call is about, as text; its tool if nothing tells it apart."""
        value = self.arguments.get(self.about)
        return self.spec.dotted if value is None else format_value(value)


@dataclass(frozen=True)
class Edge:
    """`source` gives, as `leaf`, the value that is `parameter` of another fact. `kind` is the word that says
    so, by which the leaf itself `is_named`, or what it stands in."""

    source: Fact
    leaf: Leaf
    parameter: str
    text: str
    kind: str
    is_named: bool


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


@dataclass(frozen=True)
class Relations:
    """What the names of tools, parameters and fields say of each other; `tool_words` are those of each tool
    (`words.own_words`)."""

    tool_words: Mapping[str, tuple[str, ...]]

    def around(self, source: ToolSpec, leaf: Leaf) -> tuple[str, ...]:
        """Return the words for what a leaf stands in: of its list or object, else of what its tool is about:
        what it takes, or its name without its verb."""
        named = self.tool_words[source.dotted]
        taken = [word for name in source.input_schema.get("properties", {}) for word in name_words(name)]
        about = tuple(word for word in named if word in taken and not leaf.levels)
        rest = tuple(word for word in named[1:] or named if word not in taken)  # emojis by category
        return name_words(leaf.holder) or about or rest

    def shared(self, source: ToolSpec, leaf: Leaf, target: ToolSpec, parameter: str) -> list[str]:
        """Return the words which say that a value of a field is meant for a parameter: those of the tool and
        the parameter that the field or what it stands in has. `id` of `ships` is for `ship_id` and for the
        `id` of `get_ship`, not for `captain_id`."""
        given, asked, around, named = (
            {*map(stem, words)}
            for words in (
                name_words(leaf.name),
                name_words(parameter),
                self.around(source, leaf),
                self.tool_words[target.dotted],
            )
        )
        is_key = bool(leaf.levels) and str(leaf.value) in leaf.levels[-1].names
        is_about = given <= asked or asked <= given or (is_key and asked <= around)
        if isinstance(leaf.value, str):
            is_about = is_about or not given.isdisjoint(named)
        if not is_about or (given and given < asked and not asked - given <= around):
            return []
        told = around if given == asked and len(given) == 1 else around | given
        return [
            word for word in (*self.tool_words[target.dotted], *name_words(parameter)) if stem(word) in told
        ]

    def link(self, source: ToolSpec, leaf: Leaf, target: ToolSpec) -> tuple[list[str], bool]:
        """Return the words for a text that is an argument elsewhere though no name says so, and whether they
        are those of its field: the `loan` of a card is a book."""
        given, around = name_words(leaf.name), {*map(stem, self.around(source, leaf))}
        itself = [word for word in self.tool_words[target.dotted] if stem(word) in around]
        return (itself, False) if itself or not given else ([" ".join(given)], True)


@dataclass
class ToolGraph:
    """`facts` by tool, in the order in which they were learned; `silences` say why tools have none. `calls`
    were made to learn them, of which `failed` gave nothing."""

    relations: Relations
    facts: list[Fact] = field(default_factory=list)
    silences: list[Silence] = field(default_factory=list)
    calls: int = 0
    failed: int = 0
    _givers: dict[str | int, list[tuple[Fact, Leaf]]] = field(default_factory=dict)

    def add(self, fact: Fact) -> None:
        """Keep a fact."""
        self.facts.append(fact)
        for leaf in fact.leaves if fact.is_sayable else ():
            if not isinstance(leaf.value, float):
                self._givers.setdefault(leaf.value, []).append((fact, leaf))

    def edges_into(self, fact: Fact) -> list[Edge]:
        """Every way to learn an argument of `fact` from another fact that did not have it to begin with, and
        whose names say that it is meant for it."""
        edges: list[Edge] = []
        for name, value in fact.given:
            for source, leaf in () if isinstance(value, float | bool) else self._givers.get(value, ()):
                if source is fact or any(value == other for _, other in source.given):
                    continue
                words = self.relations.shared(source.spec, leaf, fact.spec, name)
                named = [stem(word) for word in name_words(leaf.name)]
                is_named = len(leaf.tail) > 1 or any(stem(word) in named for word in words[:1])
                if not words and isinstance(value, str):
                    words, is_named = self.relations.link(source.spec, leaf, fact.spec)
                is_named = is_named and not leaf.is_own_code
                if words and (is_named or leaf.is_of_same(source.leaves, fact.leaves)):
                    edges.append(Edge(source, leaf, name, str(value), words[0], is_named))
        return edges

    @cached_property
    def kinds(self) -> Mapping[tuple[str, str], str]:
        """What kind of thing a parameter (`server.tool`, name) names, by the tools that take and give it:
        `ship` for the `id` of `get_ship`; empty if neither says it. Parameters that nothing gives are left
        out."""
        kinds: dict[tuple[str, str], str] = {}
        for fact in self.facts:
            for edge in self.edges_into(fact):
                tools = (fact.spec.dotted, edge.source.spec.dotted)
                named = {stem(word) for tool in tools for word in self.relations.tool_words[tool]}
                key = (fact.spec.dotted, edge.parameter)
                kinds[key] = kinds.get(key) or (edge.kind if stem(edge.kind) in named else "")
        return kinds
