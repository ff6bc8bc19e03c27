"""From a configuration to the settings that episodes share, whatever plays them. No torch."""

from __future__ import annotations

from mcpagent.config.schema import TrainConfig
from mcpagent.env.episode import EpisodeLimits
from mcpagent.env.offer import discovery
from mcpagent.env.user import UserSimulator
from mcpagent.policy.contract import Sampling
from mcpagent.reward.judge import Judge
from mcpagent.reward.terms import load_reward
from mcpagent.rollout.collector import AgentSettings


def agent_settings(
    config: TrainConfig,
    *,
    max_context: int | None,
    user: UserSimulator | None = None,
    judge: Judge | None = None,
) -> AgentSettings:
    """Return how episodes are sampled, from the `rollout` section."""
    rollout = config.rollout
    return AgentSettings(
        sampling=Sampling(
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
        ),
        limits=EpisodeLimits(max_turns=rollout.max_steps_per_episode),
        max_context_tokens=max_context,
        discovery=discovery(config.tools),
        user=user,
        reward=load_reward(config.reward),
        judge=judge,
    )
