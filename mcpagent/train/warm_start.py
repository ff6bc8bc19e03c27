"""The embedded model's beginning: demonstrations, a tokenizer for the catalog in use, random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec, catalog_hash
from mcpagent.core.trajectory import Trajectory
from mcpagent.models.embedded import EmbeddedShape, build_model, train_tokenizer
from mcpagent.models.tokens import Renderer
from mcpagent.train.sft import texts

_TOKENIZER_TEXTS = 1000  # more change neither the merges nor the token counts


def embedded_model(
    demonstrations: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    *,
    catalog: Mapping[str, ToolSpec],
    seed: int,
) -> tuple[Any, Any]:
    """Model (random weights) and tokenizer (trained on demonstrations, schemas included).

    The tokenizer remembers the catalog's hash: other tools would fall back to bytes, so it is trained anew
    for them.
    """
    shape = EmbeddedShape()
    # Rendering needs a tokenizer with the template; for text alone, one without merges will do.
    plain = Renderer(train_tokenizer([], vocab_size=0, catalog_hash=""), name="embedded")
    corpus = texts(demonstrations[:_TOKENIZER_TEXTS], tasks, catalog=catalog, renderer=plain)
    tokenizer = train_tokenizer(
        corpus, vocab_size=shape.vocab_size, catalog_hash=catalog_hash(catalog.values())
    )
    return build_model(tokenizer, shape=shape, seed=derive_seed(seed, "weights")), tokenizer
