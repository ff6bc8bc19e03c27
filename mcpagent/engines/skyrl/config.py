"""A run's configuration as SkyRL's: what SkyRL is told, what mcpagent keeps doing, and what cannot be done.

`RULES` has one rule for each setting of `TrainConfig`, or for a section as a whole. A setting without a rule
is an error of this module, found by its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import Section
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError

ENV_ID = "MCPToolEnv"  # of env.skyrl, which imports skyrl_gym
_AUTO_TIS_CAP = 2.0  # vLLM samples, and FSDP trains: grpo.tis_cap auto means this
_NO_CLIPPING = 1e9  # SkyRL's optimiser always has a bound

Settings = Callable[[TrainConfig], JsonObject]
Refusal = Callable[[TrainConfig], str | None]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What becomes of a setting: `mapped` onto settings of SkyRL, `kept` by what mcpagent does inside SkyRL's
    process, `ignored` for the reason `why`, or `refused` where `refuse` gives a reason."""

    kind: Literal["mapped", "kept", "ignored", "refused"]
    settings: Settings = field(default=lambda _: {})
    refuse: Refusal = field(default=lambda _: None)
    why: str = ""


def _mapped(settings: Settings, refuse: Refusal = lambda _: None) -> Rule:
    return Rule(kind="mapped", settings=settings, refuse=refuse)


def _as(*names: str) -> Callable[[str], Rule]:
    """The value as it is, under these names."""
    return lambda key: _mapped(lambda c: dict.fromkeys(names, value_at(c, key)))


def _kept(why: str, refuse: Refusal = lambda _: None) -> Rule:
    return Rule(kind="kept", why=why, refuse=refuse)


def _ignored(why: str) -> Rule:
    return Rule(kind="ignored", why=why)


def _refused(why: str, *accepted: Any) -> Callable[[str], Rule]:
    """Everything but `accepted`; without those, everything but the default."""

    def rule(key: str) -> Rule:
        allowed = accepted or (value_at(TrainConfig(), key),)
        return Rule(kind="refused", refuse=lambda c: None if value_at(c, key) in allowed else why, why=why)

    return rule


def value_at(config: TrainConfig, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _model(config: TrainConfig) -> JsonObject:
    models = ("policy", "ref", "critic") if config.grpo.advantage == "gae" else ("policy", "ref")
    return {f"trainer.{model}.model.path": config.model.name for model in models}


def _refuse_model(config: TrainConfig) -> str | None:
    why = "SkyRL starts from a whole model; write one: mcpagent export RUN --merge --out MODEL"
    return why if (Path(config.model.name) / "adapter_config.json").is_file() else None


def _refuse_attention(config: TrainConfig) -> str | None:
    kind = config.model.attn_implementation
    return None if kind in (None, "sdpa", "flash_attention_2") else "SkyRL has flash_attention_2 and sdpa"


def _refuse_dtype(config: TrainConfig) -> str | None:
    dtype, mixed = config.model.dtype, config.training.mixed_precision
    is_theirs = dtype in ("auto", "bfloat16") or (dtype == "float32" and mixed == "bf16")
    return (
        None if is_theirs else "SkyRL holds float32 and computes bfloat16: set training.mixed_precision bf16"
    )


def _finetune(config: TrainConfig) -> JsonObject:
    return {"trainer.policy.model.lora.rank": config.lora.r if config.finetune.mode == "lora" else 0}


def _plain(names: str | tuple[str, ...]) -> str | list[str]:
    return names if isinstance(names, str) else list(names)


def _lora(name: str, value: Callable[[TrainConfig], Any]) -> Settings:
    def settings(config: TrainConfig) -> JsonObject:
        return {f"trainer.policy.model.lora.{name}": value(config)} if config.finetune.mode == "lora" else {}

    return settings


_LOSSES = {
    "grpo": ("regular", "sequence_mean"),
    "dapo": ("regular", "token_mean"),
    "dr_grpo": ("regular", "seq_mean_token_sum_norm"),
    "gspo": ("gspo", "sequence_mean"),
    "cispo": ("cispo", "token_mean"),
}


def _loss(config: TrainConfig) -> JsonObject:
    kind, reduction = _LOSSES[config.grpo.loss]
    bound = config.grpo.dual_clip if kind == "regular" else None
    return {
        "trainer.algorithm.clip_ratio_c": bound or 3.0,  # which "regular" does not read
        "trainer.algorithm.policy_loss_type": kind if bound is None else "dual_clip",
        "trainer.algorithm.loss_reduction": reduction,
        "trainer.algorithm.cispo.cispo_eps_clip_low": 1.0,
        "trainer.algorithm.cispo.cispo_anchor": "old",
    }


def _refuse_dual_clip(config: TrainConfig) -> str | None:
    is_gspo = config.grpo.loss == "gspo" and config.grpo.dual_clip is not None
    return "SkyRL's gspo has no such bound: set it to null" if is_gspo else None


def estimator_name(config: TrainConfig) -> str:
    """The registered name of the native advantage that leaves failed episodes out."""
    return f"mcpagent_{config.grpo.advantage}_{config.grpo.advantage_scale}"


def _kl(config: TrainConfig) -> JsonObject:
    grpo = config.grpo
    in_use = grpo.kl_coef > 0 and grpo.reference != "none"
    return {
        "trainer.algorithm.use_kl_loss": in_use and grpo.kl_placement == "loss",
        "trainer.algorithm.use_kl_in_reward": in_use and grpo.kl_placement == "reward",
        "trainer.algorithm.kl_loss_coef": grpo.kl_coef,
    }


def _adaptive_kl(config: TrainConfig) -> JsonObject:
    grpo, kind = config.grpo, "adaptive" if config.grpo.adaptive_kl else "fixed"
    settings: JsonObject = {"trainer.algorithm.kl_ctrl.type": kind}
    if grpo.target_kl is not None:
        settings["trainer.algorithm.kl_ctrl.kl_target"] = grpo.target_kl
    return settings


def _refuse_adaptive_kl(config: TrainConfig) -> str | None:
    why = "SkyRL adapts the coefficient of a KL in the reward only: grpo.kl_placement reward"
    return why if config.grpo.adaptive_kl and config.grpo.kl_placement == "loss" else None


def _tis(config: TrainConfig) -> JsonObject:
    cap, level, section = (
        config.grpo.tis_cap,
        config.grpo.tis_level,
        "trainer.algorithm.off_policy_correction",
    )
    if cap is None:
        return {f"{section}.tis_ratio_type": None}
    cap = _AUTO_TIS_CAP if cap == "auto" else cap
    return {f"{section}.tis_ratio_type": level, f"{section}.{level}_tis_ratio_clip_high": cap}


def _of_optimizers(name: str, value: Any) -> JsonObject:
    return {f"trainer.{model}.optimizer_config.{name}": value for model in ("policy", "critic")}


def _rates(config: TrainConfig) -> JsonObject:
    rate = config.optimization.learning_rate
    head = config.grpo.value_learning_rate
    return {
        "trainer.policy.optimizer_config.lr": rate,
        "trainer.critic.optimizer_config.lr": rate if head is None else head,
    }


def _batch(config: TrainConfig) -> JsonObject:
    prompts = config.prompts_per_step
    share = max(1, prompts // config.grpo.minibatches)
    return {
        "trainer.train_batch_size": prompts,
        "trainer.policy_mini_batch_size": share,
        "trainer.critic_mini_batch_size": share,
        "trainer.eval_batch_size": prompts,
    }


def _length(config: TrainConfig) -> JsonObject:
    training = config.training
    steps = training.max_steps
    if steps is None and training.steps_per_epoch is not None:
        steps = training.max_epochs * training.steps_per_epoch
    epochs = training.max_epochs if steps is None else max(training.max_epochs, steps)
    return {"trainer.epochs": epochs, "trainer.max_training_steps": steps}


def _saving(config: TrainConfig) -> JsonObject:
    every = config.training.save_frequency
    return {
        "trainer.ckpt_interval": every,
        "trainer.hf_save_interval": every if config.finetune.mode == "full" else -1,
    }


def max_context(config: TrainConfig) -> int:
    """Tokens of the longest context, the completion included."""
    limits = [config.vllm.max_model_len, config.rollout.max_context_tokens]
    return min(limit for limit in limits if limit is not None)


def _context(config: TrainConfig) -> JsonObject:
    prompt = max_context(config) - config.rollout.max_new_tokens
    return {
        "generator.inference_engine.engine_init_kwargs.max_model_len": config.vllm.max_model_len,
        "generator.max_input_length": prompt,
        "trainer.max_prompt_length": prompt,
    }


def _refuse_context(config: TrainConfig) -> str | None:
    room = max_context(config) - config.rollout.max_new_tokens
    return None if room > 0 else "rollout.max_new_tokens leaves no room for a prompt"


def _placement(config: TrainConfig) -> JsonObject:
    skyrl, urls = config.skyrl, list(config.vllm.servers)
    place: JsonObject = {
        "trainer.placement.colocate_all": not urls,
        "generator.inference_engine.run_engines_locally": not urls,
        "generator.inference_engine.external_server_urls": urls or None,
        "generator.inference_engine.num_engines": len(urls) or skyrl.num_nodes * skyrl.gpus_per_node,
    }
    for model in ("policy", "ref", "critic"):
        place[f"trainer.placement.{model}_num_nodes"] = skyrl.num_nodes
        place[f"trainer.placement.{model}_num_gpus_per_node"] = skyrl.gpus_per_node
    return place


_RULES: dict[str, Rule | Callable[[str], Rule]] = {
    "algorithm": _refused(
        "SkyRL trains by GRPO and PPO here; make the warm start with engine native", "grpo"
    ),
    "engine": _kept("it chose SkyRL"),
    "seed": _as("trainer.seed"),
    **dict.fromkeys(("output_dir", "name"), _kept("the run folder is made, and filled, by mcpagent")),
    "device": _refused("SkyRL trains on CUDA devices only", "auto", "cuda"),
    "threads": _ignored("Ray gives each process its cores"),
    "model.name": _mapped(_model, _refuse_model),
    "model.dtype": Rule(kind="refused", refuse=_refuse_dtype),
    "model.attn_implementation": _mapped(
        lambda c: {"trainer.flash_attn": c.model.attn_implementation != "sdpa"}, _refuse_attention
    ),
    "model.fused_kernels": _ignored("SkyRL chooses its own kernels"),
    "model.gradient_checkpointing": _as("trainer.gradient_checkpointing"),
    "model.trust_remote_code": _ignored(
        "SkyRL always runs the code that a model brings: trust it, or do not train it"
    ),
    **dict.fromkeys(("model.tokenizer", "model.pad_token_id"), _refused("SkyRL takes those of the model")),
    "finetune.mode": _mapped(
        _finetune,
        lambda c: "SkyRL has no 4-bit base: use lora or full" if c.finetune.mode == "qlora" else None,
    ),
    "lora.r": _mapped(_finetune),
    "lora.alpha": _mapped(
        _lora("alpha", lambda c: int(c.lora.alpha)),
        lambda c: None if c.lora.alpha == int(c.lora.alpha) else "SkyRL takes whole numbers",
    ),
    "lora.dropout": _mapped(_lora("dropout", lambda c: c.lora.dropout)),
    "lora.target_modules": _mapped(_lora("target_modules", lambda c: _plain(c.lora.target_modules))),
    "lora.rslora": _refused("SkyRL scales by alpha / r"),
    "vllm.max_model_len": _mapped(_context, _refuse_context),
    "vllm.gpu_memory_utilization": _as("generator.inference_engine.gpu_memory_utilization"),
    "vllm.enforce_eager": _as("generator.inference_engine.enforce_eager"),
    "vllm.sleep": _refused("SkyRL's engines sleep during updates wherever they share the GPU", None, True),
    "vllm.servers": _mapped(_placement),
    **dict.fromkeys(("vllm.tensor_parallel_size", "vllm.own_process"), _ignored("SkyRL places its engines")),
    "grpo.advantage": _mapped(
        lambda c: {**_model(c), "trainer.algorithm.advantage_estimator": estimator_name(c)},
        lambda c: (
            "the turns' own credit does not reach SkyRL's estimators: use group"
            if c.grpo.advantage == "turn"
            else None
        ),
    ),
    "grpo.normalize_advantages": _mapped(
        lambda c: {
            "trainer.algorithm.advantage_estimator": estimator_name(c),
            "trainer.algorithm.grpo_norm_by_std": c.grpo.advantage_scale != "none",
        }
    ),
    "grpo.turn_coef": _ignored("it belongs to the advantage turn, which is refused"),
    "grpo.loss": _mapped(_loss),
    "grpo.clip_ratio": _mapped(
        lambda c: {
            "trainer.algorithm.eps_clip_low": c.grpo.clip_ratio,
            "trainer.algorithm.eps_clip_high": c.grpo.clip_high,
        }
    ),
    "grpo.clip_ratio_high": _mapped(
        lambda c: {
            "trainer.algorithm.eps_clip_high": c.grpo.clip_high,
            "trainer.algorithm.cispo.cispo_eps_clip_high": c.grpo.clip_high,
        }
    ),
    "grpo.dual_clip": _mapped(_loss, _refuse_dual_clip),
    "grpo.max_response_tokens": _kept("the trainer divides dr_grpo's sums by it"),
    "grpo.mask_truncated": _kept("the trainer takes the loss off cut episodes; their reward counts"),
    "grpo.overlong_penalty": _refused("no penalty for length is taken off SkyRL's rewards"),
    "grpo.overlong_buffer_tokens": _ignored("it belongs to grpo.overlong_penalty, which is refused"),
    "grpo.kl_coef": _mapped(_kl),
    "grpo.kl_placement": _mapped(_kl),
    "grpo.kl_estimator": _as("trainer.algorithm.kl_estimator_type"),
    "grpo.kl_times_ratio": _refused("SkyRL's KL has no weight by the ratio"),
    "grpo.target_kl": _mapped(_adaptive_kl),
    "grpo.adaptive_kl": _mapped(_adaptive_kl, _refuse_adaptive_kl),
    "grpo.reference": _refused("SkyRL's reference is frozen", "frozen", "none"),
    **dict.fromkeys(
        ("grpo.reference_update_every", "grpo.reference_decay"), _ignored("it belongs to ema: refused")
    ),
    "grpo.tis_cap": _mapped(_tis),
    "grpo.tis_level": _mapped(_tis),
    "grpo.tis_beyond": _refused("SkyRL truncates weights past the cap"),
    "grpo.entropy_coef": _mapped(
        lambda c: {
            "trainer.algorithm.use_entropy_loss": c.grpo.entropy_coef > 0,
            "trainer.algorithm.entropy_loss_coef": c.grpo.entropy_coef,
        }
    ),
    "grpo.epochs_per_batch": _as("trainer.update_epochs_per_batch"),
    "grpo.minibatches": _mapped(_batch),
    "grpo.gamma": _mapped(lambda c: {"trainer.algorithm.gamma": c.grpo.gae_gamma}),
    "grpo.lambda_gae": _mapped(lambda c: {"trainer.algorithm.lambd": c.grpo.gae_lambda}),
    "grpo.value_loss_coef": _ignored("the critic is a model of its own, with a loss of its own"),
    "grpo.value_learning_rate": _mapped(_rates),
    "grpo.value_clip": _mapped(
        lambda c: {"trainer.algorithm.value_clip": c.grpo.value_clip},
        lambda c: "SkyRL's critic always has a bound: set one" if c.grpo.value_clip is None else None,
    ),
    "optimization.optimizer": _refused("SkyRL's optimiser is AdamW", "adamw"),
    "optimization.muon_learning_rate": _ignored("it belongs to muon, which is refused"),
    "optimization.learning_rate": _mapped(_rates),
    "optimization.weight_decay": _mapped(
        lambda c: _of_optimizers("weight_decay", c.optimization.weight_decay)
    ),
    "optimization.betas": _mapped(lambda c: _of_optimizers("adam_betas", list(c.optimization.betas))),
    "optimization.gradient_clip": _mapped(
        lambda c: _of_optimizers("max_grad_norm", c.optimization.gradient_clip or _NO_CLIPPING)
    ),
    "optimization.gradient_accumulation_steps": _mapped(_batch),
    "training.batch_size": _mapped(_batch),
    **dict.fromkeys(
        ("training.max_epochs", "training.steps_per_epoch", "training.max_steps"), _mapped(_length)
    ),
    "training.save_frequency": _mapped(_saving),
    "training.keep_checkpoints": _mapped(
        lambda c: {"trainer.max_ckpts_to_keep": c.training.keep_checkpoints or -1}
    ),
    "training.eval_every": _mapped(
        lambda c: {
            "trainer.eval_interval": c.training.eval_every or -1,
            "trainer.eval_before_train": c.training.eval_every > 0,
        }
    ),
    "training.eval_samples": _ignored(
        "SkyRL evaluates on the validation set alone; judge a run by mcpagent eval checkpoint"
    ),
    "training.patience": _refused("SkyRL ends a run after its steps only"),
    "training.dynamic_sampling": _refused(
        "SkyRL's own counts failed episodes as zeros, and ends the run where its limit is reached"
    ),
    "training.curriculum": _refused("SkyRL shuffles its dataset", "uniform"),
    "training.useful_share": _ignored("it belongs to training.curriculum calibrated, which is refused"),
    "training.warmup_steps": _mapped(lambda c: _of_optimizers("num_warmup_steps", c.training.warmup_steps)),
    "training.micro_batch_tokens": _as("trainer.max_tokens_per_microbatch"),
    "training.collective_timeout_s": _ignored("the timeouts of Ray and NCCL hold"),
    **dict.fromkeys(("training.parallel", "training.deepspeed_config"), _ignored("SkyRL always has FSDP")),
    "training.shard_size": _ignored("SkyRL spreads the weights over all of its workers"),
    "training.cpu_offload": _refused("skyrl.overrides sets SkyRL's own"),
    "training.mixed_precision": _refused("SkyRL computes in bfloat16", "no", "bf16"),
    "budget": _refused("a Ray job has no such cap; use the scheduler's time limit"),
    "health": _ignored("its limits are of native metrics; what SkyRL measures is in metrics.jsonl"),
    "tracking": _kept("mcpagent's own trackers get the records of metrics.jsonl"),
    "rollout.backend": _refused("SkyRL samples with vLLM", "auto", "vllm"),
    "rollout.num_envs": _kept("the generator has so many episodes open at once"),
    "rollout.group_size": _as("generator.n_samples_per_prompt"),
    "rollout.max_steps_per_episode": _as("generator.max_turns"),
    "rollout.max_new_tokens": _mapped(
        lambda c: {
            "generator.sampling_params.max_generate_length": c.rollout.max_new_tokens,
            "generator.eval_sampling_params.max_generate_length": c.rollout.max_new_tokens,
            **_context(c),
        }
    ),
    "rollout.temperature": _as("generator.sampling_params.temperature", "trainer.algorithm.temperature"),
    "rollout.top_p": _as("generator.sampling_params.top_p"),
    "rollout.top_k": _mapped(lambda c: {"generator.sampling_params.top_k": c.rollout.top_k or -1}),
    "rollout.max_context_tokens": _mapped(_context, _refuse_context),
    "rollout.deterministic": _refused("Ray and vLLM do not repeat a run to the token", None, False),
    "rollout.tool_format": _kept("the generator renders prompts and the environment reads calls by it"),
    "rollout.canary_every": _ignored("SkyRL syncs weights itself, and nothing proves that they arrived"),
    "rollout.user": _refused("the environment says the tasks' own messages", "scripted"),
    "rollout.user_model": _ignored("it belongs to rollout.user model: refused"),
    "rollout.user_cache": _ignored("it belongs to rollout.user model: refused"),
    "rollout.max_staleness": _refused("SkyRL's trainer that overlaps both is another entry point"),
    "api": _ignored("no model behind an API plays in a run on SkyRL"),
    "tools": _kept("the environment gets the section as a whole"),
    **dict.fromkeys(
        ("data.train", "data.validation", "data.max_tasks"),
        _kept("the records are written as SkyRL reads them"),
    ),
    "data.message_limit_chars": _kept("the environment cuts by it"),
    "reward.penalty_after_success": _kept("the generator counts penalties from there on"),
    **{
        key: _refused("the environment grades by the default")(key)
        for key in ("reward.weights", "reward.terms")
    },
    "reward.control": _refused("control experiments are made with engine native", "none"),
    "judge": _refused("the environment asks no judge"),
    "sft": _ignored("it belongs to algorithm sft, which is refused"),
    "skyrl.num_nodes": _mapped(_placement),
    "skyrl.gpus_per_node": _mapped(_placement),
    "skyrl.address": _kept("it is where Ray is joined"),
    "skyrl.env_workers": _as("environment.skyrl_gym.max_env_workers"),
    "skyrl.max_failed_share": _kept("the generator ends the run past it"),
    "skyrl.bake_tools": _kept("the records are written by it"),
    "skyrl.overrides": _kept("they come last"),
}
RULES: Mapping[str, Rule] = {
    key: rule if isinstance(rule, Rule) else rule(key) for key, rule in _RULES.items()
}
_ALWAYS: JsonObject = {
    "environment.env_class": ENV_ID,
    "trainer.logger": "console",
    "trainer.enable_ray_gpu_monitor": False,
    "trainer.print_example_interval": 0,
    "generator.sampling_params.logprobs": 1,
    "generator.eval_sampling_params.temperature": 0.0,
}


def refusals(config: TrainConfig) -> list[str]:
    """What of the run SkyRL cannot do, each with the setting, its value and the reason."""
    reasons = {key: rule.refuse(config) for key, rule in RULES.items()}
    problems = [
        f"{key} is {_shown(value_at(config, key))}, but {reason}" for key, reason in reasons.items() if reason
    ]
    decided = {name for rule in RULES.values() for name in rule.settings(config)} | _ALWAYS.keys()
    problems += [
        f"skyrl.overrides names {name}, which settings of mcpagent decide"
        for name in _overrides(config)
        if name in decided
    ]
    return problems


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
    settings = dict(_ALWAYS)
    for rule in RULES.values():
        settings |= rule.settings(config)
    return settings | _overrides(config)


def idle(config: TrainConfig) -> list[str]:
    """Settings that were given and have no effect under SkyRL, each with the reason."""
    default = TrainConfig()
    return [
        f"{key} has no effect under SkyRL: {rule.why}"
        for key, rule in RULES.items()
        if rule.kind == "ignored" and value_at(config, key) != value_at(default, key)
    ]


def _shown(value: Any) -> str:
    return str(value.model_dump(exclude_defaults=True)) if isinstance(value, Section) else repr(value)
