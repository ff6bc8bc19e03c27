"""Text that every transport can carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def clean_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD: UTF-8 cannot encode a lone
    surrogate, and one in a result ends the whole stdio session."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` with every text in them clean, also within lists."""
    return {name: _clean(value) for name, value in arguments.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    return [_clean(item) for item in value] if isinstance(value, list) else value
