"""What a chat template leaves out of a tool's schema, and that the model is told it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec, chat_schema
from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.models.chat_template import left_out, render_chat
from tests.models.templates import NAMES_PROPERTIES, NAMES_TOOLS

QUERY = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}, "of": {"type": "string"}},
}
SAID = [{"role": "user", "content": "hi"}]


@cache
def tokenizer(template: str | None = None) -> Any:
    made = train_tokenizer([], vocab_size=0, catalog_hash="")
    made.chat_template = template or made.chat_template
    return made


def tool(**properties: JsonObject) -> JsonObject:
    schema = {"type": "object", "properties": properties, "$defs": {"Query": QUERY}}
    return chat_schema("look", ToolSpec(server="s", name="look", description="Looks.", input_schema=schema))


def prompt(template: str | None, of: JsonObject) -> str:
    return render_chat(tokenizer(template), SAID, [of], generation=True, name="x")


@pytest.mark.parametrize(
    "parameter",
    [
        {"anyOf": [{"$ref": "#/$defs/Query"}, {"type": "null"}]},
        {"oneOf": [{"$ref": "#/$defs/Query"}, {"type": "object", "properties": {"other": {}}}]},
        {"allOf": [{"$ref": "#/$defs/Query"}]},
        {"type": "array", "items": {"$ref": "#/$defs/Query"}},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/Query"}},
    ],
)
def test_what_a_template_does_not_show_of_a_parameter_stands_in_the_description(
    parameter: JsonObject,
) -> None:
    odd, plain = tool(query=parameter, day={"type": "string"}), tool(day={"type": "string"})
    names, still = left_out(tokenizer(NAMES_PROPERTIES), odd, name="x")
    assert set(names) >= {"text", "limit", "of"} and still == []
    told = json.dumps({"properties": {"query": odd["function"]["parameters"]["properties"]["query"]}})
    assert f"look: Looks. Parameters as a JSON schema: {told} (" in prompt(NAMES_PROPERTIES, odd)
    assert "JSON schema" not in prompt(NAMES_PROPERTIES, plain)
    # A template that shows schemas as JSON shows them whole.
    assert left_out(tokenizer(), odd, name="x") == ([], [])
    assert "Parameters as" not in prompt(None, odd)


def test_a_reference_is_shown_as_what_it_leads_to() -> None:
    assert left_out(tokenizer(NAMES_PROPERTIES), tool(query={"$ref": "#/$defs/Query"}), name="x") == ([], [])
    shown = prompt(NAMES_PROPERTIES, tool(query={"$ref": "#/$defs/Query"}))
    assert "(query:object{text:string;limit:integer;of:string;};)" in shown


def test_a_parameter_that_a_template_drops_for_its_name_is_missed_though_the_word_is_there() -> None:
    """The tool has a `type` of its own; only a rendering without the nested one tells."""
    query = {"type": "object", "properties": {"type": {"type": "string"}, "x": {"type": "string"}}}
    nested = tool(query=query, type={"type": "string"})
    assert left_out(tokenizer(NAMES_PROPERTIES), nested, name="x") == (["type"], [])
    assert '{"properties": {"query": ' in prompt(NAMES_PROPERTIES, nested)


def test_a_template_without_a_place_for_descriptions_lacks_it_even_so() -> None:
    parameter = {"anyOf": [{"$ref": "#/$defs/Query"}, {"type": "null"}]}
    names, still = left_out(tokenizer(NAMES_TOOLS), tool(query=parameter), name="x")
    assert "limit" in names and "limit" in still
