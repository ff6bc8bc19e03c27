"""Played episodes as what a model would have seen and written: to imitate, or as shots before a question.

A shot stands in the context as earlier turns, after the system message. It is no part of the episode: neither
its record nor the reward has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.env.offer import OfferedTools, offer, search_tool
from mcpagent.env.parsing import (
    DIALECT_OF,
    ParsedAction,
    observations,
    parse_action,
    reads_back,
    rewritten,
)

if TYPE_CHECKING:
    from mcpagent.models.tokens import Renderer  # and with it jinja2, which policies of text do without


@dataclass(frozen=True)
class Shot:
    """A demonstration, and the tools that it could call, under the names that the model's format writes."""

    played: Trajectory
    tools: OfferedTools


def messages_with_shots(messages: Sequence[JsonObject], shots: Sequence[Shot]) -> list[JsonObject]:
    """Return a prompt with the shots as chat APIs hold them before its question."""
    *head, question = messages
    return [*head, *(said for n, shot in enumerate(shots) for said in _messages(shot.played, n)), question]


def prompt_ids_with_shots(
    messages: Sequence[JsonObject],
    schemas: Sequence[JsonObject],
    shots: Sequence[Shot],
    renderer: Renderer,
) -> tuple[int, ...]:
    """Return the tokens of the same, as of one episode with several questions: with the same system message
    and schemas all prompts begin alike, up to their question. Raises UserError if the template does not
    render it."""
    *head, question = messages
    asked = [*(shot.played.prompt[-1] for shot in shots), question]
    ids = list(renderer.prompt_ids([*head, asked[0]], schemas))
    for shot, following in zip(shots, asked[1:], strict=True):
        for part, _ in turn_segments(shot.played, renderer, shot.tools):
            ids += part
        said = {"role": "user", "content": following["content"]}
        ids += renderer.suffix_ids([said], ended_by=ids[-1])
    return tuple(ids)


def tools_of(task: Task, catalog: Mapping[str, ToolSpec], tool_format: str) -> OfferedTools:
    """Return all that an episode of the task may offer by its end, and the search."""
    names = task.offered_in(len(task.truth.user_turns))
    offered = offer(catalog, names, task_id=task.id, tool_format=tool_format)
    return OfferedTools([search_tool(catalog), *offered.tools])


def is_writable(trajectory: Trajectory, tools: OfferedTools, tool_format: str) -> bool:
    """Return whether `tool_format` reads all turns as it writes them: it may have no way to write a value,
    such as a text with the tag that ends texts, and what it wrote would teach another call."""
    turns = (parse_action(turn.completion.text) for turn in trajectory.turns)
    return all(
        reads_back(_calls(turn, tools), tool_format=tool_format, schema_of=tools.schema_of, text=turn.text)
        for turn in turns
    )


def turn_segments(
    trajectory: Trajectory, renderer: Renderer, tools: OfferedTools
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield the tokens after the prompt, and whether the policy wrote them: its turns in the model's dialect,
    and what the environment said after each but the last."""
    for turn in trajectory.turns:
        written = _written(turn.completion.text, renderer, tools)
        yield written, True
        if turn is not trajectory.turns[-1]:
            yield renderer.suffix_ids(observations_after(turn), ended_by=written[-1]), False


def observations_after(turn: Turn) -> list[JsonObject]:
    """Return the messages that a model sees after its turn."""
    return observations(turn.tool_results, turn.parse_failures, turn.user_message, calls=turn.tool_calls)


def _written(text: str, renderer: Renderer, tools: OfferedTools) -> tuple[int, ...]:
    """A scripted turn in the model's dialect. Arguments and answers are a dataset's: they spell no control
    token, only what the dialect writes around them is one."""
    parsed = parse_action(text)
    calls = _calls(parsed, tools)
    data: JsonObject = {"text": parsed.text, "calls": [[*call] for call in calls]}
    if not renderer.spells_control(json.dumps(data, ensure_ascii=False)):
        written = rewritten(text, renderer.tool_format, written_as=tools.written_as)
        return renderer.action_ids(written, calls=bool(calls))

    def write(data: JsonObject) -> str:
        return DIALECT_OF[renderer.tool_format].turn(
            data["text"], [(name, values) for name, values in data["calls"]]
        )

    return renderer.written_ids(data, write, calls=bool(calls))


def _calls(parsed: ParsedAction, tools: OfferedTools) -> list[tuple[str, JsonObject]]:
    return [(tools.written_as(call.tool), call.arguments) for call in parsed.calls]


def _messages(shot: Trajectory, number: int) -> Iterator[JsonObject]:
    yield {"role": "user", "content": shot.prompt[-1]["content"]}
    made = 0
    for turn in shot.turns:
        ids = [f"shot{number:02}{made + place:03}" for place in range(len(turn.tool_calls))]  # 9 letters
        made += len(ids)
        said: JsonObject = {"role": "assistant", "content": parse_action(turn.completion.text).text}
        if ids:
            said["tool_calls"] = [
                {
                    "id": name,
                    "type": "function",
                    "function": {
                        "name": call.written_as or call.tool,
                        "arguments": json.dumps(call.arguments),
                    },
                }
                for name, call in zip(ids, turn.tool_calls, strict=True)
            ]
        yield said
        for name, result in zip(ids, turn.tool_results, strict=True):
            yield {"role": "tool", "tool_call_id": name, "content": result.content}
