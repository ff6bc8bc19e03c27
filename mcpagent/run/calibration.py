"""The rows that an evaluation is read against: the reference calls, and silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcpagent.console import Console
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.summary import CalibrationRow, summarise
from mcpagent.policy.contract import Policy
from mcpagent.policy.scripted import EmptyPolicy, GoldPolicy
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.episodes import EpisodeSetup
from mcpagent.run.policies import ReadyPolicy
from mcpagent.run.rollout import episode_progress

GOLD, EMPTY = "gold", "empty"
_NAMED = 3  # tasks named in one sentence


def calibration_rows(setup: EpisodeSetup, *, console: Console) -> dict[str, CalibrationRow]:
    """Play the reference calls of each task and silence, once, on the servers of the evaluation: neither asks
    a model, and what only a judge can score stays unscored."""
    tasks = setup.tasks
    policies: dict[str, Policy] = {GOLD: GoldPolicy(tasks), EMPTY: EmptyPolicy()}
    rows: dict[str, CalibrationRow] = {}
    settings = agent_settings(setup.config, max_context=None)
    with episode_progress(console, "Calibration", total=len(policies) * len(tasks)) as on_done:
        for name, policy in policies.items():
            scripted = replace(setup, ready=ReadyPolicy(policy=policy, identity={}), settings=settings)
            rows[name] = row_of(scripted.play(samples=1, on_done=on_done))
    return rows


def row_of(played: Sequence[Trajectory]) -> CalibrationRow:
    """Return what these episodes come to, and the tasks that failed."""
    summary = summarise(played)
    return CalibrationRow(
        task_success=summary.metrics["task_success"],
        mean_reward=summary.metrics["mean_reward"],
        n_episodes=summary.n_episodes,
        unscored=summary.unscored,
        failed=tuple(t.task_id for t in played if t.is_success is False),
        error=next((error for t in played if t.is_success is None for error in t.errors), None),
    )


def gold_fault(rows: dict[str, CalibrationRow]) -> str | None:
    """Return what is wrong with tasks or servers if their reference calls do not succeed; None if they do."""
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
