"""Rules that join settings, each with its reason, and settings that have no effect where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import LoraConfig, RewardConfig, TrainConfig, VllmConfig
from mcpagent.config.sections import JudgeConfig


@dataclass(frozen=True)
class ConfigFinding:
    """`keys` are the dotted keys that it is about, the one to change first."""

    keys: tuple[str, ...]
    message: str


def findings(config: TrainConfig, *, for_training: bool = True) -> list[ConfigFinding]:
    """Everything that is wrong between the settings of a valid config; with `for_training` off, what only a
    training run must keep to is left out."""
    problems = list(_common(config))
    if for_training:
        problems += _precision(config)
    if for_training and config.algorithm == "grpo":
        problems += [
            *_sampling(config),
            *_objective(config),
            *_endings(config),
        ]
    return problems


def _common(config: TrainConfig) -> Iterator[ConfigFinding]:
    rollout = config.rollout
    limit = rollout.max_context_tokens
    if limit is not None and rollout.max_new_tokens >= limit:
        yield ConfigFinding(
            ("rollout.max_new_tokens", "rollout.max_context_tokens"),
            f"rollout.max_new_tokens is {rollout.max_new_tokens}, but rollout.max_context_tokens is {limit}, "
            "which leaves no room for a prompt; lower the first or raise the second",
        )
    if config.finetune.mode == "qlora" and rollout.backend == "vllm":
        yield ConfigFinding(
            ("rollout.backend", "finetune.mode"),
            "rollout.backend is vllm, but finetune.mode is qlora, and vLLM would sample with the weights "
            "before they were quantised; use rollout.backend hf, or finetune.mode lora",
        )
    # What GRPO starts from is refused when the model is loaded: quickstart puts its warm start there.
    is_from_scratch = config.algorithm == "sft" and is_built(config.model.name)
    if is_from_scratch and config.finetune.mode != "full":
        yield ConfigFinding(
            ("finetune.mode", "model.name"),
            f"finetune.mode is {config.finetune.mode}, but model.name is {config.model.name}, which begins "
            "with random weights: adapters would leave them random; use finetune.mode full",
        )
    sft = config.sft
    if sft.curriculum is None and (sft.curriculum_steps or sft.curriculum_mix):
        name = "curriculum_steps" if sft.curriculum_steps else "curriculum_mix"
        yield ConfigFinding(
            (f"sft.{name}", "sft.curriculum"),
            f"sft.{name} is {getattr(sft, name)}, but sft.curriculum names no function that makes its "
            "samples; name one as package.module:function",
        )
    most = config.training.max_steps
    if config.algorithm == "sft" and most is not None and most <= sft.curriculum_steps:
        yield ConfigFinding(
            ("training.max_steps", "sft.curriculum_steps"),
            f"training.max_steps is {most}, and sft.curriculum_steps is {sft.curriculum_steps}: no step is "
            "left for a demonstration; raise the one or lower the other",
        )
    yield from _reward(config.reward)
    if config.tools.cassette is None and config.tools.cassette_mode in ("record", "strict"):
        yield ConfigFinding(
            ("tools.cassette_mode", "tools.cassette"),
            f"tools.cassette_mode is {config.tools.cassette_mode}, but tools.cassette names no folder; "
            "set it, or leave the mode out",
        )


def _reward(reward: RewardConfig) -> Iterator[ConfigFinding]:
    names = reward.term_names
    if reward.weightless:
        weighted = ("success", "partial", "penalty", *names)
        yield ConfigFinding(
            (f"reward.weights.{reward.weightless[0]}", "reward.terms"),
            f"reward.weights names {', '.join(reward.weightless)}, but the terms that have a weight are "
            f"{', '.join(weighted)}; name the function in reward.terms, or correct the name",
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield ConfigFinding(
            ("reward.terms",),
            f"reward.terms has two functions of the name {twice}, and a term has its function's name; "
            "rename one",
        )


def refused_on_cpu(config: TrainConfig) -> ConfigFinding | None:
    """Return the precision that a run cannot train in if its device turns out to be a CPU."""
    asked = {"model.dtype": config.model.dtype, "training.mixed_precision": config.training.mixed_precision}
    for key, value in asked.items():
        if value in ("float16", "fp16"):
            return ConfigFinding(
                (key, "device"),
                f"{key} is {value}, but device cpu computes float16 slower than anything else; use "
                "float32 or bfloat16",
            )
    return None


def _precision(config: TrainConfig) -> Iterator[ConfigFinding]:
    dtype, mixed, mode = config.model.dtype, config.training.mixed_precision, config.finetune.mode
    if config.device == "cpu" and (refused := refused_on_cpu(config)) is not None:
        yield refused
    elif dtype == "float16" and mode == "full":
        yield ConfigFinding(
            ("model.dtype", "finetune.mode"),
            "model.dtype is float16, but finetune.mode is full, and steps and gradients in float16 "
            "underflow; use model.dtype float32 with training.mixed_precision fp16",
        )
    elif dtype == "float16" and mixed != "fp16":
        yield ConfigFinding(
            ("training.mixed_precision", "model.dtype"),
            f"training.mixed_precision is {mixed}, but model.dtype is float16, whose gradients underflow "
            "without loss scaling; set training.mixed_precision to fp16",
        )
    if config.optimization.optimizer == "muon" and mode != "full":
        yield ConfigFinding(
            ("optimization.optimizer", "finetune.mode"),
            "optimization.optimizer is muon, but muon orthogonalises whole weight matrices and "
            f"finetune.mode {mode} trains none; use adamw, or finetune.mode full",
        )


def _sampling(config: TrainConfig) -> Iterator[ConfigFinding]:
    rollout = config.rollout
    if rollout.group_size < 2:
        yield ConfigFinding(
            ("rollout.group_size",),
            f"rollout.group_size is {rollout.group_size}, but GRPO compares attempts within a group; "
            "use 2 or more",
        )
    if rollout.temperature == 0.0:
        yield ConfigFinding(
            ("rollout.temperature",),
            "rollout.temperature is 0, but attempts that are all the same teach nothing; use 1.0",
        )
    if rollout.top_p != 1.0:
        yield ConfigFinding(
            ("rollout.top_p",),
            f"rollout.top_p is {rollout.top_p}, but sampling from a cut distribution biases the ratio of "
            "policies that the loss is made of; use 1.0 and shape sampling with rollout.temperature",
        )


def _objective(config: TrainConfig) -> Iterator[ConfigFinding]:
    grpo = config.grpo
    if grpo.clip_high < grpo.clip_ratio:
        yield ConfigFinding(
            ("grpo.clip_ratio_high", "grpo.clip_ratio"),
            f"grpo.clip_ratio_high is {grpo.clip_high}, but grpo.clip_ratio is {grpo.clip_ratio}; the upper "
            "range must be at least the lower one",
        )
    if grpo.loss != "cispo" and grpo.dual_clip is not None and grpo.dual_clip <= 1.0 + grpo.clip_high:
        yield ConfigFinding(
            ("grpo.dual_clip", "grpo.clip_ratio_high"),
            f"grpo.dual_clip is {grpo.dual_clip}, but tokens of positive advantage are clipped at a ratio of "
            f"{1.0 + grpo.clip_high:g}, and the bound of negative ones must lie above; raise it, for example "
            f"to {2.0 + grpo.clip_high:g}",
        )
    if grpo.reference == "none" and grpo.kl_coef > 0:
        yield ConfigFinding(
            ("grpo.kl_coef", "grpo.reference"),
            f"grpo.kl_coef is {grpo.kl_coef}, but grpo.reference is none: nothing to stay close to; "
            "set grpo.kl_coef to 0, or grpo.reference to frozen",
        )
    if grpo.kl_estimator == "k1" and grpo.reference == "none":
        yield ConfigFinding(
            ("grpo.kl_estimator", "grpo.reference"),
            "grpo.kl_estimator is k1, which is taken off the reward, but grpo.reference is none: nothing to "
            "stay close to; set grpo.reference to frozen or ema, or grpo.kl_estimator to k3",
        )
    if grpo.loss == "dr_grpo" and grpo.advantage_scale != "none":
        yield ConfigFinding(
            ("grpo.normalize_advantages", "grpo.loss"),
            f"grpo.normalize_advantages is {str(grpo.normalize_advantages).lower()}, but grpo.loss dr_grpo "
            "is the one that leaves the standard deviation out; set it to false, or use another loss",
        )
    if grpo.normalize_advantages == "batch" and grpo.advantage not in ("group", "turn"):
        yield ConfigFinding(
            ("grpo.normalize_advantages", "grpo.advantage"),
            f"grpo.normalize_advantages is batch, but grpo.advantage is {grpo.advantage}, which is scaled in "
            "its own way; use true or false",
        )
    if grpo.target_kl is not None and grpo.kl_coef == 0:
        yield ConfigFinding(
            ("grpo.kl_coef", "grpo.target_kl"),
            "grpo.kl_coef is 0, but grpo.target_kl multiplies it, and 0 stays 0; start at 0.01",
        )
    prompts = config.training.batch_size
    if prompts % grpo.minibatches:
        yield ConfigFinding(
            ("grpo.minibatches", "training.batch_size"),
            f"grpo.minibatches is {grpo.minibatches}, but the {prompts} prompts of a step "
            "(training.batch_size) cannot be divided into so many equal shares",
        )


def _endings(config: TrainConfig) -> Iterator[ConfigFinding]:
    training = config.training
    if training.patience is not None and not training.eval_every:
        yield ConfigFinding(
            ("training.patience", "training.eval_every"),
            f"training.patience is {training.patience}, but training.eval_every is 0, so there is no "
            "evaluation to wait for; set training.eval_every, or leave the patience out",
        )


def idle(config: TrainConfig) -> dict[str, str]:
    """Dotted keys that have no effect in this config, and why."""
    reasons: dict[str, str] = {}

    def mark(section: str, names: Iterable[str], why: str) -> None:
        reasons.update({f"{section}.{name}": why for name in names})

    if config.algorithm == "grpo":
        grpo = config.grpo
        if grpo.advantage != "gae":
            why = f"grpo.advantage is {grpo.advantage}, which has no value head and no discount; gae has both"
            mark("grpo", ("gamma", "lambda_gae", "value_loss_coef", "value_learning_rate"), why)
        if grpo.advantage == "rloo":
            why = "the advantage rloo is never divided by a standard deviation"
            mark("grpo", ("normalize_advantages",), why)
        if grpo.loss == "cispo":
            why = "the loss cispo has one upper bound only: grpo.clip_ratio_high"
            mark("grpo", ("clip_ratio", "dual_clip"), why)
        if grpo.reference != "ema":
            mark("grpo", ("reference_update_every",), f"grpo.reference is {grpo.reference}, not ema")
    if config.judge.model is None:
        names = JudgeConfig.model_fields.keys() - {"model"}
        mark("judge", names, "judge.model is not set, so that no judge is asked")
    if config.tools.discovery == "all":
        why = "tools.discovery is all, which offers every tool; search offers these few"
        mark("tools", ("pinned",), why)
    if config.rollout.backend == "hf":
        mark("vllm", VllmConfig.model_fields, "rollout.backend is hf")
    elif config.vllm.servers:
        why = "vllm.servers names servers, which were started with settings of their own"
        mark("vllm", VllmConfig.model_fields.keys() - {"servers"}, why)
    if config.finetune.mode == "full":
        mark("lora", LoraConfig.model_fields, "finetune.mode is full")
    if config.tools.servers is not None:
        why = "it is for the built-in servers, and tools.servers names others"
        mark("tools", ("builtin", "limited", "upstream"), why)
    return reasons
