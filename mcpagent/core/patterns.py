r"""Regular expressions of others (schemas of servers, records of datasets), searched in linear time.

Python's `re` backtracks: `^(a+)+$` on thirty letters takes minutes, on the event loop, and no signal ends it.
RE2 does not. It has no lookaheads, lookbehinds and backreferences, no possessive or atomic groups, and no
repetition of more than 1,000: such a pattern is refused. `\d`, `\w` and `\b` mean ASCII digits and letters,
as in JSON Schema; `\p{L}` is any letter. `$` is the end of the text alone.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import re2  # pyright: ignore[reportMissingTypeStubs]

_RE2: Any = re2  # it has no types
_MEMORY_BYTES = 2**20  # of one compiled pattern: about 40,000 instructions
_WORK_MAX = 10**8  # instructions times characters; the slowest search of this size takes about a second
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|[\s\S])")


class PatternError(ValueError):
    """A pattern that cannot be searched; the message says which and why."""


def pattern_found(pattern: str, text: str) -> bool:
    """Return whether `pattern` is found anywhere in `text`.

    Raise PatternError if RE2 cannot express it, or if pattern and text together are too large.
    """
    if pattern_cost(pattern, text) > _WORK_MAX:
        raise PatternError(
            f"the pattern {_shown(pattern)} is too long for a text of {len(text):,} characters"
        )
    return _compiled(pattern).search(_without_surrogates(text)) is not None


def pattern_cost(pattern: str, text: str) -> int:
    """Return how much work a search is at most: instructions of the pattern times characters.

    Raise PatternError if RE2 cannot express the pattern.
    """
    return int(_compiled(pattern).programsize) * len(text)


def pattern_problem(pattern: object) -> str | None:
    """Return why `pattern` cannot be searched; None if it can."""
    if not isinstance(pattern, str):
        return f"is {pattern!r}, but must be a string"
    try:
        _compiled(pattern)
    except PatternError as error:
        return str(error)
    return None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    options = _RE2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    try:
        return _RE2.compile(_ESCAPE.sub(_as_re2, _without_surrogates(pattern)), options)
    except _RE2.error as error:
        said: object = error.args[0]
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise PatternError(f"{_shown(pattern)} is not a regular expression: {reason}") from None
    raise PatternError(
        f"{_shown(pattern)} cannot be searched in linear time: {reason} (RE2 has no lookaheads, lookbehinds "
        "and backreferences, and no repetition of more than 1,000)"
    ) from None


def _as_re2(escape: re.Match[str]) -> str:
    """Return an escape of Python or JavaScript as RE2 writes it."""
    if code := escape[1] or escape[2]:
        return f"\\x{{{code}}}"
    return "\\z" if escape[0] == "\\Z" else escape[0]


def _without_surrogates(text: str) -> str:
    return text.encode(errors="surrogatepass").decode(errors="replace")


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 100 else f"{pattern[:100]}...")
