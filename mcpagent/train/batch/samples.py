"""What the trainer sees of a trajectory: token ids, which of them were sampled, and how likely they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from mcpagent.core.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class TrainSample:
    """One sequence of length T. `loss_mask_T` is True exactly on the sampled tokens; `sampler_logprobs_T` is
    in nats and 0.0 where the mask is False."""

    token_ids_T: tuple[int, ...]
    loss_mask_T: tuple[bool, ...]
    sampler_logprobs_T: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids_T)

    @property
    def loss_tokens(self) -> int:
        return sum(self.loss_mask_T)

    @cached_property
    def first_loss(self) -> int:
        """Index of the first token that carries loss; of the last token where none does."""
        return self.loss_mask_T.index(True) if any(self.loss_mask_T) else len(self) - 1

    @cached_property
    def turn_tokens_K(self) -> tuple[int, ...]:
        """How many tokens each of the K sampled turns has: a turn is a run of the mask, since the environment
        never lets two of them touch."""
        return tuple(len(list(run)) for sampled, run in groupby(self.loss_mask_T) if sampled)

    @property
    def sampler_logprobs_N(self) -> list[float]:
        """Those of the sampled tokens alone."""
        return [p for p, own in zip(self.sampler_logprobs_T, self.loss_mask_T, strict=True) if own]


def sample_from_trajectory(trajectory: Trajectory) -> TrainSample:
    """The tokens that the model saw and made, as they were: nothing is tokenised again."""
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for turn in trajectory.turns:
        added, completion = turn.added_token_ids, turn.completion
        ids += (*added, *completion.token_ids)
        mask += [False] * len(added) + [True] * len(completion.token_ids)
        logprobs += (*[0.0] * len(added), *completion.logprobs)
    return TrainSample(token_ids_T=tuple(ids), loss_mask_T=tuple(mask), sampler_logprobs_T=tuple(logprobs))


def sample_from_segments(segments: Sequence[tuple[Sequence[int], bool]]) -> TrainSample:
    """A demonstration: token ids with whether the model is to produce them."""
    return TrainSample(
        token_ids_T=tuple(i for ids, _ in segments for i in ids),
        loss_mask_T=tuple(own for ids, own in segments for _ in ids),
    )
