"""The rows that an evaluation is read against: the reference calls, silence, and the untrained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mcpagent.config.loader import load_train_config
from mcpagent.config.named_parts import is_built
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.intervals import clustered_mean
from mcpagent.evaluate.summary import CalibrationRow, EvalResult, EvalSummary, evaluate, summarise
from mcpagent.policy.contract import Policy
from mcpagent.policy.scripted import EmptyPolicy, GoldPolicy
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.episodes import EpisodeSetup
from mcpagent.run.rollout import episode_progress
from mcpagent.storage.checkpoints import find_model, run_of
from mcpagent.storage.run_folder import RunFolder

GOLD, EMPTY, BASE = "gold", "empty", "base"
_OF_QUICKSTART = "warm_start"  # greedy and sampled
_NAMED = 3  # tasks named in one sentence
# What the untrained model must have been measured with to stand beside this evaluation.
_SAME = ("samples", "temperature", "max_new_tokens", "max_turns", "catalog_hash")


def scripted_rows(setup: EpisodeSetup, *, console: Console) -> dict[str, CalibrationRow]:
    """Play the reference calls of each task and silence, once, on the servers of the evaluation: neither asks
    a model, and what only a judge can score stays unscored."""
    tasks = setup.tasks
    policies: dict[str, Policy] = {GOLD: GoldPolicy(tasks), EMPTY: EmptyPolicy()}
    rows: dict[str, CalibrationRow] = {}
    settings = agent_settings(setup.config, max_context=None)
    with episode_progress(console, "Calibration", total=len(policies) * len(tasks)) as on_done:
        for name, policy in policies.items():
            played = setup.tools.io.run(
                evaluate(
                    tasks,
                    policy=policy,
                    tools=setup.tools.pool,
                    settings=settings,
                    renderer=None,
                    seed=setup.config.seed,
                    concurrency=setup.concurrency,
                    deterministic=setup.config.rollout.deterministic is not False,
                    on_done=on_done,
                )
            )
            rows[name] = row_of(summarise(played), source="played", played=played)
    return rows


def row_of(summary: EvalSummary, *, source: str, played: Sequence[Trajectory] = ()) -> CalibrationRow:
    """The row of an evaluation; it names the tasks that failed where their episodes are given."""
    return CalibrationRow(
        task_success=summary.metrics["task_success"],
        mean_reward=summary.metrics["mean_reward"],
        n_episodes=summary.n_episodes,
        unscored=summary.unscored,
        failed=tuple(t.task_id for t in played if t.is_success is False),
        error=next((error for t in played if t.is_success is None for error in t.errors), None),
        source=source,
    )


def gold_fault(rows: dict[str, CalibrationRow]) -> str | None:
    """What is wrong with tasks or servers where the reference calls do not succeed; None where they do."""
    gold = rows.get(GOLD)
    if gold is None or not (gold.failed or gold.unscored):
        return None
    if not gold.failed:
        why = "" if gold.error is None else f": {gold.error}"
        return f"the reference calls of {gold.unscored} of {gold.n_episodes} tasks could not be scored{why}"
    more = len(gold.failed) - _NAMED
    some = ", ".join(gold.failed[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    return (
        f"the reference calls fail {len(gold.failed)} of {gold.n_episodes} tasks ({some}): these tasks or "
        "their servers are wrong, and no model can be right there"
    )


def stored_base(setup: EpisodeSetup, facts: JsonObject) -> CalibrationRow | str | None:
    """The run's own measurement of the model that it began with, over the tasks of this evaluation, where one
    was made with the same tasks and limits (`facts` is the provenance of this evaluation); else why there is
    none. None where what is evaluated is not of a run."""
    run = _run_of(setup)
    if run is None:
        return None
    names = {task.id for task in setup.tasks}
    others: list[str] = []
    for path in sorted(run.evaluations.glob("*.json")):
        result = _untrained(path)
        if result is None or not names <= result.tasks.keys():
            continue
        theirs = result.provenance
        if (theirs.get("dataset") or {}).get("sha256") != facts["dataset"]["sha256"]:
            continue
        differing = [key for key in _SAME if theirs.get(key) != facts.get(key)]
        if differing:
            others.append(f"{path.name} has another {differing[0].replace('_', ' ')}")
            continue
        outcomes = [result.tasks[name] for name in sorted(names)]
        return CalibrationRow(
            task_success=clustered_mean([o.success for o in outcomes], seed=0),
            mean_reward=clustered_mean([o.reward for o in outcomes], seed=0, rate=False),
            n_episodes=sum(len(o.success) + o.unscored for o in outcomes),
            unscored=sum(o.unscored for o in outcomes),
            source=str(path),
        )
    return others[0] if others else "the run measured it on other tasks, or not at all"


def base_model(setup: EpisodeSetup) -> str:
    """The model that the evaluated one was trained from: what its run began with, or what its adapters are
    for. Raises UserError where neither is known."""
    identity, run = setup.ready.identity, _run_of(setup)
    began = None
    if run is not None:
        began = load_train_config([run.config_path], [], for_training=False).config.model.name
        if is_built(began):
            began = None
        elif (model := find_model(began)) is not None:
            began = str(model.path)
    began = began or (identity.get("base") or {}).get("path")
    if began is None:
        raise UserError(
            "the model that it was trained from is not recorded",
            where=str(identity.get("path", identity.get("name"))),
            remedy="leave out --base, and evaluate that model by itself: mcpagent eval model PATH",
        )
    return str(began)


def _run_of(setup: EpisodeSetup) -> RunFolder | None:
    identity = setup.ready.identity
    return run_of(Path(identity["path"])) if "weights_sha256" in identity else None


def _untrained(path: Path) -> EvalResult | None:
    """A result of the weights that a run began with; None for any other file, a damaged one included: it is
    only looked for."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        is_first = path.stem.startswith(_OF_QUICKSTART) or document["provenance"]["step"] == 0
        if not is_first:
            return None
        return EvalResult.model_validate(document)
    except (OSError, ValueError, KeyError, TypeError):
        return None
