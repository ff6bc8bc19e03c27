"""The samples of an update with everything that is known of them before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mcpagent.train.credit import Credit, Graded, assign_credit
from mcpagent.train.learner import Learner
from mcpagent.train.loss import kl_terms
from mcpagent.train.rescoring import Rescored, rescore
from mcpagent.train.samples import TrainSample
from mcpagent.train.update_settings import UpdateSettings
from mcpagent.train.update_stats import UpdateStats
from mcpagent.train.value import explained_variance


@dataclass(frozen=True)
class UpdateRow:
    """A sample with what was found out about it before the first step. `before` is None where a single
    step is taken on the sampler's logprobs."""

    sample: TrainSample
    group: int
    advantages_K: list[float]
    returns_K: list[float]
    before: Rescored | None


def update_rows(
    learner: Learner, graded: Graded, settings: UpdateSettings, stats: UpdateStats
) -> list[UpdateRow]:
    """Rescore where that is needed, then give credit."""
    samples = graded.samples
    needs_values = graded.settings.advantage == "gae"
    needed = not settings.is_single_step or settings.correction or settings.kl_in_reward or needs_values
    if not needed:
        credit = assign_credit(graded, reduce=learner.processes.sum)
        return _join(graded, credit, None)
    before = rescore(
        learner,
        samples,
        max_tokens=settings.micro_batch_tokens,
        temperature=settings.temperature,
        with_reference=settings.use_reference,
    )
    for sample, own in zip(samples, before, strict=True):
        stats.drift.add(own.logprobs_N, sampler_logprobs([sample], learner))
    values = [own.values_K.tolist() for own in before if own.values_K is not None] if needs_values else None
    credit = assign_credit(
        graded,
        penalties=_penalties(samples, before, settings) if settings.kl_in_reward else None,
        values=values,
        reduce=learner.processes.sum,
    )
    if values is not None:
        flat = [v for own in values for v in own]
        pairs = learner.processes.gather(zip(flat, _outcomes(graded), strict=True))
        stats.explained_variance = explained_variance([v for v, _ in pairs], [o for _, o in pairs])
    return _join(graded, credit, before)


def _join(graded: Graded, credit: Credit, before: list[Rescored] | None) -> list[UpdateRow]:
    samples = graded.samples
    returns = credit.returns or [[] for _ in samples]
    known = before or [None] * len(samples)
    parts = zip(samples, graded.sample_groups, credit.advantages, returns, known, strict=True)
    return [UpdateRow(*part) for part in parts]


def _penalties(
    samples: Sequence[TrainSample], before: Sequence[Rescored], settings: UpdateSettings
) -> list[list[float]]:
    """The KL (k1) of each turn times its coefficient."""
    penalties: list[list[float]] = []
    for sample, own in zip(samples, before, strict=True):
        assert own.reference_N is not None
        k1 = kl_terms(own.logprobs_N, own.reference_N, estimator="k1") * settings.objective.kl_coef
        penalties.append([float(turn.sum()) for turn in k1.split(sample.turn_tokens_K)])
    return penalties


def _outcomes(graded: Graded) -> list[float]:
    """What each turn turned out to be worth: the reward at its episode's end, discounted."""
    gamma = graded.settings.gamma
    return [
        gamma ** (turns - 1 - k) * reward
        for reward, sample in zip(graded.rewards, graded.samples, strict=True)
        for turns in [len(sample.turn_tokens_K)]
        for k in range(turns)
    ]


def sampler_logprobs(samples: Sequence[TrainSample], learner: Learner) -> torch.Tensor:
    """What the sampler said of the tokens [N], sample by sample."""
    logprobs = [p for s in samples for p in s.sampler_logprobs_N]
    return torch.tensor(logprobs, device=learner.device, dtype=learner.loss_dtype)
