"""One update: from graded groups to optimiser steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from mcpagent.train.credit import Graded
from mcpagent.train.learner import Learner
from mcpagent.train.loss import batch_totals, policy_loss, sampler_weights, token_weights
from mcpagent.train.scoring import Batch
from mcpagent.train.update_rows import UpdateRow, sampler_logprobs, update_rows
from mcpagent.train.update_settings import UpdateSettings
from mcpagent.train.update_stats import UpdateStats, combined
from mcpagent.train.value import turn_starts, value_loss


def update_policy(
    learner: Learner,
    graded: Graded,
    *,
    settings: UpdateSettings,
    first_optimizer_step: int,
    seed: int,
) -> UpdateStats:
    """Optimise on the groups that carry a signal, shared out over the processes, which are all given the same
    groups and get the same statistics.

    Old logprobs are the sampler's where one step is taken; the trainer's own, from before the first step,
    where there are several or the sampler is corrected for. Past `settings.stop_kl` the other steps are left
    out. `first_optimizer_step` numbers the steps for the
    learning-rate schedule; `seed` shuffles groups into minibatches.
    """
    stats, processes = UpdateStats(), learner.processes
    telling = [group for group in graded.groups if group.has_signal]
    own = replace(graded, groups=tuple(processes.share(telling)))
    processes.seed_torch(seed)
    rows = update_rows(learner, own, settings, stats)
    learner.model.train()
    for epoch in range(settings.epochs):
        order = sorted({row.group for row in rows})
        random.Random(f"{seed}/{epoch}").shuffle(order)
        # A process with fewer groups than others takes part in all of their steps.
        groups = max(processes.gather([len(order)]))
        size = max(1, -(-groups // settings.minibatches))
        for start in range(0, groups, size):
            if _has_moved_too_far(learner, settings, stats):
                stats.skipped_steps += 1
                continue
            chosen = set(order[start : start + size])
            _optimizer_step(
                learner,
                [row for row in rows if row.group in chosen],
                settings,
                stats,
                number=first_optimizer_step + stats.optimizer_steps,
            )
    learner.model.eval()
    return combined(processes.gather([stats]))


def _has_moved_too_far(learner: Learner, settings: UpdateSettings, stats: UpdateStats) -> bool:
    """Whether the policy, as the last step of any process found it, is past `stop_kl`."""
    if settings.stop_kl is None:
        return False
    return max(learner.processes.gather([stats.approx_kl.latest])) > settings.stop_kl


def _optimizer_step(
    learner: Learner, rows: Sequence[UpdateRow], settings: UpdateSettings, stats: UpdateStats, *, number: int
) -> None:
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
        own = [rows[i] for i in batch.rows]
        _backward(learner, batch, own, [weights[i] for i in batch.rows], settings, stats, n_turns=n_turns)
    stats.approx_kl.end_step()
    norm, _ = learner.step(number)
    stats.optimizer_steps += 1
    if norm is None:
        stats.overflows += 1
    else:
        stats.grad_norm += norm


def _backward(
    learner: Learner,
    batch: Batch,
    rows: Sequence[UpdateRow],
    weights: Sequence[float],
    settings: UpdateSettings,
    stats: UpdateStats,
    *,
    n_turns: float,
) -> None:
    device, dtype = learner.device, learner.loss_dtype
    samples = [row.sample for row in rows]
    lengths = torch.tensor([s.loss_tokens for s in samples], device=device)
    turn_lengths = torch.tensor([n for s in samples for n in s.turn_tokens_K], device=device)
    advantages = torch.tensor([a for row in rows for a in row.advantages_K], device=device, dtype=dtype)
    weights_N = torch.tensor(weights, device=device, dtype=dtype).repeat_interleave(lengths)
    old, reference, corrections = _old(learner, batch, rows, lengths, settings)
    logprobs, entropy, values = learner.score_with_values(
        batch,
        turn_starts(samples),
        temperature=settings.temperature,
        entropy_gradient=settings.entropy_coef > 0,
    )
    parts = policy_loss(
        logprobs,
        objective=settings.objective,
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
        error = _value_error(values, rows, settings).sum() / n_turns
        stats.value_loss = (stats.value_loss or 0.0) + float(error.detach())
        loss = loss + settings.value_coef * error
    learner.backward(loss)
    if rows[0].before is None:
        # Before the first step the sampler and the trainer have the same weights: what differs is error.
        stats.drift.add(logprobs.detach(), old)
    stats.approx_kl.add(logprobs.detach(), old)
    stats.max_ratio = max(stats.max_ratio, float(parts.ratio_N.max()))
    stats.add(
        len(old),
        kl=float(parts.kl_N.sum()),
        clip_fraction=float(parts.is_clipped_N.sum()),
        entropy=float(entropy.detach().sum()),
        ratio_mean=float(parts.ratio_N.sum()),
        **({} if corrections is None else {"correction_mean": float(corrections.sum())}),
    )


def _old(
    learner: Learner, batch: Batch, rows: Sequence[UpdateRow], lengths: torch.Tensor, settings: UpdateSettings
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Old and reference logprobs and the sampler's correction [N] of a micro-batch."""
    sampler = sampler_logprobs([row.sample for row in rows], learner)
    before = [row.before for row in rows if row.before is not None]
    if not before:
        reference = (
            learner.reference_logprobs(batch, temperature=settings.temperature)
            if settings.use_reference
            else None
        )
        return sampler, reference, None
    old = torch.cat([own.logprobs_N for own in before])
    known = [own.reference_N for own in before if own.reference_N is not None]
    reference = torch.cat(known) if known else None
    if settings.correction is None:
        return old, reference, None
    correction = settings.correction
    return (
        old,
        reference,
        sampler_weights(
            old, sampler, lengths, cap=correction.cap, level=correction.level, beyond=correction.beyond
        ),
    )


def _value_error(values: torch.Tensor, rows: Sequence[UpdateRow], settings: UpdateSettings) -> torch.Tensor:
    returns = torch.tensor(
        [r for row in rows for r in row.returns_K], device=values.device, dtype=values.dtype
    )
    known = [
        row.before.values_K for row in rows if row.before is not None and row.before.values_K is not None
    ]
    return value_loss(values, old_values_K=torch.cat(known), returns_K=returns, clip=settings.value_clip)
