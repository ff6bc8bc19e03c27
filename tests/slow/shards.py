"""Measure the memory of an update of 234 M parameters in 1, 2 and 4 processes; several share the weights.

Weights come from a folder of safetensors through `train.load`; processes are started by torchrun and talk
over gloo. Memory is resident and net of imports (what a process holds before it reads a model).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

PROCESSES = (1, 2, 4)
LIMITS = {2: 0.6, 4: 0.4}  # of the peak of one process, all weights trained
SHAPE = {
    "vocab_size": 32_768,
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 3072,
}
_TOKENS = 40  # of the longest sample
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of an update. Memory in MiB: `before` is what imports take, the others are without it."""

    index: int
    parameters: int
    before: float
    loading: float
    loaded: float
    step: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Update:
    """The same update in `processes` processes, with shards where there is more than one."""

    processes: int
    ranks: tuple[Rank, ...]

    @property
    def step(self) -> float:
        """MiB that the largest process holds at the peak of a step."""
        return max(rank.step for rank in self.ranks)

    @property
    def loading(self) -> float:
        """MiB that the largest process holds while it loads."""
        return max(rank.loading for rank in self.ranks)


def measure_memory() -> list[Update]:
    """Make one update after the other, each in processes of its own that end with it."""
    with TemporaryDirectory(prefix="mcpagent-scale-") as scratch:
        folder = Path(scratch)
        _run([sys.executable, "-m", "tests.slow.shards", "write", str(folder / "model")])
        updates: list[Update] = []
        for count in PROCESSES:
            out = folder / f"{count}"
            out.mkdir()
            words = ["tests.slow.shards", "rank", str(folder / "model"), str(out)]
            launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
            _run([sys.executable, "-m", *(launcher if count > 1 else ()), *words])
            ranks = [Rank(**json.loads(path.read_text())) for path in sorted(out.iterdir())]
            updates.append(Update(processes=count, ranks=tuple(ranks)))
    return updates


def _run(words: Sequence[str]) -> None:
    # What is freed goes back to the system at once: the figures are what a process holds, not its heap.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
    done = subprocess.run(
        words, cwd=_ROOT, env=environment, stdout=sys.stderr, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}\n{done.stderr[-4000:]}")


def write_model(folder: Path) -> None:
    """Weights that are random and the tokenizer of the benchmarks; in a process of its own, whose memory is
    gone afterwards."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from mcpagent.demo.warm_start import train_tokenizer

    torch.manual_seed(0)
    sizes: dict[str, Any] = SHAPE
    config = Qwen3Config(**sizes, max_position_embeddings=4096, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    train_tokenizer([], vocab_size=0, catalog_hash="").save_pretrained(folder)


def measure_rank(folder: Path) -> Rank:
    """Load, build, and make two updates, as one of the processes that torchrun started."""
    import peft  # noqa: F401 - what counts as imports
    import torch
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    from benchmarks.models import graded
    from mcpagent.config.loader import load_train_config
    from mcpagent.train.learner.build import build_learner
    from mcpagent.train.learner.processes import Processes
    from mcpagent.train.load import load
    from mcpagent.train.update import UpdateSettings, update_policy

    torch.set_num_threads(1)
    processes = Processes.join(torch.device("cpu"))
    settings = {
        "model.name": str(folder),
        "model.dtype": "float32",  # a machine that multiplies bfloat16 fast would take that
        "finetune.mode": "full",
        "grpo.reference": "none",
        "grpo.kl_coef": 0.0,
        "training.parallel": "fsdp",
        "rollout.backend": "vllm",  # never asked: no episode is played
        "vllm.servers": '["http://127.0.0.1:1"]',
    }
    config = load_train_config([], [f"{key}={value}" for key, value in settings.items()]).config
    before = _resident()
    _forget_peak()
    learner = build_learner(
        load(config, processes=processes), config, total_optimizer_steps=10, processes=processes
    )
    loading, loaded = _peak() - before, _resident() - before
    batch = graded(_samples(_TOKENS), per_group=2)
    update = UpdateSettings(use_reference=False, micro_batch_tokens=8 * _TOKENS)  # one micro-batch each
    _forget_peak()
    for step in (1, 2):
        processes.meet()
        stats = update_policy(learner, batch, settings=update, first_optimizer_step=step, seed=step)
    peak = _peak() - before
    parameters = sum(p.numel() for p in learner.model.parameters())
    return Rank(
        index=processes.index,
        parameters=parameters,
        before=round(before, 1),
        loading=round(loading, 1),
        loaded=round(loaded, 1),
        step=round(peak, 1),
        loss=round(stats.summary()["loss"], 6),
    )


def _samples(tokens: int) -> list[Any]:
    """Eight, of three to four quarters of `tokens` each, the second half of which carries loss."""
    from mcpagent.train.batch.samples import TrainSample

    stream, samples = random.Random(0), []
    for _ in range(8):
        length = stream.randint(3 * tokens // 4, tokens)
        mask = tuple(i >= length // 2 for i in range(length))
        samples.append(
            TrainSample(
                token_ids_T=tuple(stream.randrange(3000) for _ in range(length)),
                loss_mask_T=mask,
                sampler_logprobs_T=tuple(-10.4 if m else 0.0 for m in mask),
            )
        )
    return samples


def _resident() -> float:
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    """MiB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def _forget_peak() -> None:
    """The next `_peak` is of what comes after this."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    command, folder, *out = sys.argv[1:]
    if command == "write":
        write_model(Path(folder))
    else:
        row = measure_rank(Path(folder))
        (Path(out[0]) / f"{row.index}.json").write_text(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
