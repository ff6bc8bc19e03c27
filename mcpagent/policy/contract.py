"""The `Policy` contract (contexts in, completions out; batched, asynchronous)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Completion


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The settings of sampling. Training uses temperature only: top-p would bias the importance ratio."""

    max_new_tokens: int = 256
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """One model step of one episode.

    `token_ids` is the whole context so far (empty for policies that work on messages); a policy that keeps
    a cache per `episode_id` computes only what is new. `messages` is the same context as chat messages and
    `tools` the offered schemas, for policies behind a chat API. `seed` belongs to this task, attempt and
    turn; an engine may ignore it if the run is not deterministic.
    """

    episode_id: str
    sampling: Sampling
    seed: int = 0
    token_ids: Sequence[int] = ()
    messages: Sequence[JsonObject] = ()
    tools: Sequence[JsonObject] = field(default=())


class Policy(Protocol):
    """Implementations: scripted, hf, vllm, openai."""

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One completion for each request, in order."""
        ...

    async def release(self, episode_id: str) -> None:
        """The episode is over: drop what was kept for it."""
        ...
