from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from mcpagent.tools.transports.jsonrpc import Malformed, parse, response_id
from mcpagent.tools.wire import render

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.integers(0, 2**53), st.dictionaries(st.text(), JSON), st.booleans())
def test_a_response_is_read_as_it_was_written(number: int, result: dict[str, Any], ascii_only: bool) -> None:
    message = {"jsonrpc": "2.0", "id": number, "result": result}
    read = parse(json.dumps(message, ensure_ascii=ascii_only).encode())
    assert isinstance(read, JSONRPCResponse)
    assert (read.id, read.result) == (number, result)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}', JSONRPCError),
        (b'{"jsonrpc":"2.0","error":{"code":-32000,"message":"no session"}}', JSONRPCError),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}', JSONRPCNotification),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping"}\r', JSONRPCRequest),
    ],
)
def test_every_kind_of_message_is_read(line: bytes, kind: type) -> None:
    assert isinstance(parse(line), kind)


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}', 7),
        (b'{"result":{"a":NaN},"jsonrpc":"2.0","id":7}', 7),
        (b' { "id" : "x7" , "result" : {"id":3, "a":Infinity} }', "x7"),
        (b'{"jsonrpc":"2.0","id":7,"resu', None),  # too early to tell a response from a request
        (b'{"jsonrpc":"2.0","id":7,"result":{"id":3', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":3}', 7),
        (b'{"id":7,"result":{}}', 7),
        # A request of the server's has an id of its own.
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":NaN}}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":3}', None),
        (b'{"method":"x","params":{"result":NaN},"id":7}', None),
        (b"listening on port 7", None),
        (b'["jsonrpc"]', None),
        (b"7", None),
    ],
)
def test_what_cannot_be_taken_is_traced_to_its_request_where_that_is_certain(
    line: bytes, request_id: int | str | None
) -> None:
    with pytest.raises(Malformed) as error:
        parse(line)
    assert error.value.request_id == request_id


def test_the_id_of_a_response_is_that_of_its_outermost_object() -> None:
    head, tail = b'{"result":{"id":1,"content":[', b'{"id":2}],"id":3},"id":4}'
    assert response_id(head, tail) == 4
    assert response_id(b'{"jsonrpc":"2.0","id":5,"result":{', tail) == 5
    assert response_id(b'{"jsonrpc":"2.0","method":"log","params":{', tail) is None


def test_surrogates_that_belong_together_are_one_character_and_lone_ones_are_replaced() -> None:
    read = parse(rb'{"jsonrpc":"2.0","id":1,"result":{"\ud83d\ude00":"\ud83d \\ud800 \ude00"}}')
    assert isinstance(read, JSONRPCResponse)
    assert read.result == {"\U0001f600": "\ufffd \\ud800 \ufffd"}


def test_many_text_blocks_of_a_result_are_joined_to_what_the_model_sees_of_them() -> None:
    blocks = [{"type": "text", "text": f"block {n}"} for n in range(20_000)]
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    message = {"jsonrpc": "2.0", "id": 1, "result": {"content": [*blocks, image, *blocks]}}
    read = parse(json.dumps(message).encode())
    assert isinstance(read, JSONRPCResponse) and len(read.result["content"]) == 3
    before, after = (CallToolResult.model_validate(m) for m in (message["result"], read.result))
    assert render(after.content, None) == render(before.content, None)


def test_a_result_of_many_other_blocks_is_refused_for_its_call() -> None:
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    message = {"jsonrpc": "2.0", "id": 7, "result": {"content": [image] * 501}}
    with pytest.raises(Malformed, match="501 content blocks; 500 are taken") as raised:
        parse(json.dumps(message).encode())
    assert raised.value.request_id == 7


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":[1]}', "result: Input should be a valid dictionary"),
        (b'{"jsonrpc":"2.0","id":7,"error":{"code":1}}', "error.message: Field required"),
        (b'{"jsonrpc":"2.0","id":7,"error":"no"}', "error: Input should be a valid dictionary"),
        (b'{"jsonrpc":"1.0","id":7,"result":{}}', "jsonrpc: Input should be '2.0'"),
        (b'{"id":7,"result":{}}', "jsonrpc: Field required"),
        (b'{"jsonrpc":"2.0","id":[7],"result":{}}', "id.int: Input should be"),
        (b'{"jsonrpc":"2.0","id":7}', "method: Field required"),
    ],
)
def test_a_message_that_is_malformed_is_named_by_its_field(line: bytes, reason: str) -> None:
    with pytest.raises(Malformed) as error:
        parse(line)
    assert error.value.reason.startswith(f"it is not a JSON-RPC message: {reason}")


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        (b"7", 7),
        (b"7.0", 7),
        (b"7e0", 7),
        (b"7.00", 7),
        (b'"7"', 7),
        (b'"7.0"', 7),
        (b'"-7"', -7),
        (b"0.0", 0),
    ],
)
def test_the_id_of_a_response_may_come_back_as_another_number_or_text_of_the_same_value(
    written: bytes, sent: int
) -> None:
    for body in (b'"result":{}', b'"error":{"code":1,"message":"no"}'):
        read = parse(b'{"jsonrpc":"2.0","id":%b,%b}' % (written, body))
        assert isinstance(read, JSONRPCResponse | JSONRPCError) and (read.id, type(read.id)) == (sent, int)
    # A request of the server's gets its own id back, as it wrote it.
    asked = parse(b'{"jsonrpc":"2.0","id":"7","method":"ping"}')
    assert isinstance(asked, JSONRPCRequest) and asked.id == "7"


@pytest.mark.parametrize("written", [b"7.5", b'"7.5"', b'"7a"', b'"a"', b"1e400"])
def test_an_id_of_another_value_is_no_id_of_ours(written: bytes) -> None:
    try:
        read = parse(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % written)
    except Malformed:
        return
    assert isinstance(read, JSONRPCResponse) and read.id == written.decode().strip('"')


def test_the_id_of_an_oversize_response_is_read_in_the_same_way() -> None:
    for written in (b"7", b"7.0", b'"7"', b'"7.0"'):
        assert response_id(b'{"jsonrpc":"2.0","id":%b,"result":{' % written, b"") == 7
