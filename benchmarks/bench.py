"""Where the checks of a device run, how large they are, and who takes their rows."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks import models
from benchmarks.memory import GIB, config_of

_LOGIT_SPREAD = 4.0  # standard deviation, as of trained models: bfloat16 logits are then 0.125 apart
_TINY = Qwen3Config(
    vocab_size=2304,  # more than the tokenizer has, as in real models
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,  # the least that vLLM has kernels for
    max_position_embeddings=4096,
)


@dataclass(frozen=True)
class Row:
    """One line of the table. `ok` is None where nothing is judged."""

    check: str
    what: str
    value: str
    wanted: str = ""
    ok: bool | None = None


Report = Callable[..., None]  # what, value, wanted, ok


@dataclass(frozen=True)
class Bench:
    """Where the checks run, how large, and who takes their rows."""

    device: torch.device
    is_tiny: bool
    report: Report
    folder: Path

    @property
    def has_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.has_cuda else torch.float32

    def shape(self, name: str) -> Qwen3Config:
        """That of `memory.SHAPES`, or a tiny one. The head is not tied: with a tied one a random model
        repeats its last token with certainty."""
        config = copy.deepcopy(_TINY) if self.is_tiny else config_of(name)
        config.tie_word_embeddings = False
        return config

    def model(self, name: str, *, dtype: torch.dtype | None = None) -> Any:
        """With random weights, made on the device."""
        torch.manual_seed(0)
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype or self.dtype)
        try:
            with torch.device(self.device):
                model: Any = Qwen3ForCausalLM(self.shape(name))
        finally:
            torch.set_default_dtype(default)
        with torch.no_grad():
            head = model.get_output_embeddings().weight
            spread = float(head[:1000].float().std()) * model.config.hidden_size**0.5
            model.model.norm.weight.mul_(_LOGIT_SPREAD / spread)
        return model

    @cached_property
    def tokenizer(self) -> Any:
        return models.words_tokenizer(2048)

    def model_folder(self, name: str) -> Path:
        """The model with a tokenizer, as `model.name` takes it."""
        model, folder = self.model(name), self.folder / f"model-{name}"
        ends = {"eos_token_id": self.tokenizer.eos_token_id, "pad_token_id": self.tokenizer.pad_token_id}
        model.config.update(ends)
        model.generation_config.update(**ends)
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return folder

    def synchronise(self) -> None:
        if self.has_cuda:
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object], *, repeats: int) -> float:
        """Of one `run`, after one that chooses kernels and takes memory."""
        run()
        self.synchronise()
        started = time.perf_counter()
        for _ in range(repeats):
            run()
        self.synchronise()
        return (time.perf_counter() - started) / repeats

    @contextmanager
    def peak_gib(self) -> Iterator[list[float]]:
        """Gets the most that was allocated inside; 0 where there is no CUDA to ask."""
        peak = [0.0]
        if self.has_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        yield peak
        if self.has_cuda:
            peak[0] = torch.cuda.max_memory_allocated() / GIB
