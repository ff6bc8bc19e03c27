"""Inspect evaluates any provider's model on tasks of mcpagent: our servers and tools, our verdict.

    inspect eval examples/bridges/inspect_eval.py -T data=data/mine --model openai/gpt-5

A sample is an episode, and its score has the reward's terms. An episode in which the machinery failed is
unscored, as Inspect counts it: never wrong.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo, ToolParams

from mcpagent.bridges.host import Host, HostedEpisode, open_host
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import StopReason
from mcpagent.core.values import referenced

_T = TypeVar("_T")
_VERDICT = "mcpagent"  # in a sample's store: what the scorer reads
_CUT = {"max_tokens": StopReason.MAX_TOKENS, "model_length": StopReason.CONTEXT_OVERFLOW}
_DEPTH = 8  # of references in a schema that are written out


@task
def mcp_tasks(data: str, split: str = "heldout", overrides: str = "", max_tokens: int | None = None) -> Task:
    """Return the tasks of one split of a dataset folder. `overrides` are settings, separated by commas.
    Raises UserError."""
    opened = ExitStack()
    atexit.register(opened.close)
    settings = [part for part in overrides.split(",") if part]
    host = opened.enter_context(open_host(Path(data), overrides=settings))
    tasks = host.tasks(split)
    samples = [
        Sample(
            id=each.id,
            input=[_message(m.role, m.content) for m in each.prompt],
            metadata={"place": place, "complexity": each.truth.complexity},
        )
        for place, each in enumerate(tasks)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=f"{Path(data).name}/{split}"),
        solver=play(host, split),
        scorer=verdict(),
        config=GenerateConfig(max_tokens=max_tokens),
    )


@solver
def play(host: Host, split: str) -> Solver:
    """Play the sample's episode to its end with the model that is evaluated."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = host.episode(host.tasks(split)[state.metadata["place"]], attempt=state.epoch - 1)
        try:
            await _on(host, episode.start())
            while not episode.done:
                await _one_turn(host, episode, state)
            graded = await _on(host, episode.trajectory())
        finally:
            await _on(host, episode.close())
        terms = {term.name: term.value for term in graded.reward_terms}
        metadata = {**terms, "errors": list(graded.errors), "reward": graded.reward}
        state.store.set(_VERDICT, {"success": graded.is_success, "metadata": metadata})
        state.completed = True
        return state

    return solve


async def _one_turn(host: Host, episode: HostedEpisode, state: TaskState) -> None:
    tools = [_tool_info(schema["function"]) for schema in episode.schemas]
    output = await get_model().generate(state.messages, tools=tools)
    message = output.message
    state.output = output
    state.messages.append(message)
    if (reason := _CUT.get(output.stop_reason)) is not None:
        await _on(host, episode.stop(reason))
        return
    calls = message.tool_calls or []
    asked = [(call.function, call.arguments) for call in calls]
    out = await _on(host, episode.act(message.text, asked))
    seen = list(out.observations) if out is not None else []
    for call in calls:
        content = str(seen.pop(0)["content"]) if seen and seen[0]["role"] == "tool" else ""
        state.messages.append(ChatMessageTool(content=content, tool_call_id=call.id, function=call.function))
    state.messages.extend(_message("user", str(each["content"])) for each in seen)


@scorer(metrics=[accuracy(), stderr()])
def verdict() -> Scorer:
    """1 for a success, 0 for a failure, unscored if the machinery failed. The reward and its terms are in the
    metadata."""

    async def score(state: TaskState, target: Target) -> Score:
        graded: JsonObject = state.store.get(_VERDICT) or {"success": None, "metadata": {}}
        metadata = graded["metadata"]
        if graded["success"] is None:
            said = "; ".join(metadata.get("errors", ())) or "the episode did not end"
            return Score.unscored(explanation=said, metadata=metadata)
        return Score(value=float(graded["success"]), answer=state.output.completion, metadata=metadata)

    return score


async def _on(host: Host, job: Coroutine[Any, Any, _T]) -> _T:
    """Run a job on the loop of the host's servers, and wait for it on this one."""
    return await asyncio.wrap_future(host.tools.io.submit(job))


def _message(role: str, content: str) -> ChatMessage:
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    return kinds[role](content=content)


def _tool_info(function: JsonObject) -> ToolInfo:
    schema = _written_out(function["parameters"], function["parameters"], _DEPTH)
    fields = {key: schema[key] for key in ("properties", "required", "additionalProperties") if key in schema}
    return ToolInfo(
        name=function["name"],
        description=function.get("description", ""),
        parameters=ToolParams.model_validate(fields),
    )


def _written_out(schema: Any, root: JsonObject, depth: int) -> Any:
    """A JSON schema with its own references written out and `oneOf` as `anyOf`: Inspect's schema type knows
    neither. What it cannot hold is still checked when the tool is called."""
    if isinstance(schema, list):
        return [_written_out(item, root, depth) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = referenced(schema["$ref"], root)
        return _written_out(target, root, depth - 1) if depth > 0 and isinstance(target, dict) else {}
    renamed = {"anyOf" if key == "oneOf" else key: value for key, value in schema.items()}
    return {key: _written_out(value, root, depth) for key, value in renamed.items()}
