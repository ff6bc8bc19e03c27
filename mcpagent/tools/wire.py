"""What may cross a JSON transport, and what the model sees of what came back.

One lone surrogate in an argument kills a whole stdio session of the SDK, with every call in flight; an
integer past Python's digit limit or a very deep nesting hangs it. So arguments are checked before they
are sent, and results before they are recorded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, assert_never

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import TypeAdapter, ValidationError

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolResult

MAX_DEPTH = 100  # the SDK's own encoder fails past about 250
MAX_MESSAGE_BYTES = 8 * 2**20  # of a response; what the model sees of it is cut far earlier
# What a transport answers to one call, as a JSON-RPC error of its own; the connection lives on after each.
OVERSIZE_RESULT = -33001  # the response is larger than the transport takes
MALFORMED_RESULT = -33002  # the response is not valid JSON-RPC
NOT_SENT = -33003  # the server never got the request: it is safe to repeat
RESPONSE_LOST = -33004  # the request went out, its response never came: it may have had its effect
THROTTLED = -33005  # the server takes no more calls for now, and did not take this one
FORBIDDEN = -33006  # the server refuses our credentials
LOGIN_NEEDED = -33007  # only a person can make the server take our calls; the data has the `remedy`
SERVER_ERROR = -33008  # the server answered with an error whose code would be one of ours: the text has it
HTTP_STATUS = "http_status"  # in the data of an error that an HTTP status of 4xx alone stands for
RETRY_AFTER = "retry_after_s"  # in the data of THROTTLED, if the server says so: seconds
META_CHARS = 4096  # of a result's `_meta`
META_CUT_KEY = "mcpagent/cut"
_BLOCK: TypeAdapter[ContentBlock] = TypeAdapter(ContentBlock)
_CUT = "\n[... {} characters cut ...]\n"  # in the place of what was
_INT_LIMIT = 10**4300  # sys.int_info.default_max_str_digits: json.loads refuses more digits


def wire_fault(value: object, *, depth: int = 0) -> str | None:
    """Return why `value` cannot be sent or stored as JSON; None when it can."""
    if isinstance(value, str):
        return "text with a lone surrogate" if _has_surrogate(value) else None
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if -_INT_LIMIT < value < _INT_LIMIT else "an integer of more than 4300 digits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"the number {value}, which JSON does not have"
    if depth >= MAX_DEPTH:
        return f"nesting deeper than {MAX_DEPTH}"
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"a key of type {type(key).__name__}"
            if fault := wire_fault(key) or wire_fault(item, depth=depth + 1):
                return fault
        return None
    if isinstance(value, (list, tuple)):
        for item in value:
            if fault := wire_fault(item, depth=depth + 1):
                return fault
        return None
    return f"a value of type {type(value).__name__}"


def clean_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD: UTF-8 cannot encode a lone
    surrogate, and one in a result ends the whole stdio session."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def readable_result(raw: JsonObject) -> CallToolResult:
    """Return the result of a call; content that is missing, and a block that cannot be read, become a
    placeholder. Raises ValidationError if anything else is malformed."""
    given = {key: value for key, value in raw.items() if value is not None}
    content = given.get("content")
    if content is None:
        content = [] if "structuredContent" in given else [{"type": "text", "text": "[no content]"}]
    if isinstance(content, list):
        content = [_readable_block(block) for block in content]
    return CallToolResult.model_validate({**given, "content": content}, by_name=False)


def _readable_block(block: Any) -> ContentBlock:
    try:
        return _BLOCK.validate_python(block, by_name=False)
    except ValidationError:
        kind = block.get("type") if isinstance(block, dict) else None
        return TextContent(
            text=f"[{str(kind)[:50]} that cannot be shown]" if kind else "[unreadable content]"
        )


def render(blocks: Sequence[ContentBlock], structured: object) -> str:
    """Return the text that the model sees: text as it is, any other block as a typed placeholder, and if that
    gives nothing, the structured content as JSON."""
    text = "\n".join(_block_text(block) for block in blocks)
    if not text.strip() and structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode() if _has_surrogate(text) else text


def cut_middle(text: str, limit_chars: int) -> tuple[str, int]:
    """`text` within `limit_chars`, and how many characters were cut out of its middle."""
    if len(text) <= limit_chars:
        return text, 0
    room = max(0, limit_chars - len(_CUT.format(len(text))))
    head, tail = room - room // 2, room // 2
    cut = len(text) - room
    return text[:head] + _CUT.format(cut) + text[len(text) - tail :], cut


def head_of(result: ToolResult) -> str:
    """Return what a model was shown of a result before the place where it was cut, or all of it."""
    return result.content.split(_CUT.format(result.truncated_chars))[0]


def cut_meta(meta: JsonObject) -> JsonObject:
    """`meta` without the members that take it past `META_CHARS` as JSON; a mark names how much was cut."""
    kept: JsonObject = {}
    left, cut = META_CHARS, 0
    for key, value in meta.items():
        size = len(key) + len(value if isinstance(value, str) else json.dumps(value))
        if size <= left:
            kept[key] = value
            left -= size
        else:
            cut += size
    return {**kept, META_CUT_KEY: f"{cut} characters cut"} if cut else kept


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type} {block.mime_type}, {_decoded_size(block.data)} bytes]"
        case ResourceLink():
            return f"[resource link {block.uri}]"
        case EmbeddedResource():
            return _resource_text(block.resource)
    assert_never(block)


def _resource_text(resource: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(resource, TextResourceContents):
        return resource.text
    kind = resource.mime_type or "binary"
    return f"[resource {resource.uri}, {kind}, {_decoded_size(resource.blob)} bytes]"


def _decoded_size(base64_text: str) -> int:
    return len(base64_text) * 3 // 4 - base64_text[-2:].count("=")


def _has_surrogate(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
