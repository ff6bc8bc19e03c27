"""Text that every transport can carry."""

from __future__ import annotations


def clean_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD: UTF-8 cannot encode a lone
    surrogate, and one in a result ends the whole stdio session."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
