"""Where a value stands in a text: equal to it by type, or in it as whole tokens."""

from __future__ import annotations

import re
from typing import Any

from mcpagent.core.answer_line import folded
from mcpagent.core.moments import MOMENT, Moment
from mcpagent.core.placeholders import format_value
from mcpagent.core.values import as_number, is_json_array, is_json_object, numbers_equal, numbers_in


def stands_in(value: Any, text: str, *, tolerance: float = 0.0) -> bool:
    """Return whether `text` has `value`: a number among its numbers, a moment among its moments, another text
    as whole tokens; each item of a list, each thing and value of an object."""
    if is_json_object(value):
        return all(stands_in(part, text) for pair in value.items() for part in pair)
    if is_json_array(value):
        return all(stands_in(item, text) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return any(numbers_equal(value, number, tolerance=tolerance) for number in numbers_in(text))
    written = folded(format_value(value))
    if not written:
        return False
    if re.search(rf"(?<!\w){re.escape(written)}(?!\w)", folded(text)):
        return True
    if (moment := Moment.read(str(value))) is not None and not moment.year:
        there = (Moment.of(match) for match in MOMENT.finditer(text))
        return any(other is not None and moment.agrees_with(other) for other in there)
    number = as_number(value) if isinstance(value, str) and "." in value else None
    return number is not None and any(numbers_equal(number, other) for other in numbers_in(text))
