"""Native credit for SkyRL's batches: advantages and weights that leave failed episodes out.

SkyRL counts a failed episode as a reward of 0, and a mask alone would leave it in the mean of its group. Here
it is in no mean and in no divisor, and neither are groups whose attempts are all alike.
"""
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportUntypedBaseClass=false

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.objective.advantages import CreditSettings, GradedAttempt, assign_credit, graded_batch
from mcpagent.train.objective.grading import GradeSettings
from mcpagent.train.objective.loss import token_weights
from mcpagent.train.update import UpdateSettings

FAILED, CUT = "failed", "length"  # stop reasons: an episode that is left out, one that ran out of tokens


def native_credit(
    rewards_BL: torch.Tensor,
    sampled_BL: torch.Tensor,
    groups_B: Sequence[Any],
    settings: CreditSettings,
    *,
    scored_B: torch.Tensor,
    kept_B: torch.Tensor | None = None,
    values_BL: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the advantages [B, L] and returns [B, L] of `train.objective` for SkyRL's rows, and which rows
    carry a gradient [B]. Rows that are not scored are in no mean; those that are scored and not `kept_B`
    count in their group, and are not trained on."""
    kept_B = scored_B if kept_B is None else kept_B
    samples = [TrainSample(token_ids_T=(), loss_mask_T=tuple(row)) for row in sampled_BL.bool().tolist()]
    totals = rewards_BL.sum(-1).tolist()
    attempts_of: dict[str, list[GradedAttempt]] = {}
    for i, name in enumerate(groups_B):
        is_trained = kept_B[i] and any(samples[i].loss_mask_T)
        attempt = GradedAttempt(
            reward=totals[i] if scored_B[i] else None, sample=samples[i] if is_trained else None
        )
        attempts_of.setdefault(str(name), []).append(attempt)
    graded = graded_batch(attempts_of, settings)
    row_of = {id(sample): i for i, sample in enumerate(samples)}
    places = [row_of[id(sample)] for sample in graded.samples]
    turns = [_turns(samples[i].loss_mask_T) for i in places]
    # What the KL took off a turn's reward is a penalty of that turn; the outcome came with the last one.
    penalties = [_penalties(rewards_BL[i], turns[k], totals[i]) for k, i in enumerate(places)]
    values = (
        None
        if values_BL is None
        else [[float(values_BL[i, start]) for start, _ in turns[k]] for k, i in enumerate(places)]
    )
    credit = assign_credit(graded, penalties=penalties, values=values)
    advantages, returns = torch.zeros_like(rewards_BL), torch.zeros_like(rewards_BL)
    for k, i in enumerate(places):
        for j, (start, end) in enumerate(turns[k]):
            advantages[i, start:end] = credit.advantages[k][j]
            returns[i, start:end] = credit.returns[k][j] if credit.returns else credit.advantages[k][j]
    trained = torch.zeros(len(totals), dtype=torch.bool)
    trained[places] = True
    return advantages, returns, trained


def _turns(mask_L: Sequence[bool]) -> list[tuple[int, int]]:
    """Start and end of each run of sampled tokens."""
    edges = [i for i, (a, b) in enumerate(zip((False, *mask_L), (*mask_L, False), strict=True)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _penalties(rewards_L: torch.Tensor, turns: Sequence[tuple[int, int]], total: float) -> list[float]:
    """Return penalties with which the native sums give each turn its own rewards: `-penalty`, and `total`
    with the last."""
    bounds = [start for start, _ in turns] + [len(rewards_L)]
    sums = [float(rewards_L[a:b].sum()) for a, b in itertools.pairwise(bounds)]
    return [*(-r for r in sums[:-1]), total - sums[-1]] if sums else []


def credit_batch(data: Any, grading: GradeSettings) -> dict[str, float]:
    """Set `advantages`, `returns` and `loss_mask` of SkyRL's training batch; the metrics that say so."""
    rows = data["rewards"].shape[0]
    reasons = list(data.metadata["stop_reasons"])
    reasons += [FAILED] * (rows - len(reasons))  # what SkyRL pads with
    uids = list(data.metadata["uids"])
    uids += [f"padding-{i}" for i in range(rows - len(uids))]
    scored = torch.tensor([reason != FAILED for reason in reasons])
    is_cut = torch.tensor([reason == CUT for reason in reasons])
    sampled = data["loss_mask"].bool()
    advantages, returns, is_trained = native_credit(
        data["rewards"],
        sampled,
        uids,
        grading.credit,
        scored_B=scored,
        kept_B=scored & ~is_cut if grading.overlong.mask_truncated else scored,
        values_BL=data["values"] if grading.credit.advantage == "gae" else None,
    )
    data["advantages"], data["returns"] = advantages, returns
    data["loss_mask"] = data["loss_mask"] * is_trained.unsqueeze(-1).to(data["loss_mask"].dtype)
    totals = data["rewards"].sum(-1)[scored]
    trained = advantages[data["loss_mask"].bool()]
    metrics = {
        "loss/avg_final_rewards": float(totals.mean()) if len(totals) else 0.0,
        "loss/avg_raw_advantages": float(trained.mean()) if len(trained) else 0.0,
        "loss/avg_raw_advantages_abs": float(trained.abs().mean()) if len(trained) else 0.0,
        "trained_samples": float(is_trained.sum()),
    }
    data.metadata.setdefault("metrics", {}).update(
        {
            "avg_final_rewards": metrics["loss/avg_final_rewards"],
            "avg_response_length": data.metadata.get("avg_response_length", 0.0),
            "avg_advantages": metrics["loss/avg_raw_advantages"],
            "avg_advantages_abs": metrics["loss/avg_raw_advantages_abs"],
        }
    )
    return metrics


def weigh_advantages(data: Any, mini_batches: Sequence[tuple[int, int]], update: UpdateSettings) -> None:
    """Scale advantages so that SkyRL's sums over tokens are the native loss of each optimiser batch."""
    weighed = torch.zeros_like(data["advantages"])
    for start, end in mini_batches:
        lengths = data["loss_mask"][start:end].sum(-1).long().tolist()
        if any(lengths):
            weights = token_weights(
                lengths, loss=update.objective.loss, max_tokens=update.max_response_tokens
            )
            weighed[start:end] = data["advantages"][start:end] * torch.tensor(weights).unsqueeze(-1)
    data["advantages"] = weighed
