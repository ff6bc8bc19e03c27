"""`mcpagent eval judge-check`: a judge measured against the rule on a user's own tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import RunError, UserError
from mcpagent.judge.check import JudgeCheck, check_judge, judge_cases
from mcpagent.run.episodes import open_episodes, open_tasks
from mcpagent.run.policies import open_judge
from mcpagent.run.rollout import check_out, play
from mcpagent.storage.atomic import write_text
from mcpagent.storage.packages import provenance
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.tools.io_thread import IOThread


def measure_judge(
    config: TrainConfig,
    *,
    data: Path | None = None,
    episodes: Path | None = None,
    out: Path | None = None,
    console: Console | None = None,
) -> JudgeCheck:
    """Ask the judge of `config` about episodes of the tasks of `data` whose outcome the rule can tell: stored
    `episodes`, else those of the gold plans, played now, and as many with something wrong in them. Raises
    UserError before anything is asked, RunError if the judge gives no verdict at all."""
    console = console or Console()
    if out is not None:
        check_out(out, ".json")
    if config.judge.model is None:
        raise UserError(
            "no judge is named",
            where="judge.model",
            remedy="name a model that judges: --set judge.model=NAME",
        )
    with open_tasks(config, data) as tasks:
        by_id = {task.id: task for task in tasks}
        facts: JsonObject = {"path": str(tasks.path), "sha256": tasks.sha256, "tasks": len(tasks)}
    played = _gold(config, data, console) if episodes is None else list(read_trajectories(episodes))
    cases = judge_cases(by_id, played, are_gold=episodes is None)
    successes = sum(case.is_success for case in cases)
    if successes in (0, len(cases)):
        raise UserError(
            f"the rule tells {successes} successes and {len(cases) - successes} failures among the episodes "
            f"of {len(by_id)} tasks, and a judge is measured on both",
            where=str(episodes) if episodes is not None else "--data",
            remedy="name successes and failures (--episodes FILE) of tasks that the rule alone can grade "
            "(--data): of the method rule, or with a final_answer",
        )
    with (
        IOThread() as io,
        open_judge(config, io=io, on_note=console.note) as opened,
        console.progress("Judging", total=len(cases)) as advance,
    ):
        assert opened is not None
        asking = check_judge(
            opened.judge,
            cases,
            tasks=facts,
            concurrency=config.api.max_in_flight,
            on_done=advance,
            seed=config.seed,
        )
        check = io.run(asking)
        update = {"spend": opened.budget.as_json(), "versions": provenance()}
        check = check.model_copy(update=update)
    if check.unscored == check.n_episodes:
        fault = next(iter(check.faults))
        raise RunError(f"the judge gave no verdict on any of {check.n_episodes} episodes: {fault}")
    if out is not None:
        write_text(out, check.model_dump_json(indent=1) + "\n")
    return check


def _gold(config: TrainConfig, data: Path | None, console: Console) -> Sequence[Trajectory]:
    """Return the episodes of the gold plans; the judge is not asked about them as they are played."""
    quiet = config.model_copy(update={"algorithm": "sft", "judge": type(config.judge)()})
    with open_episodes(quiet, policy="gold", samples=1, console=console, data=data) as setup:
        return play(setup, samples=1, label="judge check", console=console)
