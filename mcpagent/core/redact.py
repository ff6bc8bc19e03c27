"""Keeping secrets out of what is stored."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:API_?)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH|AUTHORIZATION|COOKIE)$",
    re.IGNORECASE,
)
# A shorter value is no secret worth the name, and replacing it would spoil ordinary text.
_SHORTEST = 8


def secrets_of(*environments: Mapping[str, str]) -> dict[str, str]:
    """Secret value -> name of its variable, for the variables (or headers) whose name says that they hold it.

    Each in every form in which a service may repeat it: encoded, and without the scheme of `Bearer VALUE`.
    """
    found: dict[str, str] = {}
    for environment in environments:
        for name, value in environment.items():
            if _SECRET_NAME.search(name):
                found |= dict.fromkeys(_forms(value), name)
    return found


def redact(value: Any, secrets: Mapping[str, str]) -> Any:
    """`value`, a JSON value, with `[NAME]` wherever one of `secrets` (value -> name) stood in its texts."""
    if not secrets:
        return value
    # The longest first: one secret may be the beginning of another.
    ordered = sorted(secrets, key=lambda secret: (-len(secret), secret))
    return _redacted(value, [(secret, f"[{secrets[secret]}]") for secret in ordered])


def _redacted(value: Any, replacements: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for secret, shown in replacements:
            value = value.replace(secret, shown)
        return value
    if isinstance(value, dict):
        return {_redacted(k, replacements): _redacted(v, replacements) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, replacements) for item in value]
    return value


def _forms(value: str) -> Iterator[str]:
    for plain in {value, value.strip().rpartition(" ")[2]}:
        if len(plain) < _SHORTEST:
            continue
        yield from (
            plain,
            quote(plain, safe=""),
            quote_plus(plain),
            base64.b64encode(plain.encode()).decode(),
        )
