"""What a GRPO update costs: CPU seconds and peak memory of one optimiser step on given completions.

    python -m benchmarks.update [--shape tiny|qwen3-0.6b] [--prompts 4] [--group 8] [--unique] [--json]

The work is fixed: random tokens of given lengths, LoRA r=16 on every linear layer, float32, one thread, no
reference. So another trainer's update on the same shape and lengths is comparable in CPU seconds. `--unique`
gives every completion a prompt of its own: then nothing can be shared. `--tool-tokens` are those with which
all prompts begin, and `--model` names a folder in place of a shape (`benchmarks.beside_trl` does).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks import models
from mcpagent.models.adapters import attach_lora
from mcpagent.models.load import load_model, use_checkpointing
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.budget import resident_mib
from mcpagent.train.learner.learner import Learner
from mcpagent.train.update import UpdateSettings, update_policy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=models.SHAPES, default="tiny")
    parser.add_argument("--model", type=Path, help="a folder, in place of a shape")
    parser.add_argument("--dtype", default="float32", help="of its weights")
    parser.add_argument(
        "--tool-tokens", type=int, default=0, help="of the prompts, which all begin with them"
    )
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--completion-tokens", type=int, default=256)
    parser.add_argument("--micro-batch-tokens", type=int, default=2304)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--unique", action="store_true", help="a prompt of its own for each completion")
    parser.add_argument("--ragged", action="store_true", help="completions of 1/4 to 4/4 of the length")
    parser.add_argument("--steps", type=int, default=3, help="after one that is not counted")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    result = measure(options)
    if options.as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:<28}{value!s:>20}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Medians over the steps."""
    torch.set_num_threads(1)
    learner = _learner(options)
    graded = models.graded(_samples(options))
    settings = UpdateSettings(use_reference=False, micro_batch_tokens=options.micro_batch_tokens)
    base = resident_mib(trimmed=True)
    peak = _Peak()
    cpu_s: list[float] = []
    for step in range(options.steps + 1):
        started = time.process_time()
        update_policy(learner, graded, settings=settings, first_optimizer_step=step + 1, seed=step)
        cpu_s.append(time.process_time() - started)
    median = statistics.median(cpu_s[1:])
    return {
        "work": "update",
        "shape": options.model.name if options.model else options.shape,
        "samples": len(graded.samples),
        "unique": options.unique,
        "cpu_s": round(median, 3),
        "cpu_s_all": [round(s, 2) for s in cpu_s],
        "tokens_per_cpu_s": round(sum(map(len, graded.samples)) / median, 1),
        "rss_base_mib": round(base),
        "rss_peak_mib": round(peak.stop()),
        "maxrss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "loadavg": round(os.getloadavg()[0], 1),
    }


def _learner(options: argparse.Namespace) -> Learner:
    if options.model is None:
        model: Any = models.qwen3(options.shape)
    else:
        model = load_model(
            str(options.model), dtype=getattr(torch, options.dtype), device=torch.device("cpu")
        )
    adapted = attach_lora(model, models.LORA, seed=0)
    if options.gradient_checkpointing:
        use_checkpointing(adapted)
    return models.learner_of(adapted)


def _samples(options: argparse.Namespace) -> list[TrainSample]:
    rng = random.Random(0)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, 4000) for _ in range(count))

    samples: list[TrainSample] = []
    tools = draw(options.tool_tokens)
    for _ in range(options.prompts):
        prompt = tools + draw(options.prompt_tokens)
        for attempt in range(options.group):
            if options.unique:
                prompt = tools + draw(options.prompt_tokens)
            share = (attempt % 4 + 1) / 4 if options.ragged else 1.0
            own = draw(int(share * options.completion_tokens))
            samples.append(
                TrainSample(
                    token_ids_T=prompt + own,
                    loss_mask_T=(False,) * len(prompt) + (True,) * len(own),
                    sampler_logprobs_T=(0.0,) * len(prompt) + (-8.3,) * len(own),
                )
            )
    return samples


class _Peak:
    """The largest resident memory, looked at every 30 ms."""

    def __init__(self) -> None:
        self._peak, self._ended = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.03):
            self._peak = max(self._peak, resident_mib())

    def stop(self) -> float:
        """MiB."""
        self._ended.set()
        self._thread.join()
        return self._peak


if __name__ == "__main__":
    main()
