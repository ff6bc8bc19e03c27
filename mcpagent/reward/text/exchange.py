"""Two values of a record under each other's names: "59 requests failed and 1,204 went through"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from mcpagent.core.placeholders import format_value, nested_value
from mcpagent.core.values import is_json_array, is_json_object, numbers_in
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.phrasing import AnswerContext
from mcpagent.reward.text.vocabulary import stems

_CLAUSE_END = re.compile(
    r"[;\n():]|[,.](?!\d)|\s-\s|\b(?:but|and|so|while|whereas|though|although|with|who|which|after|before|then"
    r"|versus|against|behind|not)\b",
    re.IGNORECASE,
)
_LABELLED = re.compile(r"\W*([^\W\d][^:|\t]{0,60}?)(?::\s+|\s?[|\t]\s?| {2,})(\S.*)")
_ITEM_END = re.compile(r"[,;]| {2,}")
_Record = tuple[tuple[str, str], ...]  # names of fields with what they say
_Marks = frozenset[int | float | str]  # by which a value is found in a text: its numbers, else its words


def exchanges(value: Any, answer: str, context: AnswerContext) -> bool:
    """Return whether one clause of an answer says the value by the name of another field of its record, and
    another clause that field's value by the name of the value's. Either alone may be an aside."""
    clauses = [clause for clause in _CLAUSE_END.split(canonical(answer)) if clause.strip()]
    asked = _marks(format_value(value))
    for record in (record for result in context.results for record in _records(result.content)):
        names = [name for name, text in record if asked & _marks(text)]
        if len(names) == 1 and any(
            _says_by(name, clauses, asked, _marks(text), names[0])
            and _says_by(names[0], clauses, _marks(text), asked, name)
            for name, text in record
        ):
            return True
    return False


def _says_by(name: str, clauses: Sequence[str], marks: _Marks, others: _Marks, other_name: str) -> bool:
    """Whether a clause says a value by a name, and neither the other value nor the other name."""
    these, those = stems(name) - stems(other_name), stems(other_name) - stems(name)
    return any(
        _says(clause, marks)
        and not _says(clause, others)
        and not these.isdisjoint(stems(clause))
        and those.isdisjoint(stems(clause))
        for clause in clauses
    )


@lru_cache(maxsize=256)
def _records(content: str) -> tuple[_Record, ...]:
    """Return the records of a result, or the one that lines with a name each are."""
    objects = tuple(_objects(nested_value(content)))
    if objects:
        return objects
    lines = [(match[1], match[2]) for line in content.splitlines() if (match := _LABELLED.match(line))]
    return (tuple(lines),) if len({name for name, _ in lines}) == len(lines) > 1 else ()


def _objects(value: Any) -> Iterator[_Record]:
    if isinstance(value, str):
        value = nested_value(value)
    if is_json_object(value):
        plain = {k: v for k, v in value.items() if not isinstance(v, dict | list) and v is not None}
        yield tuple((name.replace("_", " "), format_value(v)) for name, v in plain.items())
        value = [v for v in value.values() if isinstance(v, dict | list)]
    if is_json_array(value):
        for item in value:
            yield from _objects(item) if isinstance(item, dict | list) else ()


@lru_cache(maxsize=4096)
def _marks(text: str) -> _Marks:
    return _numbers(text) or frozenset(
        part.strip() for part in _ITEM_END.split(canonical(text).casefold()) if len(part.strip()) > 1
    )


@lru_cache(maxsize=1024)
def _numbers(text: str) -> _Marks:
    return frozenset(map(abs, numbers_in(text)))


def _says(clause: str, marks: _Marks) -> bool:
    said = clause.casefold()
    return not marks.isdisjoint(_numbers(clause)) or any(
        mark in said and re.search(rf"(?<!\w){re.escape(mark)}(?!\w)", said)
        for mark in marks
        if isinstance(mark, str)
    )
