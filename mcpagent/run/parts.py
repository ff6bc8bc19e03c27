"""The parts of a GRPO loop of one's own, from its configuration: `recipes/grpo_minimal.py` is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.models.tokens import Renderer
from mcpagent.rollout.collector import AgentSettings
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.episodes import open_tasks
from mcpagent.storage.datasets import TaskFile, find_dataset
from mcpagent.tools.setup import Tools, open_tools
from mcpagent.train.learner.build import build_learner
from mcpagent.train.learner.learner import Learner
from mcpagent.train.load import load
from mcpagent.train.objective.grading import GradeSettings
from mcpagent.train.sampler import open_sampler
from mcpagent.train.settings import grade_settings, update_settings
from mcpagent.train.start import settle_start
from mcpagent.train.task_order import TaskOrder, order_of
from mcpagent.train.update import UpdateSettings
from mcpagent.train.weight_sync import RolloutEngine


@dataclass(frozen=True, kw_only=True)
class LoopParts:
    """The started parts of a loop. `sampler` has the learner's weights of its last `push`; `concurrency` is
    how many episodes run at once."""

    tasks: TaskFile
    order: TaskOrder
    tools: Tools
    learner: Learner
    sampler: RolloutEngine
    renderer: Renderer
    agent: AgentSettings
    grading: GradeSettings
    update: UpdateSettings
    concurrency: int


@contextmanager
def open_parts(config: TrainConfig, folder: Path) -> Iterator[LoopParts]:
    """Open the training tasks, the servers, the model and what samples with its weights, which are handed
    over in `folder`. Raises UserError."""
    loaded = load(config, start=settle_start(config, folder))
    training, rollout = config.training, config.rollout
    with (
        open_tasks(config, find_dataset(config.data.train, split="train")) as tasks,
        open_tools(config.tools) as tools,
    ):
        total = config.total_steps(n_tasks=len(tasks))
        learner = build_learner(loaded, config, total_optimizer_steps=total)
        slots = min(rollout.num_envs, training.batch_size * rollout.group_size)
        with open_sampler(
            loaded, config, model=learner.model, slots=slots, weights=folder / "weights"
        ) as sampler:
            yield LoopParts(
                tasks=tasks,
                order=order_of(tasks, batch_size=training.batch_size, seed=config.seed),
                tools=tools,
                learner=learner,
                sampler=sampler,
                renderer=loaded.renderer,
                agent=agent_settings(config, max_context=loaded.max_context),
                grading=grade_settings(config),
                update=update_settings(config),
                concurrency=slots,
            )
