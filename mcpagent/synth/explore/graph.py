"""What the read-only tools of a server were seen to do: facts, and which of them feeds which call."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.answers import Leaf, is_cursor, is_paging, one_of

# The words by which a tool that lists what is in a folder, and a field with its names, are called.
_LISTS_FILES = frozenset(("list", "dir", "directory", "folder", "tree", "ls", "browse", "glob"))
_FILE_NAMES = frozenset(("name", "file", "filename", "file_name", "path", "entry", "folder", "directory"))

# What tools do, of whatever they do it to.
_DOING = frozenset(("get", "list", "find", "read", "search", "show", "lookup", "fetch", "number", "all"))

# What the names of tools say that only read, and of those that may do more.
_READING = re.compile(
    r"\b(get|list|read|search|find|show|describe|lookup|view|count|check|compare|calculate|calc|validate|open|query"
    r"|fetch|tree|info|schema|stat|statistic|status|history|is|has|convert|parse|suggest|next|previous|between)\b"
)
_WRITING = re.compile(
    r"\b(set|add|create|new|insert|update|upsert|edit|write|append|delete|remove|clear|drop|reset|move|copy|rename"
    r"|merge|send|post|put|save|store|load|import|export|upload|close|start|stop|run|execute|restore|undo|redo"
    r"|commit|push|init|clone|bulk|batch|mark|assign|complete|archive|apply|install)\b"
)

# Numbers that somebody has in mind: no tool tells them.
_BOUNDS = frozenset(("min", "max", "minimum", "maximum", "least", "most", "threshold", "amount"))

# Of names of tools that say something of one table.
OF_ONE_TABLE = frozenset(("describe", "column", "schema", "field"))
SELECT = "SELECT * FROM "  # the statement that is tried where SQL is asked for


@dataclass(frozen=True)
class Fact:
    """A call that gave an answer of its own. `page` is more than 1 where its arguments say how far to go on
    in the answer of a call before it."""

    spec: ToolSpec
    arguments: JsonObject
    leaves: tuple[Leaf, ...]
    page: int = 1

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """(parameter, text) of the arguments, those in lists and objects too."""
        return ((name, item) for name, item in self._scalars() if isinstance(item, str))

    @property
    def numbers(self) -> Iterator[tuple[str, int]]:
        """(parameter, number) of the whole numbers among the arguments."""
        return (
            (name, item)
            for name, item in self._scalars()
            if isinstance(item, int) and not isinstance(item, bool)
        )

    def _scalars(self) -> Iterator[tuple[str, Any]]:
        for name, value in self.arguments.items():
            yield from ((name, item) for item in scalars(value))


def scalars(value: Any) -> Iterator[Any]:
    """The values in lists and objects."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from scalars(item)
    else:
        yield value


@dataclass(frozen=True)
class Edge:
    """`source` gives the text that is `parameter` of another fact: `leaf`, after `prefix` where that is the
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
    if not _LISTS_FILES & set(name_words(fact.spec.name)):
        return given
    for folder in (text for _, text in fact.texts if "/" in text and not re.search(r"\s|://", text)):
        prefix = folder.rstrip("/") + "/"
        given += [
            (prefix + text, leaf, prefix)
            for text, leaf, _ in given[: len(fact.leaves)]
            if isinstance(text, str)
            and leaf.expression.count("[") < 2  # not what lies in a folder below
            and re.fullmatch(r"[^/\s\d][^/\s]*|\d[^/\s]*\.[A-Za-z]\w*", text)
            and (not leaf.name or leaf.expression.endswith("]") or leaf.name.lower() in _FILE_NAMES)
        ]
    return given


@dataclass(frozen=True)
class Silence:
    """Why tools gave nothing: `reason` for a program, `text` for a person, after the tool's name; `detail` is
    what the first of them said."""

    reason: str
    text: str
    tools: tuple[str, ...]
    detail: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        if self.reason == "not_read_only" and len(self.tools) > 1:
            count = f"{len(self.tools)} tools do not say that they only read and were never called"
            reading = [tool for tool in self.tools if _seems_to_read(tool)]
            hint = f" (by their names: --read-only {','.join(reading)})" if reading else ""
            return f"{count}: {', '.join(self.tools)}; name those that do with --read-only{hint}"
        named = " and ".join(
            [", ".join(self.tools[:-1]), self.tools[-1]] if len(self.tools) > 1 else self.tools
        )
        hint = (
            " and was never called; name it with --read-only if it does"
            if self.reason == "not_read_only"
            else ""
        )
        return f"{named} {self.text}{hint}" + (f" ({self.detail})" if self.detail else "")


def _seems_to_read(dotted: str) -> bool:
    words = " ".join(name_words(dotted.partition(".")[2]))
    return _READING.search(words) is not None and _WRITING.search(words) is None


def no_value(tool: str, parameters: Sequence[str], detail: str, *, is_tried: bool) -> Silence:
    """That a tool cannot be called, since nobody knows what it takes for these parameters."""
    names = list(dict.fromkeys(parameters))
    options = " ".join(f"--seed-value {name}=..." for name in names)
    why = "for which it took nothing that was tried" if is_tried else "which nothing gave"
    text = f"cannot be asked without {' and '.join(names)}, {why}; name one: {options}"
    return Silence("no_value", text, (tool,), detail)


@dataclass
class ToolGraph:
    """`facts` by tool, in the order in which they were learned; `not_tried` says why a tool has none. `calls`
    were made to learn them, of which `failed` gave nothing."""

    facts: list[Fact] = field(default_factory=list)
    not_tried: dict[str, str] = field(default_factory=dict)
    silences: list[Silence] = field(default_factory=list)
    calls: int = 0
    failed: int = 0
    _givers: dict[str | int, list[tuple[Fact, Leaf, str]]] = field(default_factory=dict)

    def add(self, fact: Fact) -> None:
        """Keep a fact."""
        self.facts.append(fact)
        for value, leaf, prefix in given_by(fact):
            self._givers.setdefault(value, []).append((fact, leaf, prefix))

    def leave_out(self, silence: Silence) -> None:
        """Note why tools gave nothing, together with others of which the same is to be said."""
        self.not_tried |= dict.fromkeys(silence.tools, silence.text)
        for place, other in enumerate(self.silences):
            if (other.reason, other.text) == (silence.reason, silence.text):
                tools = tuple(sorted((*other.tools, *silence.tools)))
                self.silences[place] = replace(other, tools=tools, detail=other.detail or silence.detail)
                return
        self.silences.append(silence)

    def told_silences(self, tried: Collection[str], more: Sequence[Silence]) -> list[Silence]:
        """Why tools gave nothing, those apart that were `tried` since then, of which `more` says it."""
        left = [replace(s, tools=tuple(t for t in s.tools if t not in tried)) for s in self.silences]
        return [*(silence for silence in left if silence.tools), *more]

    def edges_into(self, fact: Fact) -> list[Edge]:
        """Every way to learn an argument of `fact` from another fact that did not have it to begin with, and
        of which a person could say what it is."""
        edges = [
            Edge(source, leaf, name, text, start + prefix)
            for name, text in fact.texts
            for start in ("", SELECT)
            if text.startswith(start)
            for source, leaf, prefix in self._givers.get(text.removeprefix(start), ())
            if leaf.is_near
            and source is not fact
            and text not in {given for _, given in source.texts}
            and _may_feed(source, leaf, fact, name, text)
        ]
        for name, number in fact.numbers:
            edges += [
                Edge(source, leaf, name, str(number))
                for source, leaf, _ in self._givers.get(number, ())
                if leaf.is_near
                and source is not fact
                and _may_feed(source, leaf, fact, name, number)
                and not _BOUNDS & {*name_words(name)}
                and is_number_for(source.spec, leaf, fact.spec, name)
                and number not in {given for _, given in source.numbers}
            ]
        return edges

    def tool_edges(self) -> dict[str, dict[str, int]]:
        """`server.tool` -> `server.tool.parameter` -> number of facts that show it."""
        table: dict[str, dict[str, int]] = {}
        for fact in self.facts:
            for edge in self.edges_into(fact):
                row = table.setdefault(edge.source.spec.dotted, {})
                target = f"{fact.spec.dotted}.{edge.parameter}"
                row[target] = row.get(target, 0) + 1
        return table


def _may_feed(source: Fact, leaf: Leaf, target: Fact, parameter: str, value: str | int) -> bool:
    """Whether a value leads on: where a list goes on it is for that list alone, and what a tool works out of
    two values is not put into it again."""
    is_same = source.spec.dotted == target.spec.dotted
    if is_paging(parameter, value) or is_cursor(leaf.name):
        return is_same
    return not (is_same and leaf.expression in ("@", "@.result") and len(target.arguments) > 1)


def name_words(name: str) -> tuple[str, ...]:
    """The words of a field or parameter, each for one thing: `shipIDs` and `ship_id` are `ship`, `id`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+", " ", name)
    return tuple(one_of(word) if len(word) > 3 or word == "ids" else word for word in spaced.lower().split())


def is_named_alike(field_name: str, parameter: str) -> bool:
    """Whether a field may hold what a parameter asks for, by their names: `id` and `ship_id`, not `id` and
    `limit`."""
    one, other = set(name_words(field_name)), set(name_words(parameter))
    return bool(one) and bool(other) and (one <= other or other <= one)


def is_number_for(source: ToolSpec, leaf: Leaf, target: ToolSpec, parameter: str) -> bool:
    """Whether a whole number that `source` gave may be what `target` asks for, by the names. An item of a
    list has none of its own: those of its tool and its list count, `recent_orders` for `order`."""
    if is_named_alike(leaf.name, parameter):
        return True
    given = {*name_words(leaf.name), *name_words(source.name)} - _DOING
    return leaf.expression.endswith("]") and bool(given & {*name_words(target.name), *name_words(parameter)})


def distinct(
    rng: Random, twins: Sequence[tuple[Fact, Leaf]], count: int, value: str
) -> list[tuple[Fact, Leaf]]:
    """Some of the twins, each of another value than `value` and the others."""
    picked: list[tuple[Fact, Leaf]] = []
    seen = {value}
    for other, same in rng.sample(list(twins), len(twins)):
        if len(picked) < count and str(same.value) not in seen:
            seen.add(str(same.value))
            picked.append((other, same))
    return picked


def rounded(value: float) -> float:
    """With two significant digits."""
    return float(f"{value:.2g}")


def between(values: Sequence[float], rng: Random) -> float | None:
    """A round number between two neighbours, none of which it is equal to."""
    gaps = [(low, high) for low, high in pairwise(values) if high > low]
    if not gaps:
        return None
    low, high = rng.choice(gaps)
    middle = rounded((low + high) / 2)
    return middle if low < middle < high else None
