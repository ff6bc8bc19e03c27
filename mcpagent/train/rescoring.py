"""What the trainer's own weights say of a batch before the first step of an update changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mcpagent.train.learner import Learner
from mcpagent.train.samples import TrainSample
from mcpagent.train.value import turn_starts


@dataclass(frozen=True)
class Rescored:
    """Of one sample: logprobs [N] of its tokens (nats), those under the reference, values [K] of the states
    before its turns."""

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
    """One forward pass over every sample, with dropout off; values where the learner has a head for them."""
    by_row: dict[int, Rescored] = {}
    was_training = learner.model.training
    learner.model.eval()
    with learner.measuring_states():
        for batch in learner.batches(samples, max_tokens=max_tokens):
            rows = [samples[i] for i in batch.rows]
            tokens, turns = [s.loss_tokens for s in rows], [len(s.turn_tokens_K) for s in rows]
            logprobs, _, values = learner.score_with_values(batch, turn_starts(rows), temperature=temperature)
            reference = learner.reference_logprobs(batch, temperature=temperature) if with_reference else None
            nothing = (None,) * len(rows)
            references = nothing if reference is None else reference.split(tokens)
            by_turn = nothing if values is None else values.split(turns)
            for row, own, other, worth in zip(
                batch.rows, logprobs.split(tokens), references, by_turn, strict=True
            ):
                by_row[row] = Rescored(own, other, worth)
    learner.model.train(was_training)
    return [by_row[row] for row in range(len(samples))]
