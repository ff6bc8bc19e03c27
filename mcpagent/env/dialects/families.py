"""Calls as single families write them: Gemma 4, LFM2 (Python), gpt-oss (Harmony) and Muse (ATEM)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.values import MAX_JSON_DEPTH, encode_model_json, escape_marks
from mcpagent.env.dialects.dialect import (
    Dialect,
    NotACall,
    ParsedCalls,
    decode_json,
    each_call,
    skip_space,
    text_of,
)
from mcpagent.env.dialects.tagged import TaggedBlock


@dataclass(frozen=True, kw_only=True)
class _Notation:
    """A family's way to write values: the quotes of its texts, and the function that reads one there."""

    quotes: tuple[str, ...]
    read_text: Callable[[str, int], tuple[str, int]]


_BARE_KEY = re.compile(r"\s*((?:[^:{},<]|<(?!\|))+):")
_PLAIN_KEY = re.compile(r"[\w$@.\[\]-]+")  # what a template writes without quotes, and so a model
_WORD = re.compile(r"\s*(true|false|null|True|False|None)\b")
_WORDS: dict[str, Any] = {"true": True, "false": False, "True": True, "False": False}
_NUMBER = re.compile(r"\s*-?[0-9]")

# Gemma 4: <|tool_call>call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>, without escapes.
_QUOTE = '<|"|>'
_GEMMA_OPENING, _GEMMA_END = "<|tool_call>", "<tool_call|>"
_GEMMA_NAME = re.compile(r"\s*call:([^{}<>]+)\{")


def _read_gemma(body: str, start: int, position: int, parsed: ParsedCalls) -> int:
    name = _GEMMA_NAME.match(body, position)
    try:
        if name is None:
            raise NotACall("expected call:name{...} after <|tool_call>")
        arguments, end = _fields(body, name.end(), 1, _GEMMA)
        end = skip_space(body, end)
        if not body.startswith(_GEMMA_END, end):
            raise NotACall(f"expected {_GEMMA_END} after the arguments")
    except NotACall as problem:
        return parsed.fail_block(body, start, position, (_GEMMA_OPENING, _GEMMA_END), str(problem))
    end += len(_GEMMA_END)
    parsed.add(body[start:end], name[1], arguments)
    return end


def _fields(body: str, position: int, depth: int, notation: _Notation) -> tuple[JsonObject, int]:
    """Return what stands between { and }, and the position after that. Raises NotACall."""
    fields: JsonObject = {}
    position = skip_space(body, position)
    while not body.startswith("}", position):
        if fields:
            position = _comma(body, position)
        if body.startswith(notation.quotes, position):
            key, position = notation.read_text(body, position)
            position = skip_space(body, position)
            if not body.startswith(":", position):
                raise NotACall(f"expected : after the key {key!r}")
            position += 1
        elif (match := _BARE_KEY.match(body, position)) is not None:
            key, position = match[1].strip(), match.end()
        else:
            raise NotACall("expected key:value")
        if key in fields:
            raise NotACall(f"{key} is given twice")
        fields[key], position = _value(body, position, depth, notation)
        position = skip_space(body, position)
    return fields, position + 1


def _value(body: str, position: int, depth: int, notation: _Notation) -> tuple[Any, int]:
    """Return a value `depth` containers deep, and the position after it. Raises NotACall."""
    if depth > MAX_JSON_DEPTH:
        raise NotACall("nested too deeply")
    position = skip_space(body, position)
    if body.startswith(notation.quotes, position):
        return notation.read_text(body, position)
    if body.startswith("{", position):
        return _fields(body, position + 1, depth + 1, notation)
    if not body.startswith("[", position):
        return _scalar(body, position, notation)
    items: list[Any] = []
    position = skip_space(body, position + 1)
    while not body.startswith("]", position):
        if items:
            position = _comma(body, position)
        item, position = _value(body, position, depth + 1, notation)
        items.append(item)
        position = skip_space(body, position)
    return items, position + 1


def _comma(body: str, position: int) -> int:
    if not body.startswith(",", position):
        raise NotACall("expected , between two values")
    return skip_space(body, position + 1)


def _scalar(body: str, position: int, notation: _Notation) -> tuple[Any, int]:
    """Return a number, a boolean or nothing, in the words of JSON or of Python. Raises NotACall."""
    if (word := _WORD.match(body, position)) is not None:
        return _WORDS.get(word[1]), word.end()
    if _NUMBER.match(body, position) is not None:
        return decode_json(body, position)
    quote = notation.quotes[0]
    raise NotACall(f"expected {quote}text{quote}, a number, true, false, null, a list or an object")


def _gemma_text(body: str, position: int) -> tuple[str, int]:
    start = position + len(_QUOTE)
    end = body.find(_QUOTE, start)
    if end < 0:
        raise NotACall(f"a text begins with {_QUOTE} and never ends")
    return body[start:end], end + len(_QUOTE)


_GEMMA = _Notation(quotes=(_QUOTE,), read_text=_gemma_text)


def _write_gemma(name: str, arguments: JsonObject) -> str:
    return f"{_GEMMA_OPENING}call:{name}{_gemma_of(arguments)}{_GEMMA_END}"


def _gemma_key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else _gemma_of(key)


def _gemma_of(value: Any) -> str:
    match value:
        case str():
            return f"{_QUOTE}{value}{_QUOTE}"
        case dict():
            fields = (f"{_gemma_key(key)}:{_gemma_of(item)}" for key, item in value.items())
            return "{" + ",".join(fields) + "}"
        case list():
            return "[" + ",".join(map(_gemma_of, value)) + "]"
        case _:
            return json.dumps(value)


GEMMA4 = Dialect(
    name="gemma4",
    write=each_call(_write_gemma, between=""),
    blocks={_GEMMA_OPENING: _read_gemma},
    strays=(_GEMMA_END,),
    thinking=("<|channel>", "<channel|>"),
)


# LFM2: <|tool_call_start|>[name(key='text', other=1), second()]<|tool_call_end|>, as Python writes it.
_LIST_OPENING, _LIST_END = "<|tool_call_start|>", "<|tool_call_end|>"
_PYTHON_NAME = re.compile(r"\s*([^()\[\]{},='\"]+)\(\s*")
_PYTHON_KEY = re.compile(r"\s*([^(){},='\"]+)=\s*")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[\s\S])")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
# A text that is an argument ends at a quote after which a call goes on, so that it may hold line breaks and
# its own quote; one within a list or an object ends at the first quote of its kind.
_ARGUMENT_END = {
    quote: re.compile(rf"\\[\s\S]|{quote}(?=\s*(?:,\s*(?:\*\*\{{|[^(){{}},='\"]+=)|\)\s*[,\]]))")
    for quote in "'\""
}
_QUOTE_END = {quote: re.compile(rf"\\[\s\S]|{quote}") for quote in "'\""}


def _read_python(body: str, start: int, position: int, parsed: ParsedCalls) -> int:
    calls: list[tuple[str, JsonObject]] = []
    try:
        position = skip_space(body, position)
        if not body.startswith("[", position):
            raise NotACall("expected [name(key=value)]")
        position = skip_space(body, position + 1)
        while not body.startswith("]", position):
            if calls:
                position = _comma(body, position)
            name = _PYTHON_NAME.match(body, position)
            if name is None:
                raise NotACall("expected name(key=value)")
            arguments, position = _python_arguments(body, name.end())
            calls.append((name[1], arguments))
            position = skip_space(body, position)
        end = skip_space(body, position + 1)
        if not body.startswith(_LIST_END, end):
            raise NotACall(f"expected {_LIST_END} after the list")
        if not calls:
            raise NotACall("the list of calls is empty")
    except NotACall as problem:
        return parsed.fail_block(body, start, position, (_LIST_OPENING, _LIST_END), str(problem))
    end += len(_LIST_END)
    for called, arguments in calls:
        parsed.add(body[start:end], called, arguments)
    return end


def _python_arguments(body: str, position: int) -> tuple[JsonObject, int]:
    """Return the arguments up to the closing bracket, and the position after that. Raises NotACall."""
    arguments: JsonObject = {}
    while not body.startswith(")", position):
        if arguments:
            position = _comma(body, position)
        if body.startswith("**{", position):  # names that are no names of Python
            fields, position = _python_value(body, position + 2)
        elif (key := _PYTHON_KEY.match(body, position)) is None:
            raise NotACall("expected key=value")
        elif body.startswith(_PYTHON.quotes, key.end()):
            text, position = _python_text(body, key.end(), _ARGUMENT_END)
            fields = {key[1].strip(): text}
        else:
            value, position = _python_value(body, key.end())
            fields = {key[1].strip(): value}
        if twice := arguments.keys() & fields.keys():
            raise NotACall(f"{min(twice)} is given twice")
        arguments |= fields
        position = skip_space(body, position)
    return arguments, position + 1


def _python_value(body: str, position: int) -> tuple[Any, int]:
    try:  # templates write containers as JSON, some as Python
        return decode_json(body, position)
    except NotACall:
        return _value(body, position, 1, _PYTHON)


def _python_text(
    body: str, position: int, ends: Mapping[str, re.Pattern[str]] = _QUOTE_END
) -> tuple[str, int]:
    """Return a text and where it ends. Raises NotACall."""
    closing = ends[body[position]]
    at = position + 1
    while (match := closing.search(body, at)) is not None:
        if not match[0].startswith("\\"):
            return _ESCAPE.sub(_unescaped, body[position + 1 : match.start()]), match.end()
        at = match.end()
    raise NotACall("a text is never closed")


def _unescaped(match: re.Match[str]) -> str:
    escape = match[0][1:]
    if len(escape) > 1:
        code = int(escape[1:], 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
    if escape in "'\"\\":
        return escape
    return _ESCAPES.get(escape, match[0])


_PYTHON = _Notation(quotes=("'", '"'), read_text=_python_text)


def _write_python(calls: Sequence[tuple[str, JsonObject]]) -> str:
    if not calls:
        return ""
    written = (f"{name}({', '.join(_python_arguments_of(arguments))})" for name, arguments in calls)
    return f"{_LIST_OPENING}[{', '.join(written)}]{_LIST_END}"


def _python_arguments_of(arguments: JsonObject) -> Iterator[str]:
    plain = {key: value for key, value in arguments.items() if _PLAIN_KEY.fullmatch(key)}
    yield from (f"{key}={_python_of(value)}" for key, value in plain.items())
    if rest := {key: value for key, value in arguments.items() if key not in plain}:
        yield f"**{encode_model_json(rest)}"


def _python_of(value: Any) -> str:
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        return f"'{escape_marks(text)}'"
    return encode_model_json(value) if isinstance(value, list | dict) else str(value)


PYTHONIC = Dialect(
    name="pythonic", write=_write_python, blocks={_LIST_OPENING: _read_python}, strays=(_LIST_END,)
)


# gpt-oss and Muse: a turn is a row of messages: <|start|>assistant to=NAME<|message|>...
_START, _MESSAGE = "<|start|>", "<|message|>"
_MESSAGE_END = re.compile(r"<\|(?:end|call|return|eom|eot)\|>")
_RECIPIENT = re.compile(r"\bto=([^\s<>]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z_]+)")


@dataclass(frozen=True, kw_only=True)
class _Framed:
    """One message of a turn. `raw` is all of it."""

    raw: str
    recipient: str
    channel: str
    body: str


def _framed(turn: str, end_of_call: Callable[[str, int], int]) -> Iterator[_Framed]:
    """Yield the messages of a turn; the header of the first began in the prompt. `end_of_call` is where the
    arguments end that begin at a position, so that what they spell ends no message."""
    position = header_end = 0
    while position >= 0:
        if 0 <= header_end <= position:  # each place is looked for once
            header_end = turn.find(_MESSAGE, position)
        following = turn.find(_START, position)
        is_text = header_end < 0 or 0 <= following < header_end  # without a header
        header, body_start = "", position
        if not is_text:
            header, body_start = turn[position:header_end], header_end + len(_MESSAGE)
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        searched = end_of_call(turn, body_start) if recipient else body_start
        following = turn.find(_START, searched)
        stop = len(turn) if following < 0 else following
        end = None if is_text else _MESSAGE_END.search(turn, searched, stop)
        yield _Framed(
            raw=turn[position:stop],
            recipient=recipient[1] if recipient else "",
            channel=channel[1] if channel else "",
            body=turn[body_start : end.start() if end else stop],
        )
        position = following if following < 0 else following + len(_START)


def _joined(parts: Sequence[str]) -> str:
    return "\n".join(part.strip() for part in parts if part.strip())


def _end_of_json(turn: str, position: int) -> int:
    try:
        return decode_json(turn, position)[1]
    except NotACall:
        return position


def _read_harmony(turn: str, parsed: ParsedCalls) -> tuple[str | None, str]:
    if _MESSAGE not in turn:
        return None, turn
    thoughts: list[str] = []
    texts: list[str] = []
    for message in _framed(turn, _end_of_json):
        if parsed.is_full:
            break
        if message.recipient:
            name = message.recipient.removeprefix("functions.")
            try:
                arguments, end = decode_json(message.body, 0)
                if end < len(message.body.rstrip()):
                    raise NotACall("text after the JSON")
            except NotACall as problem:
                parsed.fail(message.raw, str(problem))
            else:
                parsed.add(message.raw, name, arguments)
        elif message.channel == "analysis":
            thoughts.append(message.body)
        else:
            texts.append(message.body)
    return (_joined(thoughts) if thoughts else None), _joined(texts)


def _write_harmony(name: str, arguments: JsonObject) -> str:
    return f" to=functions.{name}<|channel|>commentary json<|message|>{encode_model_json(arguments)}"


def _frame_harmony(text: str, calls: str) -> str:
    if not calls:
        return f"<|channel|>final<|message|>{text}"
    return f"<|channel|>commentary<|message|>{text}<|end|><|start|>assistant{calls}" if text else calls


HARMONY = Dialect(
    name="harmony",
    write=each_call(_write_harmony, between="<|call|><|start|>assistant"),
    read_turn=_read_harmony,
    frame=_frame_harmony,
)

_ATEM_OPENING = re.compile(r'\s*<atem:function_calls>\s*<atem:invoke name="([^"]+)">')
_ATEM_BLOCK = TaggedBlock(
    name=_ATEM_OPENING,
    key=re.compile(r'\s*<atem:parameter name="([^"]*)">'),
    value_end=re.compile(r"</atem:parameter>(?=\s*(?:<atem:parameter |</atem:invoke>))"),
    closing=re.compile(r"\s*</atem:invoke>\s*(?:</atem:function_calls>\s*)?\Z"),
    name_form='<atem:function_calls><atem:invoke name="...">',
    value_form='<atem:parameter name="{}">',
    rest_form="</atem:invoke></atem:function_calls> after the parameters",
)


def _end_of_atem(turn: str, position: int) -> int:
    if not _ATEM_OPENING.match(turn, position):
        return position
    end = turn.find("</atem:invoke>", position)
    return position if end < 0 else end


def _read_atem(turn: str, parsed: ParsedCalls) -> tuple[str | None, str]:
    if _MESSAGE not in turn:
        return None, turn
    thoughts: list[str] = []
    texts: list[str] = []
    for message in _framed(turn, _end_of_atem):
        if parsed.is_full:
            break
        if message.recipient == "self":
            thoughts.append(message.body)
        elif message.recipient in ("", "user") and not _ATEM_OPENING.match(message.body):
            texts.append(message.body)
        else:
            try:
                name, arguments, _ = _ATEM_BLOCK.call(message.body, 0, parsed)
                if message.recipient not in ("", "user", name):
                    raise NotACall(f"the message is to {message.recipient} and invokes {name}")
                parsed.add(message.raw, name, arguments)
            except NotACall as problem:
                parsed.fail(message.raw, str(problem))
    return (_joined(thoughts) if thoughts else None), _joined(texts)


def _write_atem(name: str, arguments: JsonObject) -> str:
    parameters = "".join(
        f'<atem:parameter name="{key}">{text_of(value)}</atem:parameter>\n'
        for key, value in arguments.items()
    )
    invoke = f'<atem:invoke name="{name}">\n{parameters}</atem:invoke>'
    return f" to={name}<|message|><atem:function_calls>\n{invoke}\n</atem:function_calls>"


def _frame_atem(text: str, calls: str) -> str:
    said = f" to=user<|message|>{text}" if text or not calls else ""
    return f"{said}<|eom|><|start|>assistant{calls}" if said and calls else said or calls


ATEM = Dialect(
    name="atem",
    write=each_call(_write_atem, between="<|eom|><|start|>assistant"),
    read_turn=_read_atem,
    frame=_frame_atem,
)
