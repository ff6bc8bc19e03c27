"""What a result says as a value: the JSON of its text, or the list, table or fields that the text is."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from mcpagent.core.text_records import text_fields, text_records
from mcpagent.core.tools import ToolResult
from mcpagent.core.values import is_json_array, is_json_object

_SPACE = re.compile(r"\s*")


def result_value(result: ToolResult) -> dict[str, Any]:
    """Return all that a result holds, for the environment's own calls: its structured content, else what its
    text says."""
    return result.structured if result.structured is not None else text_value(result.content)


def shown_value(result: ToolResult) -> dict[str, Any]:
    """Return what a step reference sees of a result: what its text says, which is all that a model is shown
    of it."""
    return text_value(result.content)


def text_value(content: str) -> dict[str, Any]:
    """Return what a step reference sees of a text that a model was shown: the object that it is in JSON;
    other JSON, and several documents one after the other, under `result`, as MCP servers wrap lists; plain
    text under `text`. Lists and objects that a server in Python printed as they are count as JSON."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = _printed(content) or _documents(content.lstrip())
        if value is None:
            return {"text": content}
    return dict(value) if is_json_object(value) else {"result": value}


def nested_value(text: str) -> Any:
    """Return the object or list that a text, or the one fence in it, is in JSON or in Python's notation, the
    list of several such in JSON, or that of a table, rows or items (`core.text_records`); else the text
    itself."""
    value = None
    if (fenced := _fenced(text)) is not None:
        return text if isinstance(inside := nested_value(fenced), str) else inside
    if text[:1] in ("[", "{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = _printed(text) or _documents(text)
    if not (is_json_object(value) or is_json_array(value)):
        value = text_records(text)
    return text if value is None else value


def _fenced(text: str) -> str | None:
    """Return what stands in the one fence of a text; None if there is none, or are several."""
    lines = text.splitlines() if "```" in text else []
    marks = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    return "\n".join(lines[marks[0] + 1 : marks[1]]) if len(marks) == 2 else None


def opened_value(text: str) -> Any:
    """Return what a reference goes on into: the object or list that a text is, or the fields that its lines
    name; else the text itself."""
    nested = nested_value(text)
    return (text_fields(text) or text) if isinstance(nested, str) else nested


def _printed(content: str) -> Any:
    """Return a list or an object in Python's notation, as JSON has it; None if it is neither."""
    if content[:1] not in ("[", "{"):
        return None
    try:
        return json.loads(json.dumps(ast.literal_eval(content), allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _documents(content: str) -> list[Any] | None:
    """Objects and lists in JSON that stand one after the other: a line each, or the blocks of a server that
    gives one for each item of a list."""
    decoder, documents, end = json.JSONDecoder(), list[Any](), 0
    try:
        while start := _SPACE.match(content, end):
            document, end = decoder.raw_decode(content, start.end())
            documents.append(document)
            if not content[end:].strip():
                break
    except (ValueError, RecursionError):
        return None
    is_whole = all(is_json_object(item) or is_json_array(item) for item in documents)
    return documents if is_whole and len(documents) > 1 else None
