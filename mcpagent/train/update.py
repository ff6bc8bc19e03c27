"""One update: from graded groups to optimiser steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import torch

from mcpagent.models.adapters import evaluation_mode
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.batch.scoring import Batch
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.processes import Processes
from mcpagent.train.objective.advantages import GradedBatch, assign_credit
from mcpagent.train.objective.loss import (
    Objective,
    SamplerMismatch,
    batch_totals,
    k3,
    kl_terms,
    policy_loss,
    sampler_weights,
    token_weights,
)
from mcpagent.train.objective.value import explained_variance, turn_starts, value_loss


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """The objective and how its batch is cut. `minibatches` is optimiser steps for each of the `epochs`, on
    whole groups. With `kl_in_reward` the KL coefficient acts on rewards and not in the loss; the coefficient
    itself is an argument of `update_policy`, since it may change from step to step."""

    objective: Objective = field(default_factory=Objective)
    max_response_tokens: int = 1  # what dr_grpo divides by
    kl_in_reward: bool = False
    entropy_coef: float = 0.0
    use_reference: bool = True  # asked only if the KL has a weight
    value_coef: float = 0.5
    tis_cap: float | None = None  # of the importance weights against the sampler (`loss.sampler_weights`)
    epochs: int = 1
    minibatches: int = 1
    micro_batch_tokens: int = 8192
    temperature: float = 1.0

    @property
    def is_single_step(self) -> bool:
        """True if the first step is the last, so that nothing needs to be kept from before it."""
        return self.epochs == self.minibatches == 1


@dataclass
class UpdateStats:
    """Token-weighted sums over an update; `summary` gives their means. KL and drift are in nats."""

    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    drift: SamplerMismatch = field(default_factory=SamplerMismatch)
    max_ratio: float = 0.0
    loss: float = 0.0
    value_loss: float | None = None
    explained_variance: float | None = None  # of the values before the update
    grad_norm: float = 0.0
    optimizer_steps: int = 0
    overflows: int = 0  # steps that were left out because a gradient overflowed in float16

    def add(self, count: int, **sums: float) -> None:
        """Count `count` tokens, with sums over them by name."""
        self.tokens += count
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def summary(self) -> dict[str, float]:
        """Return what metrics.jsonl shows; empty when no sample carried a gradient."""
        if not self.tokens:
            return {}
        means = {name: value / self.tokens for name, value in self.sums.items()}
        steps = max(1, self.optimizer_steps)
        taken = self.optimizer_steps - self.overflows
        summary = {**means, "ratio_max": self.max_ratio, **self.drift.summary(), "loss": self.loss / steps}
        if taken:
            summary["grad_norm"] = self.grad_norm / taken
        if self.overflows:
            summary["overflowed_steps"] = self.overflows
        if self.value_loss is not None:
            summary["value_loss"] = self.value_loss / steps
        if self.explained_variance is not None:
            summary["explained_variance"] = self.explained_variance
        return summary


def combined(parts: Sequence[UpdateStats]) -> UpdateStats:
    """Return the statistics of one update that several processes made together. Losses are shares of the
    whole; gradient norms and steps are the same for all."""
    first, *others = parts
    for other in others:
        first.add(other.tokens, **other.sums)
        first.drift.log_ratios += other.drift.log_ratios
        first.max_ratio = max(first.max_ratio, other.max_ratio)
        first.loss += other.loss
    value_losses = [p.value_loss for p in parts if p.value_loss is not None]
    first.value_loss = sum(value_losses) if value_losses else None
    explained = [p.explained_variance for p in parts if p.explained_variance is not None]
    first.explained_variance = fmean(explained) if explained else None
    return first


@dataclass(frozen=True)
class Rescored:
    """The scores of one sample: logprobs [N] of its tokens (nats), those under the reference, values [K] of
    the states before its turns."""

    logprobs_N: torch.Tensor
    reference_N: torch.Tensor | None
    values_K: torch.Tensor | None


@torch.no_grad()
def rescore(
    learner: Learner,
    samples: Sequence[TrainSample],
    *,
    max_tokens: int,
    temperature: float,
    with_reference: bool,
) -> list[Rescored]:
    """One forward pass over every sample, with dropout off; values if the learner has a head for them."""
    by_row: dict[int, Rescored] = {}
    with evaluation_mode(learner.model), learner.measuring_states():
        for batch in learner.batches(samples, max_tokens=max_tokens):
            rows = [samples[i] for i in batch.rows]
            tokens, turns = [s.loss_tokens for s in rows], [len(s.turn_tokens_K) for s in rows]
            logprobs, _, values = learner.score_with_values(batch, turn_starts(rows), temperature=temperature)
            reference = learner.reference_logprobs(batch, temperature=temperature) if with_reference else None
            nothing = (None,) * len(rows)
            references = nothing if reference is None else reference.split(tokens)
            by_turn = nothing if values is None else values.split(turns)
            parts = zip(batch.rows, logprobs.split(tokens), references, by_turn, strict=True)
            by_row |= {
                row: Rescored(logprobs_N, ref_N, values_K) for row, logprobs_N, ref_N, values_K in parts
            }
    return [by_row[row] for row in range(len(samples))]


@dataclass(frozen=True)
class UpdateRow:
    """A sample with its credit. `rescored` is what the trainer computed of it before the first step; None
    if a single step is taken on the sampler's logprobs."""

    sample: TrainSample
    group: int
    advantages_K: list[float]
    returns_K: list[float]
    rescored: Rescored | None


def update_policy(
    learner: Learner,
    graded: GradedBatch,
    *,
    settings: UpdateSettings,
    kl_coef: float = 0.0,
    first_optimizer_step: int,
    seed: int,
) -> UpdateStats:
    """Optimise on the groups that carry a signal, shared out over the processes, which are all given the same
    groups and get the same statistics.

    Old logprobs are the sampler's if one step is taken; the trainer's own, from before the first step, if
    there are several or the sampler is corrected for. `first_optimizer_step` numbers the steps for the
    learning-rate schedule; `seed` shuffles groups into minibatches: those of all processes together, so that
    their number does not change which groups make a step. Each minibatch is shared out anew.
    """
    processes = learner.processes
    groups_with_signal = [group for group in graded.groups if group.has_signal]
    update = _Update(learner, settings, kl_coef)
    processes.seed_torch(seed)
    here = processes.share(range(len(groups_with_signal)))
    rows = update.rows(replace(graded, groups=tuple(groups_with_signal[i] for i in here)))
    rows = [replace(row, group=here[row.group]) for row in rows]
    if not settings.is_single_step:
        rows = _everyones(rows, processes, learner.device)
    learner.model.train()
    trained = sorted({place for part in processes.gather([[row.group for row in rows]]) for place in part})
    for epoch in range(settings.epochs):
        order = list(trained)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        size = max(1, -(-len(order) // settings.minibatches))
        for start in range(0, len(order), size):
            # A process without a group in it takes part all the same.
            minibatch = sorted(order[start : start + size])
            share = set(here if settings.is_single_step else processes.share(minibatch))
            update.optimizer_step(
                [row for row in rows if row.group in share],
                number=first_optimizer_step + update.stats.optimizer_steps,
            )
    learner.model.eval()
    return combined(processes.gather([update.stats]))


def sampler_logprobs(samples: Sequence[TrainSample], learner: Learner) -> torch.Tensor:
    """Return the logprobs [N] (nats) that the sampler reported for the sampled tokens, sample by sample."""
    logprobs = [p for s in samples for p in s.sampler_logprobs_N]
    return torch.tensor(logprobs, device=learner.device, dtype=learner.loss_dtype)


@dataclass
class _Update:
    """One update under way: what all of its optimiser steps share."""

    learner: Learner
    settings: UpdateSettings
    kl_coef: float
    stats: UpdateStats = field(default_factory=UpdateStats)
    is_rescored: bool = False  # the trainer scored the samples before the first step

    @property
    def asks_reference(self) -> bool:
        """True if the KL weighs something: the reference would cost a forward pass."""
        return self.settings.use_reference and self.kl_coef > 0

    def rows(self, graded: GradedBatch) -> list[UpdateRow]:
        """Rescore the samples if that is needed, then give credit."""
        learner, settings, samples = self.learner, self.settings, graded.samples
        needs_values = graded.settings.advantage == "gae"
        self.is_rescored = bool(
            not settings.is_single_step or settings.tis_cap or settings.kl_in_reward or needs_values
        )
        rescored: list[Rescored] = []
        if self.is_rescored:
            rescored = rescore(
                learner,
                samples,
                max_tokens=settings.micro_batch_tokens,
                temperature=settings.temperature,
                with_reference=self.asks_reference,
            )
        for sample, scores in zip(samples, rescored, strict=self.is_rescored):
            self.stats.drift.add(scores.logprobs_N, sampler_logprobs([sample], learner))
        penalties = values = None
        if needs_values:
            values = [scores.values_K.tolist() for scores in rescored if scores.values_K is not None]
        if settings.kl_in_reward and self.asks_reference:
            penalties = self._penalties(samples, rescored)
        credit = assign_credit(graded, penalties=penalties, values=values, reduce=learner.processes.sum)
        if values is not None:
            flat = [v for of_sample in values for v in of_sample]
            pairs = learner.processes.gather(zip(flat, _outcomes(graded), strict=True))
            self.stats.explained_variance = explained_variance([v for v, _ in pairs], [o for _, o in pairs])
        returns = credit.returns or [[] for _ in samples]
        scored = rescored or [None] * len(samples)
        parts = zip(samples, graded.sample_groups, credit.advantages, returns, scored, strict=True)
        return [UpdateRow(*part) for part in parts]

    def _penalties(self, samples: Sequence[TrainSample], rescored: Sequence[Rescored]) -> list[list[float]]:
        """The KL (k1) of each turn times its coefficient."""
        penalties: list[list[float]] = []
        for sample, scores in zip(samples, rescored, strict=True):
            assert scores.reference_N is not None
            k1 = kl_terms(scores.logprobs_N, scores.reference_N, estimator="k1") * self.kl_coef
            penalties.append([float(turn.sum()) for turn in k1.split(sample.turn_tokens_K)])
        return penalties

    def optimizer_step(self, rows: Sequence[UpdateRow], *, number: int) -> None:
        """Add the gradients of all rows, in micro-batches, and step."""
        learner, settings, stats = self.learner, self.settings, self.stats
        samples = [row.sample for row in rows]
        lengths = [s.loss_tokens for s in samples]
        turns = sum(len(s.turn_tokens_K) for s in samples)
        n_samples, n_tokens, n_turns = learner.processes.sum((*batch_totals(lengths), float(turns)))
        weights = token_weights(
            lengths,
            loss=settings.objective.loss,
            max_tokens=settings.max_response_tokens,
            totals=(n_samples, n_tokens),
        )
        for batch in learner.batches(samples, max_tokens=settings.micro_batch_tokens):
            if not batch.rows:
                with_reference = self.asks_reference and not self.is_rescored
                learner.idle(batch, temperature=settings.temperature, with_reference=with_reference)
                continue
            in_batch = [rows[i] for i in batch.rows]
            self._backward(batch, in_batch, [weights[i] for i in batch.rows], n_turns=n_turns)
        norm, _ = learner.step(number)
        stats.optimizer_steps += 1
        if norm is None:
            stats.overflows += 1
        else:
            stats.grad_norm += norm

    def _backward(
        self, batch: Batch, rows: Sequence[UpdateRow], weights: Sequence[float], *, n_turns: float
    ) -> None:
        learner, settings, stats = self.learner, self.settings, self.stats
        device, dtype = learner.device, learner.loss_dtype
        samples = [row.sample for row in rows]
        lengths = torch.tensor([s.loss_tokens for s in samples], device=device)
        turn_lengths = torch.tensor([n for s in samples for n in s.turn_tokens_K], device=device)
        advantages = torch.tensor([a for row in rows for a in row.advantages_K], device=device, dtype=dtype)
        weights_N = torch.tensor(weights, device=device, dtype=dtype).repeat_interleave(lengths)
        old, reference, corrections = self._old(batch, rows)
        logprobs, entropy, values = learner.score_with_values(
            batch,
            turn_starts(samples),
            temperature=settings.temperature,
            entropy_gradient=settings.entropy_coef > 0,
        )
        parts = policy_loss(
            logprobs,
            objective=settings.objective,
            kl_coef=self.kl_coef,
            old_logprobs_N=old,
            advantages_N=advantages.repeat_interleave(turn_lengths),
            lengths_B=lengths,
            reference_logprobs_N=reference,
            weights_N=corrections,
        )
        loss = (parts.loss_N * weights_N).sum()
        if settings.entropy_coef:
            loss = loss - settings.entropy_coef * (entropy * weights_N).sum()
        stats.loss += float(loss.detach())
        if values is not None:
            error = self._value_error(values, rows).sum() / n_turns
            stats.value_loss = (stats.value_loss or 0.0) + float(error.detach())
            loss = loss + settings.value_coef * error
        learner.backward(loss)
        if rows[0].rescored is None:
            # Before the first step the sampler and the trainer have the same weights: what differs is error.
            stats.drift.add(logprobs.detach(), old)
        stats.max_ratio = max(stats.max_ratio, float(parts.ratio_N.max()))
        from_old = k3((old - logprobs.detach()).double())  # KL(old || new)
        stats.add(
            len(old),
            approx_kl=float(from_old.sum()),
            **({"kl": float(parts.kl_N.sum())} if reference is not None else {}),
            clip_fraction=float(parts.is_clipped_N.sum()),
            entropy=float(entropy.detach().sum()),
            ratio_mean=float(parts.ratio_N.sum()),
            **({} if corrections is None else {"correction_mean": float(corrections.sum())}),
        )

    def _old(
        self, batch: Batch, rows: Sequence[UpdateRow]
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Old and reference logprobs and the sampler's correction [N] of a micro-batch."""
        settings = self.settings
        sampler = sampler_logprobs([row.sample for row in rows], self.learner)
        rescored = [row.rescored for row in rows if row.rescored is not None]
        if not rescored:
            reference = None
            if self.asks_reference:
                reference = self.learner.reference_logprobs(batch, temperature=settings.temperature)
            return sampler, reference, None
        old = torch.cat([scores.logprobs_N for scores in rescored])
        references = [scores.reference_N for scores in rescored if scores.reference_N is not None]
        reference = torch.cat(references) if references else None
        if settings.tis_cap is None:
            return old, reference, None
        return old, reference, sampler_weights(old, sampler, cap=settings.tis_cap)

    def _value_error(self, values: torch.Tensor, rows: Sequence[UpdateRow]) -> torch.Tensor:
        """The value loss [K] of a micro-batch, whose rows were all rescored."""
        returns = [r for row in rows for r in row.returns_K]
        rescored = [row.rescored.values_K for row in rows if row.rescored is not None]
        return value_loss(
            values,
            old_values_K=torch.cat([old for old in rescored if old is not None]),
            returns_K=torch.tensor(returns, device=values.device, dtype=values.dtype),
        )


def _everyones(rows: Sequence[UpdateRow], processes: Processes, device: torch.device) -> list[UpdateRow]:
    """The rows of all processes, which travel over the CPU."""
    if processes.count == 1:
        return list(rows)
    cpu = torch.device("cpu")
    travelling = [_moved(row, cpu) for row in rows]
    return [_moved(row, device) for row in processes.gather(travelling)]


def _moved(row: UpdateRow, device: torch.device) -> UpdateRow:
    scores = row.rescored
    if scores is None:
        return row
    reference, values = (None if t is None else t.to(device) for t in (scores.reference_N, scores.values_K))
    return replace(row, rescored=Rescored(scores.logprobs_N.to(device), reference, values))


def _outcomes(graded: GradedBatch) -> list[float]:
    """Return what each turn turned out to be worth: the reward at its episode's end, discounted."""
    gamma = graded.settings.gamma
    return [
        gamma ** (turns - 1 - k) * reward
        for reward, sample in zip(graded.rewards, graded.samples, strict=True)
        for turns in [len(sample.turn_tokens_K)]
        for k in range(turns)
    ]
