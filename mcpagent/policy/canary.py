"""The weight-sync proof: what samples is what was trained.

A stale adapter, keys of old weights in a prefix cache, an output head that kept its old weights, logprobs at
another temperature: each of these trains on, silently, on numbers that are wrong. After every update three
things are compared.

1. What arrived: the adapters or weights, read back from every engine, with those that were sent. Exact, so
   one missed update shows however small it is.
2. How far sampler and trainer are apart on tokens that the sampler has just drawn on the very path that
   episodes take. Two correct engines differ too, by what the dtype explains.
3. Whether the sampler moved as the trainer did. The same prompts and seeds give the same tokens as long as
   the weights move little; on those tokens the change of the sampler's logprobs is projected on the change
   of the trainer's. An engine's own error, many times larger than one update in bfloat16, is nearly the same
   before and after and cancels. The first proof of a run measures what is left: the mismatch of the two
   engines, and what each differs by when it does the same twice. A sampler that did not move draws its
   tokens again; over the few that a large vocabulary leaves after an update, both round as they like.

Whatever looks wrong is measured again before it stops a run. The prompts are the same each time, so that a
cache that outlived the update is met again. They are sampled hotter than episodes are: if a policy is
sure of its tokens, all its versions agree about them, and a sampler that leaves the temperature out of its
logprobs cannot pass.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.trajectory import Completion
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
_CERTAIN = 5.0  # standard errors
_STILL = 0.05  # of the trainer's change: a sampler that moved by less has not moved
_SAME_TOKENS = 0.5  # of those that the sampler draws again if nothing changed: one that has not moved does

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
    """Nats a token over `tokens` canary tokens of policy `version`. Those of `compared` were sampled by the
    version before too: `direction` is the projection of the sampler's change on the trainer's (1: the update
    arrived, 0: it did not), with its standard error, `moved` the ratio of the changes' sizes. None if
    there is nothing to compare with, fewer than `CANARY_ROWS` tokens were, or the trainer's own logprobs did
    not move."""

    version: int
    tokens: int
    sampler: float  # mean logprob
    trainer: float
    difference: float  # mean absolute
    largest: float
    cpu_s: float
    compared: int = 0
    direction: float | None = None
    direction_error: float | None = None
    moved: float | None = None
    arrived: int = 0  # tensors that were read back and are what was sent

    def as_metrics(self) -> JsonObject:
        """Return the numbers of the proof under their names in a step record: nats, nats and CPU seconds."""
        return {
            "canary_difference": self.difference,
            "canary_max": self.largest,
            "canary_tokens": self.tokens,
            "canary_compared": self.compared,
            "canary_direction": self.direction,
            "canary_direction_error": self.direction_error,
            "canary_moved": self.moved,
            "canary_arrived": self.arrived,
            "canary_cpu_s": self.cpu_s,
        }


@dataclass(frozen=True)
class _Reading:
    """The canary's tokens by row, with the logprobs of both sides."""

    tokens: tuple[tuple[int, ...], ...]
    sampler: tuple[tuple[float, ...], ...]
    trainer: tuple[tuple[float, ...], ...]

    @property
    def mismatch(self) -> np.ndarray:
        """Sampler minus trainer, token by token."""
        return np.concatenate(self.sampler) - np.concatenate(self.trainer)


@dataclass(frozen=True)
class _Noise:
    """The measurements of the first proof of a run: how many tokens the sampler `repeated`, and as root mean
    squares in nats the mismatch of correct engines, and what sampler and trainer differ by when each does the
    same twice."""

    repeated: int
    mismatch: float
    mean: float  # absolute
    sampler: float
    trainer: float


@dataclass(frozen=True)
class _Change:
    """The change of the sampler (`e`) and of the trainer (`d`) on the same tokens since the proof before."""

    tokens: int
    sampler: float  # root mean squares
    trainer: float
    direction: float
    error: float


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
        self._before: _Reading | None = None
        self._noise: _Noise | None = None

    async def prove(self, policy: Policy, *, version: int, read_back: ReadBack | None = None) -> Proof:
        """Raise RunError with both numbers if sampler and trainer differ by more than the dtype explains,
        if the sampler did not move as the trainer did, or if `read_back` finds other weights than
        those that were sent; each after it was measured twice."""
        started = time.process_time()
        arrival = await self._arrival(read_back, version=version)
        reading = await self._read(policy)
        limit = self._limit(has_arrived=bool(arrival.tensors))
        shown = reading
        # Not `>`: a difference that is not a number must not pass.
        if not _mean_size(reading.mismatch) <= limit:
            shown = await self._read(policy, name="again")
            if not _mean_size(shown.mismatch) <= limit:
                raise self._apart(shown, limit, version=version)
        change = None if self._before is None else _change(self._before, reading)
        if self._before is not None and change is not None and self._is_stale(change):
            reading = shown = await self._read(policy)
            # The trainer scores the very rows that it scored then: others in a batch would round otherwise.
            trainer = self._scored(self._before.tokens)
            change = _change(self._before, replace(reading, trainer=trainer))
            if change is not None and self._is_stale(change):
                raise self._unmoved(change, version=version)
        if self._noise is None:
            self._noise = await self._calibrate(policy, reading)
        self._before = reading
        return _proof(
            shown, change, version=version, arrived=arrival.tensors, cpu_s=time.process_time() - started
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

    async def _sample(self, policy: Policy, *, name: str) -> list[Completion]:
        requests = [
            CompletionRequest(
                episode_id=f"{name}-{row}",
                sampling=Sampling(max_new_tokens=self._new_tokens, temperature=self._temperature),
                seed=derive_seed(self._seed, name, row),
                token_ids=prompt,
                is_repeatable=True,
            )
            for row, prompt in enumerate(self._prompts)
        ]
        completions = await policy.complete(requests)
        for request in requests:
            await policy.release(request.episode_id)
        return completions

    async def _read(self, policy: Policy, *, name: str = "canary") -> _Reading:
        completions = await self._sample(policy, name=name)
        tokens = tuple(tuple(c.token_ids) for c in completions)
        return _Reading(tokens, tuple(tuple(c.logprobs) for c in completions), self._scored(tokens))

    def _scored(self, tokens: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        values = iter(self._score(self._prompts, tokens, self._temperature))
        return tuple(tuple(next(values) for _ in row) for row in tokens)

    async def _calibrate(self, policy: Policy, reading: _Reading) -> _Noise:
        """Both sides do the same once more: what changes is their own."""
        again = await self._sample(policy, name="canary")
        same = _common([tuple(c.token_ids) for c in again], reading.tokens)
        rows = [tuple(c.logprobs) for c in again]
        repeated = self._scored(reading.tokens)
        whole = [len(row) for row in reading.tokens]
        return _Noise(
            repeated=sum(same),
            mismatch=_rms(reading.mismatch),
            mean=_mean_size(reading.mismatch),
            sampler=_rms(_differences(rows, reading.sampler, same)),
            trainer=_rms(_differences(repeated, reading.trainer, whole)),
        )

    def _limit(self, *, has_arrived: bool) -> float:
        tolerance = TOLERANCE[self._dtype]
        if self._noise is None:
            return tolerance * (_FIRST if has_arrived and self._dtype != "float32" else 1.0)
        return max(tolerance, _LATER * self._noise.mean)

    def _is_stale(self, change: _Change) -> bool:
        """Return whether the sampler moved otherwise than the trainer. Says nothing if the trainer's own
        change does not stand out from what either side differs by without one."""
        noise = self._noise
        if noise is None or change.trainer <= 2.0 * math.hypot(noise.sampler, noise.trainer):
            return False
        is_still = change.sampler**2 <= 1.5 * noise.sampler**2 + (_STILL * change.trainer) ** 2
        if is_still and change.tokens >= _SAME_TOKENS * noise.repeated:
            return True
        if change.tokens < CANARY_ROWS:
            return False  # too few for an error of the direction
        # The part of the trainer's change that is the update at least, and not its own rounding.
        signal = 1.0 - (noise.mismatch / change.trainer) ** 2
        low, high = (change.direction + sign * _CERTAIN * change.error for sign in (1.0, -1.0))
        return signal > 0 and (low < 0.5 * signal or high > 2.0)

    def _apart(self, reading: _Reading, limit: float, *, version: int) -> RunError:
        sampler, trainer = np.concatenate(reading.sampler), np.concatenate(reading.trainer)
        return RunError(
            f"the sampler does not serve the weights that were trained: over {len(sampler)} tokens of "
            f"policy version {version} its mean logprob is {sampler.mean():.4f}, the trainer's "
            f"{trainer.mean():.4f} nats, {_mean_size(reading.mismatch):.2g} apart a token; {self._dtype} "
            f"explains {limit:.2g}",
            where="rollout",
            remedy=_REMEDY,
        )

    def _unmoved(self, change: _Change, *, version: int) -> RunError:
        return RunError(
            f"the sampler does not serve the weights that were trained: over {change.tokens} tokens that "
            f"policy version {version} and the one before both sampled, the trainer's logprobs moved by "
            f"{change.trainer:.2g} nats and the sampler's by {change.sampler:.2g}, {change.direction:.2f} "
            f"(+- {change.error:.2f}) of it in the direction of the update",
            where="rollout",
            remedy=_REMEDY,
        )


_REMEDY = (
    "nothing was learnt from wrong numbers; `mcpagent smoke` shows which step fails, and "
    "`--set rollout.backend=hf` samples without vllm"
)


def _change(before: _Reading, now: _Reading) -> _Change | None:
    """Return the change since `before`; None if no token was sampled twice, or the trainer gives every one
    the logprob that it had."""
    same = _common(now.tokens, before.tokens)
    sampler = _differences(now.sampler, before.sampler, same)
    trainer = _differences(now.trainer, before.trainer, same)
    size = float(trainer @ trainer)
    if not size > 0:
        return None
    direction = float(sampler @ trainer) / size
    rest = float(np.square(sampler - direction * trainer).sum())
    error = math.sqrt(rest / max(len(trainer) - 1, 1) / size)
    return _Change(len(trainer), _rms(sampler), _rms(trainer), direction, error)


def _common(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> list[int]:
    """Return for each pair of rows how many tokens they begin with together: those have the same context."""
    lengths: list[int] = []
    for one, other in zip(a, b, strict=True):
        apart = (i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y)
        lengths.append(next(apart, min(len(one), len(other))))
    return lengths


def _differences(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], lengths: Sequence[int]
) -> np.ndarray:
    rows = zip(a, b, lengths, strict=True)
    return np.concatenate([np.subtract(one[:n], other[:n]) for one, other, n in rows])


def _proof(reading: _Reading, change: _Change | None, *, version: int, arrived: int, cpu_s: float) -> Proof:
    sizes = np.abs(reading.mismatch)
    told = change if change is not None and change.tokens >= CANARY_ROWS else None
    return Proof(
        version=version,
        tokens=len(sizes),
        sampler=float(np.concatenate(reading.sampler).mean()),
        trainer=float(np.concatenate(reading.trainer).mean()),
        difference=float(sizes.mean()),
        largest=float(sizes.max()),
        compared=change.tokens if change is not None else 0,
        direction=told.direction if told is not None else None,
        direction_error=told.error if told is not None else None,
        moved=told.sampler / told.trainer if told is not None else None,
        arrived=arrived,
        cpu_s=cpu_s,
    )


def _mean_size(values: np.ndarray) -> float:
    return float(np.abs(values).mean())


def _rms(values: np.ndarray) -> float:
    return math.sqrt(np.square(values).mean()) if len(values) else 0.0
