"""The judge of a run: which tasks ask it, whether it is good enough, and the judge itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import counted
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.evaluate.judge_check import JudgeCheck
from mcpagent.evaluate.stored import read_document
from mcpagent.llm.budget import ApiBudget
from mcpagent.reward.judge import JUDGED_METHODS, ModelJudge, has_checkable_truth
from mcpagent.reward.terms import judge_rules
from mcpagent.run.api_models import open_asked
from mcpagent.storage.checkpoints import sha256_of
from mcpagent.storage.datasets import TaskFile
from mcpagent.tools.io_thread import IOThread


def judged_tasks(tasks: TaskFile) -> list[Task]:
    """Return the tasks that name a judge."""
    named = tasks if tasks.methods & set(JUDGED_METHODS) else ()
    return [task for task in named if task.reward_spec.method in JUDGED_METHODS]


def judge_note(config: TrainConfig, tasks: TaskFile) -> str | None:
    """Return what a user is told if tasks and judge do not go together. Raises UserError if tasks could
    not be scored at all."""
    model, judged = config.judge.model, judged_tasks(tasks)
    if model is not None:
        told = f"judge.model is {model}, but no task of {tasks.path} names a judge in reward_spec.method"
        return None if judged else told
    alone = [
        task for task in judged if task.reward_spec.method == "judge" or not has_checkable_truth(task.truth)
    ]
    if alone and config.algorithm != "sft":  # which learns from demonstrations, not from scores
        raise UserError(
            f"{counted(len(alone), 'task')}, such as {alone[0].id}, {'is' if len(alone) == 1 else 'are'} "
            "scored by a judge alone, and judge.model names none",
            where=str(tasks.path),
            remedy="name a model that judges: --set judge.model=NAME",
        )
    would_ask = f"{counted(len(judged), 'task')} of {tasks.path} would ask a judge"
    return f"{would_ask}, and judge.model names none: the rule alone counts" if judged else None


def require_judge_check(config: TrainConfig, tasks: TaskFile) -> JsonObject | None:
    """Return the record that the judge of a run is good enough on its tasks; None if no judge is asked.
    Raises UserError if there is no such record, or it says otherwise."""
    rules, judged = judge_rules(config.judge), judged_tasks(tasks)
    if rules is None or not judged:
        return None
    path, least = config.judge.check, config.judge.min_kappa
    data, judge = tasks.path, f"judge.model={rules.model}"
    again = f"mcpagent eval judge-check --data {data} --set {judge} --out judge-check.json"
    if path is None:
        raise UserError(
            f"no check says how well {rules.model} judges these tasks",
            where="judge.check",
            remedy=f"measure it ({again}), and train with --set judge.check=judge-check.json",
        )
    check = read_document(
        Path(path),
        JudgeCheck,
        wrong="is not a check of a judge",
        remedy="name a file that mcpagent eval judge-check wrote with --out",
    )
    if check.judge.get("identity") != rules.identity:
        settings = ("model", "base_url", "votes", "max_output_tokens", "controls", "prompts_sha256")
        now = rules.as_json()
        changed = ", ".join(name for name in settings if check.judge.get(name) != now[name])
        raise UserError(
            f"is of another judge, not the run's (other {changed})",
            where=path,
            remedy=f"measure it: {again}",
        )
    is_measurable = any(has_checkable_truth(task.truth) for task in tasks)
    if is_measurable and check.tasks["sha256"] != tasks.sha256:
        raise UserError(
            f"is of other tasks ({check.tasks['path']}) than the run is trained on",
            where=path,
            remedy=f"measure it on these: {again}",
        )
    kappa = check.kappa.value
    if kappa is None or kappa < least:
        shown = "no kappa" if kappa is None else f"a kappa of {kappa:.3f}"
        raise UserError(
            f"{rules.model} has {shown} with the rule on these tasks, and judge.min_kappa is {least:g}",
            where=path,
            remedy="use a better judge or rubric and measure again; a lower judge.min_kappa trains on more "
            "of its mistakes",
        )
    return {
        "path": path,
        "sha256": sha256_of(Path(path)),
        "tasks_sha256": check.tasks["sha256"],
        "kappa": check.kappa.model_dump(mode="json"),
    }


@dataclass(frozen=True)
class OpenedJudge:
    """`budget` is what was used so far, by earlier runs of its journal too."""

    judge: ModelJudge
    budget: ApiBudget
    journal: Path

    def as_json(self) -> JsonObject:
        """Return what a result says of the judge and what it cost."""
        return {**self.judge.rules.as_json(), "journal": str(self.journal), "spend": self.budget.as_json()}


@contextmanager
def open_judge(
    config: TrainConfig, *, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[OpenedJudge | None]:
    """Open the judge of `judge.model`; None if none is named. Whatever it is asked and answers is in its
    journal before anything is made of it, and nothing that is there is asked again. Raises UserError."""
    rules = judge_rules(config.judge)
    if rules is None:
        yield None
        return
    with open_asked(
        rules.model,
        config,
        name=f"{rules.model}-{rules.identity[:12]}",
        run={"judge": rules.identity},
        base_url=rules.base_url,
        io=io,
        on_note=on_note,
    ) as asked:
        judge = ModelJudge(asked.client, rules, timeout_s=config.api.timeout_s, on_note=on_note)
        yield OpenedJudge(judge, asked.budget, asked.journal)
