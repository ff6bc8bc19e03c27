"""Advantages of attempts. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

_STD_FLOOR = 1e-6  # below this a group counts as uniform; also keeps the quotient finite


def group_advantages(rewards_G: Sequence[float | None], *, normalize: bool = True) -> list[float | None]:
    """Reward minus the mean of the group, divided by its standard deviation if `normalize`.

    DeepSeekMath (arXiv 2402.03300), section 4.1.2, with the population standard deviation. An unscored
    attempt (None) leaves the group and stays None; a uniform group gives exact zeros.
    """
    scored = [r for r in rewards_G if r is not None]
    if not scored:
        return [None for _ in rewards_G]
    mean, std = fmean(scored), pstdev(scored)
    if std < _STD_FLOOR:
        return [None if r is None else 0.0 for r in rewards_G]
    scale = std if normalize else 1.0
    return [None if r is None else (r - mean) / scale for r in rewards_G]
