"""Advantages: how much better than expected. Pure functions; an unscored attempt is None and stays None."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

_UNIFORM = 1e-6  # a standard deviation below it is rounding
_STD_EPSILON = 1e-4  # keeps a group of nearly equal rewards from being blown up


def group_advantages(
    rewards_G: Sequence[float | None], *, normalize: bool = True, batch_std: float | None = None
) -> list[float | None]:
    """Reward minus the mean of the group, divided by its standard deviation if `normalize`, or by that of the
    whole batch where `batch_std` gives it.

    DeepSeekMath (arXiv 2402.03300), section 4.1.2, with the sample standard deviation plus 1e-4, as TRL has
    it; without the division it is that of Dr. GRPO (arXiv 2503.20783). A uniform group gives exact zeros.
    """
    scored = [r for r in rewards_G if r is not None]
    std = spread(scored)
    if std < _UNIFORM:
        return [None if r is None else 0.0 for r in rewards_G]
    mean = fmean(scored)
    scale = (std if batch_std is None else batch_std) + _STD_EPSILON if normalize else 1.0
    return [None if r is None else (r - mean) / scale for r in rewards_G]


def rloo_advantages(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Reward minus the mean of the other attempts (RLOO, arXiv 2402.14740). A uniform group gives exact
    zeros, and so does an attempt that is alone."""
    scored = [r for r in rewards_G if r is not None]
    if spread(scored) < _UNIFORM:
        return [None if r is None else 0.0 for r in rewards_G]
    total, others = math.fsum(scored), len(scored) - 1
    return [None if r is None else r - (total - r) / others for r in rewards_G]


def turn_advantages(rewards_GK: Sequence[Sequence[float] | None]) -> list[list[float] | None]:
    """Each turn's reward against that of the other attempts at the same turn, in standard deviations.

    The turn-level part of MT-GRPO (arXiv 2505.11821), for any number of turns. Attempts that ended before
    turn k are not compared there; a turn that all of them did equally well gets exact zeros.
    """
    advantages: list[list[float] | None] = [None if r is None else [] for r in rewards_GK]
    for k in range(max((len(r) for r in rewards_GK if r is not None), default=0)):
        at_turn = group_advantages([r[k] if r is not None and k < len(r) else None for r in rewards_GK])
        for own, advantage in zip(advantages, at_turn, strict=True):
            if own is not None and advantage is not None:
                own.append(advantage)
    return advantages


def gae(
    rewards_K: Sequence[float], values_K: Sequence[float], *, gamma: float, lambda_: float
) -> tuple[list[float], list[float]]:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16) and the returns that values are fitted to.

    One time step is one model turn; the state after the last one is worth nothing.
    """
    advantages: list[float] = []
    running, after = 0.0, 0.0
    for reward, value in zip(reversed(rewards_K), reversed(values_K), strict=True):
        running = reward + gamma * after - value + gamma * lambda_ * running
        advantages.append(running)
        after = value
    advantages.reverse()
    return advantages, [a + v for a, v in zip(advantages, values_K, strict=True)]


def rewards_to_go(rewards_K: Sequence[float]) -> list[float]:
    """What each turn and those after it were worth, undiscounted."""
    sums: list[float] = []
    for reward in reversed(rewards_K):
        sums.append(reward + (sums[-1] if sums else 0.0))
    return sums[::-1]


def spread(rewards: Sequence[float]) -> float:
    """The sample standard deviation; 0 for fewer than two."""
    return stdev(rewards) if len(rewards) > 1 else 0.0
