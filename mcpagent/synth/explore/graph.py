"""Which tool's output feeds which tool's input: seen by calling the read-only tools, on any server."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mcpagent.core.placeholders import result_value
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.core.values import numbers_in
from mcpagent.synth.tasks.run import CallCache, SynthSession
from mcpagent.tools.probes.arguments import harmless_arguments

_ITEMS = 12  # of a list that are looked into
_WORDS = 60  # of a text
_SHORT = 60  # characters of a value that can be asked for
_FIRST = ("first", "second", "third", "fourth", "fifth", "sixth")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(r"[\w/~.](\S*\w)?")  # no bracket, quote or comma at its ends: it can be passed on as it is
_PAIR = re.compile(r"^\s*([A-Za-z][\w .-]{0,30}):\s+(\S+)\s*$")


@dataclass(frozen=True)
class Leaf:
    """One value of a result. `expression` is its reference with `@` for the step, `label` its name for a
    person."""

    expression: str
    label: str
    value: str | int | float

    def of_step(self, number: int) -> str:
        """The placeholder of this value in the result of step `number` of a plan."""
        return "${" + self.expression.replace("@", f"step{number}") + "}"


def answer_fields(value: Any) -> list[Leaf]:
    """The values of a result that can be referred to."""
    return list(_walk(value, "@", ()))


def _walk(value: Any, expression: str, path: tuple[str, ...]) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for key, item in value.items():
            if _NAME.fullmatch(key):
                yield from _walk(item, f"{expression}.{key}", (*path, key))
    elif isinstance(value, list):
        *above, kind = path or ("entries",)
        if " " in kind:  # one of a list, and itself a list
            above, kind = [*above, kind], "entries"
        for index, item in enumerate(value[:_ITEMS]):
            yield from _walk(item, f"{expression}[{index}]", (*above, f"{_ordinal(index)} {_one_of(kind)}"))
    elif isinstance(value, str):
        yield from _of_text(value, expression, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield Leaf(expression, _label(path), value)


def _of_text(text: str, expression: str, path: tuple[str, ...]) -> Iterator[Leaf]:
    words = text.split()
    if len(text) <= _SHORT and "\n" not in text.strip() and text.strip():
        yield Leaf(expression, _label(path), text)
    if len(words) < 2:
        return
    pairs = {match[2]: match[1] for line in text.splitlines() if (match := _PAIR.match(line))}
    for index, word in enumerate(words[:_WORDS]):
        if not _WORD.fullmatch(word):
            continue
        label = pairs.get(word) or f"{_ordinal(index)} word of the {_label(path)}"
        yield Leaf(f"word({expression}, {index})", label, word)
    if numbers := numbers_in(text):
        yield Leaf(f"number({expression}, -1)", f"last number of the {_label(path)}", numbers[-1])


def _label(path: tuple[str, ...]) -> str:
    return " of the ".join(part.replace("_", " ") for part in reversed(path)) or "answer"


def _ordinal(index: int) -> str:
    """`first` for 0."""
    number = index + 1
    if number <= len(_FIRST):
        return _FIRST[index]
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _one_of(kind: str) -> str:
    """One thing of a list, by the list's name: `messages` has a `message`."""
    return kind.removesuffix("ies") + "y" if kind.endswith("ies") else kind.removesuffix("s")


_ROUNDS = 4  # what one round finds, the next one asks about
_CALLS_A_TOOL = 120  # in all rounds together
_TEXTS = 12  # of those found, for a tool that takes several
_SELECT = "SELECT * FROM "  # the one statement that is tried where SQL is asked for
_SQL = re.compile(r"\b(SQL|SELECT)\b")
_PROBE = "mcpagent-probe"  # names nothing: what a tool says of it, it says of everything
# Tools that answer instead of failing say so in words.
_SAYS_NO = re.compile(r"\b([Ee]rror|E[A-Z]{4,7}|[Nn]ot found|[Nn]o matches|does not exist)\b")


@dataclass(frozen=True)
class Fact:
    """A call that gave an answer of its own."""

    spec: ToolSpec
    arguments: JsonObject
    leaves: tuple[Leaf, ...]

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """(parameter, text) of the arguments, those in lists too."""
        for name, value in self.arguments.items():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, str):
                    yield name, item


@dataclass(frozen=True)
class Edge:
    """`source` gives the text that is `parameter` of another fact: `leaf`, after `prefix` where that is the
    folder or the like that `source` was asked about."""

    source: Fact
    leaf: Leaf
    parameter: str
    text: str
    prefix: str = ""


@dataclass(frozen=True)
class Walk:
    """A question: calls, of which each may take an argument from the one before, and what is asked of the
    last one (of all of them, in parallel)."""

    kind: str
    facts: tuple[Fact, ...]
    edges: tuple[Edge | None, ...]  # how the first, second, ... fact gets an argument
    asked: tuple[Leaf, ...]
    wording: int = 0

    @property
    def key(self) -> str:
        """A text that is equal for walks that make the same calls and ask the same."""
        calls = [[fact.spec.dotted, fact.arguments] for fact in self.facts]
        return json.dumps([self.kind, calls, [leaf.expression for leaf in self.asked]], sort_keys=True)

    @property
    def about(self) -> str:
        """What decides the split: the last call, however it is reached."""
        return json.dumps([self.facts[-1].spec.dotted, self.facts[-1].arguments], sort_keys=True)


@dataclass
class ToolGraph:
    """`facts` in the order in which they were found; `not_tried` says why a tool has none."""

    facts: list[Fact] = field(default_factory=list)
    not_tried: dict[str, str] = field(default_factory=dict)
    _givers: dict[str, list[tuple[Fact, Leaf, str]]] = field(default_factory=dict)

    def add(self, fact: Fact) -> list[str]:
        """Keep a fact; returns the texts that it is the first to give."""
        self.facts.append(fact)
        given = [(str(leaf.value), leaf, "") for leaf in fact.leaves if isinstance(leaf.value, str)]
        for _, folder in fact.texts:
            if "/" in folder:
                prefix = folder.rstrip("/") + "/"
                given += [
                    (prefix + text, leaf, prefix)
                    for text, leaf, _ in given[: len(fact.leaves)]
                    if "/" not in text
                ]
        new = [text for text, _, _ in given if text not in self._givers]
        for text, leaf, prefix in given:
            self._givers.setdefault(text, []).append((fact, leaf, prefix))
        return list(dict.fromkeys(new))

    def edges_into(self, fact: Fact) -> list[Edge]:
        """Every way to learn an argument of `fact` from another fact that did not have it to begin with."""
        return [
            Edge(source, leaf, name, text, start + prefix)
            for name, text in fact.texts
            for start in ("", _SELECT)
            if text.startswith(start)
            for source, leaf, prefix in self._givers.get(text.removeprefix(start), ())
            if source is not fact and text not in {given for _, given in source.texts}
        ]

    def tool_edges(self) -> dict[str, dict[str, int]]:
        """`server.tool` -> `server.tool.parameter` -> number of facts that show it."""
        table: dict[str, dict[str, int]] = {}
        for fact in self.facts:
            for edge in self.edges_into(fact):
                row = table.setdefault(edge.source.spec.dotted, {})
                target = f"{fact.spec.dotted}.{edge.parameter}"
                row[target] = row.get(target, 0) + 1
        return table


async def learn(cache: CallCache) -> ToolGraph:
    """Call the tools that say they only read: first those that need nothing, then the others about what was
    found. A call that fails, or says what it says of nonsense, is not a fact."""
    graph = ToolGraph()
    texts: list[str] = []
    tried: dict[str, set[str]] = {}
    readers = sorted(
        (spec for spec in cache.specs if spec.annotations.read_only),
        key=lambda spec: len(spec.input_schema.get("required", ())),
    )
    async with cache.session() as session:
        nonsense = {spec.dotted: await _nonsense(session, spec) for spec in readers}
        for _ in range(_ROUNDS):
            texts_before = len(texts)
            for spec in readers:
                for arguments in _untried(spec, texts, tried.setdefault(spec.dotted, set())):
                    fact = await _fact(session, spec, arguments, nonsense[spec.dotted])
                    if fact is not None:
                        texts += [text for text in graph.add(fact) if text not in texts]
            if len(texts) == texts_before:
                break
    have = {fact.spec.dotted for fact in graph.facts}
    for spec in cache.specs:
        if spec.dotted not in have:
            graph.not_tried[spec.dotted] = (
                "no call gave an answer" if spec.annotations.read_only else "does not say that it only reads"
            )
    return graph


def _untried(spec: ToolSpec, texts: list[str], tried: set[str]) -> Iterator[JsonObject]:
    """Arguments that are not in `tried`, which they join, as long as the tool may be called again."""
    for arguments in _candidates(spec, texts):
        key = json.dumps(arguments, sort_keys=True)
        if len(tried) >= _CALLS_A_TOOL:
            return
        if key not in tried:
            tried.add(key)
            yield arguments


def _candidates(spec: ToolSpec, texts: list[str]) -> Iterator[JsonObject]:
    base = harmless_arguments(spec.input_schema, text=_PROBE)
    if base is None:
        return
    free = [name for name, value in base.items() if value == _PROBE or value == [_PROBE]]
    if not free:
        yield base
        return
    choices = texts if len(free) == 1 else texts[:_TEXTS]
    for values in itertools.product(choices, repeat=len(free)):
        yield {
            **base,
            **{name: _said(spec, name, base, text) for name, text in zip(free, values, strict=True)},
        }


def _said(spec: ToolSpec, name: str, base: JsonObject, text: str) -> Any:
    """`text` as an argument: where SQL is asked for, all of the table that it may name."""
    described = f"{spec.description} {spec.input_schema['properties'][name].get('description', '')}"
    text = _SELECT + text if _SQL.search(described) else text
    return [text] if isinstance(base[name], list) else text


async def _nonsense(session: SynthSession, spec: ToolSpec) -> Any:
    """What the tool says of a name that nothing has; None where that is an error or needs no name."""
    base = harmless_arguments(spec.input_schema, text=_PROBE)
    if base is None or _PROBE not in json.dumps(base):
        return None
    result = await session.call(server=spec.server, tool=spec.name, arguments=base)
    return None if result.is_error or result.failure is not None else result_value(result)


async def _fact(session: SynthSession, spec: ToolSpec, arguments: JsonObject, nonsense: Any) -> Fact | None:
    result = await session.call(server=spec.server, tool=spec.name, arguments=arguments)
    if result.is_error or result.failure is not None or result.truncated_chars:
        return None
    value = result_value(result)
    fact = Fact(spec, arguments, tuple(answer_fields(value)))
    said = json.dumps(value, ensure_ascii=False)
    if not fact.leaves or _SAYS_NO.search(said[:400]):
        return None
    for _, text in fact.texts:
        said = said.replace(text, _PROBE)  # an echo of the question is not an answer
    return None if said == json.dumps(nonsense, ensure_ascii=False) else fact
