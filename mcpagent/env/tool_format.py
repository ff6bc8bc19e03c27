"""Which dialect a model calls tools in: the one that its chat template writes, or the one that it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec, chat_schema
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.parsing import DIALECT_OF, LOADED_DIALECTS, parse_action
from mcpagent.errors import UserError
from mcpagent.models.conversation import calling_message, thought, tool_message
from mcpagent.models.probe import trained_format
from mcpagent.models.tokens import Renderer, refuse_forgery

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
    """Return the renderer of a model, once its template has passed: suffixes do not depend on the history, a
    call that the template writes reads back as the same call, control tokens cannot be forged.

    `auto` is the dialect that the model `name` was trained in, if a run made it, else that which the template
    writes; if it writes none, the model is told to write Hermes.
    Another one is taught in the system message, in place of what the template would say of tools. Raises
    UserError with the reason and the remedy.
    """
    if tool_format not in DIALECT_OF:
        raise UserError(
            f"there is no tool format {tool_format!r}",
            where="rollout.tool_format",
            remedy=f"use one of {', '.join(DIALECT_OF)}",
        )
    if tool_format == "auto":
        tool_format = trained_format(name) or tool_format
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


# Questions whose answer is one call, to see in which format a model would write it.
QUESTIONS: Sequence[tuple[str, ToolSpec]] = tuple(
    (question, ToolSpec(server="mcpagent", name=name, description=description, input_schema=schema))
    for question, name, description, argument in (
        ("What is the weather in Oslo?", "get_weather", "Get the weather of a city.", "city"),
        ("Which items are in order A-1207?", "get_order", "Get an order by its id.", "order_id"),
        ("Who wrote the novel Middlemarch?", "find_book", "Find a book by its title.", "title"),
    )
    for schema in [{"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}]
)
_HARDLY = -10.0  # nats: a token that is sampled once in 22,000 times was never trained
_EASILY = -7.0  # nats: what another format must have to be taken in place of the template's
_PLAIN = ("json", "xml", "hermes")  # what text can write without tokens of its own


@dataclass(frozen=True, kw_only=True)
class FormatChoice:
    """The format that a model is told to call tools in. `openings` has, for each format that was measured,
    the logprob (nats) of the least likely token with which a call begins; `why` is for the user if the
    template does not decide."""

    tool_format: str
    openings: Mapping[str, float] = field(default_factory=dict)
    why: str | None = None


Score = Callable[[Sequence[int], Sequence[int]], Sequence[float]]


def measured_format(tokenizer: Any, *, name: str, score: Score) -> FormatChoice:
    """Return what `auto` means for a model whose weights are at hand: the format that a run trained it in; if
    none did, that of its template, unless the model hardly ever begins a call so and easily begins one of
    another format, under that format's own rendering. `score` gives the logprobs of tokens after others.
    Raises what `open_renderer` does."""
    of_template = open_renderer(tokenizer, name=name)
    template = of_template.tool_format
    if DIALECT_OF[template].read_turn is not None or trained_format(name) is not None:
        return FormatChoice(tool_format=template)
    openings = {template: _opening(of_template, score)}
    if openings[template] >= _HARDLY:
        return FormatChoice(tool_format=template, openings=openings)
    for other in _PLAIN:
        if other != template and not (other == "hermes" and template == "auto"):
            openings[other] = _opening(open_renderer(tokenizer, name=name, tool_format=other), score)
    best = max(openings, key=lambda each: openings[each])
    hardly = f"the template of {name} asks for {_begins(template)!r}, of which the model holds a token at "
    hardly += f"e^{openings[template]:.0f}: never trained"
    if openings[best] < _EASILY:
        why = f"{hardly}, and it begins no other call easily ({best}: e^{openings[best]:.1f})"
        return FormatChoice(tool_format=template, openings=openings, why=why)
    why = f"{hardly}; tool format {best} is used, which it begins at e^{openings[best]:.1f}"
    return FormatChoice(tool_format=best, openings=openings, why=why)


def _begins(tool_format: str) -> str:
    """Return what a call of a format begins with, whatever tool it is of."""
    return DIALECT_OF[tool_format].write([("TOOL", {})]).partition("TOOL")[0]


def opening_ids(renderer: Renderer) -> tuple[int, ...]:
    """Return the tokens with which a call begins, whatever tool it is of."""
    turn = DIALECT_OF[renderer.tool_format].turn
    of_two = (renderer.action_ids(turn("", [(name, {})])) for name in ("get_item", "list_items"))
    shared = [ours for ours, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*of_two, strict=False))]
    return tuple(shared[:-1] or shared)  # the last may be merged with the names of other tools


def _opening(renderer: Renderer, score: Score) -> float:
    """Return the logprob of the least likely token with which a call begins, the mean over the questions."""
    opening = opening_ids(renderer)
    logprobs = [
        min(score(renderer.prompt_ids([{"role": "user", "content": question}], schemas), opening))
        for question, tool in QUESTIONS
        for schemas in [[chat_schema(tool.name, tool)]]
    ]
    return sum(logprobs) / len(logprobs)


def read_back(written: str) -> Dialect | None:
    """Return the dialect that reads `written`, a call of the gold tool, as that call and nothing else."""
    for dialect in LOADED_DIALECTS.values():
        parsed = parse_action(written, tool_format=dialect.name, schema_of=lambda _: GOLD_TOOL.input_schema)
        calls = [(call.tool, call.arguments) for call in parsed.calls]
        if calls == [(GOLD_TOOL.name, GOLD_ARGUMENTS)] and not parsed.failures and not parsed.text:
            return dialect
    return None


def gold_conversation(
    renderer: Renderer, tools: Sequence[JsonObject]
) -> tuple[list[int], list[JsonObject], list[JsonObject]]:
    """Return a conversation of three turns, two of them calls, each after a thought if the template knows
    them: its tokens as an episode keeps them, its messages as an API would hold them, and the tools
    offered."""
    offered = [*tools, _SCHEMA]
    dialect = DIALECT_OF[renderer.tool_format]
    called = (GOLD_TOOL.name, GOLD_ARGUMENTS)
    writes = renderer.instruction is None and renderer.format.call_text(*called, offered) is not None
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
    """Return the turn after a thought if the template knows them, and as the template has a model write
    it."""
    thinking = {**turn, **thought("I look.")} if renderer.format.has_reasoning else turn
    for message in (thinking, turn):
        text = renderer.turn_text(message, offered)
        if text is not None:
            return message, text
    # The generation header opens a thought that the rendering of a message does not have (DeepSeek).
    call = renderer.format.call_text(GOLD_TOOL.name, GOLD_ARGUMENTS, offered)
    return turn, str(turn["content"]) or call or ""


def _own_dialect(renderer: Renderer, *, is_needed: bool) -> Dialect | None:
    """Return the dialect that the template itself writes, None if it writes no calls. Raises UserError if
    `is_needed` and nothing here reads what it writes."""
    written = renderer.format.call_text(GOLD_TOOL.name, GOLD_ARGUMENTS, [_SCHEMA])
    if written is None:
        return None
    dialect = read_back(written)
    if dialect is None and is_needed:
        raise UserError(
            f"the chat template of {renderer.name} writes a tool call in a form that no parser here reads: "
            f"{written[:_MAX_SHOWN]!r}",
            where="rollout.tool_format",
            remedy="--set rollout.tool_format=hermes teaches another form in the system message instead",
        )
    return dialect


def _teaches(renderer: Renderer) -> bool:
    """Return whether what the template says of tools shows Hermes' tags (the embedded model's does)."""
    return "<tool_call>" in renderer.render_text([{"role": "user", "content": "question"}], [_SCHEMA])
