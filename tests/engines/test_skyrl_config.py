"""What becomes of every setting of a run under SkyRL; needs no SkyRL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import Section
from mcpagent.engines.skyrl.config import FOLLOWED, refusals, translate
from mcpagent.errors import UserError

PRESETS = Path("configs")


def leaves(section: type[Section] = TrainConfig, prefix: str = "") -> Iterator[str]:
    """Every setting by its dotted key; a section that is decided as a whole counts as one."""
    for name, info in section.model_fields.items():
        key, kind = f"{prefix}{name}", info.annotation
        if isinstance(kind, type) and issubclass(kind, Section) and key not in DECIDED:
            yield from leaves(kind, f"{key}.")
        else:
            yield key


def config(*overrides: str) -> TrainConfig:
    return load_train_config([], overrides).config


# What SkyRL is told of: another value of each, with what else that value needs.
OTHER: dict[str, tuple[str, ...]] = {
    "seed": ("seed=7",),
    "model.name": ("model.name=other/model",),
    "model.attn_implementation": ("model.attn_implementation=sdpa",),
    "model.gradient_checkpointing": ("model.gradient_checkpointing=true",),
    "finetune.mode": ("finetune.mode=full",),
    "lora.r": ("lora.r=4",),
    "lora.alpha": ("lora.alpha=8",),
    "lora.dropout": ("lora.dropout=0.1",),
    "lora.target_modules": ("lora.target_modules=[q_proj]",),
    "vllm.gpu_memory_utilization": ("vllm.gpu_memory_utilization=0.5",),
    "vllm.enforce_eager": ("vllm.enforce_eager=true",),
    "vllm.servers": ("vllm.servers=[http://a:1, http://b:1]",),
    "grpo.advantage": ("grpo.advantage=rloo",),
    "grpo.normalize_advantages": ("grpo.normalize_advantages=false",),
    "grpo.loss": ("grpo.loss=dapo",),
    "grpo.clip_ratio": ("grpo.clip_ratio=0.1",),
    "grpo.clip_ratio_high": ("grpo.clip_ratio_high=0.5",),
    "grpo.dual_clip": ("grpo.dual_clip=null",),
    "grpo.kl_coef": ("grpo.kl_coef=0.5",),
    "grpo.kl_estimator": ("grpo.kl_estimator=k2",),
    "grpo.target_kl": ("grpo.target_kl=0.03", "grpo.kl_estimator=k1"),
    "grpo.tis_cap": ("grpo.tis_cap=3.0",),
    "grpo.entropy_coef": ("grpo.entropy_coef=0.1",),
    "grpo.epochs_per_batch": ("grpo.epochs_per_batch=2",),
    "grpo.minibatches": ("grpo.minibatches=4",),
    "grpo.gamma": ("grpo.gamma=0.5",),
    "grpo.lambda_gae": ("grpo.lambda_gae=0.5",),
    "grpo.value_learning_rate": ("grpo.value_learning_rate=0.1",),
    "optimization.learning_rate": ("optimization.learning_rate=0.5",),
    "optimization.weight_decay": ("optimization.weight_decay=0.5",),
    "optimization.betas": ("optimization.betas=[0.5, 0.6]",),
    "optimization.gradient_clip": ("optimization.gradient_clip=null",),
    "training.batch_size": ("training.batch_size=5",),
    "training.max_epochs": ("training.max_epochs=5",),
    "training.max_steps": ("training.max_steps=5",),
    "training.save_frequency": ("training.save_frequency=5",),
    "training.keep_checkpoints": ("training.keep_checkpoints=5",),
    "training.eval_every": ("training.eval_every=5",),
    "training.warmup_steps": ("training.warmup_steps=7",),
    "training.micro_batch_tokens": ("training.micro_batch_tokens=5",),
    "rollout.group_size": ("rollout.group_size=5",),
    "rollout.max_steps_per_episode": ("rollout.max_steps_per_episode=5",),
    "rollout.max_new_tokens": ("rollout.max_new_tokens=5",),
    "rollout.temperature": ("rollout.temperature=0.5",),
    "rollout.max_context_tokens": ("rollout.max_context_tokens=1024",),
    "skyrl.num_nodes": ("skyrl.num_nodes=5",),
    "skyrl.gpus_per_node": ("skyrl.gpus_per_node=5",),
}
# What mcpagent does inside SkyRL's process.
KEPT = {
    *("engine", "output_dir", "name", "tracking", "tools", "rollout.num_envs", "rollout.tool_format"),
    *("data.train", "data.validation", "data.max_tasks", "grpo.mask_truncated"),
    *("reward.penalty_after_success", "skyrl.overrides"),
    "rollout.top_p",  # told, and a run that trains refuses every other value
    *("model.dtype",),  # refused unless it is SkyRL's own
    "model.trust_remote_code",  # SkyRL always runs the code that a model brings
}
DECIDED = {*OTHER, *FOLLOWED, *KEPT}


def test_every_setting_is_told_kept_or_refused() -> None:
    settings = set(leaves())
    assert len(settings) > 80
    assert settings - DECIDED == set(), "decide what becomes of a new setting under SkyRL"
    assert DECIDED - settings == set(), "said of a setting that is gone"


@pytest.mark.parametrize("key", sorted(OTHER))
def test_another_value_changes_what_skyrl_is_told(key: str) -> None:
    others = [text for text in OTHER[key] if not text.startswith(f"{key}=")]
    assert translate(config(*OTHER[key])) != translate(config(*others))


# What SkyRL cannot do is said by its name, all at once.
WRONG: dict[str, tuple[str, ...]] = {
    "algorithm": ("algorithm=sft",),
    "device": ("device=cpu",),
    "model.dtype": ("model.dtype=float32",),
    "model.tokenizer": ("model.tokenizer=other",),
    "finetune.mode": ("finetune.mode=qlora",),
    "lora.alpha": ("lora.alpha=8.5",),
    "grpo.advantage": ("grpo.advantage=turn",),
    "grpo.overlong_penalty": ("grpo.overlong_penalty=0.1",),
    "grpo.dual_clip": ("grpo.loss=gspo",),
    "grpo.target_kl": ("grpo.target_kl=0.05",),
    "grpo.reference": ("grpo.reference=ema",),
    "optimization.optimizer": ("optimization.optimizer=muon", "finetune.mode=full"),
    "training.patience": ("training.patience=2",),
    "training.dynamic_sampling": ("training.dynamic_sampling=2",),
    "judge": ("judge.model=m",),
    "budget": ("budget.tool_calls=100",),
    "rollout.backend": ("rollout.backend=hf",),
    "rollout.max_new_tokens": ("rollout.max_new_tokens=4096", "rollout.max_context_tokens=null"),
    "rollout.user_model": ("rollout.user_model=gpt",),
    "reward.control": ("reward.control=random",),
    "grpo.reference_update_every": ("grpo.reference_update_every=7",),
    "grpo.value_loss_coef": ("grpo.value_loss_coef=0.1",),
    "training.eval_samples": ("training.eval_samples=5",),
    "training.eval_tasks": ("training.eval_tasks=5",),
    "training.collective_timeout_s": ("training.collective_timeout_s=5",),
    "training.parallel": ("training.parallel=fsdp",),
    "training.deepspeed_config": ("training.deepspeed_config=zero.json",),
    "training.shard_size": ("training.shard_size=2",),
    "health": ("health.enabled=false",),
    "api": ("api.attempts=2",),
    "sft": ("sft.stop_early=0.5",),
    "vllm.tensor_parallel_size": ("vllm.tensor_parallel_size=2",),
}


@pytest.mark.parametrize("key", sorted(WRONG))
def test_what_skyrl_cannot_do_is_refused_by_the_settings_name(key: str) -> None:
    with pytest.raises(UserError, match=f"{key} is ") as error:
        translate(config(*WRONG[key]))
    assert error.value.remedy is not None and "engine native" in error.value.remedy


def test_everything_that_is_refused_is_seen_to_be() -> None:
    # The precision of a run on SkyRL is checked with the dtype; fp16 needs a GPU that these tests lack.
    unseen = {"training.mixed_precision", "training.cpu_offload", "reward.weights", "reward.terms"}
    assert FOLLOWED.keys() - WRONG.keys() == unseen | {"model.attn_implementation"}
    problems = refusals(config("device=cpu", "training.patience=2", "lora.alpha=8.5"))
    assert [problem.partition(" ")[0] for problem in problems] == [
        "device",
        "training.patience",
        "lora.alpha",
    ]


def test_overrides_reach_skyrl_unless_a_setting_of_mcpagent_decides() -> None:
    free = config("skyrl.overrides=[trainer.policy.fsdp_config.cpu_offload=true]")
    assert translate(free)["trainer.policy.fsdp_config.cpu_offload"] is True
    with pytest.raises(UserError, match=r"skyrl\.overrides names trainer\.seed"):
        translate(config("skyrl.overrides=[trainer.seed=3]"))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # 16 prompts x 2 batches a step, in 4 optimiser steps of 8 prompts.
        (
            ("optimization.gradient_accumulation_steps=2", "grpo.minibatches=4"),
            {"trainer.train_batch_size": 32, "trainer.policy_mini_batch_size": 8},
        ),
        # 2048 tokens hold a completion of 512 after 1536 others.
        (
            ("rollout.max_context_tokens=2048", "rollout.max_new_tokens=512"),
            {"generator.max_input_length": 1536, "trainer.max_prompt_length": 1536},
        ),
        (
            ("skyrl.num_nodes=2", "skyrl.gpus_per_node=4"),
            {
                "trainer.placement.policy_num_nodes": 2,
                "trainer.placement.policy_num_gpus_per_node": 4,
                "generator.inference_engine.num_engines": 8,
            },
        ),
        (
            ("training.max_steps=30",),
            {"trainer.max_training_steps": 30, "trainer.epochs": 30},
        ),
        (
            ("grpo.loss=cispo", "grpo.clip_ratio_high=4.0", "grpo.dual_clip=null"),
            {
                "trainer.algorithm.policy_loss_type": "cispo",
                "trainer.algorithm.cispo.cispo_eps_clip_high": 4.0,
                "trainer.algorithm.loss_reduction": "token_mean",
            },
        ),
    ],
)
def test_the_mapping_by_hand(overrides: tuple[str, ...], expected: dict[str, Any]) -> None:
    settings = translate(config(*overrides))
    assert {name: settings[name] for name in expected} == expected
