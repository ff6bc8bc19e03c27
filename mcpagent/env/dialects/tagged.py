"""Calls between tags: Hermes, Qwen, GLM and the XML form."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.core.values import encode_model_json
from mcpagent.env.dialects.dialect import (
    Dialect,
    NotACall,
    ParsedCalls,
    decode_json,
    each_call,
    end_of,
    skip_space,
    text_of,
    typed_values,
)
from mcpagent.policy.scripted import call_text

_TOOL_CALL = ("<tool_call>", "</tool_call>")


@dataclass(frozen=True, kw_only=True)
class TaggedBlock:
    """Reads a call whose values stand between tags. `name` and `key` match the tags around theirs and hold
    them as group 1; a value is what stands between a `key` and a `value_end`, which must say what a call goes
    on with: a value may hold the closing tag. Only the tool's schema tells of which type a value is."""

    name: re.Pattern[str]
    key: re.Pattern[str]
    value_end: re.Pattern[str]
    closing: re.Pattern[str]
    # What a broken call is told: how the name, the value of a key and the rest of a call are written.
    name_form: str
    value_form: str
    rest_form: str

    def read(self, body: str, start: int, position: int, parsed: ParsedCalls) -> int:
        """Read what follows <tool_call>: a `contract.BlockReader`."""
        try:
            name, arguments, end = self.call(body, position, parsed)
        except NotACall as problem:
            return parsed.fail_block(body, start, position, _TOOL_CALL, str(problem))
        parsed.add(body[start:end], name, arguments)
        return end

    def call(self, body: str, position: int, parsed: ParsedCalls) -> tuple[str, JsonObject, int]:
        """Return the name and the arguments of the call at `position`, and where it ends. Raises NotACall."""
        name = self.name.match(body, position)
        if name is None:
            raise NotACall(f"expected {self.name_form}")
        position = name.end()
        values: dict[str, str] = {}
        while (opening := self.key.match(body, position)) is not None:
            key = opening[1].strip()
            closing = self.value_end.search(body, opening.end())
            if closing is None:
                raise NotACall(f"{self.value_form.format(key)} is never closed")
            if key in values:
                raise NotACall(f"{self.value_form.format(key)} is given twice")
            values[key] = body[opening.end() : closing.start()]
            position = closing.end()
        closed = self.closing.match(body, position)
        if closed is None:
            raise NotACall(f"expected {self.rest_form}")
        called = name[1].strip()
        return called, typed_values(values, parsed.schema_of(called)), closed.end()


_CLOSING = re.compile(r"\s*</tool_call>")


def _read_hermes(body: str, start: int, position: int, parsed: ParsedCalls) -> int:
    """Decode the JSON before looking for the closing tag: an argument may hold the tag's text."""
    try:
        value, end = decode_json(body, position)
    except NotACall as problem:
        return parsed.fail_block(body, start, position, _TOOL_CALL, str(problem))
    closing = _CLOSING.match(body, end)
    if closing is None:
        return parsed.fail_block(body, start, end, _TOOL_CALL, "text after the JSON")
    parsed.add_object(body[start : closing.end()], value)
    return closing.end()


HERMES = Dialect(
    name="hermes", write=each_call(call_text), blocks={"<tool_call>": _read_hermes}, strays=("</tool_call>",)
)


_NAME = re.compile(r"\s*<([^<>/][^<>]*)>")


def _read_xml(body: str, start: int, position: int, parsed: ParsedCalls) -> int:
    name = _NAME.match(body, position)
    if name is None:
        end = end_of(body, position, "</tool>")
        parsed.fail(body[start:end], "expected <tool><name>{...}</name></tool>")
        return end
    try:
        value, end = decode_json(body, name.end())
    except NotACall as problem:
        return parsed.fail_block(body, start, position, ("<tool>", "</tool>"), str(problem))
    at = end
    for tag in (f"</{name[1]}>", "</tool>"):
        at = skip_space(body, at)
        if not body.startswith(tag, at):
            end = end_of(body, end, "</tool>")
            parsed.fail(body[start:end], f"expected </{name[1]}></tool> after the arguments")
            return end
        at += len(tag)
    parsed.add(body[start:at], name[1], value)
    return at


def _write_xml(name: str, arguments: JsonObject) -> str:
    return f"<tool><{name}>{encode_model_json(arguments)}</{name}></tool>"


XML = Dialect(name="xml", write=each_call(_write_xml), blocks={"<tool>": _read_xml}, strays=("</tool>",))


_GLM_BLOCK = TaggedBlock(
    name=re.compile(r"\s*([^<>{}\n]+)"),
    key=re.compile(r"\s*<arg_key>((?:[^<]|<(?!/?arg_))*)</arg_key>\s*<arg_value>"),
    value_end=re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))"),
    closing=re.compile(r"\s*</tool_call>"),
    name_form="the name of a tool after <tool_call>",
    value_form="the <arg_value> of {}",
    rest_form="<arg_key> or </tool_call>",
)


def _write_glm(name: str, arguments: JsonObject) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{text_of(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


GLM = Dialect(
    name="glm",
    write=each_call(_write_glm),
    blocks={"<tool_call>": _GLM_BLOCK.read},
    strays=("</tool_call>", "<arg_key>", "<arg_value>"),
)


_QWEN3_CODER_BLOCK = TaggedBlock(
    name=re.compile(r"\s*<function=([^<>\n]+)>"),
    # One line break on either side of a value belongs to the form; only before one may a key end with >.
    key=re.compile(r"\s*<parameter=([^>\n]+(?:>+(?=>\n))?)>\n?"),
    value_end=re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))"),
    closing=re.compile(r"\s*</function>\s*</tool_call>"),
    name_form="<function=name> after <tool_call>",
    value_form="<parameter={}>",
    rest_form="</function></tool_call> after the parameters",
)


def _write_qwen3_coder(name: str, arguments: JsonObject) -> str:
    values = "".join(f"<parameter={k}>\n{text_of(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


QWEN3_CODER = Dialect(
    name="qwen3_coder",
    write=each_call(_write_qwen3_coder),
    blocks={"<tool_call>": _QWEN3_CODER_BLOCK.read},
    strays=("</tool_call>", "<function=", "</function>"),
)
