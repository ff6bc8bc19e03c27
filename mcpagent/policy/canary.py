"""The weight-sync proof: what samples is what was trained.

A stale adapter, keys of old weights in a prefix cache, an output head that kept its old weights, logprobs at
another temperature: each of these trains on, silently, on numbers that are wrong. After every update two
things are compared.

1. What arrived: the adapters or weights, read back from every engine, with those that were sent. Exact, so
   one missed update shows however small it is.
2. How far sampler and trainer are apart on tokens that the sampler has just drawn on the very path that
   episodes take. Two correct engines differ too, by what the dtype explains.

Whatever looks wrong is measured again before it stops a run. The prompts are the same each time, so that a
cache that outlived the update is met again. They are sampled hotter than episodes are: if a policy is
sure of its tokens, all its versions agree about them, and a sampler that leaves the temperature out of its
logprobs cannot pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.errors import RunError
from mcpagent.models.probe import TOLERANCE
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling

# Engines on a GPU differ by up to 0.04 in bfloat16, some mixtures of experts by more: if the weights were
# read back and are right, the first proof may be so many times past the tolerance, and sets the limit.
_FIRST, _LATER = 3.0, 2.0
_HEAT, MAX_TEMPERATURE = 2.0, 2.0  # vLLM takes no more
CANARY_PROMPTS = 2
CANARY_ROWS = 32  # at once: rows of one prompt cost next to nothing, and steps do not
_NEW_TOKENS = {"float32": 2}
_MANY_TOKENS = 16  # in narrower dtypes, whose noise takes 512 tokens to average out
_PROMPT_TOKENS = 72  # the last ones: they end where a turn begins

# Prompts and their completions at a temperature -> the trainer's logprobs, in the order of the tokens.
Scorer = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]], float], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The number of `tensors` that were read back from the engines, and those that are not what the trainer
    sent."""

    tensors: int
    differing: tuple[str, ...] = ()


ReadBack = Callable[[], Arrival]


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
    arrived: int = 0  # tensors that were read back and are what was sent

    def as_metrics(self) -> JsonObject:
        """Return the numbers of the proof under their names in a step record: nats, nats and CPU seconds."""
        return {
            "canary_difference": self.difference,
            "canary_max": self.largest,
            "canary_tokens": self.tokens,
            "canary_arrived": self.arrived,
            "canary_cpu_s": self.cpu_s,
        }


@dataclass(frozen=True)
class _Reading:
    """The logprobs of the canary's tokens on both sides [N]."""

    sampler: np.ndarray
    trainer: np.ndarray

    @property
    def apart(self) -> np.ndarray:
        """The difference of each token."""
        return np.abs(self.sampler - self.trainer)


class Canary:
    """Compares sampler and trainer after every update."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        score: Scorer,
        dtype: str,
        max_context: int,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        length = min(_PROMPT_TOKENS, max_context // 2)
        self._new_tokens = min(_NEW_TOKENS.get(dtype, _MANY_TOKENS), max_context - length)
        # The rows of one prompt side by side, so that engines share its keys.
        prompts = prompts[:CANARY_PROMPTS]
        self._prompts = [tuple(p)[-length:] for p in prompts for _ in range(CANARY_ROWS // len(prompts))]
        self._score, self._dtype, self._seed = score, dtype, seed
        self._temperature = min(MAX_TEMPERATURE, _HEAT * (temperature or 1.0))
        self._first: float | None = None  # the mean difference of the first proof of a run

    async def prove(self, policy: Policy, *, version: int, read_back: ReadBack | None = None) -> Proof:
        """Raise RunError with both numbers if sampler and trainer differ by more than the dtype explains, or
        if `read_back` finds other weights than those that were sent; each after it was measured twice."""
        started = time.process_time()
        arrival = await self._arrival(read_back, version=version)
        limit = self._limit(has_arrived=bool(arrival.tensors))
        reading = await self._read(policy, name="canary")
        # Not `>`: a difference that is not a number must not pass.
        if not reading.apart.mean() <= limit:
            reading = await self._read(policy, name="again")
            if not reading.apart.mean() <= limit:
                raise self._apart(reading, limit, version=version)
        if self._first is None:
            self._first = float(reading.apart.mean())
        return Proof(
            version=version,
            tokens=len(reading.sampler),
            sampler=float(reading.sampler.mean()),
            trainer=float(reading.trainer.mean()),
            difference=float(reading.apart.mean()),
            largest=float(reading.apart.max()),
            arrived=arrival.tensors,
            cpu_s=time.process_time() - started,
        )

    async def _arrival(self, read_back: ReadBack | None, *, version: int) -> Arrival:
        if read_back is None:
            return Arrival(tensors=0)
        arrival = await asyncio.to_thread(read_back)
        if arrival.differing:
            arrival = await asyncio.to_thread(read_back)
        if not (differing := list(arrival.differing)):
            return arrival
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise RunError(
            f"the sampler does not serve the weights that were trained: of {arrival.tensors} tensors of "
            f"policy version {version} that were read back from it, {differing[0]}{more} are not what the "
            "trainer sent",
            where="rollout",
            remedy=_REMEDY,
        )

    async def _read(self, policy: Policy, *, name: str) -> _Reading:
        requests = [
            CompletionRequest(
                episode_id=f"{name}-{row}",
                sampling=Sampling(max_new_tokens=self._new_tokens, temperature=self._temperature),
                seed=derive_seed(self._seed, name, row),
                token_ids=prompt,
            )
            for row, prompt in enumerate(self._prompts)
        ]
        completions = await policy.complete(requests)
        for request in requests:
            await policy.release(request.episode_id)
        sampled = np.concatenate([c.logprobs for c in completions])
        tokens = [c.token_ids for c in completions]
        return _Reading(sampled, np.asarray(self._score(self._prompts, tokens, self._temperature)))

    def _limit(self, *, has_arrived: bool) -> float:
        tolerance = TOLERANCE[self._dtype]
        if self._first is None:
            return tolerance * (_FIRST if has_arrived and self._dtype != "float32" else 1.0)
        return max(tolerance, _LATER * self._first)

    def _apart(self, reading: _Reading, limit: float, *, version: int) -> RunError:
        return RunError(
            f"the sampler does not serve the weights that were trained: over {len(reading.sampler)} tokens "
            f"of policy version {version} its mean logprob is {reading.sampler.mean():.4f}, the trainer's "
            f"{reading.trainer.mean():.4f} nats, {reading.apart.mean():.2g} apart a token; {self._dtype} "
            f"explains {limit:.2g}",
            where="rollout",
            remedy=_REMEDY,
        )


_REMEDY = (
    "nothing was learnt from wrong numbers; `mcpagent smoke` shows which step fails, and "
    "`--set rollout.backend=hf` samples without vllm"
)
