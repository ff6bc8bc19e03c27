"""The weight-sync proof: what samples is what was trained.

A stale adapter, keys of old weights in a prefix cache, an output head that kept its old weights, logprobs at
another temperature: each of these trains on, silently, on numbers that are wrong. So after every update a few
tokens are sampled on the very path that episodes take, and the trainer scores the same tokens.

The prompts are the same each time, so that a cache that outlived the update is met again. They are sampled
hotter than episodes are: where a policy is sure of its tokens, all its versions agree about them, and a
sampler that leaves the temperature out of its logprobs cannot pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.trajectory import Completion
from mcpagent.errors import RunError
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling

# Nats a token, mean absolute difference. Two correct engines differ by 1e-6 in float32 and 9e-3 in bfloat16
# (measured); the failures above make 0.1 to 3 of it.
TOLERANCE = {"float32": 3e-4, "float16": 0.02, "bfloat16": 0.05}
_HEAT, MAX_TEMPERATURE = 2.0, 2.0  # vLLM takes no more
CANARY_PROMPTS, _SAMPLES, _NEW_TOKENS = 2, 4, 2  # few steps: rows of one prompt cost next to nothing
CANARY_ROWS = CANARY_PROMPTS * _SAMPLES
_PROMPT_TOKENS = 72  # the last ones: they end where a turn begins

# Prompts and their completions at a temperature -> the trainer's logprobs, in the order of the tokens.
Scorer = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], float], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Nats a token over `tokens` canary tokens of policy `version`."""

    version: int
    tokens: int
    sampler: float  # mean logprob
    trainer: float
    difference: float  # mean absolute
    largest: float
    cpu_s: float

    def as_metrics(self) -> JsonObject:
        """The numbers of the proof under their names in a step record: nats, nats and CPU seconds."""
        return {
            "canary_difference": self.difference,
            "canary_max": self.largest,
            "canary_cpu_s": self.cpu_s,
        }


class Canary:
    """Compares sampler and trainer every `every` updates; 0 never does."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        score: Scorer,
        dtype: str,
        max_context: int,
        temperature: float = 1.0,
        seed: int = 0,
        every: int = 1,
    ) -> None:
        length = min(_PROMPT_TOKENS, max_context // 2)
        self._prompts = [tuple(p)[-length:] for p in prompts[:CANARY_PROMPTS] for _ in range(_SAMPLES)]
        self._score, self._dtype, self._seed, self._every = score, dtype, seed, every
        self._temperature = min(MAX_TEMPERATURE, _HEAT * (temperature or 1.0))

    def is_due(self, version: int) -> bool:
        """Whether this version of the weights is one that is to be proved."""
        return self._every > 0 and bool(self._prompts) and version % self._every == 0

    async def prove(self, policy: Policy, *, version: int) -> Proof:
        """Raises RunError with both numbers where they differ by more than the dtype explains."""
        started = time.process_time()
        requests = [
            CompletionRequest(
                episode_id=f"canary-{row}",
                sampling=Sampling(max_new_tokens=_NEW_TOKENS, temperature=self._temperature),
                seed=derive_seed(self._seed, "canary", row),
                token_ids=prompt,
            )
            for row, prompt in enumerate(self._prompts)
        ]
        completions = await policy.complete(requests)
        for request in requests:
            await policy.release(request.episode_id)
        trainer = self._score(self._prompts, [c.token_ids for c in completions], self._temperature)
        proof = _compare(completions, trainer, version=version, cpu_s=time.process_time() - started)
        limit = TOLERANCE[self._dtype]
        # Not `>`: a difference that is not a number must not pass.
        if not proof.difference <= limit:
            raise RunError(
                f"the sampler does not serve the weights that were trained: over {proof.tokens} tokens of "
                f"policy version {version} its mean logprob is {proof.sampler:.4f}, the trainer's "
                f"{proof.trainer:.4f} nats, {proof.difference:.2g} apart a token; {self._dtype} explains "
                f"{limit:.2g}",
                where="rollout",
                remedy="nothing was learnt from wrong numbers; `mcpagent smoke` shows which step fails, "
                "`--backend hf` samples without vllm",
            )
        return proof


def _compare(
    completions: Sequence[Completion], trainer: Sequence[float], *, version: int, cpu_s: float
) -> Proof:
    sampler = [logprob for completion in completions for logprob in completion.logprobs]
    apart = [abs(a - b) for a, b in zip(sampler, trainer, strict=True)]
    return Proof(
        version=version,
        tokens=len(sampler),
        sampler=fmean(sampler),
        trainer=fmean(trainer),
        difference=fmean(apart),
        largest=max(apart),
        cpu_s=cpu_s,
    )
