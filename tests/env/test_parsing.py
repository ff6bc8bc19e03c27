from __future__ import annotations

from typing import Any

import pytest

from mcpagent.env.parsing import parse_action
from mcpagent.policy.scripted import call_text

CALL = call_text("quote", {"ticker": "AAPL"})


def calls_of(action: str) -> list[tuple[str, dict[str, Any]]]:
    parsed = parse_action(action)
    assert parsed.failures == ()
    return [(call.tool, call.arguments) for call in parsed.calls]


@pytest.mark.parametrize(
    "action",
    [
        CALL,
        '<tool_call>{"name": "quote", "arguments": {"ticker": "AAPL"}}</tool_call>',
        '<think>Which tool? <tool_call>{"name": "x"}</tool_call></think>\n' + CALL,
        "thinking that the template opened</think>" + CALL,
        "Let me look.\n" + CALL + "\n",
        '<tool_call>{"name": "quote", "arguments": "{\\"ticker\\": \\"AAPL\\"}"}</tool_call>',
        '{"tool": "quote", "arguments": {"ticker": "AAPL"}}',
        '  {"name": "quote", "arguments": {"ticker": "AAPL"}}  ',
        'I will call:\n```json\n{"tool": "quote", "arguments": {"ticker": "AAPL"}}\n```',
        'Unknown symbol. Let me try again:\n{"tool": "quote", "arguments": {"ticker": "AAPL"}}\n',
        'First {this}.\n{"name": "quote",\n "arguments": {"ticker": "AAPL"}}',
        '<tool><quote>{"ticker": "AAPL"}</quote></tool>',
        '<tool>\n<quote> {"ticker": "AAPL"} </quote>\n</tool>',
    ],
)
def test_every_accepted_form_gives_the_same_call(action: str) -> None:
    assert calls_of(action) == [("quote", {"ticker": "AAPL"})]


def test_several_calls_keep_their_order_and_get_ids() -> None:
    parsed = parse_action(CALL + "and" + call_text("news", {}) + CALL, first_id=2)
    assert [(call.id, call.tool) for call in parsed.calls] == [
        ("c2", "quote"),
        ("c3", "news"),
        ("c4", "quote"),
    ]
    assert parsed.text == "and"
    xml = "<tool><a>{}</a></tool><tool><b>{}</b></tool>"
    assert [name for name, _ in calls_of(xml)] == ["a", "b"]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ('<tool_call>{"name": "quote", "arguments": {}}', "never closed"),
        ('<tool_call>{"name": "quote", "argum', "never closed"),
        ("<tool_call>quote(AAPL)</tool_call>", "invalid JSON"),
        ('<tool_call>{"name": "quote"} please</tool_call>', "text after the JSON"),
        ('<tool_call>["quote"]</tool_call>', "expected"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": "q", "arguments": [1]}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": "q", "arguments": {"x": NaN}}</tool_call>', "NaN is not a JSON value"),
        ('<tool_call>{"name": "q", "arguments": {"x": 1e999}}</tool_call>', "not JSON compliant"),
        ('<tool_call>{"name": "q", "arguments": {"x": "\\ud800"}}</tool_call>', "invalid JSON"),
        ('{"name": "quote", "arguments": {}}</tool_call>', "without an opening tag"),
        ('{"tool": "quote", "arguments": {"ticker": ', "invalid JSON"),
        ('{"tool": "quote"} now', "text after the JSON"),
        ('{"tool": 5}', 'no "name"'),
        ("<tool>quote</tool>", "expected <tool>"),
        ("<tool><quote>{}</quote>", "expected </quote></tool>"),
        ("<tool><quote>{}</news></tool>", "expected </quote></tool>"),
        ("<tool><quote>{", "never closed"),
        (
            '<tool_call>{"name": "q", "arguments": {"x": ' + "[" * 60 + "]" * 60 + "}}</tool_call>",
            "deeper than 50",
        ),
        ('<tool_call>{"name": "q", "arguments": {"x": ' + "[" * 99999 + "</tool_call>", "deeper than 50"),
    ],
)
def test_a_broken_call_is_one_failure_with_its_reason(action: str, says: str) -> None:
    parsed = parse_action(action)
    assert parsed.calls == ()
    assert len(parsed.failures) == 1
    assert says in parsed.failures[0].reason


def test_a_broken_call_does_not_hide_the_next_one() -> None:
    parsed = parse_action("<tool_call>oops</tool_call>" + CALL)
    assert (len(parsed.calls), len(parsed.failures)) == (1, 1)


@pytest.mark.parametrize(
    "text",
    [
        'Use {"tool": "quote", "arguments": {}} for that.',
        'I called\n{"tool": "quote", "arguments": {}}\nand read it.\nAnswer: 5',
        'As said:\n{"tool": "quote", "arguments": {"ticker":',
        'Two:\n{"tool": "a", "arguments": {}}\n{"tool": "b", "arguments": {}}\nwere made.',
        '```json\n{"price": 1}\n```',
    ],
)
def test_text_is_never_a_call(text: str) -> None:
    parsed = parse_action(text)
    assert (parsed.calls, parsed.failures, parsed.text) == ((), (), text)


def test_thinking_is_kept_apart_and_a_thought_that_never_ends_holds_no_action() -> None:
    parsed = parse_action("<think>\nhm\n</think>\n\nThe answer is 5.")
    assert (parsed.thinking, parsed.text) == ("hm", "The answer is 5.")
    cut = parse_action("<think>I should call " + CALL)
    assert (cut.calls, cut.text) == ((), "")


def test_arguments_may_hold_the_text_of_the_tags() -> None:
    arguments = {"message": "write </tool_call> or <tool_call>", "code": "</tool>"}
    assert calls_of(call_text("send", arguments)) == [("send", arguments)]
