"""Whether a configuration's judge and the tasks of a run go together, and whether it was measured on them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import counted
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.evaluate.stored import read_document
from mcpagent.judge.check import JudgeCheck, has_label
from mcpagent.judge.model import JudgeRules
from mcpagent.reward.judge import JUDGED_METHODS, is_left_to_judge
from mcpagent.storage.checkpoints import sha256_of
from mcpagent.storage.datasets import TaskFile


def judge_rules(config: TrainConfig) -> JudgeRules | None:
    """Return what the judge of a configuration is asked; None if it names none."""
    judge = config.judge
    return None if judge.model is None else JudgeRules(model=judge.model, base_url=judge.base_url)


def judge_note(config: TrainConfig, tasks: TaskFile) -> str | None:
    """Return what a user is told if tasks and judge do not go together. Raises UserError if tasks could
    not be scored."""
    model, left = config.judge.model, _tasks_left(tasks)
    if model is not None:
        return None if left else f"judge.model is {model}, but no task of {tasks.path} leaves it anything"
    if left and config.algorithm != "sft":  # which learns from demonstrations, not from scores
        raise UserError(
            f"{counted(len(left), 'task')}, such as {left[0].id}, {'is' if len(left) == 1 else 'are'} "
            "left to a judge, and judge.model names none",
            where=str(tasks.path),
            remedy="name a model that judges: --set judge.model=NAME",
        )
    return None


def require_judge_check(config: TrainConfig, tasks: TaskFile) -> JsonObject | None:
    """Return the record that the judge of a run is good enough on its tasks; None if no judge is asked.
    Raises UserError if there is no such record, or it says otherwise."""
    rules = judge_rules(config)
    if rules is None or not _tasks_left(tasks):
        return None
    path, least = config.judge.check, config.judge.min_kappa
    command = f"mcpagent eval judge-check --data {tasks.path} --set judge.model={rules.model}"
    again = f"measure it: {command} --out judge-check.json"
    if path is None:
        problem = f"no check says how well {rules.model} judges these tasks"
        remedy = f"{again}; then train with --set judge.check=judge-check.json"
        raise UserError(problem, where="judge.check", remedy=remedy)
    check = read_document(
        Path(path),
        JudgeCheck,
        wrong="is not a check of a judge",
        remedy="name a file that mcpagent eval judge-check wrote with --out",
    )
    if check.judge.get("identity") != rules.identity:
        facts = asdict(rules).items()
        changed = ", ".join(name for name, value in facts if check.judge.get(name) != value)
        raise UserError(f"is of another judge, not the run's (other {changed})", where=path, remedy=again)
    if any(map(has_label, tasks)) and check.tasks["sha256"] != tasks.sha256:
        problem = f"is of other tasks ({check.tasks['path']}) than the run is trained on"
        raise UserError(problem, where=path, remedy=again)
    if not check.is_good_enough(least):
        kappa = "no kappa" if check.kappa.value is None else f"a kappa of {check.kappa.value:.3f}"
        raise UserError(
            f"{rules.model} has {kappa} with the rule on these tasks, and judge.min_kappa is {least:g}",
            where=path,
            remedy="use a better judge or rubric and measure again; a lower judge.min_kappa trains on more "
            "of its mistakes",
        )
    return {"path": path, "sha256": sha256_of(Path(path)), "kappa": check.kappa.model_dump(mode="json")}


def _tasks_left(tasks: TaskFile) -> list[Task]:
    named = tasks if tasks.methods & set(JUDGED_METHODS) else ()
    return [task for task in named if is_left_to_judge(task)]
