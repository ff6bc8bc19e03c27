"""Run a policy on tasks and summarise: the one evaluation that training, `eval` and quickstart share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.policy.contract import Policy
from mcpagent.rollout.agent import AgentSettings, ContextRenderer
from mcpagent.rollout.collector import attempts, collect
from mcpagent.tools.contract import ToolProvider

# What a training run measures of itself, as the stems of files under eval/.
UNTRAINED, BEST = "untrained", "best"


async def evaluate(
    tasks: Sequence[Task],
    *,
    policy: Policy,
    tools: ToolProvider,
    settings: AgentSettings,
    renderer: ContextRenderer | None,
    samples: int = 1,
    seed: int = 0,
    concurrency: int = 256,
    deterministic: bool = True,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """`samples` attempts at each task with the fixed form of the reward; the seeds are those of evaluation,
    which training never uses. `deterministic` is what `rollout.deterministic` comes to, as in training."""
    return await collect(
        list(attempts(tasks, per_task=samples, seed=seed, label="evaluation")),
        policy=policy,
        tools=tools,
        settings=settings,
        renderer=renderer,
        concurrency=concurrency,
        deterministic=deterministic,
        on_done=on_done,
    )
