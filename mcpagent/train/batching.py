"""Micro-batches of right-padded rows, for models whose attention knows no packed trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mcpagent.train.samples import TrainSample


@dataclass(frozen=True)
class PaddedBatch:
    """`input_ids` [B, T] right-padded with 0, `loss_mask` [B, T] bool, `rows`: index of each row's sample.

    No attention mask: attention is causal, so what follows a row's end cannot reach its tokens.
    """

    rows: tuple[int, ...]
    input_ids: torch.Tensor
    loss_mask: torch.Tensor

    @property
    def targets_N(self) -> torch.Tensor:
        """The loss-bearing tokens, row by row. The first token of a row is none: nothing precedes it."""
        return self.input_ids[:, 1:][self.loss_mask[:, 1:]]


def padded_batches(
    samples: Sequence[TrainSample], *, max_tokens: int, device: torch.device | None = None
) -> Iterator[PaddedBatch]:
    """Cover every sample once; padded size (rows times longest) at most `max_tokens`, at least one row."""
    order = sorted(range(len(samples)), key=lambda i: (len(samples[i]), i))
    rows: list[int] = []
    for index in order:
        if rows and (len(rows) + 1) * len(samples[index]) > max_tokens:
            yield _pad(samples, rows, device)
            rows = []
        rows.append(index)
    if rows:
        yield _pad(samples, rows, device)


def _pad(samples: Sequence[TrainSample], rows: list[int], device: torch.device | None) -> PaddedBatch:
    width = max(len(samples[i]) for i in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, index in enumerate(rows):
        sample = samples[index]
        ids[row, : len(sample)] = torch.tensor(sample.token_ids_T)
        mask[row, : len(sample)] = torch.tensor(sample.loss_mask_T)
    return PaddedBatch(tuple(rows), ids.to(device), mask.to(device))
