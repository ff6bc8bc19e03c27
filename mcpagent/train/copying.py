"""A copying curriculum for models that start from nothing.

A network of random weights must first form the circuit that copies a string it has never seen (induction
heads); it appears as a sharp transition, and much sooner on short strings that are nothing but copies.
"""

from __future__ import annotations

import random

from mcpagent.models.tokens import Renderer
from mcpagent.train.samples import TrainSample, sample_from_segments

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def copy_samples(renderer: Renderer, *, count: int, seed: int) -> list[TrainSample]:
    """`count` tasks to repeat the user's string of random symbols and numbers, the same for the same seed."""
    rng = random.Random(seed)
    return [_copy_sample(renderer, _random_text(rng)) for _ in range(count)]


def _copy_sample(renderer: Renderer, text: str) -> TrainSample:
    prompt = renderer.prompt_ids([{"role": "user", "content": text}], ())
    return sample_from_segments([(prompt, False), (renderer.action_ids(text), True)])


def _random_text(rng: random.Random) -> str:
    symbol = "".join(rng.choice(_LETTERS) for _ in range(rng.choice((3, 4))))
    number = rng.choice(
        (
            str(rng.randint(2, 99_999)),
            f"{rng.uniform(10, 999):.2f}",
            f"{rng.choice(_LETTERS)}{rng.randint(100, 999)}",
        )
    )
    forms = (
        f"{symbol} {number}",
        f"{number} {symbol}",
        number,
        symbol,
        f"{number} {rng.randint(2, 99)} {symbol}",
    )
    return rng.choice(forms)
