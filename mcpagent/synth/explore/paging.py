"""Lists of which a result gives a part: how to ask for the next part, and whether a list is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.shown_values import nested_value
from mcpagent.core.tools import ToolSpec

_CURSOR = re.compile(r"cursor|page_?token|continuation|starting_?after|^after$", re.I)
_PAGE = re.compile(r"^(page|page_?(no|num|number|index))$", re.I)
_OFFSET = re.compile(r"^(offset|skip|start|start_?(index|at|from)|from_?index)$", re.I)
_LIMIT = re.compile(
    r"^(limit|page_?size|per_?page|max_?(results|count|items|length)|count|size|top|first)$", re.I
)
_NEXT = re.compile(r"^(next|next_?(cursor|token|page|page_?token)|cursor|continuation)$", re.I)
_MORE = re.compile(r"^(has_?more|has_?next(_?page)?|more|is_?truncated)$", re.I)
_TOTAL = re.compile(r"^(total(_?(count|items|results))?|count_?total)$", re.I)
_COUNTS = re.compile(
    r"^(n|num|nr|count|size|length|total|found|hits|matches|available)$|(^|_)(total|count|found)(_|$)|^total[A-Z]"
    r"|(Count|Total)$"
)
_ROUND = frozenset((5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 80, 100, 200, 250, 500, 1000))  # sizes of a page
_LAST_PAGE = re.compile(r"^(pages|(total|num|n|last|max)_?pages?|page_?(count|total))$", re.I)
_AND_MORE = re.compile(r"(\.\.\.|…|\band)\s*\(?\d+ (more|others)\b", re.I)
# `Page 1 of 4`, `Showing 1-20 of 48`, below or above a list in a text.
_OF_ALL = re.compile(
    r"\b(?:page|showing|results?|items?)\b\D{0,12}(?:\d+\s*(?:-|–|to)\s*)?(\d+)\s*(?:of|/)\s*(\d+)", re.I
)


def is_paging(parameter: str, value: object = 0) -> bool:
    """Return whether a parameter says which part of a list is given, by its name and what it is given:
    `start` may be a date too."""
    if _CURSOR.search(parameter):
        return re.match(r"\d{4}-\d\d", str(value)) is None
    is_number = not isinstance(value, str) or value.isdigit()
    return is_number and any(pattern.search(parameter) for pattern in (_PAGE, _OFFSET, _LIMIT))


def is_limit(parameter: str) -> bool:
    """Return whether a parameter says how much of a list is given."""
    return _LIMIT.search(parameter) is not None


def is_cursor(name: str) -> bool:
    """Return whether a field tells where a list goes on, which is nothing to ask for."""
    return _NEXT.search(name) is not None and name.lower() != "next"


@dataclass(frozen=True)
class _Part:
    """The facts that an answer tells of the list in it: its `length`, where it goes on (`token`), whether it
    does (`more`, None if it does not say so), and every field with a value of its own in `said`."""

    length: int
    token: Any
    more: bool | None
    said: Sequence[tuple[str, Any]]

    @classmethod
    def of(cls, value: Any) -> _Part:
        texts = [item for _, item in _fields(value) if isinstance(item, str)]
        opened = {key: nested_value(v) if isinstance(v, str) else v for key, v in value.items()}
        said = list(_fields(opened))
        lists = [item for _, item in said if isinstance(item, list)]
        shown = [int(m[1]) < int(m[2]) for text in texts for m in _OF_ALL.finditer(text)]
        told = [bool(item) for key, item in said if _MORE.search(key)] or ([any(shown)] if shown else [])
        is_cut = any(map(_AND_MORE.search, texts))
        token = next((v for k, v in said if _NEXT.search(k) and v not in (None, "", False)), None)
        return cls(
            length=max(map(len, lists), default=0) if lists else -1,
            token=token,
            more=True if is_cut else told[0] if told else None,
            said=said,
        )

    def number(self, pattern: re.Pattern[str]) -> int | None:
        """Return the first whole number in a field of such a name."""
        return next((v for k, v in self.said if pattern.search(k) and type(v) is int), None)


def is_whole(spec: ToolSpec, arguments: JsonObject, value: Any) -> bool:
    """Return whether the lists of an answer are all that there is, so that they can be counted: nothing in it
    names a next part or a larger number, no limit was reached, and no default picked some (`kind: civil`)."""
    part = _Part.of(value)
    larger = [v for k, v in part.said if type(v) is int and _COUNTS.search(k) and v > max(0, part.length)]
    if part.more or part.token or larger or (part.number(_LAST_PAGE) or 1) > 1:
        return False
    parameters = spec.input_schema.get("properties", {})
    unsaid = [schema for name, schema in parameters.items() if name not in arguments and not is_paging(name)]
    if any(isinstance(each, dict) and each.get("default") not in (None, "", [], {}) for each in unsaid):
        return False
    paged = {name: given for name, given in arguments.items() if is_paging(name, given)}
    if paged:  # one that asks for more than there is shows all of it
        return all(is_limit(name) and part.length < float(given) for name, given in paged.items())
    paging = [schema for name, schema in parameters.items() if is_paging(name)]
    defaults = [schema.get("default") for schema in paging if isinstance(schema, dict)]
    return not (paging and (part.length in defaults or part.length in _ROUND))


def next_page(parameters: Sequence[str], arguments: JsonObject, value: Any) -> JsonObject | None:
    """Return the arguments that ask for what follows the answer `value`; None if that was the last page, or
    none of the parameters is for pages."""
    part = _Part.of(value)
    total, last = part.number(_TOTAL) or 0, part.number(_LAST_PAGE)
    if part.more is False or (part.length < 0 and part.token is None):
        return None
    if cursor := next(filter(_CURSOR.search, parameters), None):
        return None if part.token is None else {cursor: part.token}
    length = max(0, part.length)
    if name := next(filter(_PAGE.search, parameters), None):
        page = arguments.get(name, 1)
        is_left = part.more or part.token or (page < last if last is not None else page * length < total)
        return {name: page + 1} if is_left else None
    if name := next(filter(_OFFSET.search, parameters), None):
        start = arguments.get(name, 0)
        return {name: start + length} if length and (part.more or total > start + length) else None
    return None


def _fields(value: JsonObject) -> Iterator[tuple[str, Any]]:
    """The fields that lie in no list, and the lists among them."""
    for key, item in value.items():
        yield from _fields(item) if isinstance(item, dict) else ((key, item),)
