"""Text that is not what it looks like: removed from what a model reads, escaped where a person reads.

Invisible characters steer a terminal (escape sequences), reorder a line (direction marks), or carry
text that only a model reads (zero width, tags, variation selectors). Joiners within a script or an emoji are
kept. Marks of a chat template pretend that another role speaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mcpagent.core.values import is_json_array, is_json_object

# Control characters, surrogates, line separators, and what Unicode calls default ignorable. Arabic number
# signs are format characters too, but visible ones.
_CLASS = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_HIDDEN = re.compile(f"[{_CLASS}]+")
_HIDDEN_OR_RETURN = re.compile(f"[\r{_CLASS}]+")
_JOINING = re.compile("[\ufe0e\ufe0f]?[\u200c\u200d]?")  # what may stand between two parts of one sign
_KEYCAP = "\u20e3"
# The marks by which chat templates of the common families tell turns, calls and results apart.
_MARK = re.compile(
    r"<(?=\|[^<>|\n]{1,60}\|?>|[A-Za-z_/][\w/]{0,60}\|>|｜[^<>\n]{1,60}｜>|</?SYS>>|/SYS>>"
    r"|/?(?:s|bos|eos|pad|unk|sop|eop|start_of_turn|end_of_turn|end_of_utterance|think|tools?|tool_calls?|tool_response|tool_result"
    r"|function_calls?|function_results?|invoke|parameter|function|arg_key|arg_value|seed:\w+|atem:\w+)"
    r"(?:[ =][^<>\n]{0,80})?>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID|ARGS|THINK|gMASK)\])"
)
_ENTITIES = {"<": "&lt;", "[": "&#91;"}
# Values that look like part of a schema but are data: changing them would change what is valid.
_DATA_KEYS = {"const", "default", "enum", "examples", "example"}


def without_hidden(text: str) -> tuple[str, int]:
    """`text` as a person would see it, and how many characters that took away."""
    if text.isascii() and text.isprintable():
        return text, 0
    seen = _HIDDEN.sub(lambda run: run.group()[: _visible_part(run)], text)
    return seen, len(text) - len(seen)


def printable(text: str) -> str:
    """`text` for a terminal, a log or a page: what would be invisible stands there as its escape, `\\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    return _HIDDEN_OR_RETURN.sub(_escaped, text)


def without_marks(text: str) -> str:
    """`text` in which no mark of a common chat template stands: `<|im_end|>` becomes `&lt;|im_end|>`. For
    text of others on its way to a reader whose tokenizer is not known."""
    return _MARK.sub(lambda mark: entity(mark.group()), text)


def entity(mark: str) -> str:
    """Return the mark with its first character as HTML writes it, so that it is not a mark any more."""
    return _ENTITIES.get(mark[0], f"&#{ord(mark[0])};") + mark[1:]


def over_schema_texts(schema: Any, change: Callable[[str], tuple[str, int]]) -> tuple[Any, int]:
    """Return a JSON schema with `change` made to its descriptions and titles, which gives the new text and
    a count; and the sum of the counts. Names and data stay."""
    if is_json_array(schema):
        changed = [over_schema_texts(item, change) for item in schema]
        return [item for item, _ in changed], sum(count for _, count in changed)
    if not is_json_object(schema):
        return schema, 0
    result: dict[str, Any] = {}
    total = 0
    for key, value in schema.items():
        count = 0
        if key in ("description", "title", "$comment") and isinstance(value, str):
            value, count = change(value)
        elif key not in _DATA_KEYS:
            value, count = over_schema_texts(value, change)
        result[key] = value
        total += count
    return result, total


def is_legible(name: str) -> bool:
    """Return True for a name that stands on one line and hides nothing."""
    return _HIDDEN.search(name) is None and len(name.splitlines()) <= 1


def illegible_name(schema: Any) -> str | None:
    """Return the first key of a JSON schema, such as the name of a property, that is not legible."""
    if is_json_object(schema):
        for key, value in schema.items():
            if not is_legible(key):
                return key
            if (name := illegible_name(value)) is not None:
                return name
    elif is_json_array(schema):
        return next((name for item in schema if (name := illegible_name(item)) is not None), None)
    return None


def _visible_part(run: re.Match[str]) -> int:
    """Return how many characters at the start of a run of hidden ones join what stands around them."""
    before = run.string[run.start() - 1 : run.start()]
    if before.isascii() and run.string[run.end() : run.end() + 1] != _KEYCAP:
        return 0
    joining = _JOINING.match(run.group())
    return 0 if joining is None else joining.end()


def _escaped(run: re.Match[str]) -> str:
    hidden, kept = run.group(), _visible_part(run)
    return hidden[:kept] + hidden[kept:].encode("unicode_escape").decode()
