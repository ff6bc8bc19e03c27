"""Logprobs of chosen tokens under the model, without ever holding the logits of a whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from mcpagent.models.adapters import causal_lm, evaluation_mode, model_device
from mcpagent.models.attention import NAME, PrefixTree, Siblings, Trunk, use_own_attention
from mcpagent.models.logits import output_head
from mcpagent.models.probe import TOLERANCE
from mcpagent.train.batch.samples import (
    PackedBatch,
    PaddedBatch,
    SharedPrefix,
    TrainSample,
    pack,
    padded_batches,
)
from mcpagent.train.learner.optim import Precision
from mcpagent.train.objective.value import ValueHead

_CPU_BLOCK = 1 << 16  # elements that stay in a core's cache while a block is worked on


def selected_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of `targets` [N] and entropies [N] (nats) under softmax(logits / temperature), logits [N, V].

    `logits` is used up: its memory holds the probabilities afterwards, which are all that the backward pass
    needs. Entropies carry a gradient only if `entropy_gradient`.
    """
    return _Selected.apply(logits, targets, 1.0 / temperature, entropy_gradient)[:2]  # type: ignore[return-value]


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, scale: float, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logprobs, entropy = logits.new_empty(2, logits.shape[0])
        for rows in _blocks(logits):
            block = logits[rows]
            if scale != 1.0:
                block.mul_(scale)
            block.sub_(block.amax(-1, keepdim=True))
            weights = block.exp()
            total = weights.sum(-1)
            log_total = total.log()
            logprobs[rows] = block.gather(1, targets[rows, None])[:, 0] - log_total
            entropy[rows] = log_total - torch.linalg.vecdot(weights, block) / total
            torch.div(weights, total[:, None], out=block)
        ctx.mark_dirty(logits)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(logits, targets, entropy if entropy_gradient else None)
        ctx.scale = scale
        return logprobs, entropy, logits

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None, None]:
        probabilities, targets, entropy = ctx.saved_tensors
        of_logprobs, of_entropy, _ = gradients
        assert of_logprobs is not None
        out = torch.empty_like(probabilities)
        for rows in _blocks(probabilities):
            torch.mul(probabilities[rows], -of_logprobs[rows, None], out=out[rows])
        out.scatter_add_(1, targets[:, None], of_logprobs[:, None])
        if entropy is not None and of_entropy is not None:
            # d entropy / d logit = -p (log p + entropy), with 0 log 0 = 0.
            surprise = torch.special.xlogy(probabilities, probabilities)
            out -= of_entropy[:, None] * (surprise + probabilities * entropy[:, None])
        return out.mul_(ctx.scale) if ctx.scale != 1.0 else out, None, None, None


def _blocks(matrix: torch.Tensor) -> list[slice]:
    """Slices of rows: small enough for the cache on a CPU, everything at once elsewhere."""
    rows, width = matrix.shape
    step = max(1, _CPU_BLOCK // width) if matrix.device.type == "cpu" else max(1, rows)
    return [slice(start, start + step) for start in range(0, rows, step)]


Batch = PackedBatch | PaddedBatch

_MAX_LOGITS = {"cpu": 1 << 24}  # elements of one chunk of logits: 64 MB in float32
_MAX_LOGITS_ELSEWHERE = 1 << 25
_KEPT_PREFIX = 8  # a prefix is small that is at most a part of so many of a row
_ROUNDING = 0.05  # share of the spread of logprobs in half precision: 72 layers were seen 0.012 off


class TokenScorer(nn.Module):
    """A causal LM as a function from sequences to the logprobs of their chosen tokens.

    `holds_head` says that whoever shards the weights gathers those of the output head once for a pass: chunks
    of logits then call it without hooks, since processes have different numbers of them. Of passes over more
    than `keeps_tokens`, and of a prefix that several rows share, the layers are computed again in the
    backward pass; None leaves that to the model.
    """

    holds_head = False

    def __init__(
        self,
        model: Any,
        *,
        value_head: ValueHead | None = None,
        precision: Precision | None = None,
        max_logits: int | None = None,
        keeps_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.value_head = model, value_head
        self._precision, self._keeps_tokens = precision or Precision(), keeps_tokens
        if keeps_tokens is not None:
            _checkpoint_layers(model, is_on=False)  # each pass says whether it is
        kind = model_device(model).type
        self._max_logits = max_logits or _MAX_LOGITS.get(kind, _MAX_LOGITS_ELSEWHERE)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of its matrix products."""
        return self._precision.dtype or self.model.dtype

    def forward(
        self,
        batch: Batch | Callable[[], tuple[torch.Tensor, ...]],
        temperature: float = 1.0,
        *,
        entropy_gradient: bool = False,
        value_at: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Logprobs and entropies [N] (nats, at `temperature`) of the batch's N loss-bearing tokens. The
        entropies carry a gradient only if `entropy_gradient`: it costs another pass over the logits. With
        `value_at`, also the values [K] of the states that those of the N tokens were sampled in. A
        function in place of a batch is called as a pass of this module, which gathers what is sharded."""
        if callable(batch):
            return batch()
        inner = causal_lm(self.model)
        with self._precision.autocast():
            hidden_N = self._hidden(inner.get_decoder(), batch)
            scores = self._scores(inner, hidden_N, batch, temperature, entropy_gradient)
        if value_at is None:
            return scores
        assert self.value_head is not None
        states = hidden_N[torch.tensor(value_at, dtype=torch.long, device=hidden_N.device)]
        return *scores, self.value_head(states)

    def _scores(
        self,
        inner: Any,
        hidden_N: torch.Tensor,
        batch: Batch,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        targets_N = batch.targets_N
        head = output_head(inner, with_hooks=not self.holds_head)
        step = max(1, self._max_logits // inner.get_output_embeddings().weight.shape[0])
        score: Callable[..., tuple[torch.Tensor, ...]]
        is_frozen = not any(p.requires_grad for p in inner.get_output_embeddings().parameters())
        if is_frozen and not entropy_gradient and torch.is_grad_enabled():
            score = partial(_FrozenHead.apply, head)
        elif len(targets_N) <= step:
            return _score(head, hidden_N, targets_N, temperature, entropy_gradient)
        else:
            score = partial(checkpoint, _score, head, use_reentrant=False)
        parts = [
            score(h, t, temperature, entropy_gradient)
            for h, t in zip(hidden_N.split(step), targets_N.split(step), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _hidden(self, decoder: nn.Module, batch: Batch) -> torch.Tensor:
        """The hidden states [N, hidden] that predict the loss-bearing tokens."""
        if isinstance(batch, PaddedBatch):
            with self._checkpointing(decoder, batch.input_ids.numel()):
                states = decoder(input_ids=batch.input_ids, use_cache=False).last_hidden_state
            return states[:, :-1][batch.loss_mask[:, 1:]]
        trunk = None if batch.prefix is None else self._trunk(decoder, batch.prefix)
        with self._checkpointing(decoder, len(batch.input_ids)):
            states = _over_tree(decoder, batch.input_ids, batch.position_ids, tree=batch.tree, trunk=trunk)
        return states[batch.predictors_N]

    def _trunk(self, decoder: nn.Module, prefix: SharedPrefix) -> Trunk:
        """The keys and values of a prefix, computed by whoever asks for them first."""
        if prefix.of not in prefix.trunks:
            trunk, ids = Trunk(), prefix.input_ids
            tree = PrefixTree((Siblings(0, (len(ids),)),))
            with self._checkpointing(decoder, _KEPT_PREFIX * len(ids)):  # it is kept next to a row
                _over_tree(decoder, ids, torch.arange(len(ids), device=ids.device), tree=tree, trunk=trunk)
            trunk.cut()
            prefix.trunks[prefix.of] = trunk
        return prefix.trunks[prefix.of]

    @contextmanager
    def _checkpointing(self, decoder: nn.Module, tokens: int) -> Iterator[None]:
        """A pass over so many tokens keeps all, or computes its layers again."""
        if self._keeps_tokens is None:
            yield
            return
        _checkpoint_layers(decoder, is_on=tokens > self._keeps_tokens)
        try:
            yield
        finally:
            _checkpoint_layers(decoder, is_on=False)


def _checkpoint_layers(model: nn.Module, *, is_on: bool) -> None:
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.gradient_checkpointing = is_on


def why_not_packed(model: Any, scorer: TokenScorer | None = None) -> str | None:
    """Return why samples of `model` cannot be packed into trees; None if they can, and then its attention is
    ready for it. Layers that mix positions by anything but full attention would mix neighbours. A model whose
    weights are sharded is asked through its `scorer`, by all processes."""
    inner = causal_lm(model)
    config = inner.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    if kinds != {"full_attention"}:
        return f"it has layers of kind {', '.join(sorted(kinds - {'full_attention'}))}"
    use_own_attention(inner)
    if config._attn_implementation != NAME:
        return f"attn_implementation {config._attn_implementation} knows no packed trees (sdpa does)"
    return (
        None
        if _packs_right(model, scorer or TokenScorer(model))
        else "its layers do not follow the tree (checked on a small one)"
    )


@torch.no_grad()
def _packs_right(model: Any, scorer: TokenScorer) -> bool:
    """Three continuations of a prompt: packed they score as they do alone, and other tokens in the middle one
    change nothing, to the last bit, in its neighbours. One layer that mixes them cannot hide that; its size
    alone could be rounding, which grows with the depth."""
    prompt = tuple(range(3, 23))
    forks = [tuple((first + 7 * i) % 19 + 3 for i in range(16)) for first in (2, 5, 11, 8)]
    mask = (False,) * len(prompt) + (True,) * len(forks[0])
    *samples, other = [TrainSample(token_ids_T=prompt + fork, loss_mask_T=mask) for fork in forks]
    device = model_device(model)
    (padded,) = padded_batches(samples, max_tokens=1 << 10, device=device)
    with evaluation_mode(model):
        plain, _ = scorer(padded)
        packed, beside_another = (
            scorer(pack(each, padded.rows, device=device))[0].unflatten(0, (3, -1))
            for each in (samples, [samples[0], other, samples[2]])
        )
    if not torch.equal(packed[::2], beside_another[::2]):
        return False
    apart = (plain - packed.flatten()).abs()
    if scorer.dtype.itemsize >= torch.float32.itemsize:
        return float(apart.max()) <= 1e-3
    limit = max(TOLERANCE[str(scorer.dtype).removeprefix("torch.")], _ROUNDING * float(plain.std()))
    return float(apart.mean()) <= limit


def _over_tree(
    decoder: nn.Module,
    ids: torch.Tensor,
    positions: torch.Tensor,
    *,
    tree: PrefixTree,
    trunk: Trunk | None = None,
) -> torch.Tensor:
    """The hidden states [L, hidden] of a packed row."""
    states = decoder(
        input_ids=ids[None],
        position_ids=positions[None],
        # Transformers takes a mask of four dimensions as it is; the tree says what it would say.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device),
        use_cache=False,
        tree=tree,
        **({} if trunk is None else {"trunk": trunk}),
    ).last_hidden_state
    return states[0]


class _FrozenHead(torch.autograd.Function):
    """`_score` for a head that is not trained. The gradient of a token's logprob with respect to its own
    hidden state is computed along with it, so that logits are computed once and none are kept; the backward
    pass multiplies it by what comes from the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        head: Callable[[torch.Tensor], torch.Tensor],
        hidden: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            states = hidden.detach().requires_grad_()
            logprobs, entropy = _score(head, states, targets, temperature, entropy_gradient)
            (gradient,) = torch.autograd.grad(logprobs.sum(), states)
        ctx.save_for_backward(gradient)
        entropy = entropy.detach()
        ctx.mark_non_differentiable(entropy)
        return logprobs.detach(), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return None, (gradient * gradients[0][:, None]).to(gradient.dtype), None, None, None


def _score(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden)
    # At least float32: in bfloat16 a sum over the vocabulary loses what the ratio needs.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # Autocast computes the entropy's dot product in half precision on CUDA.
    with torch.autocast(logits.device.type, enabled=False):
        return selected_logprobs(logits, targets, temperature=temperature, entropy_gradient=entropy_gradient)
