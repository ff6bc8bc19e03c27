"""The last line of an answer, `Answer: ...`: how a system message asks for it, and how it is read."""

from __future__ import annotations

import re
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.values import is_json_array, is_json_object

ASKS_FOR_LINE = 'End your last message with a line that gives nothing but the answer: "Answer: ...".'
ASKS_FOR_LINE_OR_NONE = (
    'End your last message with a line that gives nothing but the answer: "Answer: ...", '
    'or "Answer: none" if the tools cannot give one.'
)
NO_ANSWER = "none"

_LINE = re.compile(
    r"^[ \t>*_#`-]*(?:(?:my|the)\s+)?(?:final\s+)?answer[*_]*\s*:[*_]*[ \t]*", re.IGNORECASE | re.MULTILINE
)

_PARAGRAPHS = re.compile(r"\n\s*\n")
# What a polite model adds below its answer: a paragraph.
_COURTESY = re.compile(
    r"\W*(?:(?:please )?let me know|is there|(?:i )?hope|feel free|thanks?|you're welcome|happy to)"
    r"(?:\s+(?:if|you|your|need|want|have|would|like|anything|something|else|more|further|other|questions?|help"
    r"|helps|helped|with|about|this|that|it|i|can|do|for|to|ask|any|assistance|information|details|today|us|me"
    r"|there|is|in|the|future))*\W*",
    re.IGNORECASE,
)


def asks_for_line(system_message: str, *, may_abstain: bool) -> str:
    """Add to a system message the sentence that asks for the line. `may_abstain` says whether any task of the
    dataset has no answer: then every task says how that is written, so that it gives nothing away."""
    sentence = ASKS_FOR_LINE_OR_NONE if may_abstain else ASKS_FOR_LINE
    return f"{system_message}\n{sentence}"


def with_answer_line(text: str, value: Any) -> str:
    """Return `text` with the line that gives `value`, which is None if there is no answer; as it is if it has
    such a line."""
    if split_answer(text)[1] is not None:
        return text
    return f"{text}\nAnswer: {' '.join(written_answer(value).split())}".lstrip("\n")


def written_answer(value: Any) -> str:
    """Return a value as an answer writes it: "A, B" for a list, "A: 1, B: 2" for pairs."""
    if value is None:
        return NO_ANSWER
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_json_object(value):
        return ", ".join(f"{thing}: {written_answer(item)}" for thing, item in value.items())
    if is_json_array(value):
        return ", ".join(map(written_answer, value)) or NO_ANSWER
    return format_value(value)


def split_answer(text: str) -> tuple[str, str | None]:
    """Return what stands before the answer line, and what the line gives; None for the latter if there is no
    such line. What follows the first such line belongs to it: a second answer is no way to hedge. The same
    line again, and an offer of more help, say nothing."""
    match = _LINE.search(text)
    if match is None:
        return text, None
    first, *more = _PARAGRAPHS.split(text[match.end() :].strip())
    if more and _COURTESY.fullmatch(more[-1]):
        more.pop()
    given = "\n\n".join((first, *more)).strip()
    again = {line.strip() for line in _LINE.split(given)}
    return text[: match.start()].rstrip(), again.pop() if len(again) == 1 else given
