"""Attention over packed trees, against one dense mask over the whole row."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.memory import kept_by
from mcpagent.models.attention import PrefixTree, Siblings, _attend_masked, attend_tree
from mcpagent.train.batch.samples import TrainSample, pack

States = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries, keys, values


def random_tree(seed: int) -> PrefixTree:
    """Of one to four prompts under a system message, each with one to six continuations."""
    rng = random.Random(seed)

    def draw(least: int, most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(50) for _ in range(rng.randint(least, most)))

    system = draw(16, 80)
    samples: list[TrainSample] = []
    for _ in range(rng.randint(1, 4)):
        prompt = system + draw(16, 60)
        for _ in range(rng.randint(1, 6)):
            own = draw(1, 70)
            mask = (False,) * len(prompt) + (True,) * len(own)
            samples.append(TrainSample(token_ids_T=prompt + own, loss_mask_T=mask))
    return pack(samples, range(len(samples))).tree


def visible(tree: PrefixTree) -> torch.Tensor:
    """Who sees whom [L, L]: a token its ancestors, and its own segment up to itself."""
    tokens = tree.sets[-1].end
    mask = torch.zeros(tokens, tokens, dtype=torch.bool)
    for siblings in tree.sets:
        start = siblings.start
        for length in siblings.lengths:
            for place in range(start, start + length):
                mask[place, start : place + 1] = True
                for first, end in siblings.path:
                    mask[place, first:end] = True
            start += length
    return mask


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree: PrefixTree, scaling: float
) -> torch.Tensor:
    """The textbook's softmax(q k / sqrt d) v, in float64."""
    group = query.shape[1] // key.shape[1]
    q, k, v = (states.double() for states in (query, key, value))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.mT * scaling).masked_fill(~visible(tree), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def states(
    tree: PrefixTree, *, heads: int, key_value_heads: int, seed: int, dtype: torch.dtype = torch.float32
) -> States:
    generator = torch.Generator().manual_seed(seed)
    tokens = tree.sets[-1].end

    def draw(n: int) -> torch.Tensor:
        drawn = torch.randn(1, tokens, n, 16, generator=generator)
        return drawn.to(dtype).transpose(1, 2).requires_grad_()

    return draw(heads), draw(key_value_heads), draw(key_value_heads)


def furthest(attend: Callable[..., torch.Tensor], tree: PrefixTree, inputs: States, seed: int) -> float:
    """The largest difference of outputs and of gradients to those of the dense mask, where values above 1
    count as 1."""
    out, exact = attend(*inputs, tree, scaling=0.25), dense(*inputs, tree, 0.25)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
    got = torch.autograd.grad((out * weights).sum(), inputs)
    wanted = torch.autograd.grad((exact * weights).sum(), inputs)
    pairs = zip((out, *got), (exact, *wanted), strict=True)
    return max(float(((a - b).abs().max() / b.abs().max().clamp(min=1.0)).detach()) for a, b in pairs)


@pytest.mark.parametrize(("heads", "key_value_heads"), [(4, 4), (4, 2), (8, 2), (6, 1)])
def test_random_trees_with_grouped_queries_attend_as_under_a_dense_mask(
    heads: int, key_value_heads: int
) -> None:
    for seed in range(10):
        tree = random_tree(seed)
        inputs = states(tree, heads=heads, key_value_heads=key_value_heads, seed=seed)
        assert furthest(attend_tree, tree, inputs, seed) < 1e-5


@pytest.mark.parametrize(
    "max_scores", [300, 1 << 28, *(pytest.param(n, marks=pytest.mark.system) for n in (1, 2000))]
)
def test_attention_without_a_flash_kernel_is_the_same_whole_and_in_parts(max_scores: int) -> None:
    def masked(*args: Any, **options: Any) -> torch.Tensor:
        return _attend_masked(*args, dropout=0.0, max_scores=max_scores, **options)

    for seed in range(10):
        tree = random_tree(seed)
        inputs = states(tree, heads=4, key_value_heads=2, seed=seed)
        assert furthest(masked, tree, inputs, seed) < 1e-5


def test_what_attention_without_a_flash_kernel_keeps_is_what_it_was_given_and_gives() -> None:
    """16 continuations of 20 tokens under 400: all scores are 720 x 720 x 4 heads x 4 B = 8 MB."""
    tree = PrefixTree((Siblings(0, (400,)), Siblings(400, (20,) * 16, ((0, 400),))))
    inputs = states(tree, heads=4, key_value_heads=2, seed=0)

    def kept(max_scores: int) -> int:
        mask = tree.mask(torch.device("cpu"))
        return kept_by(
            lambda: _attend_masked(*inputs, tree, scaling=0.25, dropout=0.0, max_scores=max_scores),
            [*inputs, mask],
        )

    assert kept(1 << 14) < sum(t.nbytes for t in inputs)  # the outputs, next to the inputs


def test_counting_what_is_kept_keeps_nothing() -> None:
    """`exp` saves its own output. Counted on a GPU, the graph of an update stayed there next to the measured
    ones."""
    outputs: list[weakref.ref[torch.Tensor]] = []

    def run() -> torch.Tensor:
        out = torch.ones(1000, requires_grad=True).exp()
        outputs.append(weakref.ref(out))
        return out

    assert kept_by(run, []) == 4000
    gc.collect()
    assert outputs[0]() is None


def test_segments_below_one_ancestor_need_not_stand_together() -> None:
    """Two prompts, then the continuations of the first, of the second, and of the first again."""
    tree = PrefixTree(
        (
            Siblings(0, (20, 17)),
            Siblings(37, (5, 7), ((0, 20),)),
            Siblings(49, (9,), ((20, 37),)),
            Siblings(58, (4, 3), ((0, 20),)),
        )
    )
    inputs = states(tree, heads=4, key_value_heads=2, seed=0)
    assert furthest(attend_tree, tree, inputs, 0) < 1e-5


def test_scores_of_any_size_do_not_overflow() -> None:
    """Short segments are padded to their longest sibling, with places that see keys no token of theirs sees:
    their weights must come out as 0, not as exp(large) times 0."""
    tree = PrefixTree((Siblings(0, (5, 6, 7, 8, 31)),))
    inputs = states(tree, heads=2, key_value_heads=1, seed=1)
    out = attend_tree(*inputs, tree, scaling=1000.0)
    gradients = torch.autograd.grad(out.sum(), inputs)
    assert all(torch.isfinite(tensor).all() for tensor in (out, *gradients))


def test_a_backward_pass_keeps_no_copy_of_an_ancestor_for_each_sibling() -> None:
    """64 continuations of 8 tokens under a prompt of 200: copies of its keys would be 64 * 200 tokens."""
    tree = PrefixTree((Siblings(0, (200,)), Siblings(200, (8,) * 64, ((0, 200),))))
    inputs = states(tree, heads=4, key_value_heads=2, seed=0, dtype=torch.bfloat16)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = attend_tree(*inputs, tree, scaling=0.25)
    assert out.requires_grad
    tokens = 200 + 64 * 8
    # Queries and outputs of 4 heads, keys and values of 2, of 16 bfloat16 each; a float32 a head.
    assert sum(kept.values()) == tokens * (2 * 16 * (4 + 4 + 2 + 2) + 4 * 4)


def test_bfloat16_and_autocast_are_as_near_as_they_resolve() -> None:
    for seed in range(4):
        tree = random_tree(seed)
        exact = dense(*states(tree, heads=4, key_value_heads=2, seed=seed), tree, 0.25).detach()
        half = attend_tree(
            *states(tree, heads=4, key_value_heads=2, seed=seed, dtype=torch.bfloat16), tree, scaling=0.25
        )
        with torch.autocast("cpu", torch.bfloat16):
            cast = attend_tree(*states(tree, heads=4, key_value_heads=2, seed=seed), tree, scaling=0.25)
        assert half.dtype == cast.dtype == torch.bfloat16
        assert float((half.detach() - exact).abs().max()) < 0.03
        assert torch.equal(half, cast)
