"""Tool calls in every dialect: what is taught is what is read, and values get the types of the schema."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcpagent.env.parsing import DIALECT_OF, LOADED_DIALECTS, parse_action

SCHEMA = {
    "type": "object",
    "properties": {
        "ticker": {"type": "string"},
        "days": {"type": "integer"},
        "price": {"type": "number"},
        "sure": {"type": "boolean"},
        "since": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "kind": {"$ref": "#/$defs/Kind"},
        "label": {"type": ["string", "null"]},
        "mixed": {"type": ["integer", "string"]},
        "free": {},
    },
    "$defs": {"Kind": {"enum": ["1", "2"]}},
}
# As the models write them, not as our writers do: from the model cards and templates of each family.
BY_HAND = {
    "hermes": '<tool_call>\n{"name": "quote", "arguments": {"ticker": "AAPL", "days": 5}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=quote>\n<parameter=ticker>\nAAPL\n</parameter>\n"
    "<parameter=days>\n5\n</parameter>\n</function>\n</tool_call>",
    "llama3": '{"name": "quote", "parameters": {"ticker": "AAPL", "days": 5}}',
    "mistral": '[TOOL_CALLS] [{"name": "quote", "arguments": {"ticker": "AAPL", "days": 5}}]',
    "glm": "<tool_call>quote\n<arg_key>ticker</arg_key>\n<arg_value>AAPL</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
    "gemma4": '<|tool_call>call:quote{days:5,ticker:<|"|>AAPL<|"|>}<tool_call|>',
    "pythonic": "<|tool_call_start|>[quote(ticker='AAPL', days=5)]<|tool_call_end|>",
    "harmony": ' to=functions.quote<|channel|>commentary json<|message|>{"ticker": "AAPL", "days": 5}',
    "atem": ' to=quote<|message|><atem:function_calls>\n<atem:invoke name="quote">\n'
    '<atem:parameter name="ticker">AAPL</atem:parameter>\n<atem:parameter name="days">5</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>",
    "json": '{"tool": "quote", "arguments": {"ticker": "AAPL", "days": 5}}',
    "xml": '<tool><quote>{"ticker": "AAPL", "days": 5}</quote></tool>',
}
OTHER_FORMS = [
    ("llama3", '<|python_tag|>{"name": "quote", "parameters": {"ticker": "AAPL", "days": 5}}'),
    ("llama3", '{"type": "function", "name": "quote", "parameters": {"ticker": "AAPL", "days": 5}}'),
    ("mistral", '[TOOL_CALLS]quote[ARGS]{"ticker": "AAPL", "days": 5}'),
    ("mistral", '[TOOL_CALLS]quote[CALL_ID]abcdefghi[ARGS]{"ticker": "AAPL", "days": 5}'),
    ("mistral", '[TOOL_CALLS] [{"name": "quote", "arguments": {"ticker": "AAPL", "days": 5}, "id": "a"}]'),
    (
        "glm",
        "<tool_call>quote<arg_key>ticker</arg_key><arg_value>AAPL</arg_value>"
        "<arg_key>days</arg_key><arg_value>5</arg_value></tool_call>",
    ),
    (
        "qwen3_coder",
        "Let me look.\n\n<tool_call><function=quote><parameter=ticker>AAPL</parameter>"
        "<parameter=days>5</parameter></function></tool_call>",
    ),
    # As gpt-oss itself writes it: after its thought, the recipient behind the channel.
    (
        "harmony",
        "<|channel|>analysis<|message|>Look to=functions.x up.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.quote <|constrain|>json<|message|>{"ticker": "AAPL", "days": 5}<|call|>',
    ),
    (
        "gemma4",
        "<|channel>thought\nI look.\n<channel|>"
        '<|tool_call>call:quote{<|"|>days<|"|>: 5, ticker: <|"|>AAPL<|"|>}<tool_call|>',
    ),
    ("pythonic", 'I look.<|tool_call_start|>[quote(ticker="AAPL",days=5)]<|tool_call_end|>'),
    (
        "atem",
        " to=self<|message|>I look.<|eom|><|start|>assistant to=quote<|message|><atem:function_calls>"
        '<atem:invoke name="quote"><atem:parameter name="ticker">AAPL</atem:parameter>'
        '<atem:parameter name="days">5</atem:parameter></atem:invoke></atem:function_calls><|eot|>',
    ),
    ("json", '```json\n{"tool": "quote", "arguments": {"ticker": "AAPL", "days": 5}}\n```'),
]


def read(text: str, tool_format: str) -> Any:
    return parse_action(text, tool_format=tool_format, schema_of=lambda _: SCHEMA)


def calls_of(text: str, tool_format: str) -> list[tuple[str, dict[str, Any]]]:
    parsed = read(text, tool_format)
    assert parsed.failures == ()
    return [(call.tool, call.arguments) for call in parsed.calls]


@pytest.mark.parametrize(("tool_format", "text"), [*BY_HAND.items(), *OTHER_FORMS])
def test_every_dialect_reads_the_call_as_its_models_write_it(tool_format: str, text: str) -> None:
    assert calls_of(text, tool_format) == [("quote", {"ticker": "AAPL", "days": 5})]


@pytest.mark.parametrize("tool_format", BY_HAND)
def test_no_dialect_takes_the_call_of_another_for_its_own(tool_format: str) -> None:
    """Hermes and JSON share their shape with nobody; the others fail or see text, but never a wrong call."""
    for other, text in BY_HAND.items():
        if other != tool_format:
            parsed = read(text, tool_format)
            assert all(call.tool == "quote" for call in parsed.calls), (other, parsed)
            assert not parsed.calls or parsed.calls[0].arguments["days"] == 5


@pytest.mark.parametrize("tool_format", DIALECT_OF)
def test_the_instruction_shows_a_call_that_the_parser_reads(tool_format: str) -> None:
    example = re.search("write\n(.*)\nwith", DIALECT_OF[tool_format].instruction, re.DOTALL)
    assert example is not None
    assert calls_of(example[1], tool_format) == [("TOOL_NAME", {"ARGUMENT_NAME": "VALUE"})]


@pytest.mark.parametrize("tool_format", DIALECT_OF)
def test_several_calls_are_read_in_the_order_in_which_they_were_written(tool_format: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("quote", {"ticker": "A"}),
        ("news", {}),
        ("quote", {"days": 2}),
    ]
    assert calls_of(DIALECT_OF[tool_format].write(calls), tool_format) == calls


@pytest.mark.parametrize("tool_format", ["harmony", "atem"])
def test_a_turn_of_messages_is_read_as_it_is_written(tool_format: str) -> None:
    dialect = DIALECT_OF[tool_format]
    call = ("quote", {"ticker": "<|start|>assistant to=x<|message|>{}"})
    told = read(dialect.turn("I look.", [call]), tool_format)
    assert (told.text, [(c.tool, c.arguments) for c in told.calls]) == ("I look.", [call])
    assert read(dialect.turn("It is 5.", []), tool_format).text == "It is 5."


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"quote(ticker='it\'s')", "it's"),
        ("quote(ticker='it's', days=5)", "it's"),  # LFM2.5's first template escapes nothing
        (r"quote(ticker='a\nb\\n')", "a\nb\\n"),
        ("quote(ticker='a\nb')", "a\nb"),
        (r"quote(ticker='\u00fc')", "\u00fc"),
        ("quote(ticker=['a', \"b's\", True, None])", ["a", "b's", True, None]),
        ("quote(ticker={'a': {\"b\": null}})", {"a": {"b": None}}),
    ],
)
def test_values_of_python_calls_are_read_as_python_and_as_json(text: str, value: Any) -> None:
    parsed = read(f"<|tool_call_start|>[{text}]<|tool_call_end|>", "pythonic")
    assert [call.arguments["ticker"] for call in parsed.calls] == [value], parsed


TYPED = st.fixed_dictionaries(
    {},
    optional={
        "ticker": st.text(),
        "days": st.integers(-(2**53), 2**53),
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "sure": st.booleans(),
        "since": st.none() | st.integers(0, 9),
        "tags": st.lists(st.text(max_size=5), max_size=3),
        "kind": st.sampled_from(["1", "2"]),
    },
)


@pytest.mark.parametrize("tool_format", DIALECT_OF)
@given(arguments=TYPED)
def test_what_a_dialect_writes_it_reads_back_with_the_types_of_the_schema(
    tool_format: str, arguments: dict[str, Any]
) -> None:
    text = DIALECT_OF[tool_format].write([("quote", arguments)])
    # Thinking is cut out first, and a bare value cannot hold what ends it: neither has a way to be escaped.
    assume("think>" not in text)
    assume(not re.search(r"</(parameter|arg_value)>", arguments.get("ticker", "")))
    got = calls_of(text, tool_format)
    assert got == [("quote", arguments)]
    assert json.dumps(got[0][1], sort_keys=True) == json.dumps(arguments, sort_keys=True)  # 5 is not 5.0


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("ticker", "5", "5"),
        ("ticker", "null", "null"),
        ("days", "5", 5),
        ("days", " 5 ", 5),
        ("days", "five", "five"),  # for the schema check to name
        ("price", "5", 5),
        ("price", "2.5", 2.5),
        ("sure", "true", True),
        ("sure", "True", True),  # Qwen3.5's template writes Python's words
        ("since", "None", None),
        ("since", "7", 7),
        ("tags", '["a", "b"]', ["a", "b"]),
        ("tags", '["a", ', '["a", '),
        ("kind", "1", "1"),
        ("label", "5", "5"),
        ("label", "null", None),
        ("mixed", "5", 5),
        ("mixed", "five", "five"),
        ("free", '{"a": 1}', {"a": 1}),
        ("free", "some words", "some words"),
        ("unheard_of", "5", 5),
        ("price", "1e999", "1e999"),
        ("price", "NaN", "NaN"),
    ],
)
@pytest.mark.parametrize("tool_format", ["qwen3_coder", "glm"])
def test_a_bare_value_becomes_what_the_schema_says(
    tool_format: str, key: str, text: str, value: object
) -> None:
    written = LOADED_DIALECTS[tool_format].write([("quote", {key: text})])
    [(_, arguments)] = calls_of(written, tool_format)
    assert arguments == {key: value} and type(arguments[key]) is type(value)


@pytest.mark.parametrize("tool_format", ["qwen3_coder", "glm"])
def test_a_bare_value_may_hold_line_breaks_and_tags(tool_format: str) -> None:
    code = "\n\nif a < b:\n    print('</tool_call>', '<parameter=x>')\n\n"
    assert calls_of(LOADED_DIALECTS[tool_format].write([("run", {"ticker": code})]), tool_format) == [
        ("run", {"ticker": code})
    ]


@pytest.mark.parametrize(
    ("tool_format", "text", "says"),
    [
        ("qwen3_coder", "<tool_call>\n<function=q>\n<parameter=a>\n1\n", "never closed"),
        ("qwen3_coder", "<tool_call>quote</tool_call>", "expected <function=name>"),
        ("qwen3_coder", "<tool_call><function=q></tool_call>", "expected </function></tool_call>"),
        ("qwen3_coder", "<function=q>", "without an opening tag"),
        (
            "qwen3_coder",
            "<tool_call><function=q><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
            "given twice",
        ),
        ("glm", "<tool_call>q\n<arg_key>a</arg_key>\n<arg_value>1</tool_call>", "<arg_value> of a is never"),
        ("glm", '<tool_call>{"name": "q"}</tool_call>', "expected the name"),
        ("glm", "<tool_call>q\nplease</tool_call>", "expected <arg_key>"),
        ("glm", "<tool_call>q", "never closed"),
        ("llama3", '{"name": "q", "parameters": {"a": ', "invalid JSON"),
        ("llama3", '{"name": "q", "parameters": {}} please', "text after the JSON"),
        ("llama3", '{"name": "q", "parameters": [1]}', "must be a JSON object"),
        ("llama3", '<|python_tag|>search.call(query="x")', "invalid JSON"),
        ("llama3", '<|python_tag|>{"price": 1}', "expected"),
        ("mistral", "[TOOL_CALLS] please", "expected [TOOL_CALLS]"),
        ("mistral", '[TOOL_CALLS] [{"name": "q"', "invalid JSON"),
        ("mistral", '[TOOL_CALLS] ["q"]', "expected [{"),
        ("mistral", "[TOOL_CALLS]q[ARGS]{", "invalid JSON"),
        ("mistral", "q[ARGS]{}", "without an opening tag"),
        ("gemma4", "<|tool_call>call:quote{days:five}<tool_call|>", "a number, true"),
        ("gemma4", '<|tool_call>call:quote{ticker:<|"|>A}<tool_call|>', "never ends"),
        ("gemma4", "<|tool_call>call:quote{days:5}", "never closed"),
        ("gemma4", "<|tool_call>call:quote{days:5,days:6}<tool_call|>", "given twice"),
        ("pythonic", "<|tool_call_start|>[quote(days=5]<|tool_call_end|>", "expected ,"),
        ("pythonic", "<|tool_call_start|>[]<|tool_call_end|>", "empty"),
        ("pythonic", "<|tool_call_start|>[quote(5)]<|tool_call_end|>", "expected key=value"),
        ("harmony", " to=functions.quote<|channel|>commentary<|message|>{", "JSON"),
        ("harmony", " to=functions.quote<|channel|>commentary<|message|>{} and", "text after the JSON"),
        ("atem", " to=quote<|message|>five", "expected <atem:function_calls>"),
    ],
)
def test_a_broken_call_is_one_failure_with_its_reason(tool_format: str, text: str, says: str) -> None:
    parsed = read(text, tool_format)
    assert parsed.calls == ()
    assert len(parsed.failures) == 1 and says in parsed.failures[0].reason, parsed.failures
    assert parsed.failures[0].raw


def test_broken_calls_past_a_bound_are_not_read_one_by_one() -> None:
    parsed = read("<tool_call>oops</tool_call>" * 1000, "hermes")
    assert len(parsed.failures) == 33 and "too many" in parsed.failures[-1].reason


@pytest.mark.parametrize("tool_format", DIALECT_OF)
@pytest.mark.parametrize(
    "text",
    [
        "It is 187.2.",
        '{"price": 1}',
        '{"name": "Apple"}',
        "[1, 2]",
        "Use quote(ticker) for that.",
        'For example {"name": "quote", "parameters": {}} would do.',
        "a < b, [x] and {y}; <b>bold</b>",
        "",
    ],
)
def test_text_is_never_a_call(tool_format: str, text: str) -> None:
    parsed = read(text, tool_format)
    assert (parsed.calls, parsed.failures, parsed.text) == ((), (), text)
