"""What the episodes of a training step say, as its record shows it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from mcpagent.core.trajectory import Trajectory


def success_rate(trajectories: Sequence[Trajectory]) -> float:
    """The share of successes among the scored ones; 0 where none is scored."""
    scored = [t.is_success for t in trajectories if t.is_success is not None]
    return fmean(scored) if scored else 0.0


def success_rate_of_all(trajectories: Sequence[Trajectory]) -> float:
    """The share of successes, unscored episodes counted as failed: what decisions are made by."""
    return fmean(t.is_success is True for t in trajectories) if trajectories else 0.0


def episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What the episodes of a step say; means are over scored episodes, but for `success_rate_all`."""
    scored = [t for t in trajectories if t.reward is not None]
    metrics: dict[str, Any] = {
        "episodes": len(trajectories),
        "unscored": len(trajectories) - len(scored),
        "tokens": sum(len(t.completion.token_ids) for x in trajectories for t in x.turns),
        "tool_calls": sum(len(x.tool_results) for x in trajectories),
        "success_rate_all": success_rate_of_all(trajectories),
    }
    if not scored:
        return metrics
    metrics["reward_mean"] = fmean(t.reward or 0.0 for t in scored)
    metrics["success_rate"] = success_rate(scored)
    metrics["turns_mean"] = fmean(len(t.turns) for t in scored)
    metrics["penalty_mean"] = fmean(t.term("penalty") or 0.0 for t in scored)
    metrics["invalid_rate"] = fmean(t.term("invalid_rate") or 0.0 for t in scored)
    for complexity in sorted({t.complexity for t in scored}):
        own = [t for t in scored if t.complexity == complexity]
        metrics[f"success_{complexity}"] = success_rate(own)
    return metrics
