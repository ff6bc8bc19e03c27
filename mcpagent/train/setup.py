"""From a configuration to the parts of a run: the one place where config and classes meet."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator

from mcpagent.config.schema import TrainConfig
from mcpagent.core.seeds import derive_seed
from mcpagent.errors import UserError
from mcpagent.models.load import (
    LoraShape,
    MergedCopy,
    attach_lora,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
)
from mcpagent.models.tokens import Renderer
from mcpagent.policy.hf import HFPolicy
from mcpagent.train.learner import Learner
from mcpagent.train.optim import Schedule, build_optimizers, linear_schedule
from mcpagent.train.update import UpdateSettings


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, on its device, before anything is attached to it."""

    model: Any
    tokenizer: Any
    renderer: Renderer
    device: torch.device
    max_context: int


def load(config: TrainConfig) -> Loaded:
    """The model that the configuration names. Raises UserError where it cannot be had."""
    if config.model.name == "embedded":
        raise UserError(
            "the embedded model starts from random weights, which GRPO cannot learn from",
            where="model.name",
            remedy="warm it up first: mcpagent train --algo sft --set model.name=embedded ..., then name "
            "that run's checkpoint; or run `mcpagent quickstart`, which does both",
        )
    device = resolve_device(config.device)
    torch.set_num_threads(config.threads)
    tokenizer = load_tokenizer(
        config.model.tokenizer or config.model.name, trust_remote_code=config.model.trust_remote_code
    )
    if config.model.pad_token_id is not None:
        tokenizer.pad_token_id = config.model.pad_token_id
    model = load_model(
        config.model.name,
        dtype=resolve_dtype(config.model.dtype, device),
        device=device,
        attn_implementation=config.model.attn_implementation,
        trust_remote_code=config.model.trust_remote_code,
    )
    return as_loaded(model, tokenizer, config=config)


def as_loaded(model: Any, tokenizer: Any, *, config: TrainConfig) -> Loaded:
    """A model that is already in memory (the embedded one), as `load` gives it."""
    held = model.config.get_text_config().max_position_embeddings
    wanted = config.rollout.max_context_tokens
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        renderer=Renderer(tokenizer, name=config.model.name),
        device=next(model.parameters()).device,
        max_context=held if wanted is None else min(held, wanted),
    )


def build_learner(
    loaded: Loaded, config: TrainConfig, *, total_optimizer_steps: int, decay_share: float = 0.0
) -> Learner:
    """Adapters or full weights, optimisers, schedule, reference. Seeds torch, whose own random numbers
    dropout draws; a resumed run then takes over the state of its checkpoint."""
    torch.manual_seed(derive_seed(config.seed, "torch"))
    model, reference = loaded.model, None
    wants_reference = config.algorithm == "grpo" and config.grpo.reference == "frozen"
    if config.finetune.mode == "lora":
        lora = config.lora
        shape = LoraShape(
            r=lora.r, alpha=lora.alpha, dropout=lora.dropout, target_modules=lora.target_modules
        )
        model = attach_lora(model, shape, seed=derive_seed(config.seed, "lora"))
    elif wants_reference:
        reference = copy.deepcopy(model).requires_grad_(False).eval()
    optimization = config.optimization
    optimizers = build_optimizers(
        model.named_parameters(),
        kind=optimization.optimizer,
        learning_rate=optimization.learning_rate,
        muon_learning_rate=optimization.muon_learning_rate,
        betas=optimization.betas,
        weight_decay=optimization.weight_decay,
    )
    factor = linear_schedule(
        total=total_optimizer_steps, warmup=config.training.warmup_steps, decay_share=decay_share
    )
    return Learner(
        model,
        loaded.tokenizer,
        optimizers=optimizers,
        schedule=Schedule(optimizers, factor),
        gradient_clip=optimization.gradient_clip,
        accelerator=Accelerator(cpu=loaded.device.type == "cpu"),
        reference=reference,
    )


def build_policy(
    loaded: Loaded, *, model: Any, threads: int, slots: int
) -> tuple[HFPolicy, MergedCopy | None]:
    """The sampler over `model`'s weights: the model itself, or a merged copy where it has adapters."""
    merged = MergedCopy(model) if hasattr(model, "peft_config") else None
    policy = HFPolicy(
        merged.model if merged is not None else model,
        decode=loaded.renderer.decode,
        stop_ids=loaded.renderer.stop_ids,
        max_context=loaded.max_context,
        slots=slots,
        threads=threads,
    )
    return policy, merged


def update_settings(config: TrainConfig) -> UpdateSettings:
    """The objective, from the `grpo` and `training` sections."""
    grpo = config.grpo
    return UpdateSettings(
        aggregation=grpo.loss,
        clip_low=grpo.clip_ratio,
        clip_high=grpo.clip_high,
        kl_coef=grpo.kl_coef,
        entropy_coef=grpo.entropy_coef,
        use_reference=grpo.reference != "none",
        epochs=grpo.epochs_per_batch,
        minibatches=grpo.minibatches,
        micro_batch_tokens=config.training.micro_batch_tokens,
        temperature=config.rollout.temperature,
    )


def is_deterministic(config: TrainConfig, device: torch.device) -> bool:
    """`rollout.deterministic`, by default on CPU only."""
    wanted = config.rollout.deterministic
    return device.type == "cpu" if wanted is None else wanted
