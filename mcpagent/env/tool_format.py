"""Which dialect a model calls tools in: the one that its chat template writes, or the one that it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec, chat_schema
from mcpagent.env.dialects.contract import Dialect
from mcpagent.env.parsing import DIALECT_OF, LOADED_DIALECTS, parse_action
from mcpagent.errors import UserError
from mcpagent.models.tokens import Renderer, calling_message, refuse_forgery, tool_message

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
    written = None
    if renderer.instruction is None:
        written = renderer.call_text(GOLD_TOOL.name, GOLD_ARGUMENTS, offered)
    if written is None:
        written = DIALECT_OF[renderer.tool_format].write([(GOLD_TOOL.name, GOLD_ARGUMENTS)])
        calling: JsonObject = {"role": "assistant", "content": written}
    else:
        calling = calling_message(GOLD_TOOL.name, GOLD_ARGUMENTS)
    answer: JsonObject = {"role": "assistant", "content": "It is 5."}
    messages: list[JsonObject] = [{"role": "user", "content": "What is it worth?"}]
    kept = list(renderer.prompt_ids(messages, offered))
    for turn, text, said in (
        (calling, written, tool_message("5", name=GOLD_TOOL.name)),
        (calling, written, tool_message("still 5", name=GOLD_TOOL.name)),
        (answer, "It is 5.", {"role": "user", "content": "Thanks."}),
    ):
        thought = ""
        if renderer.has_reasoning:
            is_open = renderer.tokenizer.decode(kept).rstrip().endswith("<think>")
            thought = f"{'' if is_open else '<think>' + chr(10)}I look.\n</think>\n\n"
            turn = {**turn, "reasoning_content": "I look."}
        kept += [*renderer.action_ids(thought + text), *renderer.suffix_ids([said])]
        messages += [turn, said]
    return kept, messages, offered


def rewritten(text: str, tool_format: str) -> str:
    """A turn of a scripted policy, which writes Hermes, in another dialect."""
    parsed = parse_action(text)
    if tool_format in ("auto", "hermes") or not parsed.calls:
        return text
    written = DIALECT_OF[tool_format].write([(call.tool, call.arguments) for call in parsed.calls])
    return f"{parsed.text}\n{written}" if parsed.text else written


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
