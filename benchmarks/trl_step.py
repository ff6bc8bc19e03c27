"""A whole step of TRL's GRPOTrainer, for a Python that has TRL: `trl_step.py FOLDER`.

FOLDER holds `model/` (Hugging Face format, with a tokenizer) and `work.json`: the prompts (texts), attempts
at each, tokens of a completion, device, and steps that count, after one that warms up. Prints one line of
JSON: the version, the seconds of each step, from its prompts to the moved adapters, and its sampled tokens.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class _Counting(GRPOTrainer):
    """Counts what is sampled."""

    sampled = 0

    def _generate_single_turn(self, *args: Any, **options: Any) -> Any:
        out = super()._generate_single_turn(*args, **options)
        self.sampled += sum(map(len, out[0]))
        return out


class _Clock(TrainerCallback):
    """Takes the time of each step."""

    def __init__(self, device: str) -> None:
        self.ends: list[float] = []
        self._device = device

    def _now(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def on_train_begin(self, *_args: Any, **_options: Any) -> None:
        self._now()

    def on_step_end(self, *_args: Any, **_options: Any) -> None:
        self._now()


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    work = json.loads((folder / "work.json").read_text())
    is_cuda = work["device"] == "cuda"
    prompts, attempts = work["prompts"], work["attempts"]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=not is_cuda,
        bf16=is_cuda,
        per_device_train_batch_size=work["micro_batch"],
        gradient_accumulation_steps=len(prompts) * attempts // work["micro_batch"],
        num_generations=attempts,
        max_completion_length=work["tokens"],
        generation_kwargs={"min_new_tokens": work["tokens"]},
        gradient_checkpointing=is_cuda,
        learning_rate=1e-5,
        beta=0.0,
        max_steps=work["steps"] + 1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    clock = _Clock(work["device"])
    trainer = _Counting(
        model=AutoModelForCausalLM.from_pretrained(
            folder / "model", dtype=torch.bfloat16 if is_cuda else torch.float32
        ),
        reward_funcs=lambda completions, **_: [(-1.0) ** i for i in range(len(completions))],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts * (work["steps"] + 1)}),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[clock],
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    seconds = [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
    tokens = trainer.sampled // len(seconds)
    print(json.dumps({"version": trl.__version__, "seconds": seconds[1:], "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
