"""Rewards of groups become advantages: how much better than expected. Pure functions; an unscored attempt is
None and stays None."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev
from typing import Literal

from mcpagent.core.registry import ADVANTAGES
from mcpagent.train.batch.samples import TrainSample

_UNIFORM = 1e-6  # a standard deviation below it is rounding
_TURN_COEF = 0.5  # weight of a turn's own credit next to the outcome
_STD_EPSILON = 1e-4  # keeps a group of nearly equal rewards from being blown up


def group_advantages(
    rewards_G: Sequence[float | None], *, normalize: bool = True, batch_std: float | None = None
) -> list[float | None]:
    """Reward minus the mean of the group, divided by its standard deviation if `normalize`, or by that of the
    whole batch if `batch_std` gives it.

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
    """Return each turn's reward against that of the other attempts at the same turn, in standard deviations.

    The turn-level part of MT-GRPO (arXiv 2505.11821), for any number of turns. Attempts that ended before
    turn k are not compared there; a turn that all of them did equally well gets exact zeros.
    """
    advantages: list[list[float] | None] = [None if r is None else [] for r in rewards_GK]
    for k in range(max((len(r) for r in rewards_GK if r is not None), default=0)):
        at_turn = group_advantages([r[k] if r is not None and k < len(r) else None for r in rewards_GK])
        for turns, advantage in zip(advantages, at_turn, strict=True):
            if turns is not None and advantage is not None:
                turns.append(advantage)
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
    """Return what each turn and those after it were worth, undiscounted."""
    return list(accumulate(reversed(rewards_K)))[::-1]


def spread(rewards: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for fewer than two."""
    return stdev(rewards) if len(rewards) > 1 else 0.0


Reduce = Callable[[Sequence[float]], Sequence[float]]  # sums of this process -> sums over all of them

_VARIANCE_EPSILON = 1e-8
_UNIFORM_VARIANCE = 1e-12  # below it lies rounding


@dataclass(frozen=True, kw_only=True)
class CreditSettings:
    """`advantage` is a name of `core.registry.ADVANTAGES`, or `given`, which takes rewards as they are for
    advantages. `scale` is what group-relative ones are divided by (`group`, `batch`) or `none`; for
    `reinforce++` and `gae` anything but `none` whitens over the batch. `gamma` and `lambda_` discount by
    turns and belong to `gae`."""

    advantage: str = "group"
    scale: Literal["group", "batch", "none"] = "group"
    gamma: float = 0.99
    lambda_: float = 0.95


@dataclass(frozen=True, kw_only=True)
class GradedAttempt:
    """`reward` is None if the attempt is unscored. `sample` is None if there is nothing to train on
    although the reward counts for the group. `turn_rewards_K` is the turns' own credit."""

    reward: float | None
    sample: TrainSample | None
    turn_rewards_K: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GradedGroup:
    """Attempts at one task. Without `has_signal` nothing sets them apart and none is trained on."""

    group_id: str
    attempts: tuple[GradedAttempt, ...]
    has_signal: bool = True

    @property
    def trained(self) -> list[GradedAttempt]:
        """The attempts that carry a gradient."""
        if not self.has_signal:
            return []
        return [a for a in self.attempts if a.sample is not None and a.reward is not None]


@dataclass(frozen=True, kw_only=True)
class GradedBatch:
    """The input of an update: the groups of a step, in their order. `batch_std` is the standard deviation of
    the rewards of all of them, if `settings.scale` asks for it."""

    groups: tuple[GradedGroup, ...]
    settings: CreditSettings
    batch_std: float | None = None

    @property
    def uniform_group_ids(self) -> set[str]:
        """The groups that carry no signal."""
        return {group.group_id for group in self.groups if not group.has_signal}

    @property
    def samples(self) -> list[TrainSample]:
        """Return the samples that are trained on, group by group."""
        return [a.sample for group in self.groups for a in group.trained if a.sample is not None]

    @property
    def rewards(self) -> list[float]:
        """Return the reward of each of `samples`."""
        return [a.reward for group in self.groups for a in group.trained if a.reward is not None]

    @property
    def sample_groups(self) -> list[int]:
        """The group that each of `samples` belongs to, by its place in `groups`."""
        return [place for place, group in enumerate(self.groups) for _ in group.trained]


@dataclass(frozen=True)
class Credit:
    """Credit of each trained sample, by turn. `returns` is what values are fitted to; empty without them."""

    advantages: list[list[float]]
    returns: list[list[float]]


def graded_batch(attempts_of: Mapping[str, Sequence[GradedAttempt]], settings: CreditSettings) -> GradedBatch:
    """Return the groups of a step, by their ids in their order, with what sets their attempts apart."""
    groups = tuple(
        GradedGroup(group_id=name, attempts=tuple(attempts), has_signal=_has_signal(attempts, settings))
        for name, attempts in attempts_of.items()
    )
    batch_std = None
    if settings.scale == "batch":
        batch_std = spread([a.reward for group in groups for a in group.attempts if a.reward is not None])
    return GradedBatch(groups=groups, settings=settings, batch_std=batch_std)


def _has_signal(attempts: Sequence[GradedAttempt], settings: CreditSettings) -> bool:
    """Return whether a group sets its attempts apart. Under `gae` and `reinforce++` the baseline lies outside
    of the group, so that any scored attempt does."""
    relative = _estimator(settings).relative
    if relative is None:
        return any(a.reward is not None for a in attempts)
    by_turn = relative(attempts, [a.reward for a in attempts], settings, None)
    return any(any(turns) for turns in by_turn if turns is not None)


def assign_credit(
    graded: GradedBatch,
    *,
    penalties: Sequence[Sequence[float]] | None = None,
    values: Sequence[Sequence[float]] | None = None,
    reduce: Reduce = lambda sums: sums,
) -> Credit:
    """Return the advantages of `graded.samples`, turn by turn. `penalties` (nats times their coefficient) are
    taken off the rewards of the turns; `values` are those of the states before each turn, for `gae`.
    Statistics of the batch span all processes by `reduce`."""
    settings, samples = graded.settings, graded.samples
    estimator = _estimator(settings)
    penalties = penalties or [(0.0,) * len(s.turn_tokens_K) for s in samples]
    if estimator.by_step is not None:
        steps = [_step_rewards(r, costs) for r, costs in zip(graded.rewards, penalties, strict=True)]
        advantages, returns = estimator.by_step(steps, values, settings)
        if settings.scale != "none":
            advantages = _whitened(advantages, samples, reduce=reduce)
        return Credit(advantages, returns)
    assert estimator.relative is not None
    advantages: list[list[float]] = []
    left = iter(penalties)
    for group in graded.groups:
        trained = {id(a) for a in group.trained}
        if not trained:
            continue
        rewards = [
            None if a.reward is None else a.reward - (sum(next(left)) if id(a) in trained else 0.0)
            for a in group.attempts
        ]
        by_turn = estimator.relative(group.attempts, rewards, settings, graded.batch_std)
        advantages += [
            turns
            for a, turns in zip(group.attempts, by_turn, strict=True)
            if id(a) in trained and turns is not None
        ]
    return Credit(advantages, [])


def _estimator(settings: CreditSettings) -> Estimator:
    return GIVEN if settings.advantage == "given" else ADVANTAGES.load(settings.advantage)


ByTurn = list[list[float] | None]  # of each attempt of a group; None if it is unscored


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """An advantage: `relative` from the rewards of one group, or `by_step` from those of each sample's turns,
    whitened over the batch, whose baseline lies outside of the group."""

    relative: (
        Callable[[Sequence[GradedAttempt], list[float | None], CreditSettings, float | None], ByTurn] | None
    ) = None
    by_step: (
        Callable[
            [list[list[float]], Sequence[Sequence[float]] | None, CreditSettings],
            tuple[list[list[float]], list[list[float]]],
        ]
        | None
    ) = None


def _on_every_turn(attempts: Sequence[GradedAttempt], outcomes_G: Sequence[float | None]) -> ByTurn:
    lengths = [len(a.sample.turn_tokens_K) if a.sample is not None else 1 for a in attempts]
    return [None if o is None else [o] * n for o, n in zip(outcomes_G, lengths, strict=True)]


def _group(
    attempts: Sequence[GradedAttempt],
    rewards: list[float | None],
    settings: CreditSettings,
    batch_std: float | None,
) -> ByTurn:
    normalize = settings.scale != "none"
    return _on_every_turn(attempts, group_advantages(rewards, normalize=normalize, batch_std=batch_std))


def _turn(
    attempts: Sequence[GradedAttempt],
    rewards: list[float | None],
    settings: CreditSettings,
    batch_std: float | None,
) -> ByTurn:
    outcomes = _group(attempts, rewards, settings, batch_std)
    by_turn = turn_advantages([None if a.reward is None else a.turn_rewards_K for a in attempts])
    return [
        None
        if whole is None or turns is None
        else [o + _TURN_COEF * t for o, t in zip(whole, turns, strict=False)]
        for whole, turns in zip(outcomes, by_turn, strict=True)
    ]


def _gae_by_step(
    steps: list[list[float]], values: Sequence[Sequence[float]] | None, settings: CreditSettings
) -> tuple[list[list[float]], list[list[float]]]:
    assert values is not None
    both = [
        gae(r, v, gamma=settings.gamma, lambda_=settings.lambda_) for r, v in zip(steps, values, strict=True)
    ]
    return [a for a, _ in both], [r for _, r in both]


GROUP = Estimator(relative=_group)
RLOO = Estimator(
    relative=lambda attempts, rewards, _settings, _std: _on_every_turn(attempts, rloo_advantages(rewards))
)
REINFORCE = Estimator(
    by_step=lambda steps, _values, _settings: ([rewards_to_go(rewards) for rewards in steps], []),
)
GAE = Estimator(by_step=_gae_by_step)
TURN = Estimator(relative=_turn)
GIVEN = Estimator(relative=lambda attempts, rewards, _settings, _std: _on_every_turn(attempts, rewards))


def _step_rewards(outcome: float, penalties_K: Sequence[float]) -> list[float]:
    """The outcome comes with the last turn; penalties come with their own."""
    steps = [-p for p in penalties_K]
    if steps:
        steps[-1] += outcome
    return steps


def _whitened(
    advantages: Sequence[Sequence[float]], samples: Sequence[TrainSample], *, reduce: Reduce
) -> list[list[float]]:
    """Centre advantages over all tokens of the batch, and divide them by the standard deviation (REINFORCE++,
    arXiv 2501.03262, section 3.1)."""
    weighted = [
        (a, n)
        for turns, sample in zip(advantages, samples, strict=True)
        for a, n in zip(turns, sample.turn_tokens_K, strict=True)
    ]
    count, total = reduce((float(sum(n for _, n in weighted)), math.fsum(a * n for a, n in weighted)))
    mean = total / max(count, 1.0)
    (squares,) = reduce((math.fsum(n * (a - mean) ** 2 for a, n in weighted),))
    variance = squares / max(count - 1.0, 1.0)
    if variance < _UNIFORM_VARIANCE:
        return [[0.0] * len(turns) for turns in advantages]
    scale = 1.0 / math.sqrt(variance + _VARIANCE_EPSILON)
    return [[(a - mean) * scale for a in turns] for turns in advantages]
