"""JSON as editors keep it: with comments and trailing commas."""

from __future__ import annotations

import json
import re
from typing import Any

# What has no end (a string, a comment) is one match too, or each quote in it would be tried as a beginning.
_STRING = r'"(?:\\.|[^"\\\n])*+"?'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*+[}\]])")


def parse_jsonc(text: str) -> Any:
    """The document. Raises json.JSONDecodeError, with the line and column of `text` itself."""
    return json.loads(_LAST_COMMA.sub(_blank, _COMMENT.sub(_blank, text)))


def _blank(match: re.Match[str]) -> str:
    """Spaces in place of what JSON does not have, so that every position stays; a string stays as it is."""
    found = match[0]
    return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)
