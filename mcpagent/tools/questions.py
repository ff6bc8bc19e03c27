"""What a server asks of its client in the middle of a call, a form or a model's text: it is refused."""

from __future__ import annotations

import asyncio
from typing import cast

from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp.types import (
    INVALID_REQUEST,
    CallToolRequest,
    CallToolResult,
    InputRequiredResult,
    TextContent,
)

from mcpagent.core.records import JsonObject
from mcpagent.tools.wire import readable_result

_ROUNDS_MAX = 10
_PAUSE_S = 0.02


async def raw_answer(session: ClientSession, method: str, params: JsonObject) -> JsonObject:
    """Return the result of a request as the server wrote it; of what the SDK itself returns there is only
    what it accepts. Raises MCPError."""
    request: JsonObject = {"method": method, "params": params}
    options = cast("CallOptions", {})
    session._stamp(request, options)
    return await session._dispatcher.send_raw_request(method, request["params"], options)


async def call_to_its_end(session: ClientSession, request: CallToolRequest) -> CallToolResult:
    """Return the result of a call, or the refusal of what the server asks before it. Raises MCPError.

    Servers of older protocols ask by requests of their own, which the SDK refuses."""
    for _ in range(_ROUNDS_MAX):
        params = request.params.model_dump(by_alias=True, mode="json", exclude_none=True)
        raw = await raw_answer(session, request.method, params)
        if raw.get("resultType") != "input_required":
            return readable_result(raw)
        needed = InputRequiredResult.model_validate(raw, by_name=False)
        if needed.input_requests:
            text = "the server asks its client something before it answers, which is refused here"
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        await asyncio.sleep(_PAUSE_S)  # it asks nothing but to be asked again
        again = {"request_state": needed.request_state}
        request = CallToolRequest(params=request.params.model_copy(update=again))
    raise MCPError(INVALID_REQUEST, f"the server asked for input more than {_ROUNDS_MAX} times")
