"""Models behind an API in a run: one that plays, one that plays the user, one that judges."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import counted
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.env.user import ModelUser, UserCache, UserSimulator
from mcpagent.errors import UserError
from mcpagent.evaluate.judge_check import read_judge_check
from mcpagent.llm.budget import ApiBudget, given_price, price_of
from mcpagent.llm.client import open_client
from mcpagent.llm.endpoint import read_chat
from mcpagent.llm.journal import JournaledClient, open_journal
from mcpagent.policy.openai import OpenAIPolicy
from mcpagent.reward.judge import JUDGED_METHODS, ModelJudge, has_checkable_truth
from mcpagent.reward.terms import judge_rules
from mcpagent.storage.datasets import TaskFile
from mcpagent.tools.io_thread import IOThread

PREFIX = "openai:"


@dataclass(frozen=True)
class ApiPolicy:
    """`budget` is what was used so far."""

    policy: OpenAIPolicy
    budget: ApiBudget
    base_url: str


@contextmanager
def open_api_policy(
    name: str, *, config: TrainConfig, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[ApiPolicy]:
    """The policy of `openai:NAME`. Raises UserError where the key is missing, or where sampling is asked for
    that the API does not have."""
    model, api = name.removeprefix(PREFIX), config.api
    if not model:
        raise UserError("openai: names no model", remedy="for example openai:gpt-5-mini")
    if config.rollout.top_k:
        raise UserError(
            f"rollout.top_k is {config.rollout.top_k}, but Chat Completions has no such setting",
            where="rollout.top_k",
            remedy="use 0, and rollout.top_p where the tail is to be cut",
        )
    price = given_price(api.price_in, api.price_out, names=("api.price_in", "api.price_out"))
    budget = ApiBudget(price=price)
    with open_client(model, api, budget=budget, run=io.run, on_note=on_note) as client:
        yield ApiPolicy(
            OpenAIPolicy(client, price=price), budget, api.base_url or "https://api.openai.com/v1"
        )


@contextmanager
def open_user(
    config: TrainConfig, *, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[UserSimulator | None]:
    """The model that plays the user (`rollout.user`); None where the tasks' own messages are said. Raises
    UserError where its key is missing."""
    rollout, api = config.rollout, config.api
    if rollout.user == "scripted" or rollout.user_model is None:
        yield None
        return
    price = given_price(api.price_in, api.price_out, names=("api.price_in", "api.price_out"))
    budget = ApiBudget(price=price)
    with open_client(rollout.user_model, api, budget=budget, run=io.run, on_note=on_note) as client:
        cache = UserCache(None if rollout.user_cache is None else Path(rollout.user_cache))
        yield ModelUser(client, model=rollout.user_model, cache=cache)


def judged_tasks(tasks: TaskFile) -> list[Task]:
    """The tasks that name a judge."""
    # Most files name none, which their bytes say without a record being read.
    named = tasks if tasks.mentions(b'judge"') else ()
    return [task for task in named if task.reward_spec.method in JUDGED_METHODS]


def judge_note(config: TrainConfig, tasks: TaskFile) -> str | None:
    """What a user is told of tasks and a judge that do not go together. Raises UserError where tasks could
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
    """The record that the judge of a run is good enough on its tasks; None where no judge is asked. Raises
    UserError where there is no such record, or it says otherwise."""
    rules, judged = judge_rules(config.judge), judged_tasks(tasks)
    if rules is None or not judged:
        return None
    path, least = config.judge.check, config.judge.min_kappa
    data, judge = tasks.path, f"judge.model={rules.model}"
    again = f"mcpagent eval judge-check --data {data} --set {judge} --out judge-check.json"
    if path is None:
        raise UserError(
            f"nothing says how good {rules.model} judges these tasks",
            where="judge.check",
            remedy=f"measure it ({again}), and train with --set judge.check=judge-check.json",
        )
    check = read_judge_check(Path(path))
    if check.judge.get("identity") != rules.identity:
        settings = ("model", "base_url", "votes", "max_output_tokens", "controls", "prompts_sha256")
        now = rules.as_json()
        changed = ", ".join(name for name in settings if check.judge.get(name) != now[name])
        raise UserError(
            f"is of another judge than the run has (other {changed})",
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
        "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
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
        """What a result says of the judge and what it cost."""
        return {**self.judge.rules.as_json(), "journal": str(self.journal), "spend": self.budget.as_json()}


@contextmanager
def open_judge(
    config: TrainConfig, *, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[OpenedJudge | None]:
    """The judge of `judge.model`; None where none is named. Whatever it is asked and answers is in its
    journal before anything is made of it, and nothing that is there is asked again. Raises UserError."""
    rules = judge_rules(config.judge)
    if rules is None:
        yield None
        return
    judge = config.judge
    given = given_price(judge.price_in, judge.price_out, names=("judge.price_in", "judge.price_out"))
    price = given or price_of(rules.model)
    if judge.max_cost is not None and price is None:
        raise UserError(
            f"judge.max_cost is {judge.max_cost:g}, but what {rules.model} costs is not known",
            where="judge.max_cost",
            remedy="set judge.price_in and judge.price_out, in dollars per million tokens",
        )
    budget = ApiBudget(price=price, max_cost=judge.max_cost, max_requests=judge.max_requests)
    api = config.api.model_copy(
        update={
            "base_url": judge.base_url,
            "timeout_s": judge.timeout_s,
            "attempts": judge.attempts,
        }
    )
    folder = Path(config.output_dir) / "judge" if judge.journal is None else Path(judge.journal)
    with (
        open_journal(
            folder,
            name=f"{rules.model}-{rules.identity[:12]}",
            run={"judge": rules.identity},
            read=read_chat,
            option="judge.journal",
        ) as (journal, path),
        open_client(rules.model, api, budget=budget, run=io.run, on_note=on_note, observer=journal) as client,
    ):
        journal.charge(budget)
        asked = JournaledClient(client, journal)
        yield OpenedJudge(ModelJudge(asked, rules, timeout_s=judge.timeout_s, on_note=on_note), budget, path)
