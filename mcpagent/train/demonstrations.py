"""Demonstrations: trajectories of the gold policy, as text and as samples for supervised training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.env.dialects.known import TOOL_FORMATS
from mcpagent.env.episode import observations
from mcpagent.env.offer import offer
from mcpagent.env.parsing import parse_action
from mcpagent.env.tool_format import rewritten
from mcpagent.models.tokens import Renderer
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import GoldPolicy
from mcpagent.rollout.agent import AgentSettings
from mcpagent.rollout.collector import attempts, collect
from mcpagent.tools.contract import ToolProvider
from mcpagent.train.samples import TrainSample, sample_from_segments


async def demonstrate(
    tasks: Sequence[Task],
    *,
    tools: ToolProvider,
    seed: int,
    stop_early: float = 0.0,
    wrong_tool: float = 0.0,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play each task once with the gold policy, through the real environment; real calls, real results.

    With `stop_early` and `wrong_tool` the demonstrations are of mixed quality (see `GoldPolicy`).
    """
    return await collect(
        list(attempts(tasks, per_task=1, seed=seed, label="demonstrations")),
        policy=GoldPolicy(tasks, stop_early=stop_early, wrong_tool=wrong_tool),
        tools=tools,
        settings=AgentSettings(sampling=Sampling()),
        deterministic=False,
        on_done=on_done,
    )


def samples(
    trajectories: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    *,
    catalog: Mapping[str, ToolSpec],
    renderer: Renderer,
) -> Iterator[TrainSample]:
    """The token sequences that a model would have seen and written: what the environment appended is masked
    out, what the policy wrote carries the loss."""
    for trajectory in trajectories:
        task = tasks[trajectory.task_id]
        schemas = offer(catalog, task.offered_tools, task_id=task.id).schemas
        segments: list[tuple[tuple[int, ...], bool]] = [
            (renderer.prompt_ids(trajectory.prompt, schemas), False)
        ]
        for turn in trajectory.turns:
            segments.append((_written(turn.completion.text, renderer), True))
            if turn is not trajectory.turns[-1]:
                segments.append((renderer.suffix_ids(_observations(turn)), False))
        yield sample_from_segments(segments)


def texts(
    trajectories: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    *,
    catalog: Mapping[str, ToolSpec],
    renderer: Renderer,
) -> Iterator[str]:
    """The same sequences as text, for training a tokenizer."""
    for trajectory in trajectories:
        task = tasks[trajectory.task_id]
        schemas = offer(catalog, task.offered_tools, task_id=task.id).schemas
        text = renderer.render_text(trajectory.prompt, schemas)
        for turn in trajectory.turns:
            text += rewritten(turn.completion.text, renderer.tool_format)
            text += renderer.suffix_text(_observations(turn)) if turn is not trajectory.turns[-1] else ""
        yield text


def _written(text: str, renderer: Renderer) -> tuple[int, ...]:
    """A scripted turn in the model's dialect. Arguments and answers are a dataset's: they spell no control
    token, only what the dialect writes around them is one."""
    parsed = parse_action(text)
    data: JsonObject = {"text": parsed.text, "calls": [[c.tool, c.arguments] for c in parsed.calls]}
    if not renderer.spells_control(json.dumps(data, ensure_ascii=False)):
        return renderer.action_ids(rewritten(text, renderer.tool_format))

    def write(data: JsonObject) -> str:
        calls = TOOL_FORMATS[renderer.tool_format].write([(name, values) for name, values in data["calls"]])
        return "\n".join(part for part in (data["text"], calls) if part)

    return renderer.written_ids(data, write)


def _observations(turn: Turn) -> list[JsonObject]:
    return observations(turn.tool_results, turn.parse_failures, turn.user_message)
