"""What a server asks of its client in the middle of a call: a form is answered with its own defaults if the
user says so, anything else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp.types import (
    INVALID_REQUEST,
    CallToolRequest,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
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


class FormDefaults:
    """Answers the forms of one server with the values that they propose, and counts them; `on_first` is told
    of the first."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.answered = 0
        self._on_first = on_first

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        """Return the answer to a form, as the SDK asks for it."""
        return self.answer(params)

    def answer(self, params: ElicitRequestParams) -> ElicitResult:
        """Return the filled form; declined if a field that it requires has no default, or if it is a page."""
        self.answered += 1
        if self.answered == 1:
            self._on_first()
        if not isinstance(params, ElicitRequestFormParams):
            return ElicitResult(action="decline")
        fields: JsonObject = params.requested_schema.get("properties") or {}
        filled = {name: field["default"] for name, field in fields.items() if "default" in field}
        if set(params.requested_schema.get("required") or ()) - filled.keys():
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=filled)


async def call_to_its_end(
    session: ClientSession, request: CallToolRequest, *, forms: FormDefaults | None
) -> CallToolResult:
    """Return the result of a call, or the refusal of what the server asks before it. Raises MCPError.

    Servers of older protocols ask by requests of their own, which the SDK refuses or hands to `forms`."""
    for _ in range(_ROUNDS_MAX):
        params = request.params.model_dump(by_alias=True, mode="json", exclude_none=True)
        raw = await raw_answer(session, request.method, params)
        if raw.get("resultType") != "input_required":
            return readable_result(raw)
        needed = InputRequiredResult.model_validate(raw, by_name=False)
        asked = needed.input_requests or {}
        filled = {
            key: forms.answer(form.params)
            for key, form in asked.items()
            if forms is not None and isinstance(form, ElicitRequest)
        }
        if filled.keys() != asked.keys():
            text = "the server asks its client something before it answers, which is refused here"
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        if not asked:
            await asyncio.sleep(_PAUSE_S)  # it asks nothing but to be asked again
        again = {"request_state": needed.request_state, "input_responses": filled or None}
        request = CallToolRequest(params=request.params.model_copy(update=again))
    raise MCPError(INVALID_REQUEST, f"the server asked for input more than {_ROUNDS_MAX} times")
