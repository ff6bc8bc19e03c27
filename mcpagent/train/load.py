"""The model of a run, as its configuration names it, with its tokenizer and its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mcpagent.config.named_parts import is_built, model_builder
from mcpagent.config.schema import TrainConfig
from mcpagent.core.threads import available_cores, limit_threads
from mcpagent.env.tool_format import FormatChoice, measured_format, open_renderer
from mcpagent.errors import UserError
from mcpagent.models.adapters import causal_lm
from mcpagent.models.load import (
    MIN_WIDTH,
    empty_model,
    load_config,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
    weight_sources,
)
from mcpagent.models.logits import continuation_logprobs, refuse_other_logits
from mcpagent.models.tokens import Renderer
from mcpagent.policy.backend import choose_backend
from mcpagent.storage.checkpoints import ADAPTER_FILE, find_model
from mcpagent.train.learner.optim import Precision
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.wrapping import Wrapping, put_stored, sharding
from mcpagent.train.start import Start, settle_start


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, on its device, before anything is attached to it. `start` says where a run
    has it from. `whole` is the folder or hub id that holds just these weights; None if they were put
    together in memory, from adapters and their base."""

    model: Any
    tokenizer: Any
    renderer: Renderer
    device: torch.device
    max_context: int
    fill: Callable[[Any, Wrapping], None] | None = None  # a model in shards, with the values of its weights
    start: Start | None = None
    whole: str | None = None
    why_format: str | None = None  # what `auto` came to, if not to what the template writes

    def settled(self, config: TrainConfig) -> TrainConfig:
        """Return the settings of the run with the tool format that was chosen."""
        rollout = config.rollout.model_copy(update={"tool_format": self.renderer.tool_format})
        return config.model_copy(update={"rollout": rollout})


def refuse_untrained(name: str) -> None:
    """Raise UserError for a model that is not there before a warm start made it."""
    if is_built(name):
        raise UserError(
            f"the {name} model starts from random weights, which GRPO cannot learn from",
            where="model.name",
            remedy=model_builder(name).advice,
        )


def load(config: TrainConfig, *, processes: Processes | None = None, start: Start | None = None) -> Loaded:
    """Load the model that the configuration names or, with the `start` of a run, the whole model that its
    weights stand on; if `processes` share it in shards, without values until `fill` is called. Raises
    UserError if it cannot be had."""
    refuse_untrained(config.model.name)
    device = resolve_device(config.device)
    name = config.model.name if start is None else start.base.place
    trusted = config.model.trust_remote_code
    width = getattr(load_config(name, trust_remote_code=trusted).get_text_config(), "hidden_size", 0)
    is_small = width < MIN_WIDTH
    limit_threads(1 if is_small else available_cores())
    tokenizer = load_tokenizer(
        config.model.tokenizer or (name if start is None else start.model),
        trust_remote_code=trusted,
    )
    options: dict[str, Any] = {
        "dtype": resolve_dtype(config.model.dtype, device, width=width),
        "attn_implementation": config.model.attn_implementation,
        "trust_remote_code": trusted,
    }
    if processes is None or sharding(config, processes) is None:
        in_4bit = config.finetune.mode == "qlora"
        model = load_model(name, device=device, in_4bit=in_4bit, **options)
        checkpoint = find_model(name)
        if checkpoint is not None:
            name = str(checkpoint.path)
        is_whole = checkpoint is None or not (checkpoint.path / ADAPTER_FILE).is_file()
        loaded = as_loaded(model, tokenizer, config=config)
        return replace(loaded, start=start, whole=name if is_whole else None)

    def fill(model: Any, wrapping: Wrapping) -> None:
        held = causal_lm(model).state_dict(keep_vars=True).items()
        targets = {n.replace(".base_layer", ""): p for n, p in held if ".lora_" not in n}
        sources = weight_sources(name, targets.keys(), **options) if processes.is_first else None
        put_stored(targets, sources, wrapping=wrapping, where=name)

    model = empty_model(name, **options)
    loaded = as_loaded(model, tokenizer, config=config, is_filled=False)
    return replace(loaded, device=device, fill=fill, start=start, whole=name)


def load_start(
    config: TrainConfig, run: Path, *, processes: Processes, on_note: Callable[[str], None]
) -> Loaded:
    """Load what the run in the folder `run` begins with; the first process settles what that is. Raises
    UserError."""
    refuse_untrained(config.model.name)
    start = processes.broadcast_from_rank0(lambda: settle_start(config, run, on_note=on_note))
    return load(config, processes=processes, start=start)


def as_loaded(model: Any, tokenizer: Any, *, config: TrainConfig, is_filled: bool = True) -> Loaded:
    """Return a model that is already in memory (one that mcpagent built), as `load` gives it."""
    if is_filled:
        refuse_other_logits(model, name=config.model.name)
    limits = [model.config.get_text_config().max_position_embeddings]
    if choose_backend(config, device=model.device.type).backend == "vllm":
        limits.append(config.rollout.engine_context)
    elif config.rollout.max_context_tokens is not None:
        limits.append(config.rollout.max_context_tokens)
    name, format_choice = config.model.name, FormatChoice(tool_format=config.rollout.tool_format)
    if format_choice.tool_format == "auto" and is_filled and not is_built(name):
        format_choice = measured_format(tokenizer, name=name, score=partial(continuation_logprobs, model))
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        renderer=open_renderer(tokenizer, name=name, tool_format=format_choice.tool_format),
        why_format=format_choice.why,
        device=next(model.parameters()).device,
        max_context=min(limits),
    )


def compute_dtype(loaded: Loaded, config: TrainConfig) -> torch.dtype:
    """Return what the trainer's matrix products are computed in; vLLM samples in it too."""
    return Precision(config.training.mixed_precision).dtype or loaded.model.dtype
