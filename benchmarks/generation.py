"""Sampling at batch 96 over turns, against transformers' own `generate`.

A dozen tasks with eight attempts each: a shared prompt, then turns of sampled tokens with a tool result of
its own length after each. Both sides get contexts of the same lengths and sample the same number of tokens,
with temperature 1 and no cut: `generate` is called once a turn on the whole batch, padded on the left, with
its cache; ours is `HFPolicy`, asked once a turn as the barrier asks it. Only ours makes logprobs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.hf.policy import HFPolicy

_MAX_CONTEXT = 2048


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Lengths in tokens: of each task's prompt, and by turn and row of what is sampled and of its result."""

    prompts: tuple[int, ...]
    attempts: int
    sampled: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        return len(self.prompts) * self.attempts

    @property
    def tokens(self) -> int:
        return sum(map(sum, self.sampled))


def draw_turns(*, ragged: bool, tasks: int = 12, attempts: int = 8, turns: int = 3) -> Turns:
    """Ragged: a turn is 8 to 56 tokens, as actions and answers are; else all are 32."""
    rng = random.Random(0)
    rows = tasks * attempts
    return Turns(
        prompts=tuple(rng.randint(140, 260) for _ in range(tasks)),
        attempts=attempts,
        sampled=tuple(tuple(rng.randint(8, 56) if ragged else 32 for _ in range(rows)) for _ in range(turns)),
        results=tuple(tuple(rng.randint(12, 60) for _ in range(rows)) for _ in range(turns)),
    )


def _prompts(turns: Turns, vocabulary: int) -> tuple[list[list[int]], random.Random]:
    rng = random.Random(1)
    prompts = [[rng.randrange(16, vocabulary) for _ in range(length)] for length in turns.prompts]
    return [list(prompt) for prompt in prompts for _ in range(turns.attempts)], rng


def by_policy(model: Any, turns: Turns) -> Callable[[], float]:
    """A function that plays all turns with `HFPolicy` and returns the CPU seconds."""
    policy = HFPolicy(
        model, decode=lambda ids: "", stop_ids=frozenset(), max_context=_MAX_CONTEXT, slots=turns.rows
    )

    async def play() -> float:
        contexts, rng = _prompts(turns, model.config.vocab_size)
        started = time.process_time()
        for number, (lengths, results) in enumerate(zip(turns.sampled, turns.results, strict=True)):
            completions = await policy.complete(
                [
                    CompletionRequest(
                        episode_id=str(row),
                        sampling=Sampling(max_new_tokens=length),
                        seed=number * turns.rows + row,
                        token_ids=tuple(contexts[row]),
                    )
                    for row, length in enumerate(lengths)
                ]
            )
            for context, completion, more in zip(contexts, completions, results, strict=True):
                context += completion.token_ids
                context += [rng.randrange(16, model.config.vocab_size) for _ in range(more)]
        for row in range(turns.rows):
            await policy.release(str(row))
        return time.process_time() - started

    return lambda: asyncio.run(play())


def by_generate(model: Any, turns: Turns) -> Callable[[], float]:
    """The same with transformers' `generate`, a call a turn."""

    @torch.no_grad()
    def play() -> float:
        contexts, rng = _prompts(turns, model.config.vocab_size)
        started = time.process_time()
        for lengths, results in zip(turns.sampled, turns.results, strict=True):
            width = max(map(len, contexts))
            ids = torch.tensor([[0] * (width - len(context)) + context for context in contexts])
            mask = torch.tensor([[0] * (width - len(context)) + [1] * len(context) for context in contexts])
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=max(lengths),
                pad_token_id=0,
                eos_token_id=None,
                stopping_criteria=StoppingCriteriaList([_Ends(width, lengths)]),
            )
            for row, (context, length, more) in enumerate(zip(contexts, lengths, results, strict=True)):
                context += out[row, width : width + length].tolist()
                context += [rng.randrange(16, model.config.vocab_size) for _ in range(more)]
        return time.process_time() - started

    return play


class _Ends(StoppingCriteria):
    """Each row after its own number of tokens."""

    def __init__(self, width: int, lengths: tuple[int, ...]) -> None:
        self._ends = width + torch.tensor(lengths)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self._ends
