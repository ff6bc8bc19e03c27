"""How the embedded model begins: a tokenizer for the catalog in use, random weights, and strings to copy.

A network of random weights must first form the circuit that copies a string it has never seen (induction
heads); it appears as a sharp transition, and much sooner on short strings that are nothing but copies.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec, catalog_hash
from mcpagent.core.trajectory import Trajectory
from mcpagent.demo.embedded_model import EmbeddedShape, build_model, embedded_config, train_tokenizer
from mcpagent.models.tokens import Renderer
from mcpagent.train.batch.samples import TrainSample, sample_from_segments
from mcpagent.train.sft import texts

_TOKENIZER_TEXTS = 1000  # more change neither the merges nor the token counts
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class EmbeddedBuilder:
    """What the trainer asks of the embedded model (`config.named_parts.ModelBuilder`)."""

    advice = (
        "warm it up first: mcpagent train --algo sft --config configs/warm_start.yaml --data DATA "
        "--out outputs/warm; then --model outputs/warm; or run `mcpagent quickstart`, which does both"
    )

    def architecture(self) -> Any:
        """Its transformers configuration, with the vocabulary of the default size."""
        return embedded_config(EmbeddedShape())

    def build(
        self,
        demonstrations: Sequence[Trajectory],
        tasks: Mapping[str, Task],
        *,
        catalog: Mapping[str, ToolSpec],
        seed: int,
    ) -> tuple[Any, Any]:
        """Model (random weights) and tokenizer (trained on demonstrations, schemas included).

        The tokenizer remembers the catalog's hash: other tools would fall back to bytes, so it is trained
        anew for them.
        """
        shape = EmbeddedShape()
        # Rendering needs a tokenizer with the template; for text alone, one without merges will do.
        plain = Renderer(train_tokenizer([], vocab_size=0, catalog_hash=""), name="embedded")
        corpus = texts(demonstrations[:_TOKENIZER_TEXTS], tasks, catalog=catalog, renderer=plain)
        tokenizer = train_tokenizer(
            corpus, vocab_size=shape.vocab_size, catalog_hash=catalog_hash(catalog.values())
        )
        return build_model(tokenizer, shape=shape, seed=derive_seed(seed, "weights")), tokenizer

    def build_small(self, *, seed: int) -> tuple[Any, Any]:
        """One whose tokens are bytes."""
        tokenizer = train_tokenizer([], vocab_size=0, catalog_hash="smoke")
        shape = EmbeddedShape(vocab_size=len(tokenizer), max_positions=1024)
        return build_model(tokenizer, shape=shape, seed=seed), tokenizer


BUILDER = EmbeddedBuilder()


def copy(renderer: Renderer, *, count: int, seed: int) -> list[TrainSample]:
    """`count` samples that repeat the user's string of random symbols and numbers, the same for the same
    seed. A curriculum for `sft.curriculum`."""
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
