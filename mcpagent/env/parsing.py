"""From the text of a model step to calls, parse failures and plain text, in each dialect by its name; and
from what came of them to the messages that the model sees."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mcpagent.core import registry
from mcpagent.core.input_schemas import parameter_names
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ParseFailure, ToolCall, ToolResult
from mcpagent.env.dialects.dialect import Dialect, ParsedCalls
from mcpagent.env.dialects.json_forms import JSON
from mcpagent.env.dialects.tagged import HERMES, XML

# The forms that need no template of their own: what scripted policies and the embedded model write.
AUTO = Dialect(
    name="auto",
    write=HERMES.write,
    blocks={**HERMES.blocks, **XML.blocks},
    strays=(*HERMES.strays, *XML.strays),
    read_text=JSON.read_text,
)
LOADED_DIALECTS: Mapping[str, Dialect] = {name: registry.DIALECTS.load(name) for name in registry.DIALECTS}
DIALECT_OF: Mapping[str, Dialect] = {"auto": AUTO, **LOADED_DIALECTS}


@dataclass(frozen=True, kw_only=True)
class ParsedAction:
    """`thinking` is None if there is none; `text` is what remains without thinking and calls, trimmed."""

    calls: tuple[ToolCall, ...] = ()
    failures: tuple[ParseFailure, ...] = ()
    text: str = ""
    thinking: str | None = None


def parse_action(
    action: str,
    *,
    first_id: int = 0,
    tool_format: str = "auto",
    schema_of: Callable[[str], JsonObject | None] = lambda _: None,
) -> ParsedAction:
    """Parse one model step. Never raises, and takes time linear in the length of `action`.

    Calls get the ids `c{first_id}`, `c{first_id + 1}`, ... `schema_of` gives the input schema of a tool by
    the name that the model uses: dialects without types in the text take them from there.
    """
    action = action.encode("utf-8", "replace").decode()  # lone surrogates cannot be stored or sent
    dialect = DIALECT_OF[tool_format]
    parsed = ParsedCalls(next_id=first_id, schema_of=schema_of)
    if dialect.read_turn is not None:
        thinking, text = dialect.read_turn(action, parsed)
    else:
        thinking, text = _parse_blocks(action, dialect, parsed)
        if not parsed and dialect.read_text is not None:
            text = dialect.read_text(text, parsed)
    return ParsedAction(
        calls=tuple(parsed.calls), failures=tuple(parsed.failures), text=text.strip(), thinking=thinking
    )


def rewritten(text: str, tool_format: str, *, written_as: Callable[[str], str] = lambda name: name) -> str:
    """Return a turn of a scripted policy, which writes Hermes, in another dialect, and the name of each tool
    as it is `written_as` there."""
    parsed, dialect = parse_action(text), DIALECT_OF[tool_format]
    if tool_format in ("auto", "hermes") or (not parsed.calls and dialect.read_turn is None):
        return text
    return dialect.turn(parsed.text, [(written_as(call.tool), call.arguments) for call in parsed.calls])


def _parse_blocks(body: str, dialect: Dialect, parsed: ParsedCalls) -> tuple[str | None, str]:
    """Return the thinking and the text around thoughts and calls, in one pass: a thought that a call's
    arguments spell is theirs, and a call within a thought is none."""
    opening, closing = dialect.thinking
    thoughts: list[str] = []
    before, closed, rest = body.partition(closing)
    if closed and opening not in before:  # the template has opened the thought in the prompt
        thoughts.append(before)
        body = rest
    tags = _tags(dialect.name)
    text: list[str] = []
    position = 0
    while match := tags.search(body, position):
        text.append(body[position : match.start()])
        if match[0] == opening:
            # One that never ends was cut off, and holds no action.
            end = body.find(closing, match.end())
            end = len(body) if end < 0 else end
            thoughts.append(body[match.end() : end])
            text.append("\n")  # in its place: JSON with a line break in a text is broken, not another JSON
            position = end + len(closing)
            continue
        if parsed.is_full:
            parsed.fail(body[match.start() :], "too many broken calls: the rest was not read")
            position = len(body)
            break
        read = dialect.blocks.get(match[0])
        if read is None:
            # The text before belongs to the failure: it is what was meant to be inside.
            parsed.fail(body[position : match.end()], f"{match[0]} without an opening tag")
            position = match.end()
        else:
            position = read(body, match.start(), match.end(), parsed)
    text.append(body[position:])
    thinking = "\n".join(thought.strip() for thought in thoughts) if thoughts else None
    return thinking, "".join(text)


@cache
def _tags(name: str) -> re.Pattern[str]:
    dialect = DIALECT_OF[name]
    tags = sorted({*dialect.blocks, *dialect.strays, dialect.thinking[0]}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, tags)))


def reads_back(
    calls: Sequence[tuple[str, JsonObject]],
    *,
    tool_format: str,
    schema_of: Callable[[str], JsonObject | None] = lambda _: None,
    text: str = "",
) -> bool:
    """Return whether the dialect reads what it writes, `text` and then `calls`, as that and nothing else."""
    parsed = parse_action(
        DIALECT_OF[tool_format].turn(text, calls), tool_format=tool_format, schema_of=schema_of
    )
    # As JSON, since 1, 1.0 and true are equal; the order of names does not count.
    read = json.dumps([[call.tool, call.arguments] for call in parsed.calls], sort_keys=True)
    return (read, parsed.failures, parsed.text) == (json.dumps([*calls], sort_keys=True), (), text.strip())


def unwritable(schema: JsonObject, tool_format: str) -> tuple[str, ...]:
    """Return the parameters, at any depth of a tool's schema, that the dialect would not read as it writes
    them."""
    names = tuple(parameter_names(schema))

    def are_read(*names: str) -> bool:
        return reads_back([("tool", {name: {name: "x"} for name in names})], tool_format=tool_format)

    if are_read(*names):
        return ()
    return tuple(name for name in names if not are_read(name)) or names


def error_content(message: str) -> str:
    """Return an error of the environment as the model sees it."""
    return json.dumps({"error": message}, ensure_ascii=False)


def observations(
    results: Sequence[ToolResult],
    failures: Sequence[ParseFailure],
    user_message: str | None,
    *,
    calls: Sequence[ToolCall] = (),
) -> list[JsonObject]:
    """Return the messages that a model sees after its step. A result has the `name` by which `calls`
    called the tool: some chat templates write it."""
    names = {call.id: call.written_as for call in calls}
    seen: list[JsonObject] = [
        {"role": "tool", "content": r.content, "name": names.get(r.call_id) or r.tool} for r in results
    ]
    texts = [error_content(f"not a tool call: {failure.reason}") for failure in failures]
    seen += [{"role": "tool", "content": text} for text in texts]
    return seen if user_message is None else [*seen, {"role": "user", "content": user_message}]
