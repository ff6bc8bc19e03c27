"""Tool calls in every dialect: what is taught is what is read, and values get the types of the schema."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpagent.core.tools import ToolSpec
from mcpagent.env.offer import offer
from mcpagent.env.parsing import DIALECT_OF, LOADED_DIALECTS, parse_action, reads_back, unwritable
from mcpagent.errors import UserError

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
_OF_TWO = ('{"tool": "quote", "arguments": {"ticker": "A"}}', '{"name": "news", "arguments": {}}')


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
def test_the_instruction_shows_calls_that_the_parser_reads(tool_format: str) -> None:
    examples = re.search("write\n(.*)\nwith.*at once:\n(.*)", DIALECT_OF[tool_format].instruction, re.DOTALL)
    assert examples is not None
    call = ("TOOL_NAME", {"ARGUMENT_NAME": "VALUE"})
    assert [calls_of(examples[i], tool_format) for i in (1, 2)] == [[call], [call, call]]


@pytest.mark.parametrize("tool_format", DIALECT_OF)
def test_several_calls_are_read_in_the_order_in_which_they_were_written(tool_format: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("quote", {"ticker": "A"}),
        ("news", {}),
        ("quote", {"days": 2}),
    ]
    assert calls_of(DIALECT_OF[tool_format].write(calls), tool_format) == calls


_SPACES = ("\n", "", " ", "\n\n")
_FRAMES = ("{}", "\n{}\n", "I look both up.\n{}", "```json\n{}\n```", "So:\n```json\n{}\n```")
_TWO_FENCES = [(frame, "\n```\n```json\n") for frame in _FRAMES if "```" in frame]


@pytest.mark.parametrize(("frame", "between"), [*product(_FRAMES, _SPACES), *_TWO_FENCES])
def test_calls_in_plain_json_stand_one_behind_the_other(frame: str, between: str) -> None:
    text = frame.replace("{}", between.join(_OF_TWO))
    assert calls_of(text, "json") == [("quote", {"ticker": "A"}), ("news", {})]


@pytest.mark.parametrize("behind", [" please", "}", "\n[1]", '\n{"price": 5}', '\n{"tool": "quote", "argu'])
def test_of_plain_calls_with_something_else_behind_none_is_made(behind: str) -> None:
    """One failure names the reason; at the end of a text they are text, as a single call is."""
    parsed = read("\n".join(_OF_TWO) + behind, "json")
    assert (parsed.calls, len(parsed.failures)) == ((), 1)
    quoted = read("As I said:\n" + "\n".join(_OF_TWO) + behind, "json")
    assert (quoted.calls, quoted.failures) == ((), ())


@pytest.mark.parametrize("frame", ["{}", "```json\n{}\n```"])
def test_of_broken_plain_calls_no_more_than_a_step_may_have_are_told(frame: str) -> None:
    """Each failure is answered, and shown to the model."""
    of_many = frame.replace("{}", '{"tool": 5}\n' * 1000)
    assert len(read(of_many, "json").failures) == 32


def test_a_plain_call_begins_as_several_do() -> None:
    """A model that has written one call goes on to the next or ends, and need not have decided before."""
    first, second = ("quote", {"ticker": "A"}), ("news", {})
    write = DIALECT_OF["json"].write
    assert write([first, second]).startswith(write([first]))


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


# What each dialect writes between, and what else reads as something: none of it may change a call.
_PIECES = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<tool>",
        "</tool>",
        "</quote>",
        "```json\n",
        "\n```",
    ),
    *("<function=", "</function>", "<parameter=a>", "</parameter>", "\n</parameter>", "<|python_tag|>", "; "),
    *(
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<tool_call|>",
        '<|"|>',
    ),
    *(
        "<|channel>",
        "<channel|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "', b='",
        '"',
        "'",
        "\\",
        "\\u003c",
    ),
    *(
        "<|message|>",
        "<|end|>",
        "<|start|>assistant to=x",
        "</atem:parameter>",
        "</atem:invoke>",
        '">',
        "&lt;",
    ),
    *(
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        "<",
        ">",
        "=",
        ":",
        ",",
        "$",
        "@",
        ".",
        "/",
        " ",
        "\n",
        "\t",
        "\r",
        "#",
        "**",
    ),
    *(
        "5",
        "-2.5",
        "1e9",
        "null",
        "None",
        "true",
        "True",
        "NaN",
        '"5"',
        '{"a": 1}',
        "[1]",
        "{}",
        "name",
        "arguments",
    ),
)
TEXTS = st.lists(st.text(max_size=4) | st.sampled_from(_PIECES), max_size=4).map("".join)
NAMES = TEXTS | st.sampled_from(
    [
        "filter[name]",
        "uids[]",
        "StartTime<",
        "StartTime>",
        "$top",
        "@type",
        "a b",
        "a.b",
        "\u00fc",
        "a:b",
        "a=b",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
# By hand, what a dialect without an escape has no way to write: in a value, in a name.
NOT_IN_VALUES = {
    "qwen3_coder": "</parameter>|think>",
    "glm": "</arg_value>|think>",
    "gemma4": r'<\|"\|>|<channel\|>|\|<channel>',
    "atem": "</atem:|<[|]",
}
NOT_IN_NAMES = {
    "qwen3_coder": r"[>\n]|\A\Z",
    "glm": "arg_key>|arg_value>",
    "atem": '"',
}
# One run of `make test-slow` is to try them.
MANY = settings(max_examples=2000 if settings().max_examples > 100 else settings().max_examples)


def schema_for(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {k: {"type": _KINDS[type(v)]} for k, v in arguments.items()}}


def can_write(tool_format: str, arguments: dict[str, Any]) -> bool:
    """Whether nothing stands in the way of a call; of what is left a dialect may still write some."""
    values = json.dumps(list(arguments.values()), ensure_ascii=False) + "".join(map(str, arguments.values()))
    odd = NOT_IN_NAMES.get(tool_format)
    if tool_format in NOT_IN_VALUES and re.search(NOT_IN_VALUES[tool_format], f"{values}{list(arguments)}"):
        return False
    return odd is None or not any(re.search(odd, name) or name != name.strip() for name in arguments)


@pytest.mark.parametrize("tool_format", DIALECT_OF)
@MANY
@given(arguments=ARGUMENTS)
def test_a_dialect_reads_what_it_wrote_or_says_that_it_cannot(
    tool_format: str, arguments: dict[str, Any]
) -> None:
    schema = schema_for(arguments)
    parsed = parse_action(
        DIALECT_OF[tool_format].write([("quote", arguments)]),
        tool_format=tool_format,
        schema_of=lambda _: schema,
    )
    # As JSON: 5 is not 5.0, and true is not 1.
    read = [json.dumps([c.tool, c.arguments], sort_keys=True) for c in parsed.calls]
    is_same = read == [json.dumps(["quote", arguments], sort_keys=True)] and not parsed.failures
    assert is_same or not can_write(tool_format, arguments), parsed
    says = reads_back([("quote", arguments)], tool_format=tool_format, schema_of=lambda _: schema)
    assert says == (is_same and parsed.text == "")
    if can_write(tool_format, dict.fromkeys(arguments, "x")):
        assert unwritable(schema, tool_format) == ()


@pytest.mark.parametrize("tool_format", DIALECT_OF)
@MANY
@given(names=st.lists(NAMES, max_size=4, unique=True))
def test_a_tool_has_a_name_that_the_dialect_reads_back(tool_format: str, names: list[str]) -> None:
    catalog = {name: ToolSpec(server="s", name=name, input_schema={}) for name in names}
    tools = offer(catalog, None, task_id="t", tool_format=tool_format)
    assert [tool.spec.name for tool in tools.tools] == names
    shown = [tool.name for tool in tools.tools]
    assert len(set(shown)) == len(names)
    for name, own in zip(shown, names, strict=True):
        assert calls_of(DIALECT_OF[tool_format].write([(name, {})]), tool_format) == [(name, {})]
        assert name == own or re.fullmatch(r"[A-Za-z0-9_-]{1,55}_[0-9a-f]{8}|_[0-9a-f]{8}", name)
        found_again = tools.find(name)
        assert found_again is not None and found_again.spec.name == own


OPENAPI_NAMES = [
    "filter[name]",
    "uids[]",
    "StartTime<",
    "$top",
    "@type",
    "first name",
    "a.b",
    "größe",
    "x-y",
    "a/b",
]


@pytest.mark.parametrize("tool_format", DIALECT_OF)
@pytest.mark.parametrize("name", [*OPENAPI_NAMES, "StartTime>", "a=b", "a:b", "is it?", "a,b", "2nd", "it's"])
def test_names_that_openapi_servers_have_can_be_written(tool_format: str, name: str) -> None:
    calls = [("quote", {name: '"x"', "days": 5, "free": {name: [1, {name: None}]}})]
    assert calls_of(DIALECT_OF[tool_format].write(calls), tool_format) == calls


@pytest.mark.parametrize(
    ("tool_format", "name"),
    [("qwen3_coder", "a\nb"), ("glm", "a</arg_key>"), ("atem", 'a"b'), ("gemma4", '<|"|>')],
)
def test_a_parameter_that_cannot_be_written_ends_an_episode_before_it_begins(
    tool_format: str, name: str
) -> None:
    schema = {"type": "object", "properties": {"fine": {"type": "object", "properties": {name: {}}}}}
    catalog = {"look": ToolSpec(server="s", name="look", input_schema=schema)}
    with pytest.raises(UserError) as error:
        offer(catalog, None, task_id="t", tool_format=tool_format)
    assert f"{tool_format} cannot write the parameter {name!r} of s.look" in error.value.message
    assert offer(catalog, None, task_id="t", tool_format="hermes").find("look") is not None


@pytest.mark.parametrize("tool_format", ["qwen3_coder", "glm", "atem", "hermes", "json", "pythonic"])
@pytest.mark.parametrize(
    "text", ['"blue whale"', "'blue whale'", '"a", "b"', '"5"', "5", "null", "[1]", ' "x" ']
)
def test_a_text_keeps_its_quotes(tool_format: str, text: str) -> None:
    written = DIALECT_OF[tool_format].turn("", [("quote", {"ticker": text})])
    assert calls_of(written, tool_format) == [("quote", {"ticker": text})]


def test_a_thought_that_an_argument_spells_stays_in_it() -> None:
    said = "use <think>a</think> tags"
    for tool_format in ("qwen3_coder", "glm"):  # as a model writes it, without escapes
        written = DIALECT_OF[tool_format].write([("quote", {"ticker": said})])
        assert said in written and calls_of(written, tool_format) == [("quote", {"ticker": said})]
    plain = json.dumps({"name": "quote", "arguments": {"ticker": said}})
    assert calls_of(f"<tool_call>\n{plain}\n</tool_call>", "hermes") == [("quote", {"ticker": said})]
    # Where thoughts are cut out first, the JSON is broken and not another one.
    assert read(plain.replace("name", "tool", 1), "json").calls == ()
    hidden = "<think>hm <tool_call>no</tool_call></think>\n<tool_call>\n" + plain + "\n</tool_call>"
    assert len(read(hidden, "hermes").calls) == 1 and read(hidden, "hermes").failures == ()


@pytest.mark.parametrize(
    ("key", "is_read"),
    [
        *[(key, True) for key in ("arguments", "parameters", "args", "params", "input", "kwargs")],
        *[(key, False) for key in ("argument", "Arguments", "data", "tag", "x")],
    ],
)
@pytest.mark.parametrize(
    ("tool_format", "form"),
    [
        ("auto", "<tool_call>\n{}\n</tool_call>"),
        ("hermes", "<tool_call>{}</tool_call>"),
        ("mistral", "[TOOL_CALLS] [{}]"),
        ("mistral", "[TOOL_CALLS] {}"),
        ("json", "```json\n{}\n```"),
        ("llama3", "<|python_tag|>{}"),
        ("llama3", "{}"),
        ("json", "{}"),
    ],
)
def test_nothing_of_a_call_is_dropped(tool_format: str, form: str, key: str, is_read: bool) -> None:
    name = "tool" if tool_format == "json" else "name"
    one = json.dumps({name: "delete_notes", key: {"ticker": "old"}})
    two = json.dumps({name: "delete_notes", "arguments": {"ticker": "old"}, f"{key}_": {"days": 5}})
    parsed = read(form.replace("{}", one), tool_format)
    if is_read:
        assert [(c.tool, c.arguments) for c in parsed.calls] == [("delete_notes", {"ticker": "old"})]
    else:
        assert parsed.calls == () and repr(key) in parsed.failures[0].reason
    parsed = read(form.replace("{}", two), tool_format)
    assert parsed.calls == () and repr(f"{key}_") in parsed.failures[0].reason


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ('{"name": "quote", "tool": "news", "arguments": {}}', "both 'name' and 'tool'"),
        (
            '{"name": "quote", "arguments": {}, "parameters": {"days": 5}}',
            "both 'arguments' and 'parameters'",
        ),
        ('{"name": "quote", "arguments": {"days": 5}, "arguments": {}}', "'arguments' is given twice"),
        ('{"name": "quote", "arguments": {"days": 5, "days": 6}}', "'days' is given twice"),
        ('{"name": "quote", "arguments": "{} and {\\"days\\": 5}"}', "text after the JSON of the arguments"),
        ('{"name": "quote", "id": "5"}', "'id'"),
        ('{"name": "quote", "type": "share", "arguments": {}}', "'type'"),
    ],
)
def test_a_call_that_says_two_things_is_a_failure(call: str, says: str) -> None:
    parsed = read(f"<tool_call>{call}</tool_call>", "hermes")
    assert parsed.calls == () and len(parsed.failures) == 1 and says in parsed.failures[0].reason


def test_an_id_and_a_kind_next_to_the_name_are_labels_unless_the_tool_takes_them() -> None:
    labelled = {"type": "function", "id": "call_1", "name": "quote", "arguments": {"days": 5}}
    written = f"<tool_call>{json.dumps(labelled)}</tool_call>"
    assert calls_of(written, "hermes") == [("quote", {"days": 5})]
    takes = {"properties": {"id": {"type": "string"}, "input": {"type": "object"}}}
    for odd in (labelled, {"name": "quote", "input": {"days": 5}}):
        text = f"<tool_call>{json.dumps(odd)}</tool_call>"
        parsed = parse_action(text, tool_format="hermes", schema_of=lambda _: takes)
        assert parsed.calls == () and len(parsed.failures) == 1


def test_calls_of_mistral_that_stand_behind_each_other_are_all_read() -> None:
    two = '{"name": "quote", "arguments": {"days": 5}} {"name": "news", "arguments": {}}'
    assert calls_of(f"[TOOL_CALLS] {two}", "mistral") == [("quote", {"days": 5}), ("news", {})]
    assert read(f"[TOOL_CALLS] {two} {{", "mistral").calls == ()


def test_a_message_to_one_tool_that_invokes_another_is_no_call() -> None:
    text = BY_HAND["atem"].replace("to=quote", "to=news")
    assert "is to news and invokes quote" in read(text, "atem").failures[0].reason


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
