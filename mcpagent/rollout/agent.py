"""One episode of one policy: the loop of model steps and environment steps."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import FinishReason, StopReason, Trajectory, Turn
from mcpagent.env.episode import Episode, EpisodeLimits
from mcpagent.env.offer import Discovery
from mcpagent.env.user import UserSimulator
from mcpagent.errors import EpisodeError
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.reward.judge import Judge
from mcpagent.reward.record import Reward
from mcpagent.reward.terms import DEFAULT_REWARD
from mcpagent.tools.contract import ToolProvider


class ContextRenderer(Protocol):
    """Messages as token ids; `models.tokens.Renderer` for models, absent for policies that work on text.
    `tool_format` is the dialect in which it tells the model to call tools."""

    @property
    def tool_format(self) -> str:
        """The name of a member of `core.registry.DIALECTS`, or `auto`."""
        ...

    def prompt_ids(self, messages: list[JsonObject], tools: tuple[JsonObject, ...]) -> tuple[int, ...]:
        """Return the conversation up to where the model goes on."""
        ...

    def suffix_ids(self, observations: list[JsonObject], *, ended_by: int | None) -> tuple[int, ...]:
        """Return what follows a completion that ended with the token `ended_by`: the observations, and the
        opening of the next model step."""
        ...


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at one task. `seed` is the attempt's own; turns derive theirs from it."""

    task: Task
    attempt: int
    group_id: str
    seed: int

    @property
    def episode_id(self) -> str:
        """Unique in a collection: the id of the trajectory, and of the policy's cache."""
        return f"{self.group_id}#{self.attempt}"


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """What all episodes of a collection share. `max_context_tokens` None: no limit (text policies);
    `discovery` None: all tools of a task are offered at once."""

    sampling: Sampling
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    max_context_tokens: int | None = None
    discovery: Discovery | None = None
    user: UserSimulator | None = None  # None: later user messages are those of the task
    reward: Reward = DEFAULT_REWARD
    judge: Judge | None = None  # None: what tasks leave to a judge is unscored


async def run_attempt(
    attempt: Attempt,
    *,
    policy: Policy,
    tools: ToolProvider,
    settings: AgentSettings,
    renderer: ContextRenderer | None,
) -> Trajectory:
    """Play the episode to its end and grade it.

    An infrastructure failure gives a trajectory with stop reason FAILED and no reward. UserError (the task
    offers a tool that no server has) and bugs are raised.
    """
    episode = Episode(
        attempt.task,
        tools,
        limits=settings.limits,
        episode_id=attempt.episode_id,
        tool_format="auto" if renderer is None else renderer.tool_format,
        discovery=settings.discovery,
        user=settings.user,
        seed=derive_seed(attempt.seed, "user"),
        reward=settings.reward,
        judge=settings.judge,
    )
    turns: list[Turn] = []
    prompt: list[JsonObject] = []
    try:
        try:
            start = await episode.start()
            prompt = start.messages
            await _play(attempt, episode, start.tool_schemas, list(prompt), turns, policy, settings, renderer)
        except EpisodeError as error:
            await episode.finish(StopReason.FAILED, error=str(error))
        return await episode.trajectory(
            turns, prompt=prompt, group_id=attempt.group_id, attempt=attempt.attempt, seed=attempt.seed
        )
    finally:
        await policy.release(attempt.episode_id)
        await episode.close()


async def _play(
    attempt: Attempt,
    episode: Episode,
    schemas: tuple[JsonObject, ...],
    messages: list[JsonObject],
    turns: list[Turn],
    policy: Policy,
    settings: AgentSettings,
    renderer: ContextRenderer | None,
) -> None:
    context: list[int] = []
    added = renderer.prompt_ids(messages, schemas) if renderer else ()
    done = False
    while not done:
        started = time.perf_counter()
        context += added
        limit = settings.max_context_tokens
        if limit is not None and len(context) >= limit:
            await episode.finish(StopReason.CONTEXT_OVERFLOW)
            return
        request = CompletionRequest(
            episode_id=attempt.episode_id,
            sampling=settings.sampling,
            seed=derive_seed(attempt.seed, len(turns)),
            token_ids=tuple(context),
            messages=tuple(messages),
            tools=schemas,
        )
        completion = (await policy.complete([request]))[0]
        cut = completion.finish_reason is FinishReason.LENGTH
        if cut and limit is not None and len(context) + len(completion.token_ids) >= limit:
            completion = completion.model_copy(update={"finish_reason": FinishReason.OVERFLOW})
        out = await episode.step(completion.text, finish=completion.finish_reason)
        wall_s = time.perf_counter() - started
        turns.append(out.as_turn(len(turns), completion, added_token_ids=added, wall_s=wall_s))
        done = out.done
        if not done:
            context += completion.token_ids
            if renderer:
                added = renderer.suffix_ids(out.observations, ended_by=context[-1])
            schemas += out.tool_schemas
            messages += [{"role": "assistant", "content": completion.text}, *out.observations]
