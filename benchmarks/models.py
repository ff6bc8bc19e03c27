"""Models of fixed shapes with random weights, and a tokenizer made on the spot: nothing is downloaded."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mcpagent.config.resources import resource_path
from mcpagent.models.embedded import SPECIAL_TOKENS, EmbeddedShape, build_model

TINY: dict[str, Any] = {  # 4.2 million parameters
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 768,
}


def tiny(folder: Path | None = None) -> tuple[Any, Any]:
    """A Qwen3 model of the tiny shape with its tokenizer; from `folder` where one is given."""
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(**TINY, max_position_embeddings=8192, tie_word_embeddings=True)
    return Qwen3ForCausalLM(config).eval(), words_tokenizer(TINY["vocab_size"])


def embedded() -> tuple[Any, Any]:
    """The embedded model's shape, untrained."""
    shape = EmbeddedShape()
    tokenizer = words_tokenizer(shape.vocab_size)
    return build_model(tokenizer, shape=shape, seed=0).eval(), tokenizer


@lru_cache(maxsize=2)
def words_tokenizer(vocab_size: int) -> Any:
    """A byte-level BPE tokenizer over Python's own sources, with the embedded model's chat template."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    fast.chat_template = resource_path("templates/chat/embedded.jinja").read_text(encoding="utf-8")
    return fast


def _texts() -> Iterator[str]:
    for source in islice(sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")), 40):
        yield source.read_text(encoding="utf-8", errors="replace")
    for item in range(300):
        yield json.dumps({"name": "lookup", "arguments": {"key": f"item-{item}"}})
