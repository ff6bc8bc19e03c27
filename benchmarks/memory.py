"""Count the bytes that an update keeps for its backward pass, and those that `train --dry-run` forecasts.

Nothing is computed and no weight is made: the trainer's own forward pass runs on fake tensors of a CPU, whose
sizes are real ones (bfloat16, LoRA r=16 on every linear layer unless the row says otherwise). Counted are the
distinct storages, weights apart, that saved-tensor hooks see; with checkpointing, the layer that is computed
again too. Kernels of a GPU keep the same tensors as those of a CPU (queries, keys, values, outputs and
log-sum-exps); their workspaces, gradients and optimiser state are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import LoraConfig
from mcpagent.models.adapters import LoraShape, attach_lora
from mcpagent.models.attention import use_own_attention
from mcpagent.models.load import use_checkpointing
from mcpagent.train.batch.samples import TrainSample, pack
from mcpagent.train.batch.scoring import TokenScorer
from mcpagent.train.forecast import memory, shape_of

GIB = 2**30
SHAPES = {  # hidden, feed-forward, heads, key-value heads, layers, tied: of Qwen3
    "0.6b": (1024, 3072, 16, 8, 28, True),
    "1.7b": (2048, 6144, 16, 8, 28, True),
    "4b": (2560, 9728, 32, 8, 36, True),
    "8b": (4096, 12288, 32, 8, 36, False),
}
LAYOUTS = {  # tokens of the shared prompt, continuations, tokens of each
    "one row of 8,192": (4096, 1, 4096),
    "16 x 320 on 3,000": (3000, 16, 320),
    "64 x 80 on 3,000": (3000, 64, 80),
}


@dataclass(frozen=True)
class Work:
    """An update to be counted."""

    shape: str
    layout: str
    checkpointing: bool
    is_lora: bool = True
    layers: int | None = None

    @property
    def tokens(self) -> int:
        """Distinct tokens of the row."""
        prompt, count, each = LAYOUTS[self.layout]
        return prompt + count * each


def config_of(shape: str, layers: int | None = None) -> Qwen3Config:
    """The transformers configuration of one of SHAPES."""
    hidden, feedforward, heads, key_value_heads, count, is_tied = SHAPES[shape]
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=feedforward,
        num_hidden_layers=layers or count,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=is_tied,
    )


def samples_of(layout: str) -> list[TrainSample]:
    """A prompt with its continuations, whose first tokens all differ. Few tokens carry loss, which is faster:
    logits are computed again in chunks, and the states that they are made of are a small part."""
    prompt, count, each = LAYOUTS[layout]
    shared = tuple(i % 1000 for i in range(prompt))
    mask = (False,) * (prompt + each - 2) + (True,) * 2
    return [
        TrainSample(token_ids_T=(*shared, 2000 + i, *shared[: each - 1]), loss_mask_T=mask)
        for i in range(count)
    ]


def count(work: Work) -> int:
    """Bytes kept for the backward pass. Layers are all alike: two are counted, and one, and the rest is their
    difference."""
    layers = SHAPES[work.shape][4] if work.layers is None else work.layers
    kept_1, kept_2 = (_counted(work, n) for n in (1, 2))
    kept = kept_1 + (layers - 1) * (kept_2 - kept_1)
    if work.checkpointing:  # the layer that is computed again keeps what each keeps without
        plain_1, plain_2 = (_counted(replace(work, checkpointing=False), n) for n in (1, 2))
        kept += plain_2 - plain_1
    return kept


def forecast(work: Work) -> float:
    """Bytes of activations that the dry run says for a micro-batch of so many tokens."""
    settings = [
        f"finetune.mode={'lora' if work.is_lora else 'full'}",
        f"model.gradient_checkpointing={str(work.checkpointing).lower()}",
        f"training.micro_batch_tokens={work.tokens}",
    ]
    shape = shape_of(config_of(work.shape, work.layers), LoraConfig())
    config = load_train_config([], settings).config
    return memory(config, shape, itemsize=2, samples_here=False)["activations"]


@cache
def _counted(work: Work, layers: int) -> int:
    model = _model(replace(work, layers=layers))
    with FakeTensorMode():
        _fake(model)
        samples = samples_of(work.layout)
        batch = pack(samples, range(len(samples)), device=torch.device("cpu"))
        weights = list(model.parameters())
        return kept_by(lambda: TokenScorer(model)(batch)[0], weights)


def _model(work: Work) -> Any:
    """On the meta device."""
    with torch.device("meta"):
        model: Any = Qwen3ForCausalLM(config_of(work.shape, work.layers)).to(torch.bfloat16)
    if work.is_lora:
        model = attach_lora(
            model, LoraShape(r=16, alpha=32, dropout=0.0, target_modules="all-linear"), seed=0
        )
    if work.checkpointing:
        use_checkpointing(model)
    use_own_attention(model.get_base_model() if work.is_lora else model)
    return model.train()


def _fake(model: Any) -> None:
    """Put fake tensors of a CPU in place of weights and buffers; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    empty = torch.empty(parameter.shape, dtype=parameter.dtype)
                    made[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def kept_by(run: Callable[[], torch.Tensor], weights: Sequence[torch.Tensor]) -> int:
    """Bytes of the distinct storages, `weights` apart, that `run` saves for its backward pass."""
    own = {weight.untyped_storage()._cdata for weight in weights}
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor.detach()  # with its graph, an output that is saved would hold itself, for good

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    assert result.requires_grad
    return sum(storage.nbytes() for storage in kept.values())
