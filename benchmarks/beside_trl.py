"""The same work done by mcpagent and by TRL; `benchmarks.trl_step` is the other side.

    python -m benchmarks.beside_trl [--tool-tokens 1024 4096] [--prompts 8] [--model FOLDER --dtype bfloat16]

measures the update of a batch whose prompts all begin with the schemas of the same tools, as they do for
every user of MCP servers: CPU seconds of a step on given completions, and the peak of resident memory. Each
side is a process of its own with one thread, and they take turns. `check_trl` is a row of the acceptance of
a GPU: a whole step, sampling and update. TRL's Python is `MCPAGENT_TRL_PYTHON`, else this one if it has trl,
else that of `make test-trl`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoTokenizer

from benchmarks import models
from benchmarks.bench import Bench
from mcpagent.config.loader import load_train_config
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.learner.build import build_learner
from mcpagent.train.load import load
from mcpagent.train.sampler import open_sampler
from mcpagent.train.update import UpdateSettings, update_policy

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


def _prompts(tokenizer: Any, count: int, length: int, *, shared: int = 0) -> list[str]:
    """Texts of exactly so many tokens, of which all begin with the same `shared` ones: words that are one
    token each."""
    rng = random.Random(0)
    words = [f" {token[1:]}" for token in sorted(tokenizer.get_vocab()) if token.startswith("Ġ")]
    words = [word for word in words if word[1:].isalpha() and len(tokenizer(word)["input_ids"]) == 1]
    beginning = "".join(rng.choices(words, k=shared))
    prompts = [beginning + "".join(rng.choices(words, k=length - shared)) for _ in range(count)]
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


_QUESTION, _COMPLETION = 64, 160  # tokens
_ATTEMPTS = 8
_WARMED_UP = 2048  # tool tokens from which what a first step costs in addition is nothing to speak of


def beside(folder: Path, tool_tokens: int, options: argparse.Namespace, python: str) -> dict[str, Any]:
    """One update of the model in `folder`/model behind `tool_tokens`, by mcpagent and by TRL: CPU seconds and
    peaks of both, in this order, and ours as a share of TRL's, whose micro batches have at most
    `--pass-tokens`, since their memory grows with them."""
    ours = _update_of_ours(folder, tool_tokens, options)
    theirs = _update_of_trl(folder, tool_tokens, options, python)
    return {
        "tool_tokens": tool_tokens,
        "attempts": options.prompts * _ATTEMPTS,
        "cpu_s": [round(side["cpu_s"], 1) for side in (ours, theirs)],
        "cpu_ratio": round(ours["cpu_s"] / theirs["cpu_s"], 3),
        "peak_mib": [side["maxrss_mib"] for side in (ours, theirs)],
        "peak_ratio": round(ours["maxrss_mib"] / theirs["maxrss_mib"], 2),
        "trl": theirs["version"],
    }


def _update_of_ours(folder: Path, tool_tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    work = {
        "model": folder / "model",
        "dtype": options.dtype,
        "tool-tokens": tool_tokens,
        "prompts": options.prompts,
        "group": _ATTEMPTS,
        "prompt-tokens": _QUESTION,
        "completion-tokens": _COMPLETION,
        "steps": 1,
    }
    flags = ["--json", *["--gradient-checkpointing"] * options.gradient_checkpointing]
    flags += [part for name, value in work.items() for part in (f"--{name}", str(value))]
    return last_line([sys.executable, "-m", "benchmarks.update", *flags])


def _update_of_trl(
    folder: Path, tool_tokens: int, options: argparse.Namespace, python: str
) -> dict[str, Any]:
    rng, prompts, length = random.Random(0), options.prompts, tool_tokens + _QUESTION
    fitting = options.pass_tokens // (length + _COMPLETION)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    work = {
        "prompts": _prompts(tokenizer, prompts, length, shared=tool_tokens),
        "attempts": _ATTEMPTS,
        "micro_batch": next(n for n in (8, 4, 2, 1) if n <= max(fitting, 1)),
        "tokens": _COMPLETION,
        "completions": [
            [rng.randrange(300, 4000) for _ in range(_COMPLETION)] for _ in range(prompts * _ATTEMPTS)
        ],
        "dtype": options.dtype,
        "device": "cpu",
        "checkpointing": options.gradient_checkpointing,
        "steps": 1,
        "warm_up": int(tool_tokens < _WARMED_UP),
    }
    (folder / "work.json").write_text(json.dumps(work))
    result = last_line([python, str(_SCRIPT), str(folder)])
    return {**result, "cpu_s": statistics.median(result["cpu_s"])}


def last_line(command: list[str]) -> dict[str, Any]:
    """Run a side with one thread and return what its last line says."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=alone)
    return json.loads(done.stdout.splitlines()[-1])


def _rows(folder: Path, options: argparse.Namespace, python: str) -> Iterator[dict[str, Any]]:
    if options.model is None:
        model, tokenizer = models.tiny()
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
    else:
        (folder / "model").symlink_to(options.model.resolve())
    for tokens in options.tool_tokens:
        yield beside(folder, tokens, options, python)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool-tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--model", type=Path, help="a folder; else the tiny shape with random weights")
    parser.add_argument("--dtype", default="float32", help="of the weights")
    parser.add_argument("--prompts", type=int, default=8, help="tasks, each with 8 attempts")
    parser.add_argument(
        "--pass-tokens", type=int, default=40_000, help="at most, of TRL's micro batches: they take memory"
    )
    parser.add_argument("--gradient-checkpointing", action="store_true", help="on both sides")
    options = parser.parse_args()
    python = trl_python()
    if python is None:
        parser.error("TRL is not installed (make .venv-trl/.installed)")
    with TemporaryDirectory(prefix="mcpagent-trl-") as folder:
        for row in _rows(Path(folder), options, python):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
