"""From the sections of a configuration to the settings that the parts of training take."""

from __future__ import annotations

import torch

from mcpagent.config.schema import TrainConfig
from mcpagent.train.objective.advantages import CreditSettings
from mcpagent.train.objective.grading import GradeSettings, Overlong
from mcpagent.train.objective.loss import Objective
from mcpagent.train.run_state import GrpoSettings
from mcpagent.train.sft import Curriculum, SftSettings
from mcpagent.train.update import UpdateSettings


def grade_settings(config: TrainConfig) -> GradeSettings:
    """Return how rewards become credit, from the `grpo` section."""
    grpo = config.grpo
    longest = _max_response_tokens(config)
    return GradeSettings(
        credit=CreditSettings(
            advantage=grpo.advantage,
            scale=grpo.advantage_scale,
            gamma=grpo.gae_gamma,
            lambda_=grpo.gae_lambda,
        ),
        overlong=Overlong(
            penalty=grpo.overlong_penalty,
            max_tokens=longest,
            buffer_tokens=max(1, longest // 5),
            mask_truncated=grpo.mask_truncated,
        ),
        control=config.reward.control,
    )


AUTO_TIS_CAP = 2.0  # that of Yao et al. 2025


def update_settings(config: TrainConfig, *, is_corrected: bool = False) -> UpdateSettings:
    """Return the objective, from the `grpo` and `training` sections. `is_corrected` says that there is a
    reason to correct for the sampler if `grpo.tis_cap` leaves that open (`sampler.why_corrected`)."""
    grpo = config.grpo
    cap = (AUTO_TIS_CAP if is_corrected else None) if grpo.tis_cap == "auto" else grpo.tis_cap
    return UpdateSettings(
        objective=Objective(
            loss=grpo.loss,
            clip_low=grpo.clip_ratio,
            clip_high=grpo.clip_high,
            dual_clip=grpo.dual_clip,
            kl_estimator=None if grpo.kl_estimator == "k1" else grpo.kl_estimator,
        ),
        max_response_tokens=_max_response_tokens(config),
        kl_in_reward=grpo.kl_estimator == "k1",
        entropy_coef=grpo.entropy_coef,
        use_reference=grpo.reference != "none",
        value_coef=grpo.value_loss_coef,
        tis_cap=cap,
        epochs=grpo.epochs_per_batch,
        minibatches=grpo.minibatches,
        micro_batch_tokens=config.training.pass_tokens,
        temperature=config.rollout.temperature,
    )


def grpo_settings(config: TrainConfig, *, total_steps: int, is_corrected: bool) -> GrpoSettings:
    """Return what the GRPO loop goes by, from all sections."""
    training, grpo = config.training, config.grpo
    return GrpoSettings(
        total_steps=total_steps,
        save_every=training.save_frequency,
        keep_checkpoints=training.keep_checkpoints,
        eval_every=training.eval_every,
        patience=training.patience,
        resample_rounds=training.dynamic_sampling,
        seed=config.seed,
        penalty_after_success=config.reward.penalty_after_success,
        penalty_weight=config.reward.penalty_weight,
        grading=grade_settings(config),
        update=update_settings(config, is_corrected=is_corrected),
        target_kl=grpo.target_kl,
        budget=config.budget,
    )


def sft_settings(config: TrainConfig, *, total_steps: int, curriculum: Curriculum | None) -> SftSettings:
    """Return what supervised training goes by, from the `training` and `budget` sections."""
    training = config.training
    return SftSettings(
        total_steps=total_steps,
        curriculum=curriculum,
        save_every=training.save_frequency,
        batch_size=config.training.batch_size,
        micro_batch_tokens=training.pass_tokens,
        seed=config.seed,
        keep_checkpoints=training.keep_checkpoints,
        budget=config.budget,
    )


def _max_response_tokens(config: TrainConfig) -> int:
    rollout = config.rollout
    return rollout.max_new_tokens * rollout.max_steps_per_episode


def is_deterministic(device: torch.device) -> bool:
    """Return whether episodes advance together, so that a run repeats to the token: on a CPU, whose matrix
    products differ with the number of rows."""
    return device.type == "cpu"
