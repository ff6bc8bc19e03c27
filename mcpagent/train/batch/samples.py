"""What the trainer sees of trajectories: samples, and batches of them without padding.

Every token that several samples share is in the row of a batch once. Prefixes may be shared as far as they
carry no loss: the system prompt of a whole batch, the prompt of a group. They become a tree of segments (a
radix tree) in one row, for `models.attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise

import torch

from mcpagent.core.trajectory import Trajectory
from mcpagent.models.attention import PrefixTree, Siblings, Trunk


@dataclass(frozen=True, kw_only=True)
class TrainSample:
    """One sequence of length T. `loss_mask_T` is True exactly on the sampled tokens; `sampler_logprobs_T` is
    in nats and 0.0 if the mask is False."""

    token_ids_T: tuple[int, ...]
    loss_mask_T: tuple[bool, ...]
    sampler_logprobs_T: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids_T)

    @property
    def loss_tokens(self) -> int:
        """Return how many tokens carry loss: those that the model sampled."""
        return sum(self.loss_mask_T)

    @cached_property
    def first_loss(self) -> int:
        """Index of the first token that carries loss; of the last token if none does."""
        return self.loss_mask_T.index(True) if any(self.loss_mask_T) else len(self) - 1

    @cached_property
    def turn_tokens_K(self) -> tuple[int, ...]:
        """Return how many tokens each of the K sampled turns has: a turn is a run of the mask, since the
        environment never lets two of them touch."""
        return tuple(len(list(run)) for sampled, run in groupby(self.loss_mask_T) if sampled)

    @property
    def sampler_logprobs_N(self) -> list[float]:
        """Return the sampler's logprobs of the sampled tokens alone."""
        return [
            p for p, is_sampled in zip(self.sampler_logprobs_T, self.loss_mask_T, strict=True) if is_sampled
        ]


def sample_from_trajectory(trajectory: Trajectory) -> TrainSample:
    """Return the tokens that the model saw and made, as they were: nothing is tokenised again."""
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
    """Return a demonstration: token ids with whether the model is to produce them."""
    return TrainSample(
        token_ids_T=tuple(i for ids, _ in segments for i in ids),
        loss_mask_T=tuple(is_sampled for ids, is_sampled in segments for _ in ids),
    )


_MIN_SHARED = 16  # tokens; a shorter prefix costs more as a segment of its own than it saves
_MAX_STRETCH = 1.5  # lengths of siblings that are computed together differ at most by this factor
_MIN_WIDTH = 32  # tokens up to which lengths may differ as they like


@dataclass(frozen=True)
class PackedBatch:
    """`rows`: index of the sample that each leaf of the tree belongs to. `input_ids` and `position_ids` [L].
    For the N loss-bearing tokens, row by row: `predictors_N` is the position in the row whose hidden state
    predicts the token, `targets_N` the token."""

    rows: tuple[int, ...]
    tree: PrefixTree
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    predictors_N: torch.Tensor
    targets_N: torch.Tensor
    prefix: SharedPrefix | None = None


@dataclass(eq=False)
class SharedPrefix:
    """The tokens with which all samples of several batches begin, none of which carries loss: they stand in
    none of the rows. `trunks` are their keys and values by whose they are; `of` says whose are asked for."""

    input_ids: torch.Tensor
    of: str = "policy"
    trunks: dict[str, Trunk] = field(default_factory=dict)

    def backward(self) -> None:
        """Carry the gradients of all batches on into the prefix."""
        for trunk in self.trunks.values():
            trunk.backward()


def packed_batches(
    samples: Sequence[TrainSample],
    *,
    max_tokens: int,
    device: torch.device | None = None,
    may_share: bool = False,
) -> Iterator[PackedBatch]:
    """Cover every sample once; at most `max_tokens` tokens a row, at least one sample. Samples with the same
    prompt come together, whatever their order was. If they `may_share` a prefix, several rows do, one after
    the other; the samples of a batch may have several such prefixes."""
    order = sorted(range(len(samples)), key=lambda i: (_shareable(samples[i]), len(samples[i]), i))
    rows = _rows(samples, order, max_tokens, 0)
    if may_share and len(rows) > 1:
        alone: list[int] = []
        for run in _runs(samples, order):
            depth = _prefix_of(samples, run)
            if not depth or len(_rows(samples, run, max_tokens, 0)) == 1:
                alone += run
                continue
            prefix = SharedPrefix(torch.tensor(samples[run[0]].token_ids_T[:depth], device=device))
            for each in _rows(samples, run, max_tokens, depth):
                yield pack(samples, each, device=device, prefix=prefix)
        rows = _rows(samples, alone, max_tokens, 0)
    for each in rows:
        yield pack(samples, each, device=device)


def _runs(samples: Sequence[TrainSample], order: Sequence[int]) -> list[list[int]]:
    """Cut the samples, in the order of their prompts, where less than half of a prompt is shared: one
    question behind another list of tools must not end the sharing of the rest."""
    runs = [[order[0]]]
    for before, index in pairwise(order):
        shortest = min(samples[before].first_loss, samples[index].first_loss)
        if 2 * _common(samples, (before, index), 0) < shortest:
            runs.append([])
        runs[-1].append(index)
    return runs


def _rows(
    samples: Sequence[TrainSample], order: Sequence[int], max_tokens: int, depth: int
) -> list[list[int]]:
    """The samples of each row, of whose tokens those from `depth` on are in it."""
    rows: list[list[int]] = []
    tokens = max_tokens + 1  # the first sample opens a row
    for index in order:
        alone = len(samples[index]) - depth
        new = alone - (_overlap(samples[rows[-1][-1]], samples[index], depth) if rows else 0)
        if tokens + new > max_tokens:
            rows.append([])
            tokens, new = 0, alone
        rows[-1].append(index)
        tokens += new
    return rows


def _prefix_of(samples: Sequence[TrainSample], rows: Sequence[int]) -> int:
    """Return how many tokens all samples of `rows` begin with; the token before the first that carries loss
    is not among them, since it predicts that one."""
    shared = min(_common(samples, rows, 0), min(samples[row].first_loss for row in rows) - 1)
    return shared if shared >= _MIN_SHARED else 0


def pack(
    samples: Sequence[TrainSample],
    rows: Sequence[int],
    *,
    device: torch.device | None = None,
    prefix: SharedPrefix | None = None,
) -> PackedBatch:
    """One row of the samples `rows`, without the `prefix` that it shares with others."""
    row = _Row(samples)
    row.grow(list(rows), depth=0 if prefix is None else len(prefix.input_ids), path=(), parent=-1)
    return PackedBatch(
        rows=tuple(row.leaves),
        tree=PrefixTree(tuple(row.sets)),
        input_ids=torch.tensor(row.ids, device=device),
        position_ids=torch.tensor(row.positions, device=device),
        predictors_N=torch.tensor(row.predictors, dtype=torch.long, device=device),
        targets_N=torch.tensor(row.targets, dtype=torch.long, device=device),
        prefix=prefix,
    )


@dataclass
class _Segment:
    """Tokens [start, end) of a sample; `rows` continue it, or it is the leaf of one (`is_leaf`)."""

    start: int
    end: int
    rows: list[int]
    is_leaf: bool

    def __len__(self) -> int:
        return self.end - self.start


@dataclass
class _Row:
    """The row while it grows."""

    samples: Sequence[TrainSample]
    sets: list[Siblings] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    predictors: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def grow(self, rows: list[int], *, depth: int, path: tuple[tuple[int, int], ...], parent: int) -> None:
        """Add everything that `rows`, which agree up to `depth`, have after it. `path` are the ancestors in
        the row, `parent` the place of the last token before."""
        placed: list[tuple[_Segment, int]] = []
        for siblings in _alike(self._segments(rows, depth)):
            self.sets.append(Siblings(len(self.ids), tuple(len(s) for s in siblings), path))
            for segment in siblings:
                placed.append((segment, len(self.ids)))
                self._place(segment, parent)
        for segment, start in placed:
            if not segment.is_leaf:
                end = start + len(segment)
                self.grow(segment.rows, depth=segment.end, path=(*path, (start, end)), parent=end - 1)

    def _segments(self, rows: list[int], depth: int) -> Iterator[_Segment]:
        """The children of a node: a shared segment for rows that agree for long enough, else a leaf each."""
        if len(rows) == 1:
            yield _Segment(depth, len(self.samples[rows[0]]), rows, True)
            return
        shared = _common(self.samples, rows, depth)
        if shared - depth >= _MIN_SHARED:
            yield _Segment(depth, shared, rows, False)
            return
        forks: dict[int | None, list[int]] = {}
        for row in rows:
            sample = self.samples[row]
            ended = shared >= sample.first_loss
            forks.setdefault(None if ended else sample.token_ids_T[shared], []).append(row)
        for token, fork in forks.items():
            if token is None:
                for row in fork:
                    yield _Segment(depth, len(self.samples[row]), [row], True)
            else:
                yield from self._segments(fork, depth)

    def _place(self, segment: _Segment, parent: int) -> None:
        sample, start = self.samples[segment.rows[0]], len(self.ids)
        self.ids += sample.token_ids_T[segment.start : segment.end]
        self.positions += range(segment.start, segment.end)
        if not segment.is_leaf:
            return
        self.leaves.append(segment.rows[0])
        for at in range(max(1, segment.start), segment.end):
            if sample.loss_mask_T[at]:
                offset = at - segment.start
                self.predictors.append(start + offset - 1 if offset else parent)
                self.targets.append(sample.token_ids_T[at])


def _alike(segments: Iterator[_Segment]) -> Iterator[list[_Segment]]:
    """Segments of similar length together: they are padded to the longest while they attend."""
    alike: list[_Segment] = []
    for segment in sorted(segments, key=len):
        if alike and len(segment) > max(_MIN_WIDTH, _MAX_STRETCH * len(alike[0])):
            yield alike
            alike = []
        alike.append(segment)
    if alike:
        yield alike


def _shareable(sample: TrainSample) -> tuple[int, ...]:
    return sample.token_ids_T[: sample.first_loss]


def _overlap(left: TrainSample, right: TrainSample, depth: int) -> int:
    shared = _common((left, right), (0, 1), depth) - depth
    return shared if shared >= _MIN_SHARED else 0


def _common(samples: Sequence[TrainSample], rows: Sequence[int], depth: int) -> int:
    """Return how far all `rows`, which agree up to `depth`, agree before any of them carries loss."""
    first = samples[rows[0]].token_ids_T
    end = min(samples[row].first_loss for row in rows)
    for row in rows[1:]:
        other = samples[row].token_ids_T
        if other[depth:end] != first[depth:end]:
            end = next(at for at in range(depth, end) if other[at] != first[at])
    return end


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
        """The loss-bearing tokens, row by row. The first token of a row is not one: nothing precedes it."""
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
