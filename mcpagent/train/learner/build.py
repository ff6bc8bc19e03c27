"""The learner of a run, from its model and its configuration: adapters, optimisers, reference, shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mcpagent.config.schema import TrainConfig
from mcpagent.core.seeds import derive_seed
from mcpagent.models.adapters import LoraShape, attach_lora, causal_lm
from mcpagent.models.load import MIN_WIDTH, use_checkpointing
from mcpagent.models.logits import refuse_other_logits
from mcpagent.train.batch.scoring import TokenScorer
from mcpagent.train.learner.learner import Learner, load_weights
from mcpagent.train.learner.optim import Precision, Schedule, build_optimizers, linear_schedule
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.reference import ShadowReference
from mcpagent.train.learner.wrapping import Fsdp, Shards, Wrapping, refuse_sharding, sharding
from mcpagent.train.learner.zero3 import Zero3
from mcpagent.train.load import Loaded
from mcpagent.train.objective.value import named_parameters, new_value_head

_REFERENCE_DECAY = 0.4  # share of an ema reference that stays at each of its updates
_SFT_DECAY_SHARE = 0.4  # last share of the steps, over which the learning rate falls linearly to 0


def build_learner(
    loaded: Loaded,
    config: TrainConfig,
    *,
    total_optimizer_steps: int,
    processes: Processes | None = None,
) -> Learner:
    """Build adapters or full weights, optimisers, schedule, reference. Seeds torch, whose own random numbers
    dropout draws; a resumed run then takes over the state of its checkpoint.

    Adapters that the run goes on with are its start: the frozen reference is then their values as they are
    now, and not the base without them. Raises UserError if the start does not give the logprobs of its
    probe."""
    torch.manual_seed(derive_seed(config.seed, "torch"))
    model = loaded.model
    is_grpo = config.algorithm == "grpo"
    adapters = None if loaded.start is None else loaded.start.adapters
    if config.finetune.mode != "full":
        model = attach_lora(
            model, LoraShape(**config.lora.model_dump()), seed=derive_seed(config.seed, "lora")
        )
    can_checkpoint = causal_lm(model).supports_gradient_checkpointing
    keeps_tokens = None
    if config.model.checkpoints_on(loaded.device.type, can=can_checkpoint):
        use_checkpointing(model)
    elif config.model.gradient_checkpointing is None and can_checkpoint:
        use_checkpointing(model, may_map=causal_lm(model).config.get_text_config().hidden_size >= MIN_WIDTH)
        keeps_tokens = config.training.pass_tokens
    value_head = new_value_head(model) if is_grpo and config.grpo.advantage == "gae" else None
    precision = Precision(config.training.mixed_precision, device=loaded.device)
    scorer = TokenScorer(model, value_head=value_head, precision=precision, keeps_tokens=keeps_tokens)
    processes = processes or Processes()
    wrapping = Wrapping(processes)
    if (parallel := sharding(config, processes)) is not None:
        wrapping = _in_shards(config, parallel, processes=processes, device=loaded.device)
        wrapping.wrap(scorer)
        if loaded.fill is not None:
            loaded.fill(model, wrapping)
    if adapters is not None:
        load_weights(model, adapters, wrapping=wrapping)
    optimization = config.optimization
    optimizers = build_optimizers(
        [*model.named_parameters(), *named_parameters(value_head)],
        kind=optimization.optimizer,
        learning_rate=optimization.learning_rate,
        betas=optimization.betas,
        weight_decay=optimization.weight_decay,
        value_learning_rate=config.grpo.value_learning_rate,
    )
    factor = linear_schedule(
        total=total_optimizer_steps,
        warmup=config.training.warmup_steps,
        decay_share=0.0 if is_grpo else _SFT_DECAY_SHARE,
    )
    learner = Learner(
        model,
        loaded.tokenizer,
        schedule=Schedule(optimizers, factor),
        gradient_clip=optimization.gradient_clip,
        processes=processes,
        reference=_reference(model, config, goes_on=adapters is not None, wrapping=wrapping),
        value_head=value_head,
        precision=precision,
        wrapping=wrapping,
        scorer=scorer,
        start=loaded.start,
        tool_format=loaded.renderer.tool_format,
    )
    if wrapping.is_sharded:  # `as_loaded` had no values to compare
        refuse_other_logits(model, name=config.model.name, as_root=learner.scorer)
        wrapping.settle()
    if loaded.start is not None and (folder := Path(loaded.start.model)).is_dir():
        learner.prove(folder)
    return learner


def _reference(
    model: Any, config: TrainConfig, *, goes_on: bool, wrapping: Wrapping
) -> ShadowReference | None:
    """Return a reference that is other values of what is trained; None if there is none, or if it is the base
    without the adapters, which are new unless the run `goes_on` with some."""
    grpo = config.grpo
    if config.algorithm != "grpo":
        return None
    if grpo.reference == "ema":
        every = grpo.reference_update_every
        return ShadowReference(
            model.named_parameters(), every=every, decay=_REFERENCE_DECAY, wrapping=wrapping
        )
    is_asked = goes_on or (config.finetune.mode == "full" and grpo.kl_coef > 0)
    if grpo.reference == "frozen" and is_asked:
        return ShadowReference(model.named_parameters(), every=None, wrapping=wrapping)
    return None


def _in_shards(config: TrainConfig, parallel: Shards, *, processes: Processes, device: torch.device) -> Any:
    refuse_sharding(config, parallel=parallel, device=device)
    training, common = config.training, {"device": device, "cpu_offload": config.training.cpu_offload}
    if parallel == "zero3":
        return Zero3(processes, deepspeed_config=training.deepspeed_config, **common)
    return Fsdp(processes, shard_size=training.shard_size, **common)
