"""How an update is made: the objective, and how its batch is cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mcpagent.train.loss import Objective


@dataclass(frozen=True, kw_only=True)
class SamplerCorrection:
    """Truncated importance sampling against the sampler's logprobs (`loss.sampler_weights`)."""

    cap: float
    level: Literal["token", "sequence"] = "token"
    beyond: Literal["truncate", "mask"] = "truncate"


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """The objective and how its batch is cut. `minibatches` is optimiser steps for each of the `epochs`, on
    whole groups. With `kl_in_reward` the KL coefficient acts on rewards and not in the loss."""

    objective: Objective = field(default_factory=Objective)
    max_response_tokens: int = 1  # what dr_grpo divides by
    kl_in_reward: bool = False
    entropy_coef: float = 0.0
    use_reference: bool = True
    value_coef: float = 0.5
    value_clip: float | None = 0.2
    correction: SamplerCorrection | None = None
    epochs: int = 1
    minibatches: int = 1
    micro_batch_tokens: int = 8192
    temperature: float = 1.0
    stop_kl: float | None = (
        None  # nats a token from the old policy, past which a batch's other steps are left
    )

    @property
    def is_single_step(self) -> bool:
        """The first step is the last, so that nothing needs to be kept from before it."""
        return self.epochs == self.minibatches == 1
