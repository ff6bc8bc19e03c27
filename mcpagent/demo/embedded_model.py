"""The embedded model: a Qwen3-architecture network and a byte-level BPE tokenizer, built from scratch.

About half a million parameters, so that warm start and GRPO together take minutes on a CPU. What makes that
possible (measured, see docs/design/0002-embedded-model.md):

- the BPE may merge across words and punctuation ("superwords") and keeps only digits and stand-alone capitals
  apart, so a tool schema costs a few tokens and a ticker is always the same tokens, which can be copied;
- as many key-value heads as query heads: copying is learnt by induction heads.

The tokenizer depends on the tool catalog it was trained on; `catalog_hash` travels with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from mcpagent.config.environment import resource_path

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Digits and stand-alone capitals are tokens of their own; everything else may merge freely.
PRE_TOKENIZER_PATTERN = r"\p{N}|[A-Z](?![a-z])|(?:[A-Z](?=[a-z])|[^\p{N}A-Z])+"


@dataclass(frozen=True, kw_only=True)
class EmbeddedShape:
    """Size of the embedded model. The default is 0.4 to 0.6 M parameters, depending on the vocabulary."""

    vocab_size: int = 2048
    hidden_size: int = 96
    layers: int = 3
    heads: int = 3
    intermediate_size: int = 288
    max_positions: int = 2048


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, catalog_hash: str, wording: Collection[str] | None = None
) -> Any:
    """A byte-level BPE tokenizer over `texts` as a plain `PreTrainedTokenizerFast` with the chat template.
    Where `wording` is given, words that are not among it merge with nothing around them, so that a name is
    the same tokens in a question, a result and an answer, and can be copied.

    The plain class matters: saved as a Qwen tokenizer, AutoTokenizer would rebuild it with another
    pre-tokenizer and give other ids.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    apart = [] if wording is None else [pre_tokenizers.Split(Regex(_other_words(wording)), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *apart,
            pre_tokenizers.Split(Regex(PRE_TOKENIZER_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=400,
    )
    # Control tokens are never merged with text, so the trainer must not see them inside it.
    split = re.compile("|".join(re.escape(t) for t in SPECIAL_TOKENS))
    tokenizer.train_from_iterator((p for t in texts for p in split.split(t) if p), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        catalog_hash=catalog_hash,
    )
    fast.chat_template = resource_path("templates/chat/embedded.jinja").read_text(encoding="utf-8")
    return fast


def _other_words(wording: Collection[str]) -> str:
    """A pattern of the words that are none of `wording`."""
    kept = "|".join(sorted(re.escape(word) for word in wording))
    return rf"(?<![A-Za-z0-9])(?!(?:{kept})(?![A-Za-z0-9]))[A-Za-z0-9]+"


def embedded_config(shape: EmbeddedShape, **options: Any) -> Any:
    """The transformers configuration of an embedded model; `options` join it or replace parts of it."""
    from transformers import Qwen3Config

    architecture: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.hidden_size // shape.heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "initializer_range": 0.05,
    }
    return Qwen3Config(**(architecture | options))


def build_model(tokenizer: Any, *, shape: EmbeddedShape, seed: int) -> Any:
    """A randomly initialised `Qwen3ForCausalLM` (float32, tied embeddings) for `tokenizer`."""
    import torch
    from transformers import Qwen3ForCausalLM

    config = embedded_config(
        shape,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
