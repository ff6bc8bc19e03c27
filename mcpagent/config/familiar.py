"""The familiar spellings of settings, and what each means here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcpagent.config.source import Key


@dataclass(frozen=True)
class PromptsPerUpdate:
    """`grpo.minibatches` written as the prompts in each of them (`minibatch_size`)."""

    prompts: Any


@dataclass(frozen=True)
class NoEffect:
    """A key that needs no setting here. Its `silent` value asks for nothing else; any other is noted."""

    reason: str
    silent: Any = None


@dataclass(frozen=True)
class OnlyValue:
    """A key with one meaningful value."""

    value: Any
    reason: str


# Familiar key -> the key that it means.
ALIASES: dict[str, str] = {
    "algo": "algorithm",
    "algorithm.name": "algorithm",
    "algorithm.type": "algorithm",
    "lora.enabled": "finetune.mode",
    "grpo.lambda": "grpo.lambda_gae",
    "kl.placement": "grpo.kl_placement",
    "kl.estimator": "grpo.kl_estimator",
    "training.minibatch_size": "grpo.minibatches",
    "rollout.minibatch_size": "grpo.minibatches",
    "rollout.batch_size": "training.batch_size",
    "training.learning_rate": "optimization.learning_rate",
    "training.gradient_accumulation_steps": "optimization.gradient_accumulation_steps",
    "training.gradient_clip": "optimization.gradient_clip",
    "training.max_cpu_s": "budget.cpu_s",
    "tools.timeout": "tools.timeout_s",
    "tools.timeout_seconds": "tools.timeout_s",
    "tools.retry_attempts": "tools.retry",
    "tools.cassette_stateless": "tools.read_only",
}


def _mode_of_lora_enabled(enabled: Any) -> str:
    if not isinstance(enabled, bool):
        raise ValueError("it must be true or false")
    return "lora" if enabled else "full"


def _tracking_mode(value: Any) -> Any:
    """wandb's own words for it too."""
    return {"run": "online", "dryrun": "offline"}.get(_lower(value), _lower(value))


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _algorithm(value: Any) -> Any:
    if _lower(value) not in ("grpo", "ppo", "sft"):
        raise ValueError("it must be grpo, ppo or sft")
    return _lower(value)


# Values that are rewritten on the way; ValueError says why one cannot be.
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "algo": _algorithm,
    "algorithm": _algorithm,
    "algorithm.name": _algorithm,
    "algorithm.type": _algorithm,
    "finetune.mode": _lower,
    "device": _lower,
    "tracking.mode": _tracking_mode,
    "lora.enabled": _mode_of_lora_enabled,
    "training.minibatch_size": PromptsPerUpdate,
    "rollout.minibatch_size": PromptsPerUpdate,
}
NO_EFFECT: dict[str, NoEffect] = {
    "rollout.num_workers": NoEffect(
        "one thread drives every episode and no worker waits for a tool; rollout.num_envs is how many "
        "episodes run at once"
    ),
    "rollout.max_episodes_per_update": NoEffect(
        "a step is made of training.batch_size x rollout.group_size episodes"
    ),
    "rollout.return_token_logprobs": NoEffect("training always takes the sampler's logprobs", silent=True),
    "vllm.enabled": NoEffect("rollout.backend chooses the engine"),
}
ONLY_VALUES: dict[str, OnlyValue] = {
    "tools.enabled": OnlyValue(True, "an agent is trained on its tool calls, so leave this key out"),
}
# Environment variables that users of this family of tools set, and the keys that they stand for where nobody
# set those. Those of trackers count where a tracker is named.
ENVIRONMENT: dict[str, str] = {
    "DEVICE_TYPE": "device",
    "WANDB_PROJECT": "tracking.project",
    "WANDB_ENTITY": "tracking.entity",
    "WANDB_MODE": "tracking.mode",
    "WEAVE_PROJECT": "tracking.weave_project",
}
NO_BITSANDBYTES = "DISABLE_BITSANDBYTES"
# A familiar rollout file may hold its keys without the leading `rollout`.
BARE_ROLLOUT_KEYS = frozenset(
    {
        "backend",
        "num_envs",
        "num_workers",
        "max_steps_per_episode",
        "max_episodes_per_update",
        "max_new_tokens",
        "temperature",
        "top_p",
        "return_token_logprobs",
        "batch_size",
        "minibatch_size",
    }
)
_MOVED_SECTIONS: dict[Key, Key] = {("rollout", "tools"): ("tools",), ("finetune", "lora"): ("lora",)}


def full_spelling(key: Key) -> Key:
    """`key` with its section, where the familiar file leaves it out or puts it elsewhere."""
    if key[0] in BARE_ROLLOUT_KEYS:
        return ("rollout", *key)
    moved = _MOVED_SECTIONS.get(key[:2])
    return key if moved is None else (*moved, *key[2:])
