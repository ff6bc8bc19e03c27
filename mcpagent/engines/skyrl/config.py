"""A run's configuration as SkyRL's: what SkyRL is told, what mcpagent keeps doing, and what cannot be done.

Every setting of `TrainConfig` is told to SkyRL (`_settings`), refused, or kept by what mcpagent does inside
SkyRL's process; a test goes through all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import yaml

from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import Section
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import ENV_ID
from mcpagent.errors import UserError
from mcpagent.train.objective.value import VALUE_CLIP
from mcpagent.train.settings import AUTO_TIS_CAP

_NO_CLIPPING = 1e9  # SkyRL's optimiser always has a bound
_MODELS = ("policy", "ref", "critic")
_LOSSES = {
    "grpo": ("regular", "sequence_mean"),
    "dapo": ("regular", "token_mean"),
    "dr_grpo": ("regular", "seq_mean_token_sum_norm"),
    "gspo": ("gspo", "sequence_mean"),
    "cispo": ("cispo", "token_mean"),
}
# The values that SkyRL can follow of settings that it cannot follow everywhere; of a setting, or a whole
# section, without any the default alone.
FOLLOWED: dict[str, tuple[Any, ...]] = {
    "algorithm": ("grpo",),
    "device": ("auto", "cuda"),
    "model.attn_implementation": (None, "sdpa", "flash_attention_2"),
    "model.tokenizer": (),
    "finetune.mode": ("lora", "full"),
    "grpo.advantage": ("group", "rloo", "reinforce++", "gae"),  # no credit of turns reaches its estimators
    "grpo.overlong_penalty": (),
    "grpo.reference": ("frozen", "none"),
    "grpo.reference_update_every": (),
    "grpo.value_loss_coef": (),  # the critic is a model of its own, with a loss of its own
    "optimization.optimizer": ("adamw",),
    "training.patience": (),
    "training.dynamic_sampling": (),  # SkyRL's own counts failed episodes as zeros
    "training.cpu_offload": (),
    "training.eval_samples": (1, 0),
    "training.eval_tasks": (),
    "training.collective_timeout_s": (),
    "training.parallel": (),
    "training.deepspeed_config": (),
    "training.shard_size": (),
    "training.mixed_precision": ("no", "bf16"),
    "budget": (),
    "health": (),
    "api": (),
    "sft": (),
    "vllm.tensor_parallel_size": (),
    "rollout.backend": ("auto", "vllm"),
    "rollout.user_model": (),
    "reward.weights": (),
    "reward.terms": (),
    "reward.control": (),
    "judge": (),
}


def _settings(config: TrainConfig) -> JsonObject:
    """Return SkyRL's settings, by dotted name."""
    return {
        "environment.env_class": ENV_ID,
        "trainer.seed": config.seed,
        "trainer.logger": "console",
        "trainer.enable_ray_gpu_monitor": False,
        "trainer.print_example_interval": 0,
        **_of_models(config),
        **_of_objective(config),
        **_of_optimizers(config),
        **_of_length(config),
        **_of_generator(config),
    }


def _of_models(config: TrainConfig) -> JsonObject:
    model, lora, skyrl = config.model, config.lora, config.skyrl
    is_lora, urls = config.finetune.mode == "lora", list(config.vllm.servers)
    settings: JsonObject = {
        "trainer.flash_attn": model.attn_implementation != "sdpa",
        "trainer.gradient_checkpointing": model.gradient_checkpointing,
        "trainer.policy.model.lora.rank": lora.r if is_lora else 0,
        "trainer.placement.colocate_all": not urls,
    }
    if is_lora:
        targets = lora.target_modules
        settings |= {
            "trainer.policy.model.lora.alpha": int(lora.alpha),
            "trainer.policy.model.lora.dropout": lora.dropout,
            "trainer.policy.model.lora.target_modules": targets
            if isinstance(targets, str)
            else list(targets),
        }
    for name in _MODELS:
        settings[f"trainer.placement.{name}_num_nodes"] = skyrl.num_nodes
        settings[f"trainer.placement.{name}_num_gpus_per_node"] = skyrl.gpus_per_node
        if name != "critic" or config.grpo.advantage == "gae":
            settings[f"trainer.{name}.model.path"] = model.name
    return settings


def _of_objective(config: TrainConfig) -> JsonObject:
    grpo = config.grpo
    kind, reduction = _LOSSES[grpo.loss]
    bound = grpo.dual_clip if kind == "regular" else None
    has_kl, in_reward = grpo.kl_coef > 0 and grpo.reference != "none", grpo.kl_estimator == "k1"
    settings: JsonObject = {
        "advantage_estimator": "grpo" if grpo.advantage == "group" else grpo.advantage,
        "grpo_norm_by_std": grpo.advantage_scale != "none",
        "policy_loss_type": kind if bound is None else "dual_clip",
        "clip_ratio_c": bound or 3.0,  # which "regular" does not read
        "loss_reduction": reduction,
        "eps_clip_low": grpo.clip_ratio,
        "eps_clip_high": grpo.clip_high,
        "cispo.cispo_eps_clip_low": 1.0,
        "cispo.cispo_eps_clip_high": grpo.clip_high,
        "cispo.cispo_anchor": "old",
        "use_kl_loss": has_kl and not in_reward,
        "use_kl_in_reward": has_kl and in_reward,
        "kl_loss_coef": grpo.kl_coef,
        "kl_estimator_type": grpo.kl_estimator,
        "kl_ctrl.type": "fixed" if grpo.target_kl is None else "adaptive",
        "use_entropy_loss": grpo.entropy_coef > 0,
        "entropy_loss_coef": grpo.entropy_coef,
        "gamma": grpo.gae_gamma,
        "lambd": grpo.gae_lambda,
        "value_clip": VALUE_CLIP,
        "temperature": config.rollout.temperature,
        "off_policy_correction.tis_ratio_type": None if grpo.tis_cap is None else "token",
    }
    if grpo.target_kl is not None:
        settings["kl_ctrl.kl_target"] = grpo.target_kl
    if grpo.tis_cap is not None:  # auto: vLLM samples, and FSDP trains
        cap = AUTO_TIS_CAP if grpo.tis_cap == "auto" else grpo.tis_cap
        settings["off_policy_correction.token_tis_ratio_clip_high"] = cap
    return {f"trainer.algorithm.{name}": value for name, value in settings.items()}


def _of_optimizers(config: TrainConfig) -> JsonObject:
    optimization, head = config.optimization, config.grpo.value_learning_rate
    settings: JsonObject = {}
    for name in ("policy", "critic"):
        rate = optimization.learning_rate if name == "policy" or head is None else head
        of_one: JsonObject = {
            "lr": rate,
            "weight_decay": optimization.weight_decay,
            "adam_betas": list(optimization.betas),
            "max_grad_norm": optimization.gradient_clip or _NO_CLIPPING,
            "num_warmup_steps": config.training.warmup_steps,
        }
        settings |= {f"trainer.{name}.optimizer_config.{key}": value for key, value in of_one.items()}
    return settings


def _of_length(config: TrainConfig) -> JsonObject:
    training, prompts = config.training, config.training.batch_size
    share, every = max(1, prompts // config.grpo.minibatches), training.save_frequency
    steps = training.max_steps
    return {
        "trainer.train_batch_size": prompts,
        "trainer.eval_batch_size": prompts,
        "trainer.policy_mini_batch_size": share,
        "trainer.critic_mini_batch_size": share,
        "trainer.update_epochs_per_batch": config.grpo.epochs_per_batch,
        "trainer.max_tokens_per_microbatch": training.micro_batch_tokens,
        "trainer.epochs": training.max_epochs if steps is None else max(training.max_epochs, steps),
        "trainer.max_training_steps": steps,
        "trainer.ckpt_interval": every,
        "trainer.hf_save_interval": every if config.finetune.mode == "full" else -1,
        "trainer.max_ckpts_to_keep": training.keep_checkpoints or -1,
        "trainer.eval_interval": training.eval_every or -1,
        "trainer.eval_before_train": training.eval_every > 0,
    }


def _of_generator(config: TrainConfig) -> JsonObject:
    rollout, vllm, urls = config.rollout, config.vllm, list(config.vllm.servers)
    context = rollout.engine_context
    prompt_tokens = context - rollout.max_new_tokens
    settings: JsonObject = {
        "n_samples_per_prompt": rollout.group_size,
        "max_turns": rollout.max_steps_per_episode,
        "max_input_length": prompt_tokens,
        "sampling_params.max_generate_length": rollout.max_new_tokens,
        "sampling_params.temperature": rollout.temperature,
        "sampling_params.top_p": rollout.top_p,
        "sampling_params.top_k": -1,
        "sampling_params.logprobs": 1,
        "eval_sampling_params.max_generate_length": rollout.max_new_tokens,
        "eval_sampling_params.temperature": 0.0,
        "inference_engine.engine_init_kwargs.max_model_len": context,
        "inference_engine.gpu_memory_utilization": vllm.gpu_memory_utilization,
        "inference_engine.enforce_eager": vllm.enforce_eager,
        "inference_engine.run_engines_locally": not urls,
        "inference_engine.external_server_urls": urls or None,
        "inference_engine.num_engines": len(urls) or config.skyrl.num_nodes * config.skyrl.gpus_per_node,
    }
    of_generator = {f"generator.{name}": value for name, value in settings.items()}
    return {"trainer.max_prompt_length": prompt_tokens, **of_generator}


def refusals(config: TrainConfig) -> list[str]:
    """Return what of the run SkyRL cannot do, each with the setting, its value and the reason."""
    problems = [f"{key} is {_shown(attrgetter(key)(config))}, but {why}" for key, why in _refused(config)]
    taken = _overrides(config).keys() & _settings(config).keys() if not problems else ()
    return problems + [
        f"skyrl.overrides names {name}, which settings of mcpagent decide" for name in sorted(taken)
    ]


def _refused(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Settings that SkyRL cannot follow, each with the reason."""
    for key, values in FOLLOWED.items():
        value_of = attrgetter(key)
        accepted = values or (value_of(TrainConfig()),)
        if value_of(config) not in accepted:
            yield key, f"SkyRL follows {' or '.join(map(_shown, accepted))} alone"
    dtype, grpo = config.model.dtype, config.grpo
    is_theirs = dtype == "float32" and config.training.mixed_precision == "bf16"
    if dtype not in ("auto", "bfloat16") and not is_theirs:
        why = "SkyRL holds float32 and computes bfloat16: set training.mixed_precision bf16"
        yield "model.dtype", why
    if config.lora.alpha != int(config.lora.alpha):
        yield "lora.alpha", "SkyRL takes whole numbers"
    if config.rollout.engine_context <= config.rollout.max_new_tokens:
        context = f"{config.rollout.engine_context} tokens of context"
        yield "rollout.max_new_tokens", f"{context} leave no room for a prompt"
    if grpo.loss == "gspo" and grpo.dual_clip is not None:
        yield "grpo.dual_clip", "SkyRL's gspo has no such bound: set it to null"
    if grpo.target_kl is not None and grpo.kl_estimator != "k1":
        why = "SkyRL adapts the coefficient of a KL in the reward only: grpo.kl_estimator k1"
        yield "grpo.target_kl", why


def _overrides(config: TrainConfig) -> JsonObject:
    parts = [text.partition("=") for text in config.skyrl.overrides]
    return {name: yaml.safe_load(value) for name, _, value in parts}


def translate(config: TrainConfig) -> JsonObject:
    """SkyRL's settings for the same run, by dotted name. Raises UserError with all that it cannot do."""
    if problems := refusals(config):
        lines = "\n".join(f"  {problem}" for problem in problems)
        many = f"SkyRL cannot do {len(problems)} things of this run:\n{lines}"
        remedy = "change them, or use engine native"
        raise UserError(problems[0] if len(problems) == 1 else many, where="engine: skyrl", remedy=remedy)
    return _settings(config) | _overrides(config)


def _shown(value: Any) -> str:
    return str(value.model_dump(exclude_defaults=True)) if isinstance(value, Section) else repr(value)
