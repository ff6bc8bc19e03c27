"""The forecast of memory against what is really held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks import memory as counts
from benchmarks.memory import Work
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import LoraConfig, TrainConfig
from mcpagent.models.adapters import LoraShape, attach_lora
from mcpagent.models.architecture import published
from mcpagent.models.load import use_checkpointing
from mcpagent.train.forecast import (
    Forecast,
    forecast,
    memory,
    shape_of,
    trained_parameters,
)

TOKENS = 256
SHAPE = Qwen3Config(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=160,
    tie_word_embeddings=True,
)


def config(*settings: str) -> TrainConfig:
    return load_train_config([], [f"training.micro_batch_tokens={TOKENS}", *settings]).config


def held_for_backward(model: Any) -> int:
    """Bytes of the distinct tensors, weights apart, that a forward pass of the decoder keeps."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.get_decoder()(input_ids=torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_a_forward_pass_keeps(checkpointing: bool) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(SHAPE)
    if checkpointing:
        use_checkpointing(model)
    wanted = config(
        "finetune.mode=full",
        f"model.gradient_checkpointing={str(checkpointing).lower()}",
        "rollout.backend=hf",
    )
    expected = memory(wanted, shape_of(SHAPE, LoraConfig()), itemsize=4, samples_here=True)["activations"]
    measured = held_for_backward(model)
    if checkpointing:  # the one layer that is computed again is not yet there
        measured += expected - TOKENS * 4 * SHAPE.num_hidden_layers * SHAPE.hidden_size
    assert 0.75 < expected / measured < 1.33


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "v_proj")])
def test_adapters_are_counted_as_they_are_attached(targets: Any) -> None:
    model = AutoModelForCausalLM.from_config(SHAPE)
    lora = LoraShape(r=8, alpha=16, dropout=0.0, target_modules=targets)
    attached = sum(p.numel() for p in attach_lora(model, lora, seed=0).parameters() if p.requires_grad)
    shape = shape_of(SHAPE, LoraConfig(r=8, target_modules=targets))
    assert trained_parameters(config(), shape) == attached
    assert trained_parameters(config("finetune.mode=full"), shape) == shape.parameters


def test_the_parts_of_each_mode() -> None:
    shape = shape_of(SHAPE, LoraConfig())
    lora = memory(config(), shape, itemsize=2, samples_here=True)
    full = memory(config("finetune.mode=full"), shape, itemsize=4, samples_here=True)
    qlora = memory(config("finetune.mode=qlora", "rollout.backend=hf"), shape, itemsize=2, samples_here=True)
    # Gradients, moments and the optimiser's own weights are float32; bfloat16 is sampled without a copy.
    assert lora["weights"] == 2 * shape.parameters + 2 * shape.adapters
    assert (lora["gradients"], lora["optimiser"]) == (4 * shape.adapters, 12 * shape.adapters)
    assert (lora["reference"], lora["sampling_copy"]) == (0, 0)
    single = memory(config(), shape, itemsize=4, samples_here=True)
    assert (single["optimiser"], single["sampling_copy"]) == (8 * shape.adapters, 4 * shape.linear)
    assert (full["weights"], full["optimiser"]) == (4 * shape.parameters, 8 * shape.parameters)
    assert (full["reference"], full["sampling_copy"]) == (4 * shape.parameters, 0)
    assert qlora["weights"] < 0.61 * lora["weights"] and qlora["sampling_copy"] == 0


SIX = [
    Work("0.6b", "one row of 8,192", False),
    Work("4b", "16 x 320 on 3,000", False),
    pytest.param(Work("4b", "64 x 80 on 3,000", True), marks=pytest.mark.system),
    Work("8b", "one row of 8,192", True),
    Work("0.6b", "one row of 8,192", True, is_lora=False),
    Work("1.7b", "16 x 320 on 3,000", False, is_lora=False),
]


@pytest.mark.parametrize("work", SIX, ids=lambda w: f"{w.shape}, {w.layout}, {w.checkpointing}, {w.is_lora}")
def test_the_forecast_is_within_15_percent_of_what_a_real_shape_keeps(work: Work) -> None:
    """In bfloat16, counted on tensors without contents; prompts are shared by up to 64 continuations."""
    short = replace(work, layers=6)
    assert 0.85 < counts.forecast(short) / counts.count(short) < 1.15


def test_processes_with_shards_hold_the_weights_once_between_them() -> None:
    shape = shape_of(SHAPE, LoraConfig())
    settings = config("finetune.mode=full", "training.parallel=fsdp", "grpo.kl_coef=0.1")
    one, four = (
        forecast(settings, shape, itemsize=2, backend="vllm", device_bytes=None, shards=n) for n in (1, 4)
    )
    for part in ("weights", "gradients", "optimiser", "reference"):
        assert four.parts[part] == one.parts[part] / 4 > 0
    for part in ("activations", "logits"):
        assert four.parts[part] == one.parts[part] > 0
    # 64 x 64 embeddings, tied, and the last norm are gathered with two layers, and with the gradients of both
    # and of one layer: (root + 2 layers + root + layer) x 2 bytes.
    root = 64 * 64 + 64
    layer = (shape.parameters - root) / 4
    assert (one.parts["gathered"], four.parts["gathered"]) == (0, 2 * (2 * root + 3 * layer))
    assert four.peak == sum(four.parts.values())
    offloaded = forecast(
        config("finetune.mode=full", "training.cpu_offload=true", "grpo.kl_coef=0.1"),
        shape,
        itemsize=2,
        backend="vllm",
        device_bytes=None,
        shards=4,
    )
    assert offloaded.parts["weights"] == offloaded.parts["optimiser"] == 0 < offloaded.peak < four.peak


def test_zero3_gathers_more_than_fsdp2_and_keeps_on_the_host_what_its_file_says() -> None:
    shape = shape_of(published("Qwen/Qwen3-8B"), LoraConfig())

    def eight(zero3: dict[str, Any], *settings: str) -> Forecast:
        made = config("finetune.mode=full", "grpo.kl_coef=0.0", *settings)
        return forecast(made, shape, itemsize=2, backend="vllm", device_bytes=None, shards=8, zero3=zero3)

    plain, offloaded = eight({}), eight({}, "training.cpu_offload=true")
    share = shape.parameters / 8
    assert plain.parts["weights"] == 2 * share and plain.parts["optimiser"] == 12 * share
    # A billion weights of 2 bytes (stage3_max_live_parameters), and a buffer of 50 million float32 gradients.
    assert plain.parts["gathered"] == 2e9 + 4 * 50e6
    # The gradients, and the part of them that is flattened for the optimiser: a billion at most.
    assert plain.parts["gradients"] == 4 * share + 4e9 and share > 1e9
    assert offloaded.parts["weights"] == offloaded.parts["gradients"] == 0.0
    assert offloaded.parts["gathered"] == plain.parts["gathered"] and offloaded.parts["optimiser"] == 0.0
    told = {"offload_optimizer": {"device": "cpu"}, "stage3_max_live_parameters": 10, "reduce_bucket_size": 5}
    half = eight(told)
    assert half.parts["gathered"] == 40 and half.parts["weights"] == 2 * share
    assert half.parts["optimiser"] == half.parts["gradients"] == 0.0
