"""How difficult are tasks for a policy? Measured, by playing them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.rollout.collector import attempts, collect
from mcpagent.storage.jsonl import write_jsonl
from mcpagent.workflows.rollout import episode_progress
from mcpagent.workflows.stage import open_stage


def calibrate_file(
    path: Path, *, config: TrainConfig, policy: str, samples: int, console: Console
) -> JsonObject:
    """Play each task of `path` `samples` times and leave those that were solved sometimes but not always: the
    others give no gradient. Each record kept says in `extra_info.difficulty` how often it was solved.

    An attempt that could not be scored does not count; a task without a scored attempt is not kept."""
    with open_stage(config, policy=policy, samples=samples, console=console, data=path) as stage:
        tasks = list(stage.tasks)
        wanted = list(attempts(tasks, per_task=samples, seed=config.seed, label="calibrate"))
        with episode_progress(console, "Episodes", total=len(wanted)) as on_done:
            played = stage.tools.io.run(
                collect(
                    wanted,
                    policy=stage.ready.policy,
                    tools=stage.tools.pool,
                    settings=stage.settings,
                    renderer=stage.ready.renderer,
                    concurrency=stage.concurrency,
                    deterministic=stage.ready.is_deterministic,
                    on_done=on_done,
                )
            )
    outcomes: defaultdict[str, list[bool]] = defaultdict(list)
    for trajectory in played:
        if trajectory.is_success is not None:
            outcomes[trajectory.task_id].append(trajectory.is_success)
    kept = [
        task.model_copy(
            update={
                "extra_info": {
                    **task.extra_info,
                    "difficulty": {"policy": policy, "successes": sum(done), "attempts": len(done)},
                }
            }
        )
        for task in tasks
        if 0 < sum(done := outcomes[task.id]) < len(done)
    ]
    write_jsonl(path, kept)
    return {
        "path": str(path),
        "policy": policy,
        "samples": samples,
        "tasks": len(tasks),
        "kept": len(kept),
        "always": sum(bool(done) and all(done) for done in outcomes.values()),
        "never": sum(bool(done) and not any(done) for done in outcomes.values()),
        "unscored": sum(not outcomes[task.id] for task in tasks),
    }
