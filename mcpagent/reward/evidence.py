"""What an episode has seen: which call showed a fact about the thing that was asked for.

A fact is shown if its value stands in a record of an ordinary result (`mcpagent.reward.answer.shown`), about
the right thing: each of its identifiers stands in the arguments of that call, or in the same record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mcpagent.core.placeholders import PlaceholderError, format_value, resolve_references
from mcpagent.core.shown_values import nested_value, text_value
from mcpagent.core.tasks import EvidenceFact
from mcpagent.core.values import is_json_array, is_json_object, scalars
from mcpagent.reward.answer.shown import stands_in
from mcpagent.reward.record import RecordedCall


def showing_calls(
    facts: Sequence[EvidenceFact], calls: Sequence[RecordedCall], results: Mapping[str, Any]
) -> list[int | None]:
    """Return for each fact the first of `calls` (by index) that shows it; None if none does. `results`
    resolves step references of the values."""
    return [_first_showing(fact, calls, results) for fact in facts]


def _first_showing(
    fact: EvidenceFact, calls: Sequence[RecordedCall], results: Mapping[str, Any]
) -> int | None:
    try:
        value, about, instead = resolve_references([fact.value, list(fact.about), fact.instead], results)
    except PlaceholderError:
        return None
    made = [at for at, call in enumerate(calls) if call.was_made and not call.result.is_error]
    first = next((at for at in made if shows(value, about, calls[at])), None)
    if first is not None or not instead:
        return first
    others = [next((at for at in made if shows(part, (), calls[at])), None) for part in instead]
    return None if None in others else max(at for at in others if at is not None)


def shows(value: Any, about: Sequence[Any], made: RecordedCall) -> bool:
    """Return whether the result of a call shows `value` about what `about` identifies. What the call itself
    said is not shown by an echo of it."""
    told = "\n".join(map(format_value, scalars(made.call.arguments)))
    if value in (None, "") or stands_in(value, told):
        return False
    names = [list(each) if is_json_array(each) else [each] for each in about]
    left = [same for same in names if not any(stands_in(name, told) for name in same)]
    return any(
        any(stands_in(value, leaf) for leaf in leaves)
        and all(any(stands_in(name, text) for name in same for text in (*leaves, *around)) for same in left)
        for leaves, around in _records(made.result.content)
    )


@lru_cache(maxsize=512)
def _records(content: str) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """The records of a shown result, each as its values and what stands around it: the objects of lists, the
    rows of a table, the lines and the paragraphs of any other text."""
    value: Any = text_value(content)
    if [*value] == ["text"]:
        value = nested_value(content)
        if isinstance(value, str):
            parts = (*content.splitlines(), *content.split("\n\n"))
            return tuple(((part,), ()) for part in parts if part.strip())
    return tuple(_walk(value, ()))


def _walk(value: Any, around: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    leaves, names, lists = list[str](), list[str](), list[tuple[str, Any]]()
    left = [value]
    while left:
        part = left.pop()
        part = nested_value(part) if isinstance(part, str) else part
        keyed = is_json_object(part) and len(part) > 1 and all(map(is_json_object, part.values()))
        if keyed or (is_json_array(part) and any(map(is_json_object, part))):
            lists += part.items() if is_json_object(part) else [("", item) for item in part]
        elif is_json_object(part):
            names += map(str, part)
            left += part.values()
        elif is_json_array(part):
            left += part
        else:
            leaves.append(format_value(part))
    shown = (*around, *leaves, *names)
    if leaves or not lists:
        yield tuple(leaves), (*around, *names)
    for name, item in lists:
        yield from _walk(item, (*shown, name))
