"""A policy that does all of its model's work and then says what a script says: the same tokens for everyone.

Forward passes, logits and sampling are computed as for any episode; only the sampled ids are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields

import torch

from mcpagent.core.trajectory import Completion
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.policy.sampling import sample_rows

Script = Callable[[CompletionRequest], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Forced(Sampling):
    """Sampling settings that carry the tokens of the turn."""

    tokens: Iterator[int] = field(compare=False)


def forced_rows(
    logits: torch.Tensor, uniforms: Sequence[float], settings: Sequence[Sampling]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A `Sampler`: samples, and gives the script's tokens to the rows that have one."""
    tokens, logprobs = sample_rows(logits, uniforms, settings)
    for row, own in enumerate(settings):
        if isinstance(own, Forced):
            tokens[row] = next(own.tokens)
    return tokens, logprobs


class ForcedPolicy:
    """In front of a policy that samples with `forced_rows`. `script` gives the tokens of each turn."""

    def __init__(self, policy: Policy, script: Script) -> None:
        self._policy, self._script = policy, script

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        return await self._policy.complete([self._forced(request) for request in requests])

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)

    def _forced(self, request: CompletionRequest) -> CompletionRequest:
        tokens = self._script(request)
        own = {f.name: getattr(request.sampling, f.name) for f in fields(Sampling)}
        sampling = Forced(**{**own, "max_new_tokens": len(tokens)}, tokens=iter(tokens))
        return CompletionRequest(
            episode_id=request.episode_id,
            sampling=sampling,
            seed=request.seed,
            token_ids=request.token_ids,
            messages=request.messages,
            tools=request.tools,
        )
