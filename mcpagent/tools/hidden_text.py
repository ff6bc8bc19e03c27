"""Text that a tool's description hides from people and shows to models: a known way to poison a tool.

What cannot be seen is removed: format characters (zero-width, direction, tags), control characters, and the
variation selectors in which bytes can be smuggled. Joiners within a script or an emoji stay.
"""

from __future__ import annotations

import unicodedata
from typing import Any

_JOINERS = "\u200c\u200d"
_BREAKS = "\t\n\r"
# Values that look like part of a schema but are data: changing them would change what is valid.
_DATA_KEYS = {"const", "default", "enum", "examples", "example"}


def without_hidden(text: str) -> tuple[str, int]:
    """`text` as a person would see it, and how many characters that took away."""
    if text.isascii() and text.isprintable():
        return text, 0
    kept: list[str] = []
    for char in text:
        if (
            char in _JOINERS and kept and not kept[-1].isascii() and kept[-1] not in _JOINERS
        ) or not _is_hidden(char):
            kept.append(char)
    return "".join(kept), len(text) - len(kept)


def schema_without_hidden(schema: Any) -> tuple[Any, int]:
    """A JSON schema whose `description` and `title` texts hide nothing, and how many characters that took."""
    if isinstance(schema, list):
        cleaned = [schema_without_hidden(item) for item in schema]
        return [item for item, _ in cleaned], sum(removed for _, removed in cleaned)
    if not isinstance(schema, dict):
        return schema, 0
    result: dict[str, Any] = {}
    total = 0
    for key, value in schema.items():
        removed = 0
        if key in ("description", "title") and isinstance(value, str):
            value, removed = without_hidden(value)
        elif key not in _DATA_KEYS:
            value, removed = schema_without_hidden(value)
        result[key] = value
        total += removed
    return result, total


def _is_hidden(char: str) -> bool:
    if char in _BREAKS:
        return False
    return unicodedata.category(char) in ("Cc", "Cf", "Cs") or "\U000e0100" <= char <= "\U000e01ef"
