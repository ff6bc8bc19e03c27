"""A whole step, sampling and update, beside TRL's on the same work; `benchmarks.trl_step` is the other side.

TRL's Python is `MCPAGENT_TRL_PYTHON`, else this one where it has trl, else that of `make test-trl`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import models
from mcpagent.config.loader import load_train_config
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.build import build_learner, load, open_sampler
from mcpagent.train.update import UpdateSettings, update_policy

if TYPE_CHECKING:
    from benchmarks.gpu_checks import Bench

_SCRIPT = Path(__file__).with_name("trl_step.py")
_LIMIT = 0.5  # of TRL's seconds


def trl_python() -> str | None:
    """The Python that has TRL; None where there is none."""
    if (named := os.environ.get("MCPAGENT_TRL_PYTHON")) is not None:
        return named
    if importlib.util.find_spec("trl") is not None:
        return sys.executable
    python = Path(__file__).parents[1] / ".venv-trl" / "bin" / "python"
    return str(python) if python.is_file() else None


def check_trl(bench: Bench) -> None:
    """Seconds of a whole step beside those of TRL with its own sampler: LoRA, one turn of fixed length."""
    python = trl_python()
    if python is None:
        bench.report("TRL", "left out: it is not installed (make .venv-trl/.installed)")
        return
    folder = bench.folder / "beside-trl"
    folder.mkdir()
    bench.model_folder("0.6b").rename(folder / "model")
    prompts, attempts, length, tokens = (2, 2, 24, 8) if bench.is_tiny else (4, 16, 1024, 256)
    work = {
        "prompts": _prompts(bench.tokenizer, prompts, length),
        "attempts": attempts,
        "micro_batch": min(16, attempts),
        "tokens": tokens,
        "device": bench.device.type,
        "steps": 1 if bench.is_tiny else 2,
    }
    (folder / "work.json").write_text(json.dumps(work))
    done = subprocess.run([python, str(_SCRIPT), str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours, sampled = _ours(bench, folder / "model", work)
    seconds = statistics.median(ours), statistics.median(theirs["seconds"])
    bench.report("sampled tokens a step: mcpagent, TRL", f"{sampled}, {theirs['tokens']}")
    bench.report(f"seconds a step: mcpagent, TRL {theirs['version']}", "{:.3g}, {:.3g}".format(*seconds))
    # Where a model of random weights ends some turns early, what counts is the time of a token.
    share = (seconds[0] / sampled) / (seconds[1] / theirs["tokens"])
    judged = None if bench.is_tiny else share <= _LIMIT
    bench.report("of TRL's time", f"{share:.2f}", f"<= {_LIMIT}", judged)


def _prompts(tokenizer: Any, count: int, length: int) -> list[str]:
    """Texts of exactly so many tokens: words that are one token each."""
    rng = random.Random(0)
    words = [f" {token[1:]}" for token in sorted(tokenizer.get_vocab()) if token.startswith("Ġ")]
    words = [word for word in words if word[1:].isalpha() and len(tokenizer(word)["input_ids"]) == 1]
    prompts = ["".join(rng.choices(words, k=length)) for _ in range(count)]
    assert [len(tokenizer(text)["input_ids"]) for text in prompts] == [length] * count
    return prompts


def _ours(bench: Bench, folder: Path, work: dict[str, Any]) -> tuple[list[float], int]:
    """Seconds of each step that counts, and the tokens that the last one sampled."""
    settings = [
        f"model.name={json.dumps(str(folder))}",
        f"device={bench.device.type}",
        "rollout.backend=hf",
        "grpo.kl_coef=0",
        "training.warmup_steps=0",
        "optimization.learning_rate=1e-5",
    ]
    config = load_train_config([], settings).config
    loaded = load(config)
    learner = build_learner(loaded, config, total_optimizer_steps=100)
    prompts = [list(bench.tokenizer(text)["input_ids"]) for text in work["prompts"]]
    slots = len(prompts) * work["attempts"]
    seconds, sampled = [], 0
    with open_sampler(
        loaded, config, model=learner.model, slots=slots, weights=folder.parent / "weights", learner=learner
    ) as sampler:
        for step in range(work["steps"] + 1):
            bench.synchronise()
            started = time.perf_counter()
            samples = asyncio.run(_sample(sampler.policy, prompts, work, step))
            sampler.rest()
            update_policy(
                learner,
                models.graded(samples, per_group=work["attempts"]),
                settings=UpdateSettings(use_reference=False, micro_batch_tokens=8192),
                first_optimizer_step=step + 1,
                seed=step,
            )
            sampler.push()
            bench.synchronise()
            seconds.append(time.perf_counter() - started)
            sampled = sum(sample.loss_tokens for sample in samples)
    return seconds[1:], sampled


async def _sample(
    policy: Any, prompts: list[list[int]], work: dict[str, Any], step: int
) -> list[TrainSample]:
    requests = [
        CompletionRequest(
            episode_id=f"{step}-{number}-{attempt}",
            sampling=Sampling(max_new_tokens=work["tokens"]),
            seed=attempt,
            token_ids=prompt,
        )
        for number, prompt in enumerate(prompts)
        for attempt in range(work["attempts"])
    ]
    completions = await policy.complete(requests)
    for request in requests:
        await policy.release(request.episode_id)
    return [
        TrainSample(
            token_ids_T=(*request.token_ids, *completion.token_ids),
            loss_mask_T=(False,) * len(request.token_ids) + (True,) * len(completion.token_ids),
            sampler_logprobs_T=(0.0,) * len(request.token_ids) + tuple(completion.logprobs),
        )
        for request, completion in zip(requests, completions, strict=True)
    ]
