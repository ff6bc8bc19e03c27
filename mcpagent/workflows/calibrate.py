"""How difficult are tasks for a policy? Measured, by playing them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.storage.jsonl import write_jsonl
from mcpagent.workflows.rollout import play
from mcpagent.workflows.stage import open_stage


def calibrate_file(
    path: Path, *, config: TrainConfig, policy: str, samples: int, console: Console
) -> JsonObject:
    """Play each task of `path` `samples` times and leave those that were solved sometimes but not always: the
    others give no gradient. Each record kept says in `extra_info.difficulty` how often it was solved.

    An attempt that could not be scored does not count; a task without a scored attempt is not kept."""
    with open_stage(config, policy=policy, samples=samples, console=console, data=path) as stage:
        tasks = list(stage.tasks)
        outcomes: defaultdict[str, list[bool]] = defaultdict(list)
        for trajectory in play(stage, samples=samples, label="calibrate", console=console):
            if trajectory.is_success is not None:
                outcomes[trajectory.task_id].append(trajectory.is_success)
    kept = [
        _with_difficulty(task, done, policy)
        for task in tasks
        if 0 < sum(done := outcomes[task.id]) < len(done)
    ]
    write_jsonl(path, kept)
    scored = [done for done in outcomes.values() if done]
    return {
        "path": str(path),
        "policy": policy,
        "samples": samples,
        "tasks": len(tasks),
        "kept": len(kept),
        "always": sum(all(done) for done in scored),
        "never": sum(not any(done) for done in scored),
        "unscored": len(tasks) - len(scored),
    }


def _with_difficulty(task: Task, outcomes: list[bool], policy: str) -> Task:
    solved = sum(outcomes)
    difficulty = {
        "policy": policy,
        "successes": solved,
        "attempts": len(outcomes),
        "p": round(solved / len(outcomes), 4),
    }
    return task.model_copy(update={"extra_info": {**task.extra_info, "difficulty": difficulty}})
