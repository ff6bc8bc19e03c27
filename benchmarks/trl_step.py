"""A whole step of TRL's GRPOTrainer, for a Python that has TRL: `trl_step.py FOLDER`.

FOLDER holds `model/` (Hugging Face format, with a tokenizer) and `work.json`: the prompts (texts), attempts
at each, tokens of a completion, device, and steps that count, after one (`warm_up`) that does not; and, if
nothing is to be sampled, the token ids of all completions. Prints one line of JSON: the version, the seconds
of each step, from its prompts to the moved adapters, those of its CPU, its sampled tokens, and the peak of
resident memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

LORA = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


class _Counting(GRPOTrainer):
    """Counts what is sampled, or takes what is given in its place."""

    sampled = 0
    given: Any = None

    def _generate_single_turn(self, *args: Any, **options: Any) -> Any:
        if self.given is not None:
            self.sampled += sum(map(len, self.given))
            return [list(ids) for ids in self.given], None
        out = super()._generate_single_turn(*args, **options)
        self.sampled += sum(map(len, out[0]))
        return out


class Clock(TrainerCallback):
    """Takes the time of each step."""

    def __init__(self, device: str) -> None:
        self.ends: list[float] = []
        self.cpu_ends: list[float] = []
        self._device = device

    def _now(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        self.cpu_ends.append(time.process_time())

    def on_train_begin(self, *_args: Any, **_options: Any) -> None:
        self._now()

    def on_step_end(self, *_args: Any, **_options: Any) -> None:
        self._now()


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    work = json.loads((folder / "work.json").read_text())
    is_cuda = work["device"] == "cuda"
    prompts, attempts, warm_up = work["prompts"], work["attempts"], work.get("warm_up", 1)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=not is_cuda,
        bf16=is_cuda,
        per_device_train_batch_size=work["micro_batch"],
        gradient_accumulation_steps=len(prompts) * attempts // work["micro_batch"],
        num_generations=attempts,
        max_completion_length=work["tokens"],
        generation_kwargs={"min_new_tokens": work["tokens"]},
        gradient_checkpointing=work.get("checkpointing", is_cuda),
        learning_rate=1e-5,
        beta=0.0,
        max_steps=work["steps"] + warm_up,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    clock = Clock(work["device"])
    trainer = _Counting(
        model=AutoModelForCausalLM.from_pretrained(
            folder / "model", dtype=getattr(torch, work.get("dtype", "bfloat16" if is_cuda else "float32"))
        ),
        reward_funcs=lambda completions, **_: [(-1.0) ** i for i in range(len(completions))],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts * (work["steps"] + warm_up)}),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[clock],
        peft_config=LORA,
    )
    trainer.given = work.get("completions")
    trainer.train()
    seconds, cpu_s = between(clock.ends), between(clock.cpu_ends)
    result = {
        "version": trl.__version__,
        "seconds": seconds[warm_up:],
        "cpu_s": cpu_s[warm_up:],
        "tokens": trainer.sampled // len(seconds),
        "maxrss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(result), flush=True)


def between(ends: list[float]) -> list[float]:
    """Seconds from each moment to the next."""
    return [after - before for before, after in pairwise(ends)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
