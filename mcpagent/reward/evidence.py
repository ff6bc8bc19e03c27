"""What an episode has seen: which call showed a fact about the thing that was asked for.

A fact is shown if its value stands in what the model was shown of an ordinary result, about the right
thing: each of its identifiers stands in the arguments of that call, or in the same record as the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcpagent.core.placeholders import (
    PlaceholderError,
    format_value,
    resolve_references,
)
from mcpagent.core.tasks import EvidenceFact
from mcpagent.core.values import scalars
from mcpagent.reward.record import RecordedCall
from mcpagent.reward.text.reading import says
from mcpagent.reward.text.shown import shown_records


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
        value = resolve_references(fact.value, results)
    except PlaceholderError:
        return None
    for index, made in enumerate(calls):
        if made.was_made and not made.result.is_error and shows(value, fact.about, made):
            return index
    return None


def shows(value: Any, about: Sequence[str | Sequence[str]], made: RecordedCall) -> bool:
    """Return whether the result of a call shows `value` about what `about` identifies."""
    told = " \n ".join(format_value(leaf) for leaf in scalars(made.call.arguments))
    left = [[names] if isinstance(names, str) else list(names) for names in about]
    left = [names for names in left if not any(says(name, told) for name in names)]
    if value is None or value == "":
        return False
    return any(
        any(_is_said(value, leaf) for leaf in record.leaves)
        and all(any(says(name, text) for text in record.texts for name in names) for names in left)
        for record in shown_records(made.result.content)
    )


def _is_said(value: Any, leaf: str) -> bool:
    return leaf == format_value(value) if isinstance(value, bool) else says(value, leaf)
