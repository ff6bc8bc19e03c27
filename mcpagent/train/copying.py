"""A copying curriculum for models that start from nothing.

A network of random weights must first form the circuit that copies a string it has never seen (induction
heads); it appears as a sharp transition, and much sooner on short strings that are nothing but copies.
"""

from __future__ import annotations

import random

from mcpagent.models.tokens import Renderer
from mcpagent.train.batch.samples import TrainSample, sample_from_segments

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def copy_samples(renderer: Renderer, *, count: int, seed: int) -> list[TrainSample]:
    """`count` tasks to repeat the user's string of random symbols and numbers, the same for the same seed."""
    rng = random.Random(seed)
    return [_copy_sample(renderer, _random_text(rng)) for _ in range(count)]


def _copy_sample(renderer: Renderer, text: str) -> TrainSample:
    prompt = renderer.prompt_ids([{"role": "user", "content": text}], ())
    return sample_from_segments([(prompt, False), (renderer.action_ids(text), True)])


def _random_text(rng: random.Random) -> str:
    return " ".join(_random_item(rng) for _ in range(rng.randint(1, 4)))


def _random_item(rng: random.Random) -> str:
    """A symbol of three or four capitals, a whole number, a price, or a letter with three digits."""
    kind = rng.randrange(5)
    if kind < 2:
        return "".join(rng.choice(_LETTERS) for _ in range(rng.choice((3, 4, 4))))
    if kind == 2:
        return str(rng.randint(2, 99_999))
    if kind == 3:
        return f"{rng.uniform(10, 999):.2f}"
    return f"{rng.choice(_LETTERS)}{rng.randint(100, 999)}"
