"""Which dialect a model calls tools in: the one that its chat template writes, or the one that it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Message, Task
from mcpagent.core.tools import ToolSpec, chat_schema
from mcpagent.env.dialects.contract import Dialect
from mcpagent.env.parsing import DIALECT_OF, LOADED_DIALECTS, parse_action
from mcpagent.errors import UserError
from mcpagent.models.conversation import calling_message, thought, tool_message
from mcpagent.models.tokens import Renderer, refuse_forgery, with_schemas

# A call that is hard to read back: text that looks like a number, quotes, line breaks, every JSON type.
GOLD_TOOL = ToolSpec(
    server="mcpagent",
    name="gold_tool",
    description="Not offered: how a call is written is learnt from it.",
    input_schema={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "code": {"type": "string"},
            "count": {"type": "integer"},
            "price": {"type": "number"},
            "sure": {"type": "boolean"},
            "deep": {"type": "object"},
            "list": {"type": "array", "items": {}},
        },
    },
)
GOLD_ARGUMENTS: JsonObject = {
    "text": 'one "quoted" line\n\u00fcber <b>two</b>',
    "code": "5",
    "count": 5,
    "price": -2.5,
    "sure": True,
    "deep": {"a": [1, "x", True], "b": None},
    "list": ["y", 2],
}
_SCHEMA = chat_schema(GOLD_TOOL.name, GOLD_TOOL)
_MAX_SHOWN = 160  # characters of a call in an error


def open_renderer(tokenizer: Any, *, name: str, tool_format: str = "auto") -> Renderer:
    """The renderer of a model, once its template has passed: suffixes do not depend on the history, a call
    that the template writes reads back as the same call, control tokens cannot be forged.

    `auto` is the dialect that the template writes; where it writes none, the model is told to write Hermes.
    Another one is taught in the system message, in place of what the template would say of tools. Raises
    UserError with the reason and the remedy.
    """
    if tool_format not in DIALECT_OF:
        raise UserError(
            f"there is no tool format {tool_format!r}",
            where="rollout.tool_format",
            remedy=f"use one of {', '.join(DIALECT_OF)}",
        )
    renderer = Renderer(tokenizer, name=name)
    from_template = _own_dialect(renderer, is_needed=tool_format == "auto")
    framed = None if from_template is None or from_template.read_turn is None else from_template.name
    if framed is not None and tool_format not in ("auto", framed):
        raise UserError(
            f"the chat template of {name} makes a turn of messages of their own ({framed}), in which "
            f"{tool_format} has no place",
            where="rollout.tool_format",
            remedy=f"use auto or {framed}",
        )
    if tool_format == "auto":
        # Hermes with its two sisters, so that nothing that a model writes for want of better is lost.
        dialect = (
            DIALECT_OF["auto"] if from_template is None or from_template.name == "hermes" else from_template
        )
        is_told = renderer.has_tools and (from_template is not None or _teaches(renderer))
    else:
        dialect = DIALECT_OF[tool_format]
        is_told = renderer.has_tools and from_template is not None and from_template.name == tool_format
    dialect_renderer = Renderer(
        tokenizer,
        name=name,
        tool_format=dialect.name,
        instruction=None if is_told else dialect.instruction,
    )
    refuse_forgery(dialect_renderer)
    return dialect_renderer


def read_back(written: str) -> Dialect | None:
    """The dialect that reads `written`, a call of the gold tool, as that call and nothing else."""
    for dialect in LOADED_DIALECTS.values():
        parsed = parse_action(written, tool_format=dialect.name, schema_of=lambda _: GOLD_TOOL.input_schema)
        calls = [(call.tool, call.arguments) for call in parsed.calls]
        if calls == [(GOLD_TOOL.name, GOLD_ARGUMENTS)] and not parsed.failures and not parsed.text:
            return dialect
    return None


def gold_conversation(
    renderer: Renderer, tools: Sequence[JsonObject]
) -> tuple[list[int], list[JsonObject], list[JsonObject]]:
    """A conversation of three turns, two of them calls, each after a thought where the template knows them:
    its tokens as an episode keeps them, its messages as an API would hold them, and the tools offered."""
    offered = [*tools, _SCHEMA]
    dialect = DIALECT_OF[renderer.tool_format]
    called = (GOLD_TOOL.name, GOLD_ARGUMENTS)
    writes = renderer.instruction is None and renderer.call_text(*called, offered) is not None
    calling = calling_message(called) if writes else {"role": "assistant", "content": dialect.write([called])}
    answer: JsonObject = {"role": "assistant", "content": "It is 5."}
    messages: list[JsonObject] = [{"role": "user", "content": "What is it worth?"}]
    kept = list(renderer.prompt_ids(messages, offered))
    for turn, said in (
        (calling, tool_message("5", name=GOLD_TOOL.name)),
        (calling, tool_message("still 5", name=GOLD_TOOL.name)),
        (answer, {"role": "user", "content": "Thanks."}),
    ):
        turn, text = _gold_turn(renderer, turn, offered)
        kept += renderer.action_ids(text, calls=turn is not answer and said["role"] == "tool")
        kept += renderer.suffix_ids([said], ended_by=kept[-1])
        messages += [turn, said]
    return kept, messages, offered


def _gold_turn(renderer: Renderer, turn: JsonObject, offered: Sequence[JsonObject]) -> tuple[JsonObject, str]:
    """The turn after a thought where the template knows them, and as the template has a model write it."""
    thinking = {**turn, **thought("I look.")} if renderer.has_reasoning else turn
    for message in (thinking, turn):
        text = renderer.turn_text(message, offered)
        if text is not None:
            return message, text
    # The generation header opens a thought that the rendering of a message does not have (DeepSeek).
    return turn, str(turn["content"]) or renderer.call_text(GOLD_TOOL.name, GOLD_ARGUMENTS, offered) or ""


def rewritten(text: str, tool_format: str) -> str:
    """A turn of a scripted policy, which writes Hermes, in another dialect."""
    parsed, dialect = parse_action(text), DIALECT_OF[tool_format]
    if tool_format in ("auto", "hermes") or (not parsed.calls and dialect.read_turn is None):
        return text
    return dialect.turn(parsed.text, [(call.tool, call.arguments) for call in parsed.calls])


def _own_dialect(renderer: Renderer, *, is_needed: bool) -> Dialect | None:
    """The dialect that the template itself writes, None where it writes no calls. Raises UserError where
    `is_needed` and nothing here reads what it writes."""
    written = renderer.call_text(GOLD_TOOL.name, GOLD_ARGUMENTS, [_SCHEMA])
    if written is None:
        return None
    dialect = read_back(written)
    if dialect is None and is_needed:
        raise UserError(
            f"the chat template of {renderer.name} writes a tool call in a form that no parser here reads: "
            f"{written[:_MAX_SHOWN]!r}",
            where="rollout.tool_format",
            remedy="--tool-format hermes (or --set rollout.tool_format=hermes) teaches another form in the "
            "system message instead",
        )
    return dialect


def _teaches(renderer: Renderer) -> bool:
    """Whether what the template says of tools shows Hermes' tags (the embedded model's does)."""
    return "<tool_call>" in renderer.render_text([{"role": "user", "content": "question"}], [_SCHEMA])


def bake_tools(task: Task, schemas: Sequence[JsonObject], *, tool_format: str = "auto") -> Task:
    """The task with the schemas of its tools in its system message, and how they are called: for trainers
    that pass no tools to the chat template. An episode of it then shows no schemas beside them."""
    if task.has_baked_tools or not schemas:
        return task
    prompt = [message.model_dump() for message in task.prompt]
    taught = with_schemas(prompt, schemas, DIALECT_OF[tool_format].instruction)
    return task.model_copy(
        update={
            "prompt": tuple(Message.model_validate(message) for message in taught),
            "extra_info": {**task.extra_info, "baked_tools": True},
        }
    )
