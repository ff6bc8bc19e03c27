"""Demonstrations: trajectories of the gold policy, as text and as samples for supervised training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.env.episode import observations
from mcpagent.env.offer import offer
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
            action = rewritten(turn.completion.text, renderer.tool_format)
            segments.append((renderer.action_ids(action), True))
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


def _observations(turn: Turn) -> list[JsonObject]:
    return observations(turn.tool_results, turn.parse_failures, turn.user_message)
