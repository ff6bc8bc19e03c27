"""The shots of an evaluation: gold plans of a few training tasks, played once on the real servers."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.env.offer import first_schemas
from mcpagent.errors import UserError
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import GoldPolicy
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.rollout.shots import Shot, is_writable, prompt_ids_with_shots, tools_of
from mcpagent.run.policies import ReadyPolicy
from mcpagent.storage.datasets import DiskList, TaskFile, find_dataset, read_tasks, split_file
from mcpagent.tools.setup import Tools

_MOST_FAILED = 8  # gold plans, before the servers or the tasks are at fault


def play_shots(
    count: int,
    *,
    tasks: TaskFile,
    config: TrainConfig,
    tools: Tools,
    settings: AgentSettings,
    ready: ReadyPolicy,
) -> tuple[Shot, ...]:
    """Return `count` successful demonstrations of the training split, of different tools and classes as far
    as there are such, and with an answer, whose form they show; the same for the same seed. Raises
    UserError."""
    path = _training_file(config, tasks.path, where=f"--shots {count}")
    asked = {task.id for task in tasks}  # some may be in both files
    training = DiskList(
        task
        for task in read_tasks(path)
        if task.truth.tool_sequence and not task.truth.user_turns and task.id not in asked
        if task.extra_info.get("split") != "heldout"
    )
    order = list(range(len(training)))
    random.Random(derive_seed(config.seed, "shots")).shuffle(order)
    order.sort(key=lambda place: training[place].truth.final_answer is None)
    tool_format = "auto" if ready.renderer is None else ready.renderer.tool_format
    shots: list[Shot] = []
    failed: list[str] = []
    for task in _diverse(training[place] for place in order):
        if len(shots) == count or len(failed) > _MOST_FAILED:
            break
        (played,) = tools.io.run(
            collect(
                attempts([task], per_task=1, seed=config.seed, label="shots"),
                policy=GoldPolicy([task]),
                tools=tools.pool,
                settings=AgentSettings(sampling=Sampling(), discovery=settings.discovery),
                deterministic=False,
            )
        )
        offered = tools_of(task, tools.pool.tools, tool_format)
        if played.is_success and is_writable(played, offered, tool_format):
            shots.append(Shot(played, offered))
        else:
            failed.append(task.id)
    if len(shots) < count:
        why = (
            f"the gold plans of {', '.join(failed)} fail, or {tool_format} cannot write them"
            if failed
            else "it has no more tasks of one question"
        )
        raise UserError(
            f"only {len(shots)} of {count} shots could be played: {why}",
            where=str(path),
            remedy=f"use fewer, or see why: mcpagent env check --data {shlex.quote(str(path))}",
        )
    return tuple(shots)


def refuse_overlong(
    shots: Sequence[Shot], task: Task, *, tools: Tools, settings: AgentSettings, ready: ReadyPolicy
) -> None:
    """Raise UserError if the model's template does not render the shots before the question of `task`, or
    they leave no room for an answer."""
    if ready.renderer is None:
        return
    schemas = first_schemas(
        tools.pool.tools,
        task.offered_tools,
        settings.discovery,
        task_id=task.id,
        tool_format=ready.renderer.tool_format,
    )
    prompt = [message.model_dump() for message in task.prompt]
    length = len(prompt_ids_with_shots(prompt, schemas, shots, ready.renderer))
    if ready.max_context is not None and length >= ready.max_context:
        raise UserError(
            f"the question of {task.id} takes {length} tokens with them, and the context has "
            f"{ready.max_context}",
            where=f"--shots {len(shots)}",
            remedy="use fewer, or give the model more room: --set rollout.max_context_tokens=N",
        )


def _training_file(config: TrainConfig, evaluated: Path, *, where: str) -> Path:
    """Return the training split beside the evaluated tasks, else the configured one. Raises UserError."""
    path = split_file(evaluated.parent, "train")
    if path is None and config.data.train is None:
        raise UserError(
            f"the shots are training tasks, and there is no train.jsonl next to {evaluated}",
            where=where,
            remedy="name it: --set data.train=FILE, or make one: mcpagent gen-data",
        )
    path = path or find_dataset(config.data.train, split="train")
    if path.resolve() == evaluated.resolve():
        raise UserError(
            f"the shots would be of the tasks that are evaluated ({path})",
            where=where,
            remedy="evaluate on other tasks: --data heldout.jsonl",
        )
    return path


def _diverse(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield the tasks whose tools and class none before has, then the others."""
    tools, classes = set[frozenset[str]](), set[str]()
    others: list[Task] = []
    for task in tasks:
        called = frozenset(f"{step.server}.{step.tool}" for step in task.truth.tool_sequence)
        kind = task.kind
        if called in tools or kind in classes:
            others.append(task)
            continue
        tools.add(called)
        classes.add(kind)
        yield task
    yield from others
