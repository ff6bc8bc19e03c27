"""What becomes of every setting of a run under SkyRL; needs no SkyRL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import Section
from mcpagent.engines.skyrl.config import RULES, idle, refusals, translate
from mcpagent.errors import UserError

PRESETS = Path("configs")


def leaves(section: type[Section] = TrainConfig, prefix: str = "") -> Iterator[str]:
    """Every setting by its dotted key; a section that has a rule as a whole counts as one."""
    for name, info in section.model_fields.items():
        key, kind = f"{prefix}{name}", info.annotation
        if isinstance(kind, type) and issubclass(kind, Section) and key not in RULES:
            yield from leaves(kind, f"{key}.")
        else:
            yield key


def config(*overrides: str) -> TrainConfig:
    return load_train_config([], overrides).config


def test_every_setting_is_mapped_kept_ignored_with_its_reason_or_refused() -> None:
    settings = set(leaves())
    assert len(settings) > 90
    assert settings - RULES.keys() == set(), "decide what becomes of a new setting under SkyRL"
    assert RULES.keys() - settings == set(), "a rule for a setting that is gone"
    for key, rule in RULES.items():
        assert rule.kind in ("mapped", "refused") or rule.why, key


# For each setting that is said to be mapped, another value, with what else that value needs.
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
    "vllm.max_model_len": ("vllm.max_model_len=2048",),
    "vllm.gpu_memory_utilization": ("vllm.gpu_memory_utilization=0.5",),
    "vllm.enforce_eager": ("vllm.enforce_eager=true",),
    "vllm.servers": ("vllm.servers=[http://a:1, http://b:1]",),
    "grpo.advantage": ("grpo.advantage=rloo",),
    "grpo.normalize_advantages": ("grpo.normalize_advantages=batch",),
    "grpo.loss": ("grpo.loss=dapo",),
    "grpo.clip_ratio": ("grpo.clip_ratio=0.1",),
    "grpo.clip_ratio_high": ("grpo.clip_ratio_high=0.5",),
    "grpo.dual_clip": ("grpo.dual_clip=null",),
    "grpo.kl_coef": ("grpo.kl_coef=0.5",),
    "grpo.kl_placement": ("grpo.kl_placement=reward", "grpo.kl_estimator=k1", "grpo.kl_coef=0.1"),
    "grpo.kl_estimator": ("grpo.kl_estimator=k2",),
    "grpo.target_kl": ("grpo.target_kl=0.03",),
    "grpo.adaptive_kl": (
        "grpo.adaptive_kl=true",
        "grpo.target_kl=0.05",
        "grpo.kl_placement=reward",
        "grpo.kl_estimator=k1",
    ),
    "grpo.tis_cap": ("grpo.tis_cap=3.0",),
    "grpo.tis_level": ("grpo.tis_cap=3.0", "grpo.tis_level=sequence"),
    "grpo.entropy_coef": ("grpo.entropy_coef=0.1",),
    "grpo.epochs_per_batch": ("grpo.epochs_per_batch=2",),
    "grpo.minibatches": ("grpo.minibatches=4",),
    "grpo.gamma": ("grpo.gamma=0.5",),
    "grpo.lambda_gae": ("grpo.lambda_gae=0.5",),
    "grpo.value_learning_rate": ("grpo.value_learning_rate=0.1",),
    "grpo.value_clip": ("grpo.value_clip=0.5",),
    "optimization.learning_rate": ("optimization.learning_rate=0.5",),
    "optimization.weight_decay": ("optimization.weight_decay=0.5",),
    "optimization.betas": ("optimization.betas=[0.5, 0.6]",),
    "optimization.gradient_clip": ("optimization.gradient_clip=null",),
    "optimization.gradient_accumulation_steps": ("optimization.gradient_accumulation_steps=3",),
    "training.batch_size": ("training.batch_size=5",),
    "training.max_epochs": ("training.max_epochs=5",),
    "training.steps_per_epoch": ("training.steps_per_epoch=5",),
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
    "skyrl.env_workers": ("skyrl.env_workers=5",),
}
BASE = {"grpo.kl_placement": ["grpo.kl_coef=0.1"]}  # where it is not what the other value needs as well
NEVER_OTHER = {"rollout.top_p", "rollout.top_k"}  # a run that trains refuses every other value


@pytest.mark.parametrize("key", sorted(k for k, rule in RULES.items() if rule.kind == "mapped"))
def test_a_mapped_setting_changes_what_skyrl_is_told(key: str) -> None:
    if key in NEVER_OTHER:
        assert any(key.rpartition(".")[2] in name for name in translate(config()))
        return
    overrides = OTHER[key]
    others = BASE.get(key, [text for text in overrides if not text.startswith(f"{key}=")])
    before = {name: str(value) for name, value in RULES[key].settings(config(*others)).items()}
    after = RULES[key].settings(config(*overrides))
    assert {name: str(value) for name, value in after.items()} != before


# What SkyRL cannot do is said by its name, all at once.
REFUSED: dict[str, tuple[str, ...]] = {
    "algorithm": ("algorithm=sft",),
    "device": ("device=cpu",),
    "model.dtype": ("model.dtype=float32",),
    "model.tokenizer": ("model.tokenizer=other",),
    "model.pad_token_id": ("model.pad_token_id=3",),
    "finetune.mode": ("finetune.mode=qlora",),
    "lora.rslora": ("lora.rslora=true",),
    "lora.alpha": ("lora.alpha=8.5",),
    "vllm.sleep": ("vllm.sleep=false",),
    "grpo.advantage": ("grpo.advantage=turn",),
    "grpo.overlong_penalty": ("grpo.overlong_penalty=0.1",),
    "grpo.dual_clip": ("grpo.loss=gspo",),
    "grpo.kl_times_ratio": ("grpo.kl_times_ratio=true",),
    "grpo.adaptive_kl": ("grpo.adaptive_kl=true", "grpo.target_kl=0.05"),
    "grpo.reference": ("grpo.reference=ema",),
    "grpo.tis_beyond": ("grpo.tis_cap=2.0", "grpo.tis_beyond=mask"),
    "grpo.value_clip": ("grpo.value_clip=null",),
    "optimization.optimizer": ("optimization.optimizer=muon", "finetune.mode=full"),
    "training.patience": ("training.patience=2",),
    "training.dynamic_sampling": ("training.dynamic_sampling=2",),
    "training.curriculum": ("training.curriculum=calibrated",),
    "judge": ("judge.model=m",),
    "budget": ("budget.tool_calls=100",),
    "rollout.backend": ("rollout.backend=hf",),
    "rollout.deterministic": ("rollout.deterministic=true",),
    "rollout.user": ("rollout.user=model", "rollout.user_model=gpt"),
    "rollout.max_staleness": ("rollout.max_staleness=1", "grpo.tis_cap=2.0"),
    "reward.control": ("reward.control=random",),
}


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_what_skyrl_cannot_do_is_refused_by_the_settings_name(key: str) -> None:
    with pytest.raises(UserError, match=f"{key} is ") as error:
        translate(config(*REFUSED[key]))
    assert error.value.remedy is not None and "engine native" in error.value.remedy


def test_every_rule_that_refuses_is_seen_to_refuse() -> None:
    refusing = {key for key, rule in RULES.items() if rule.kind == "refused"}
    # The precision of a run on SkyRL is checked with the dtype; fp16 needs a GPU that these tests lack.
    assert refusing - REFUSED.keys() <= {
        "training.mixed_precision",
        "training.cpu_offload",
        "reward.weights",
        "reward.terms",
    }
    problems = refusals(config("device=cpu", "training.patience=2", "lora.rslora=true"))
    assert [problem.partition(" ")[0] for problem in problems] == [
        "device",
        "lora.rslora",
        "training.patience",
    ]


def test_a_setting_without_effect_is_noted_with_the_reason() -> None:
    assert idle(config()) == []
    (note,) = idle(config("rollout.canary_every=5"))
    assert note.startswith("rollout.canary_every has no effect under SkyRL: ") and "syncs weights" in note


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
