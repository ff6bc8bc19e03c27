"""What went wrong with a start or a call. The one place where exceptions of libraries become ours."""

from __future__ import annotations

import anyio
import httpx2
from mcp import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)
from pydantic import ValidationError

from mcpagent.core.tools import FailureKind
from mcpagent.tools.wire import (
    FORBIDDEN,
    HTTP_STATUS,
    LOGIN_NEEDED,
    MALFORMED_RESULT,
    NOT_SENT,
    OVERSIZE_RESULT,
    RESPONSE_LOST,
    RETRY_AFTER,
    SERVER_ERROR,
    THROTTLED,
)

# How the SDK words the end of a connection; its code alone is one that servers use for errors of their own.
_CLOSED = "Connection closed"
_KINDS = {
    SERVER_ERROR: FailureKind.UPSTREAM,
    OVERSIZE_RESULT: FailureKind.OVERSIZE,
    MALFORMED_RESULT: FailureKind.SCHEMA,
    INVALID_PARAMS: FailureKind.INVALID_ARGUMENTS,
    INTERNAL_ERROR: FailureKind.UPSTREAM,
    FORBIDDEN: FailureKind.UPSTREAM,
}
_NOT_UNDERSTOOD = (PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND)
_AUTH_ADVICE = 'look at "headers" of this server, say {"Authorization": "Bearer ${TOKEN}"}'


class CallFailed(Exception):
    """A call without a result."""

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class LoginNeeded(CallFailed):
    """A call that the server takes only once a person has logged in; `remedy` is the command for that."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(FailureKind.UPSTREAM, text)
        self.remedy = remedy


class CallLost(Exception):
    """A call that the transport lost. `was_sent` is False only if the server certainly never got it;
    `is_doubtful` if the connection itself may be gone."""

    def __init__(self, text: str, *, was_sent: bool = True, is_doubtful: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.was_sent = was_sent
        self.is_doubtful = is_doubtful


class CallThrottled(Exception):
    """A call that the server did not take because there are too many; it is well. `retry_after_s` is what it
    asks to wait; None if it does not say."""

    def __init__(self, text: str, retry_after_s: float | None) -> None:
        super().__init__(text)
        self.text = text
        self.retry_after_s = retry_after_s


class OpenFailed(Exception):
    """A server did not start. `permanent` if another attempt cannot help (no such command); `is_away`
    if the question was not taken: a service that is being restarted may be on its way back. `login` is
    the command for a login without which it takes no call."""

    def __init__(
        self, text: str, *, permanent: bool = False, is_away: bool = False, login: str | None = None
    ) -> None:
        super().__init__(text)
        self.text = text
        self.permanent = permanent
        self.is_away = is_away
        self.login = login


class ServerEnded(Exception):
    """The end of a server by itself. `is_lasting` if it would do so again at once."""

    def __init__(self, text: str, *, is_lasting: bool = False) -> None:
        super().__init__(text)
        self.is_lasting = is_lasting


def classify(error: BaseException) -> CallFailed | CallLost | CallThrottled:
    """Return what an exception of the SDK means for the call. The order matters: a ValidationError is a
    ValueError."""
    match error:
        case MCPError(code=code, message=message, data=data):
            if code == THROTTLED:
                return CallThrottled(message, data.get(RETRY_AFTER) if isinstance(data, dict) else None)
            if code == LOGIN_NEEDED and isinstance(data, dict):
                return LoginNeeded(message, data["remedy"])
            return _of_code(code, message)
        case ValidationError():
            return CallFailed(FailureKind.SCHEMA, f"the server sent a malformed result: {fault_of(error)}")
        case RecursionError() | ValueError() | TypeError():
            return CallFailed(FailureKind.INVALID_ARGUMENTS, f"the arguments cannot be sent: {flat(error)}")
        case OSError() | anyio.ClosedResourceError() | anyio.BrokenResourceError():
            return CallLost(f"the transport failed: {flat(error)}", is_doubtful=True)
        case _:
            return CallFailed(FailureKind.SCHEMA, f"the call broke down: {flat(error)}")


def innermost(error: BaseException) -> BaseException:
    """Return the error within the nested groups in which anyio wraps one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def fault_of(error: ValidationError, *, within: int = 0) -> str:
    """Return which field of a document is wrong first, by its name there, and why; `within` so many names."""
    fault = error.errors(include_url=False, include_input=False)[0]
    # Of a union the name of the member that was tried is a part too, that of a class or a tag of ours.
    path = ".".join(str(part) for part in fault["loc"][within:] if not str(part)[:1].isupper())
    return f"{path}: {fault['msg']}" if path else fault["msg"]


def flat(error: BaseException) -> str:
    """One line for an error."""
    error = innermost(error)
    if isinstance(error, ValidationError):
        return f"{error.title}: {fault_of(error)}"
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def http_error(error: httpx2.HTTPError | httpx2.StreamError, host: str) -> MCPError:
    """Return what an exception of the HTTP library means for the request, as the answer to it."""
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return MCPError(NOT_SENT, f"cannot connect to {host}: {error}")
        case httpx2.LocalProtocolError() | httpx2.ProxyError() | httpx2.UnsupportedProtocol():
            return MCPError(NOT_SENT, f"cannot send to {host}: {type(error).__name__}")
        case httpx2.TooManyRedirects():
            return MCPError(INVALID_REQUEST, f"{host} redirects in a circle")
        case _:
            return MCPError(RESPONSE_LOST, f"{host} did not answer: {type(error).__name__}")


def http_status_error(status: int, host: str, wait_s: float | None = None) -> MCPError:
    """Return what an HTTP status without a JSON-RPC error means for the request. `wait_s`: what Retry-After
    asks."""
    if status in (401, 403):
        return MCPError(FORBIDDEN, f"{host} refuses us (HTTP {status}): {_AUTH_ADVICE}")
    if status == 429 or (status == 503 and wait_s is not None):
        data = None if wait_s is None else {RETRY_AFTER: wait_s}
        return MCPError(THROTTLED, f"{host} takes no more calls for now (HTTP {status})", data)
    if status == 413:
        return MCPError(INVALID_PARAMS, f"the request is larger than {host} takes (HTTP 413)")
    if status == 404:
        return MCPError(METHOD_NOT_FOUND, f"{host} has nothing at this path (HTTP 404)", {HTTP_STATUS: 404})
    if status == 503:
        return MCPError(NOT_SENT, f"{host} takes no call at the moment (HTTP {status})")
    if status >= 500:
        return MCPError(RESPONSE_LOST, f"{host} failed (HTTP {status})")
    return MCPError(INVALID_REQUEST, f"{host} refused the request (HTTP {status})", {HTTP_STATUS: status})


def _of_code(code: int, message: str) -> CallFailed | CallLost:
    if code == CONNECTION_CLOSED and message == _CLOSED:
        return CallLost("the server died during the call", is_doubtful=True)
    if code == NOT_SENT:
        return CallLost(message, was_sent=False)
    if code == RESPONSE_LOST:
        return CallLost(message)
    if code in _KINDS:
        return CallFailed(_KINDS[code], message)
    # Those of JSON-RPC say that the two do not understand each other; any other one is the server's own.
    kind = FailureKind.SCHEMA if code in _NOT_UNDERSTOOD else FailureKind.UPSTREAM
    return CallFailed(kind, f"the server answered with error {code}: {message}")
