"""From a configuration to the parts of a run: the one place where config and classes meet."""

from __future__ import annotations

import copy
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mcpagent.config.named_parts import is_built, model_builder
from mcpagent.config.schema import TrainConfig
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.threads import limit_threads
from mcpagent.core.tools import ToolSpec
from mcpagent.env.episode import prompt_messages
from mcpagent.env.offer import discovery, first_schemas
from mcpagent.env.tool_format import open_renderer
from mcpagent.errors import UserError
from mcpagent.models.kernels import FusedChoice, choose_fused, fuse
from mcpagent.models.load import (
    LoraShape,
    attach_lora,
    causal_lm,
    empty_model,
    is_quantised,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
    use_checkpointing,
    weight_sources,
)
from mcpagent.models.logits import refuse_other_logits
from mcpagent.models.tokens import Renderer
from mcpagent.policy.canary import CANARY_PROMPTS, MAX_TEMPERATURE, Canary
from mcpagent.policy.contract import BackendChoice, choose_backend
from mcpagent.policy.vllm.engine import (
    ENVIRONMENT,
    VllmPolicy,
    VllmSettings,
    cpu_cache_bytes,
    engine_options,
)
from mcpagent.policy.vllm.process import own_engine
from mcpagent.policy.vllm.servers import VllmServers
from mcpagent.train.batch.scoring import TokenScorer
from mcpagent.train.learner.learner import EmaReference, Learner
from mcpagent.train.learner.optim import Precision, Schedule, build_optimizers, linear_schedule
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.wrapping import Fsdp, Shards, Wrapping, put_stored, refuse_sharding, sharding
from mcpagent.train.learner.zero3 import Zero3
from mcpagent.train.objective.advantages import CreditSettings, GradeSettings, Overlong
from mcpagent.train.objective.loss import Objective
from mcpagent.train.objective.value import named_parameters, new_value_head
from mcpagent.train.sampler import RolloutEngine, hf_sampler, score_completions, vllm_sampler
from mcpagent.train.update import SamplerCorrection, UpdateSettings


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer, on its device, before anything is attached to it."""

    model: Any
    tokenizer: Any
    renderer: Renderer
    device: torch.device
    max_context: int
    fill: Callable[[Any, Wrapping], None] | None = None  # a model in shards, with the values of its weights
    fused: FusedChoice | None = None  # which kernels it has; None where none were looked for


def refuse_untrained(name: str) -> None:
    """Raises UserError for a model that is not there before a warm start made it."""
    if is_built(name):
        raise UserError(
            f"the {name} model starts from random weights, which GRPO cannot learn from",
            where="model.name",
            remedy=model_builder(name).advice,
        )


def load(config: TrainConfig, *, processes: Processes | None = None) -> Loaded:
    """The model that the configuration names; where `processes` share it in shards, without values until
    `fill` is called. Raises UserError where it cannot be had."""
    refuse_untrained(config.model.name)
    device = resolve_device(config.device)
    limit_threads(config.threads)
    tokenizer = load_tokenizer(
        config.model.tokenizer or config.model.name, trust_remote_code=config.model.trust_remote_code
    )
    if config.model.pad_token_id is not None:
        tokenizer.pad_token_id = config.model.pad_token_id
    options: dict[str, Any] = {
        "dtype": resolve_dtype(config.model.dtype, device),
        "attn_implementation": config.model.attn_implementation,
        "trust_remote_code": config.model.trust_remote_code,
    }
    if processes is None or sharding(config, processes) is None:
        in_4bit = config.finetune.mode == "qlora"
        model = load_model(config.model.name, device=device, in_4bit=in_4bit, **options)
        fused = _fused(model, config, device)
        return replace(as_loaded(model, tokenizer, config=config), fused=fused)

    def fill(model: Any, wrapping: Wrapping) -> None:
        held = causal_lm(model).state_dict(keep_vars=True).items()
        targets = {n.replace(".base_layer", ""): p for n, p in held if ".lora_" not in n}
        sources = weight_sources(config.model.name, targets.keys(), **options) if processes.is_first else None
        put_stored(targets, sources, wrapping=wrapping, where=config.model.name)

    model = empty_model(config.model.name, **options)
    fused = _fused(model, config, device, is_filled=False)
    loaded = as_loaded(model, tokenizer, config=config, is_filled=False)
    return replace(loaded, device=device, fill=fill, fused=fused)


def _fused(model: Any, config: TrainConfig, device: torch.device, *, is_filled: bool = True) -> FusedChoice:
    kind = model.config.get_text_config().model_type
    choice = choose_fused(config.model.fused_kernels, device=device, kind=kind)
    return fuse(model, is_filled=is_filled) if choice.is_used else choice


def as_loaded(model: Any, tokenizer: Any, *, config: TrainConfig, is_filled: bool = True) -> Loaded:
    """A model that is already in memory (one that mcpagent built), as `load` gives it."""
    if is_filled:
        refuse_other_logits(model, name=config.model.name)
    limits = [model.config.get_text_config().max_position_embeddings]
    if config.rollout.max_context_tokens is not None:
        limits.append(config.rollout.max_context_tokens)
    choice = choose_backend(
        config.rollout.backend,
        is_lora=config.finetune.mode == "lora",
        has_gpu=model.device.type == "cuda",
        has_servers=bool(config.vllm.servers),
    )
    if choice.backend == "vllm":
        limits.append(config.vllm.max_model_len)
    return Loaded(
        model=model,
        tokenizer=tokenizer,
        renderer=open_renderer(tokenizer, name=config.model.name, tool_format=config.rollout.tool_format),
        device=next(model.parameters()).device,
        max_context=min(limits),
    )


def build_learner(
    loaded: Loaded,
    config: TrainConfig,
    *,
    total_optimizer_steps: int,
    decay_share: float = 0.0,
    processes: Processes | None = None,
) -> Learner:
    """Adapters or full weights, optimisers, schedule, reference. Seeds torch, whose own random numbers
    dropout draws; a resumed run then takes over the state of its checkpoint."""
    torch.manual_seed(derive_seed(config.seed, "torch"))
    model, reference = loaded.model, None
    is_grpo = config.algorithm == "grpo"
    if config.finetune.mode != "full":
        model = attach_lora(
            model, LoraShape(**config.lora.model_dump()), seed=derive_seed(config.seed, "lora")
        )
    elif is_grpo and config.grpo.reference == "frozen" and config.grpo.kl_coef > 0:
        reference = _frozen(loaded, config)
    if config.model.checkpoints_on(loaded.device.type, can=causal_lm(model).supports_gradient_checkpointing):
        use_checkpointing(model)
    value_head = new_value_head(model) if is_grpo and config.grpo.advantage == "gae" else None
    precision = Precision(config.training.mixed_precision, device=loaded.device)
    scorer, wrapping = TokenScorer(model, value_head=value_head, precision=precision), None
    if processes is not None and (parallel := sharding(config, processes)) is not None:
        wrapping = _in_shards(config, parallel, processes=processes, device=loaded.device)
        reference = None if reference is None else TokenScorer(reference, precision=precision)
        for each in [scorer] if reference is None else [scorer, reference]:
            wrapping.wrap(each)
            if loaded.fill is not None:
                loaded.fill(each.model, wrapping)
    if is_grpo and config.grpo.reference == "ema":
        every, decay = config.grpo.reference_update_every, config.grpo.reference_decay
        reference = EmaReference(model.named_parameters(), every=every, decay=decay, wrapping=wrapping)
    optimization = config.optimization
    optimizers = build_optimizers(
        [*model.named_parameters(), *named_parameters(value_head)],
        kind=optimization.optimizer,
        learning_rate=optimization.learning_rate,
        muon_learning_rate=optimization.muon_learning_rate,
        betas=optimization.betas,
        weight_decay=optimization.weight_decay,
        value_learning_rate=config.grpo.value_learning_rate,
    )
    factor = linear_schedule(
        total=total_optimizer_steps, warmup=config.training.warmup_steps, decay_share=decay_share
    )
    learner = Learner(
        model,
        loaded.tokenizer,
        schedule=Schedule(optimizers, factor),
        gradient_clip=optimization.gradient_clip,
        processes=processes,
        reference=reference,
        value_head=value_head,
        precision=precision,
        wrapping=wrapping,
        scorer=scorer,
    )
    if wrapping is not None:  # `as_loaded` had no values to compare
        refuse_other_logits(model, name=config.model.name, as_root=learner.scorer)
        wrapping.settle()
    return learner


def _in_shards(config: TrainConfig, parallel: Shards, *, processes: Processes, device: torch.device) -> Any:
    refuse_sharding(config, parallel=parallel, device=device)
    training, common = config.training, {"device": device, "cpu_offload": config.training.cpu_offload}
    if parallel == "zero3":
        return Zero3(processes, deepspeed_config=training.deepspeed_config, **common)
    return Fsdp(processes, shard_size=training.shard_size, **common)


def _frozen(loaded: Loaded, config: TrainConfig) -> Any:
    if loaded.fill is None:
        model = copy.deepcopy(loaded.model)
    else:  # a copy would need the memory that the weights have not got yet
        model = empty_model(
            config.model.name,
            dtype=loaded.model.dtype,
            attn_implementation=config.model.attn_implementation,
            trust_remote_code=config.model.trust_remote_code,
        )
        _fused(model, config, loaded.device, is_filled=False)
    return model.requires_grad_(False).eval()


@contextmanager
def open_sampler(
    loaded: Loaded,
    config: TrainConfig,
    *,
    model: Any,
    slots: int,
    weights: Path | None = None,
    learner: Learner | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator[RolloutEngine]:
    """What samples with `model`'s weights, on the backend that `rollout.backend` names. `weights` is where a
    training run hands them to servers; None where they never change: servers then get them once, through
    `output_dir`. Raises UserError."""
    is_trained = weights is not None
    choice = _choice(loaded, config, model=model)
    if config.rollout.backend == "auto":
        on_note(f"sampling with {choice.backend}: {choice.why}")
    if choice.backend == "vllm" and config.rollout.temperature > MAX_TEMPERATURE:
        raise UserError(
            f"rollout.temperature is {config.rollout.temperature}, but vLLM takes {MAX_TEMPERATURE} at most",
            where="rollout.temperature",
            remedy="lower it, or use --backend hf",
        )
    renderer = loaded.renderer
    common: dict[str, Any] = {
        "decode": renderer.decode,
        "stop_ids": renderer.stop_ids,
        "max_context": loaded.max_context,
    }
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        if choice.backend == "hf":
            common |= {"is_trained": is_trained, "is_pipelined": config.rollout.max_staleness > 0}
            sampler = hf_sampler(model, slots=slots, threads=threads, **common)
        elif config.vllm.servers:
            folder = weights or Path(config.output_dir).absolute() / f".weights-{secrets.token_hex(4)}"
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            seeded = is_deterministic(config, loaded.device)
            servers = VllmServers(config.vllm.servers, version=-1, is_seeded=seeded, **common)
            sampler = vllm_sampler(servers, model, folder=folder, learner=learner, on_note=on_note)
        else:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="mcpagent-vllm-")))
            settings = _vllm_settings(loaded, config, model=model, contexts=slots, folder=folder)
            if is_trained and has_own_process(config, count=_process_count()):
                address = stack.enter_context(_own_engine(settings, loaded))
                level = settings.sleep_level if settings.can_sleep else None
                engine = VllmServers(
                    [address], version=-1, is_seeded=settings.is_seeded, sleep_level=level, **common
                )
            else:
                if not is_trained:
                    model.to("cpu")  # vLLM has a copy of its own
                del common["max_context"]
                engine = VllmPolicy(settings, threads=threads, version=-1 if is_trained else 0, **common)
            sampler = (
                vllm_sampler(engine, model, folder=folder, learner=learner, on_note=on_note)
                if is_trained
                else RolloutEngine(policy=engine, push=lambda: None, close=engine.close)
            )
        stack.callback(sampler.close)
        yield sampler


def has_own_process(config: TrainConfig, *, count: int) -> bool:
    """Whether an engine that this run starts gets a process of its own: by `vllm.own_process`, else in a run
    of several processes."""
    is_asked = config.vllm.own_process
    return count > 1 if is_asked is None else is_asked


def refuse_shared_engine(config: TrainConfig, *, count: int) -> None:
    """Raises UserError where `count` processes could not each have a vLLM engine on their own device."""
    if count == 1 or config.vllm.servers:
        return
    if not has_own_process(config, count=count):
        raise UserError(
            f"vllm.own_process is false, but {count} processes train together, and vLLM needs the process "
            "group of its process for itself",
            where="vllm.own_process",
            remedy="leave it out, start vLLM servers and name them in vllm.servers, or use --backend hf",
        )
    if config.vllm.tensor_parallel_size > 1:
        raise UserError(
            f"vllm.tensor_parallel_size is {config.vllm.tensor_parallel_size}, but {count} processes train "
            "together, each with one device and an engine on it",
            where="vllm.tensor_parallel_size",
            remedy="set it to 1, or start vLLM servers on other devices and name them in vllm.servers",
        )


def _process_count() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _own_engine(settings: VllmSettings, loaded: Loaded) -> AbstractContextManager[str]:
    device = None
    if loaded.device.type == "cuda" and settings.tensor_parallel_size == 1:
        device = torch.cuda.current_device() if loaded.device.index is None else loaded.device.index
    return own_engine(engine_options(settings), environment=ENVIRONMENT, device=device)


def _choice(loaded: Loaded, config: TrainConfig, *, model: Any) -> BackendChoice:
    return choose_backend(
        config.rollout.backend,
        is_lora=hasattr(model, "peft_config") and not is_quantised(model),
        has_gpu=loaded.device.type == "cuda",
        has_servers=bool(config.vllm.servers),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _vllm_settings(
    loaded: Loaded, config: TrainConfig, *, model: Any, contexts: int, folder: Path
) -> VllmSettings:
    is_lora = hasattr(model, "peft_config")
    name = config.model.name
    if (Path(name) / "adapter_config.json").is_file():
        # The base with this adapter merged is in memory alone; vLLM reads a folder.
        name = str(folder / "model")
        (copy.deepcopy(model).unload() if is_lora else model).save_pretrained(name)
        loaded.tokenizer.save_pretrained(name)
    has_gpu, vllm = loaded.device.type == "cuda", config.vllm
    dtype = compute_dtype(loaded, config)
    return VllmSettings(
        model=name,
        dtype=_name(dtype),
        max_context=loaded.max_context,
        contexts=contexts,
        lora_rank=config.lora.r if is_lora else None,
        cache_bytes=None
        if has_gpu
        else cpu_cache_bytes(
            loaded.model.config, contexts=contexts, max_context=loaded.max_context, itemsize=dtype.itemsize
        ),
        gpu_memory_utilization=vllm.gpu_memory_utilization,
        tensor_parallel_size=vllm.tensor_parallel_size,
        is_seeded=is_deterministic(config, loaded.device),
        enforce_eager=vllm.enforce_eager,
        trust_remote_code=config.model.trust_remote_code,
        can_sleep=has_gpu if vllm.sleep is None else vllm.sleep,
    )


def build_canary(
    loaded: Loaded,
    config: TrainConfig,
    *,
    learner: Learner,
    tasks: Iterable[Task],
    catalog: Mapping[str, ToolSpec],
) -> Canary:
    """The proof over the prompts of the first tasks."""
    prompts = [
        loaded.renderer.prompt_ids(
            prompt_messages(task, config.data.message_limit_chars),
            first_schemas(catalog, task.offered_tools, discovery(config.tools), task_id=task.id),
        )
        for task in islice(tasks, CANARY_PROMPTS)
    ]
    return Canary(
        prompts,
        score=partial(score_completions, learner),
        dtype=_name(compute_dtype(loaded, config)),
        max_context=loaded.max_context,
        temperature=config.rollout.temperature,
        seed=config.seed,
        every=config.rollout.canary_every,
    )


def grade_settings(config: TrainConfig) -> GradeSettings:
    """How rewards become credit, from the `grpo` section."""
    grpo = config.grpo
    longest = _max_response_tokens(config)
    return GradeSettings(
        credit=CreditSettings(
            advantage=grpo.advantage,
            scale=grpo.advantage_scale,
            gamma=grpo.gae_gamma,
            lambda_=grpo.gae_lambda,
            turn_coef=grpo.turn_coef,
        ),
        overlong=Overlong(
            penalty=grpo.overlong_penalty,
            max_tokens=longest,
            buffer_tokens=grpo.overlong_buffer_tokens or max(1, longest // 5),
            mask_truncated=grpo.mask_truncated,
        ),
        control=config.reward.control,
    )


AUTO_TIS_CAP = 2.0  # that of Yao et al. 2025


def why_corrected(loaded: Loaded, config: TrainConfig, *, model: Any) -> str | None:
    """Why the sampler's probabilities are not the trainer's; None where one engine in one dtype does both, at
    the same weights."""
    if _choice(loaded, config, model=model).backend == "vllm":
        return "vllm samples"
    if (dtype := compute_dtype(loaded, config)) != loaded.model.dtype:
        return f"the sampler computes in {_name(loaded.model.dtype)} and the trainer in {_name(dtype)}"
    if config.rollout.max_staleness:
        return "episodes may be of older weights"
    return None


def update_settings(config: TrainConfig, *, is_corrected: bool = False) -> UpdateSettings:
    """The objective, from the `grpo` and `training` sections. `is_corrected`: there is a reason to correct
    for the sampler where `grpo.tis_cap` leaves that open (see `why_corrected`)."""
    grpo = config.grpo
    in_reward = grpo.kl_placement == "reward"
    cap = (AUTO_TIS_CAP if is_corrected else None) if grpo.tis_cap == "auto" else grpo.tis_cap
    correction = None
    if cap is not None:
        correction = SamplerCorrection(cap=cap, level=grpo.tis_level, beyond=grpo.tis_beyond)
    return UpdateSettings(
        objective=Objective(
            loss=grpo.loss,
            clip_low=grpo.clip_ratio,
            clip_high=grpo.clip_high,
            dual_clip=grpo.dual_clip,
            kl_times_ratio=grpo.kl_times_ratio,
            kl_estimator=None if grpo.kl_estimator == "k1" else grpo.kl_estimator,
        ),
        max_response_tokens=_max_response_tokens(config),
        kl_in_reward=in_reward,
        entropy_coef=grpo.entropy_coef,
        use_reference=grpo.reference != "none",
        value_coef=grpo.value_loss_coef,
        value_clip=grpo.value_clip,
        correction=correction,
        epochs=grpo.epochs_per_batch,
        minibatches=grpo.minibatches,
        micro_batch_tokens=config.training.micro_batch_tokens,
        temperature=config.rollout.temperature,
        stop_kl=config.health.stop_epochs_kl,
    )


def _max_response_tokens(config: TrainConfig) -> int:
    rollout = config.rollout
    return config.grpo.max_response_tokens or rollout.max_new_tokens * rollout.max_steps_per_episode


def compute_dtype(loaded: Loaded, config: TrainConfig) -> torch.dtype:
    """What the trainer's matrix products are computed in; vLLM samples in it too."""
    return Precision(config.training.mixed_precision).dtype or loaded.model.dtype


def is_deterministic(config: TrainConfig, device: torch.device) -> bool:
    """`rollout.deterministic`, by default on CPU only."""
    configured = config.rollout.deterministic
    return device.type == "cpu" if configured is None else configured
