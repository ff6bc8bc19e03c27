"""A process of `test_kernels.py`: liger-kernel on a CPU, in the interpreter of Triton, beside torch."""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
from typing import Any

import liger_kernel.ops.rms_norm as norms
import liger_kernel.transformers as liger
import numpy as np
import torch
import triton
import triton.language as tl
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3 import modeling_qwen3
from triton.runtime import interpreter

from benchmarks.memory import kept_by
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import LoraConfig
from mcpagent.models.adapters import LoraShape, attach_lora
from mcpagent.models.attention import use_own_attention
from mcpagent.models.kernels import fuse
from mcpagent.train.batch.samples import TrainSample, pack
from mcpagent.train.batch.scoring import TokenScorer
from mcpagent.train.forecast import memory, shape_of

CONFIG = Qwen3Config(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
)
PROMPT = tuple(3 + i % 50 for i in range(40))
SAMPLES = [
    TrainSample(token_ids_T=(*PROMPT, 5 + i, *PROMPT[:19]), loss_mask_T=(False,) * 58 + (True,) * 2)
    for i in range(3)
]
BATCH = pack(SAMPLES, range(3))


# The interpreter knows neither scalars of float32 nor libdevice's rsqrt.
@triton.jit
def rsqrt(x: Any) -> Any:
    return 1.0 / tl.sqrt(x)


norms.rsqrt = rsqrt
as_value = interpreter._implicit_cvt


def with_scalars(value: Any) -> Any:
    if isinstance(value, float):
        return tl.tensor(interpreter.TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
    return as_value(value)


interpreter._implicit_cvt = with_scalars


def made(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model: Any = Qwen3ForCausalLM(CONFIG)
    return model.to(dtype)


def adapted(model: Any) -> Any:
    lora = LoraShape(r=16, alpha=32, dropout=0.0, target_modules="all-linear")
    model = attach_lora(model, lora, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05, generator=torch.Generator().manual_seed(len(name)))
    use_own_attention(model.get_base_model())
    return model.train()


def scored(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logprobs and gradients."""
    logprobs, _ = TokenScorer(model)(BATCH)
    logprobs.sum().backward()
    return logprobs.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def kept(*, is_fused: bool) -> dict[str, float]:
    """In float16: the interpreter does not know bfloat16."""
    model = made(torch.float16)
    assert not is_fused or fuse(model).is_used
    model = adapted(model)
    tokens = f"training.micro_batch_tokens={len(BATCH.input_ids)}"
    settings = load_train_config([], [tokens, "model.gradient_checkpointing=false"]).config
    shape = shape_of(CONFIG, LoraConfig())
    parts = memory(settings, shape, itemsize=2, samples_here=False, is_fused=is_fused)
    counted = kept_by(lambda: TokenScorer(model)(BATCH)[0], list(model.parameters()))
    return {"counted": counted, "forecast": parts["activations"]}


def main() -> None:
    plain, fused = made(), made()
    is_used = fuse(fused).is_used
    patched = [type(m).__name__ for m in fused.modules() if "forward" in vars(m)]
    (of_plain, by_plain), (of_fused, by_fused) = scored(adapted(plain)), scored(adapted(fused))
    apart = [(by_plain[n] - by_fused[n]).abs().max() / by_plain[n].abs().max() for n in by_plain]

    honest = liger._apply_liger_kernel_to_instance

    def wrong(model: Any, **options: Any) -> None:
        honest(model=model, **options)
        model.model.norm.offset = 1.0

    liger._apply_liger_kernel_to_instance = wrong
    model, ids = made(), torch.arange(8)[None]
    before = model(input_ids=ids).logits
    choice = fuse(model)
    is_as_before = torch.equal(before, model(input_ids=ids).logits)
    liger._apply_liger_kernel_to_instance = honest
    told = {
        "is_used": is_used,
        "class of other models": modeling_qwen3.Qwen3RMSNorm.__module__,
        "norms": patched.count("Qwen3RMSNorm"),
        "logprobs apart": float((of_plain - of_fused).abs().max()),
        "gradients apart": float(max(apart)),
        "plain": kept(is_fused=False),
        "fused": kept(is_fused=True),
        "wrong": {"is_used": choice.is_used, "why": choice.why, "is_as_before": is_as_before},
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
