"""The tools that an episode offers: their names, schemas and argument checks; and the search for them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import SEARCH_TOOL, ToolSpec, chat_schema, renamed
from mcpagent.env.parsing import reads_back, unwritable
from mcpagent.errors import UserError
from mcpagent.tools.schemas import SchemaCheck


@dataclass(frozen=True, kw_only=True)
class OfferedTool:
    """One tool under the name that the model sees."""

    name: str
    spec: ToolSpec
    schema: JsonObject  # as chat templates take it
    check: SchemaCheck  # of its arguments
    is_renamed: bool = False  # for a format that cannot write its name
    _unwritable: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    def refuse_unwritable(self, tool_format: str) -> None:
        """Raise UserError if a call with one of its parameters could not be read back."""
        if tool_format not in self._unwritable:
            self._unwritable[tool_format] = unwritable(self.spec.input_schema, tool_format)
        if names := self._unwritable[tool_format]:
            raise UserError(
                f"the tool format {tool_format} cannot write the parameter {', '.join(map(repr, names))} of "
                f"{self.spec.dotted}: what it writes would be read as something else",
                where="rollout.tool_format",
                remedy="--set rollout.tool_format=hermes writes any name; tools.allow_list leaves tools out",
            )


class OfferedTools:
    """Offered tools by any name that a model may use: the one shown, `server.tool` or `server__tool`, or the
    server's own if the one shown is another because it could not be written."""

    def __init__(self, tools: Sequence[OfferedTool]) -> None:
        self._by_name = {tool.spec.name: tool for tool in tools if tool.is_renamed}
        for tool in tools:
            self._by_name[tool.spec.dotted] = tool
            self._by_name[tool.spec.qualified_name] = tool
        self._by_name |= {tool.name: tool for tool in tools}
        self.tools = tuple(tools)
        self.schemas: tuple[JsonObject, ...] = tuple(tool.schema for tool in tools)

    def find(self, name: str) -> OfferedTool | None:
        """Return the tool by any of its names; None if it is not offered."""
        return self._by_name.get(name)

    def written_as(self, name: str) -> str:
        """Return the name under which the model sees the tool that was called `name`, if that could not be
        written; else `name`."""
        tool = self._by_name.get(name)
        return tool.name if tool is not None and tool.is_renamed else name

    def schema_of(self, name: str) -> JsonObject | None:
        """Return the input schema of a tool by any of its names; None if it is not offered."""
        tool = self._by_name.get(name)
        return None if tool is None else tool.spec.input_schema


def offer(
    catalog: Mapping[str, ToolSpec], names: Sequence[str] | None, *, task_id: str, tool_format: str = "auto"
) -> OfferedTools:
    """Return the tools `names` (`server.tool`; None is the whole catalog) of the live catalog, in that order.
    A name that `tool_format` cannot write is replaced by one that it can.

    Raises UserError that lists the tools which the catalog lacks, or names a parameter that the format cannot
    write.
    """
    listed = [*catalog.items()] if names is None else _listed(catalog, names, task_id=task_id)
    others = renamed([name for name, _ in listed], partial(_is_writable, tool_format), beside=catalog)
    tools = [_compiled(others.get(name, name), spec, is_renamed=name in others) for name, spec in listed]
    for tool in tools:
        tool.refuse_unwritable(tool_format)
    return OfferedTools(tools)


@lru_cache(maxsize=2**16)
def _is_writable(tool_format: str, name: str) -> bool:
    return reads_back([(name, {})], tool_format=tool_format)


def _listed(
    catalog: Mapping[str, ToolSpec], names: Sequence[str], *, task_id: str
) -> list[tuple[str, ToolSpec]]:
    by_dotted = {spec.dotted: (name, spec) for name, spec in catalog.items()}
    missing = [name for name in names if name not in by_dotted]
    if missing:
        raise UserError(
            f"the task offers {', '.join(missing)}, which no running server has; "
            f"the servers have {', '.join(sorted(by_dotted)) or 'no tools'}",
            where=f"task {task_id}, extra_info.tools",
            remedy="start the server that has it (--servers mcp.json), or make the data for these servers",
        )
    return [by_dotted[name] for name in names]


_cache: dict[tuple[str, str], OfferedTool] = {}


def _compiled(name: str, spec: ToolSpec, *, is_renamed: bool = False) -> OfferedTool:
    """Schemas are compiled once for each tool, not once an episode; a changed tool replaces its entry."""
    key = (name, spec.dotted)
    cached = _cache.get(key)
    if cached is not None and (cached.spec is spec or cached.spec == spec):
        return cached
    tool = OfferedTool(
        name=name,
        spec=spec,
        schema=chat_schema(name, spec),
        check=SchemaCheck(spec.input_schema),
        is_renamed=is_renamed,
    )
    _cache[key] = tool
    return tool


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Tools are searched for, not offered all at once. `pinned` (`server.tool`, or a server) are offered from
    the start if the task has them; one result of a search holds at most `result_chars` characters of
    schemas, those of its best match apart."""

    pinned: tuple[str, ...] = ()
    result_chars: int = 8000


DEFAULT_RESULTS = 5


class SearchableTools:
    """The tools of one episode under discovery: those that it could offer, and those that are loaded, which
    only grow. The schemas of loaded tools stand in the results of searches: what was offered at the start is
    never rendered again."""

    def __init__(
        self,
        catalog: Mapping[str, ToolSpec],
        names: Sequence[str] | None,
        discovery: Discovery,
        *,
        task_id: str,
        tool_format: str = "auto",
    ) -> None:
        """`names` as for `offer`, which raises if the catalog lacks one."""
        self._catalog, self._discovery, self._task_id = catalog, discovery, task_id
        self._tool_format = tool_format
        self._index = _index_of(catalog)
        self._search = search_tool(catalog)
        self._hidden: dict[str, OfferedTool] = {}
        self._loaded: dict[str, OfferedTool] = {}
        self.widen(names)

    @property
    def search_name(self) -> str:
        """Return the name under which the model sees the search."""
        return self._search.name

    @property
    def offered(self) -> OfferedTools:
        """Return the search, and what is loaded by now."""
        return OfferedTools([self._search, *self._loaded.values()])

    def widen(self, names: Sequence[str] | None) -> tuple[JsonObject, ...]:
        """Let `names` be found, too; the schemas of the pinned ones among them, which are loaded at once."""
        new = offer(self._catalog, names, task_id=self._task_id, tool_format=self._tool_format).tools
        present = self._hidden.keys() | self._loaded.keys()
        tools = {tool.spec.dotted: tool for tool in new if tool.spec.dotted not in present}
        pinned = {
            dotted: tool
            for dotted, tool in tools.items()
            if not {dotted, tool.spec.server}.isdisjoint(self._discovery.pinned)
        }
        self._loaded |= pinned
        self._hidden |= {dotted: tool for dotted, tool in tools.items() if dotted not in pinned}
        return tuple(tool.schema for tool in pinned.values())

    def why_unknown(self, name: str) -> str:
        """Return what tells the model that it called a tool which is not loaded."""
        hidden = OfferedTools(list(self._hidden.values())).find(name)
        what = f"there is no tool {name!r}" if hidden is None else f"the tool {name!r} is not loaded"
        return f"{what}; find tools with {self.search_name} first, then call what it returns"

    def search(self, arguments: JsonObject) -> tuple[str, tuple[JsonObject, ...], tuple[str, ...]]:
        """Return the result that the model sees, and the schemas and `server.tool` names that it loads."""
        limit = int(arguments.get("limit", DEFAULT_RESULTS))
        hits = self._index.best(arguments["query"], among=self._hidden.keys() | self._loaded.keys())[:limit]
        matches: list[OfferedTool] = []
        budget = self._discovery.result_chars
        for dotted in hits:
            if dotted in self._loaded:
                continue
            length = len(json.dumps(self._hidden[dotted].schema, ensure_ascii=False))
            if not matches or length <= budget:  # a schema is shown whole or not at all
                matches.append(self._hidden[dotted])
                budget -= length
        shown: JsonObject = {"tools": [tool.schema for tool in matches]}
        if before := [self._loaded[dotted].name for dotted in hits if dotted in self._loaded]:
            shown["already_loaded"] = before
        if not hits:
            shown["hint"] = "nothing fits these words; try others"
        for tool in matches:
            self._loaded[tool.spec.dotted] = self._hidden.pop(tool.spec.dotted)
        return (
            json.dumps(shown, ensure_ascii=False),
            tuple(tool.schema for tool in matches),
            tuple(tool.spec.dotted for tool in matches),
        )


def discovery(config: ToolsConfig) -> Discovery | None:
    """Return how tools are searched for, None if all are offered (`tools.discovery`)."""
    if config.discovery == "all":
        return None
    return Discovery(pinned=config.pinned, result_chars=config.result_limit_chars)


def first_schemas(
    catalog: Mapping[str, ToolSpec],
    names: Sequence[str] | None,
    discovery: Discovery | None,
    *,
    task_id: str,
    tool_format: str,
) -> tuple[JsonObject, ...]:
    """Return the schemas that an episode begins with. Raises UserError as `offer`."""
    if discovery is None:
        return offer(catalog, names, task_id=task_id, tool_format=tool_format).schemas
    tools = SearchableTools(catalog, names, discovery, task_id=task_id, tool_format=tool_format)
    return tools.offered.schemas


def search_tool(catalog: Mapping[str, ToolSpec]) -> OfferedTool:
    """Return the search, under a name that no server's tool has."""
    name = SEARCH_TOOL.name
    taken = {*catalog, *(n for spec in catalog.values() for n in (spec.name, spec.qualified_name))}
    while name in taken:
        name = f"{SEARCH_TOOL.server}__{name}"
    return _compiled(name, SEARCH_TOOL)


_WORD = re.compile(r"[^\W\d_]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAME = re.compile(r"\w[\w.-]*")
# Scripts that put no space between words.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af\u0e00-\u0e7f]+")
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and any are as at be but by can could do does for from get give has have how i if in into is "
        "it its let may me my need of on or our please same so some tell than that the their them then there "
        "these they this those to up us use using want was we were what when where which who will with would "
        "you your",
    )
)
_ENDINGS = (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""))
_PREFIX = 5  # letters: words that begin alike (convert, conversion) are near each other
_K1, _B = 1.2, 0.75  # of BM25: how soon a repeated word stops counting, how much a long text is discounted
_EXACT = 1000.0  # past any sum of words: a tool that the query names comes first
_NAME_WEIGHT, _SERVER_WEIGHT, _TEXT_WEIGHT, _PARAMETER_WEIGHT, _PREFIX_WEIGHT = 3.0, 1.0, 1.0, 0.5, 0.4


def search_words(text: str) -> list[str]:
    """Return the words that a search goes by: without those that say nothing, without endings, names
    split."""
    words: list[str] = []
    for word in _WORD.findall(_CAMEL.sub(" ", text)):
        if _UNSPACED.fullmatch(word) and len(word) > 1:
            words += [word[i : i + 2] for i in range(len(word) - 1)]
        elif (lowered := word.casefold()) not in _STOP_WORDS:
            words.append(_stem(lowered))
    return words


def _stem(word: str) -> str:
    for ending, instead in _ENDINGS:
        if len(word) - len(ending) >= 3 and word.endswith(ending) and not word.endswith("ss"):
            return word.removesuffix(ending) + instead
    return word


class _ToolIndex:
    """BM25 over the names, servers, descriptions and parameters of a catalog, each with its weight. The same
    query gives the same tools in the same order, whatever the order of the catalog."""

    def __init__(self, catalog: Mapping[str, ToolSpec]) -> None:
        self._names: dict[str, str] = {}  # any name of a tool, in lower case -> `server.tool`
        self._spoken: dict[str, set[str]] = {}  # the words of a name, also behind those of its server
        self._weights: dict[str, dict[str, float]] = {}  # by word, by tool
        lengths: dict[str, float] = {}
        for name, spec in catalog.items():
            self._names |= {n.casefold(): spec.dotted for n in (name, spec.dotted, spec.qualified_name)}
            for spoken in (spec.name, f"{spec.server} {spec.name}"):
                self._spoken.setdefault(" ".join(search_words(spoken)), set()).add(spec.dotted)
            counts = _weighted_words(spec)
            lengths[spec.dotted] = sum(counts.values())
            for word, weight in counts.items():
                self._weights.setdefault(word, {})[spec.dotted] = weight
        mean = sum(lengths.values()) / max(1, len(lengths)) or 1.0
        for tools in self._weights.values():
            rarity = math.log(1 + (len(lengths) - len(tools) + 0.5) / (len(tools) + 0.5))
            for dotted, weight in tools.items():
                discount = _K1 * (1 - _B + _B * lengths[dotted] / mean)
                tools[dotted] = rarity * weight * (_K1 + 1) / (weight + discount)

    def best(self, query: str, *, among: Iterable[str]) -> list[str]:
        """Return the tools of `among` (`server.tool`) that share a word with the query, best first."""
        scores: defaultdict[str, float] = defaultdict(float)
        words = search_words(query)
        for word, factor in sorted(_with_prefixes(Counter(words)).items()):
            for dotted, score in self._weights.get(word, {}).items():
                scores[dotted] += min(factor, 1.0) * score
        for name in _NAME.findall(query.casefold()):
            if (dotted := self._names.get(name.rstrip("."))) is not None:
                scores[dotted] += _EXACT
        for dotted in self._spoken.get(" ".join(words), ()) if words else ():
            scores[dotted] += _EXACT
        allowed = set(among)
        ranked = sorted(scores.items(), key=lambda item: (-round(item[1], 9), item[0]))
        return [dotted for dotted, _ in ranked if dotted in allowed]


def _weighted_words(spec: ToolSpec) -> dict[str, float]:
    fields = [(spec.name, _NAME_WEIGHT), (spec.server, _SERVER_WEIGHT), (spec.description, _TEXT_WEIGHT)]
    fields += [(text, _PARAMETER_WEIGHT) for text in _parameter_texts(spec.input_schema)]
    counts: defaultdict[str, float] = defaultdict(float)
    for text, weight in fields:
        for word in search_words(text):
            counts[word] += weight
    return _with_prefixes(counts)


def _with_prefixes(counts: Mapping[str, float]) -> dict[str, float]:
    """Add the beginnings of longer words, marked so that no word equals one."""
    prefixes: defaultdict[str, float] = defaultdict(float)
    for word, count in counts.items():
        if len(word) >= _PREFIX:
            prefixes[f"{word[:_PREFIX]}~"] += _PREFIX_WEIGHT * count
    return {**counts, **prefixes}


def _parameter_texts(schema: Any, depth: int = 0) -> Iterator[str]:
    """Names, descriptions and choices of the parameters, nested ones too."""
    if not isinstance(schema, dict) or depth > 4:
        return
    properties = schema.get("properties")
    for name, part in (properties if isinstance(properties, dict) else {}).items():
        yield str(name)
        if isinstance(part, dict):
            yield str(part.get("description", ""))
            choices = part.get("enum")
            yield from (str(choice) for choice in (choices if isinstance(choices, list) else ())[:20])
            yield from _parameter_texts(part, depth + 1)
            yield from _parameter_texts(part.get("items"), depth + 1)


_indexes: list[tuple[dict[str, ToolSpec], _ToolIndex]] = []
_MAX_INDEXES = 8


def _index_of(catalog: Mapping[str, ToolSpec]) -> _ToolIndex:
    """Computed once for a catalog, not once an episode."""
    for indexed, index in _indexes:
        if indexed == catalog:
            return index
    index = _ToolIndex(catalog)
    _indexes.append((dict(catalog), index))
    del _indexes[:-_MAX_INDEXES]
    return index
