"""Models of fixed shapes with random weights, and a tokenizer made on the spot: nothing is downloaded."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator, Sequence
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

from mcpagent.config.environment import resource_path
from mcpagent.demo.warm_start import SPECIAL_TOKENS, EmbeddedShape, build_model
from mcpagent.models.adapters import LoraShape
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.optim import Schedule, build_optimizers, linear_schedule
from mcpagent.train.objective.advantages import CreditSettings, GradedAttempt, GradedBatch, GradedGroup

SHAPES: dict[str, dict[str, Any]] = {  # of Qwen3
    "tiny": {  # 4.2 million parameters
        "vocab_size": 4096,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 768,
    },
    "qwen3-0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
    },
}
LORA = LoraShape(r=16, alpha=32, dropout=0.0, target_modules="all-linear")


def qwen3(shape: str) -> Qwen3ForCausalLM:
    """A model of one of SHAPES, in float32."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(**SHAPES[shape], max_position_embeddings=32_768, tie_word_embeddings=True)
    )


def learner_of(adapted: Any) -> Learner:
    """AdamW on the adapters alone; no reference."""
    optimizers = build_optimizers(
        adapted.named_parameters(),
        kind="adamw",
        learning_rate=1e-5,
        muon_learning_rate=0.02,
        betas=(0.9, 0.999),
        weight_decay=0.0,
    )
    schedule = Schedule(optimizers, linear_schedule(total=100))
    return Learner(adapted, None, schedule=schedule, gradient_clip=1.0)


def graded(samples: Sequence[TrainSample], *, per_group: int | None = None) -> GradedBatch:
    """Groups of `per_group` (None: one) in which every other attempt is good: its advantages are 1 and -1."""
    size = per_group or len(samples)
    attempts = [GradedAttempt(reward=(-1.0) ** i, sample=s) for i, s in enumerate(samples)]
    groups = tuple(
        GradedGroup(group_id=str(start), attempts=tuple(attempts[start : start + size]))
        for start in range(0, len(attempts), size)
    )
    return GradedBatch(groups=groups, settings=CreditSettings(advantage="given"))


def tiny(folder: Path | None = None, *, dtype: str = "float32") -> tuple[Any, Any]:
    """A Qwen3 model of the tiny shape with its tokenizer; from `folder` where one is given."""
    if folder is not None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        return model, AutoTokenizer.from_pretrained(folder)
    return qwen3("tiny").eval().to(getattr(torch, dtype)), words_tokenizer(SHAPES["tiny"]["vocab_size"])


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
