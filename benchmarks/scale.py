"""What another process costs, and what bounds it: of a training step, of an evaluation.

    python -m benchmarks.scale memory [--lora]   an update of 234 M parameters in 1, 2 and 4 processes
    python -m benchmarks.scale shards            the episodes of one dataset in 1, 2 and 4 shards

Weights come from a folder of safetensors through `train.build`, processes are started by torchrun and talk
over gloo, shards are `mcpagent rollout --shard I/N`. Memory is resident and net of imports (what a process
holds before it reads a model). Gloo on one machine says nothing about the speed of a cluster: the columns of
time say what takes it here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

PROCESSES = (1, 2, 4)
LIMITS = {2: 0.6, 4: 0.4}  # of the peak of one process, all weights trained
SHAPES = {
    "234m": {
        "vocab_size": 32_768,
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 3072,
    },
    "5m": {
        "vocab_size": 4096,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 768,
    },
}
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of an update. Memory in MiB: `before` is what imports take, the others are without it.
    `cpu_s` and `wall_s` are of a step, `gather_s` what the bare exchange of its weights and gradients takes
    between these processes."""

    index: int
    parameters: int
    before: float
    loading: float
    loaded: float
    step: float
    cpu_s: float
    wall_s: float
    gather_s: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Update:
    """The same update in `processes` processes, with shards where there is more than one."""

    processes: int
    mode: str
    ranks: tuple[Rank, ...]

    @property
    def step(self) -> float:
        """MiB that the largest process holds at the peak of a step."""
        return max(rank.step for rank in self.ranks)

    @property
    def loading(self) -> float:
        """MiB that the largest process holds while it loads."""
        return max(rank.loading for rank in self.ranks)


def measure_memory(
    *, shape: str = "234m", mode: str = "full", tokens: int = 40, processes: Sequence[int] = PROCESSES
) -> list[Update]:
    """One update after the other, each in processes of its own that end with it."""
    with TemporaryDirectory(prefix="mcpagent-scale-") as scratch:
        folder = Path(scratch)
        _run(
            [
                sys.executable,
                "-m",
                "benchmarks.scale",
                "write",
                "--shape",
                shape,
                "--folder",
                str(folder / "model"),
            ]
        )
        updates: list[Update] = []
        for count in processes:
            out = folder / f"{count}"
            out.mkdir()
            words = ["benchmarks.scale", "rank", "--folder", str(folder / "model"), "--out", str(out)]
            words += ["--mode", mode, "--tokens", str(tokens)]
            launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
            _run([sys.executable, "-m", *(launcher if count > 1 else ()), *words])
            ranks = [Rank(**json.loads(path.read_text())) for path in sorted(out.iterdir())]
            updates.append(Update(processes=count, mode=mode, ranks=tuple(ranks)))
    return updates


def _run(words: Sequence[str]) -> None:
    # What is freed goes back to the system at once: the figures are what a process holds, not its heap.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
    done = subprocess.run(
        words, cwd=_ROOT, env=environment, stdout=sys.stderr, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}\n{done.stderr[-4000:]}")


def write_model(shape: str, folder: Path) -> None:
    """Weights that are random and the tokenizer of the benchmarks; in a process of its own, whose memory is
    gone afterwards."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from mcpagent.demo.warm_start import train_tokenizer

    torch.manual_seed(0)
    sizes: dict[str, Any] = SHAPES[shape]
    config = Qwen3Config(**sizes, max_position_embeddings=4096, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    train_tokenizer([], vocab_size=0, catalog_hash="").save_pretrained(folder)


def measure_rank(folder: Path, *, mode: str, tokens: int) -> Rank:
    """Load, build, and make two updates, as one of the processes that torchrun started."""
    import peft  # noqa: F401 - what counts as imports
    import torch
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401

    from benchmarks.models import graded
    from mcpagent.config.loader import load_train_config
    from mcpagent.train.build import build_learner, load
    from mcpagent.train.learner.processes import Processes
    from mcpagent.train.update import UpdateSettings, update_policy

    torch.set_num_threads(1)
    processes = Processes.join(torch.device("cpu"))
    settings = {
        "model.name": str(folder),
        "finetune.mode": mode,
        "grpo.reference": "none",
        "grpo.kl_coef": 0.0,
        "threads": 1,
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
    batch = graded(_samples(tokens), per_group=2)
    update = UpdateSettings(use_reference=False, micro_batch_tokens=8 * tokens)  # one micro-batch each
    _forget_peak()
    for step in (1, 2):
        processes.meet()
        cpu, wall = time.process_time(), time.monotonic()
        stats = update_policy(learner, batch, settings=update, first_optimizer_step=step, seed=step)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    peak = _peak() - before
    parameters = sum(p.numel() for p in learner.model.parameters())
    trained = sum(p.numel() for p in learner.model.parameters() if p.requires_grad)
    return Rank(
        index=processes.index,
        parameters=parameters,
        before=round(before, 1),
        loading=round(loading, 1),
        loaded=round(loaded, 1),
        step=round(peak, 1),
        cpu_s=round(cpu, 2),
        wall_s=round(wall, 2),
        gather_s=round(_exchange_s(parameters, trained, processes.count), 2),
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


def _exchange_s(parameters: int, trained: int, count: int) -> float:
    """Seconds of the exchange alone that one micro-batch makes, layer by layer: all weights are gathered for
    the forward and for the backward pass, and the gradients of what is trained are summed and scattered."""
    import torch
    from torch import distributed

    if count == 1:
        return 0.0
    piece = 1 << 22  # elements, about one layer
    whole, shard = torch.empty(piece), torch.empty(piece // count)
    started = time.monotonic()
    for _ in range(2 * -(-parameters // piece)):
        distributed.all_gather_into_tensor(whole, shard)
    for _ in range(-(-trained // piece)):
        distributed.reduce_scatter_tensor(shard, whole)
    return time.monotonic() - started


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


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One `mcpagent rollout --shard`, its servers included: CPU seconds, wall seconds, and MiB of its largest
    process."""

    index: int
    episodes: int
    cpu_s: float
    wall_s: float
    peak: float


@dataclass(frozen=True, kw_only=True)
class Shards:
    """All shards of a dataset, played at the same time."""

    count: int
    shards: tuple[Shard, ...]

    @property
    def cpu_s(self) -> float:
        """Of all of them."""
        return sum(shard.cpu_s for shard in self.shards)


def measure_shards(*, tasks: int = 400, counts: Sequence[int] = PROCESSES) -> list[Shards]:
    """Gold episodes of `tasks` generated tasks on the built-in servers."""
    command = [sys.executable, "-m", "mcpagent.cli.main"]
    with TemporaryDirectory(prefix="mcpagent-scale-") as scratch:
        folder = Path(scratch)
        made = ["gen-data", "--train", str(tasks), "--validation", "0", "--heldout", "0", "--out", scratch]
        _run([*command, *made])
        rows: list[Shards] = []
        for count in counts:
            started = time.monotonic()
            running: dict[int, tuple[int, Path]] = {}
            for index in range(1, count + 1):
                out = folder / f"{count}-{index}.jsonl"
                words = ["rollout", "--policy", "gold", "--data", str(folder / "train.jsonl")]
                words += ["--shard", f"{index}/{count}", "--out", str(out), "--json"]
                with out.with_suffix(".log").open("w") as log:
                    pid = os.posix_spawn(
                        sys.executable,
                        [*command, *words],
                        os.environ,
                        file_actions=[(os.POSIX_SPAWN_DUP2, log.fileno(), n) for n in (1, 2)],
                    )
                running[pid] = (index, out)
            shards: list[Shard] = []
            for pid, (index, out) in running.items():
                _, status, used = os.wait4(pid, 0)
                if status:
                    raise SystemExit(out.with_suffix(".log").read_text()[-4000:])
                with out.open("rb") as lines:
                    episodes = sum(1 for _ in lines)
                shards.append(
                    Shard(
                        index=index,
                        episodes=episodes,
                        cpu_s=round(used.ru_utime + used.ru_stime, 2),
                        wall_s=round(time.monotonic() - started, 2),
                        peak=round(used.ru_maxrss / 1024, 1),
                    )
                )
            rows.append(Shards(count=count, shards=tuple(shards)))
    return rows


def fixed_cost(rows: Sequence[Shards]) -> tuple[float, float]:
    """CPU seconds of a shard whatever it plays, and of an episode: the line through all shards by least
    squares."""
    points = [(shard.episodes, shard.cpu_s) for row in rows for shard in row.shards]
    slope, intercept = statistics.linear_regression(*zip(*points, strict=True))
    return intercept, slope


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    memory = commands.add_parser("memory")
    memory.add_argument("--lora", action="store_true", help="adapters alone are trained")
    memory.add_argument("--shape", choices=SHAPES, default="234m")
    memory.add_argument("--tokens", type=int, default=40, help="of the longest sample")
    shards = commands.add_parser("shards")
    shards.add_argument("--tasks", type=int, default=400)
    for command in (memory, shards):
        command.add_argument("--json", action="store_true", dest="as_json")
    # What the commands above start.
    write, rank = commands.add_parser("write"), commands.add_parser("rank")
    write.add_argument("--shape", choices=SHAPES, required=True)
    rank.add_argument("--out", type=Path, required=True)
    rank.add_argument("--mode", required=True)
    rank.add_argument("--tokens", type=int, required=True)
    for command in (write, rank):
        command.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    commands_: dict[str, Callable[[argparse.Namespace], None]] = {
        "memory": _print_memory,
        "shards": _print_shards,
        "write": lambda o: write_model(o.shape, o.folder),
        "rank": _leave_rank,
    }
    commands_[options.command](options)


def _leave_rank(options: argparse.Namespace) -> None:
    row = measure_rank(options.folder, mode=options.mode, tokens=options.tokens)
    (options.out / f"{row.index}.json").write_text(json.dumps(asdict(row)))


def _print_memory(options: argparse.Namespace) -> None:
    mode = "lora" if options.lora else "full"
    updates = measure_memory(shape=options.shape, mode=mode, tokens=options.tokens)
    if options.as_json:
        print(json.dumps([asdict(update) for update in updates]))
        return
    alone = updates[0]
    print(f"{alone.ranks[0].parameters / 1e6:.0f} M parameters, {mode}; MiB of the largest process")
    names = {"processes": 9, "loading": 9, "step": 9, "of one": 8, "CPU s": 9, "wall s": 9, "exchange s": 12}
    print("".join(f"{name:>{width}}" for name, width in names.items()) + f"{'loss':>12}")
    for update in updates:
        cpu_s = sum(rank.cpu_s for rank in update.ranks)
        wall_s, exchange_s = (max(getattr(r, name) for r in update.ranks) for name in ("wall_s", "gather_s"))
        print(
            f"{update.processes:>9}{update.loading:>9.0f}{update.step:>9.0f}{update.step / alone.step:>8.2f}"
            f"{cpu_s:>9.2f}{wall_s:>9.2f}{exchange_s:>12.2f}{update.ranks[0].loss:>12.6f}"
        )


def _print_shards(options: argparse.Namespace) -> None:
    rows = measure_shards(tasks=options.tasks)
    each, episode = fixed_cost(rows)
    if options.as_json:
        document = {"rows": [asdict(row) for row in rows], "shard_cpu_s": each, "episode_cpu_s": episode}
        print(json.dumps(document))
        return
    print(f"{'shards':>6}{'episodes':>10}{'CPU s':>9}{'wall s':>9}{'peak MiB':>10}")
    for row in rows:
        episodes, peak = sum(s.episodes for s in row.shards), max(s.peak for s in row.shards)
        wall_s = max(shard.wall_s for shard in row.shards)
        print(f"{row.count:>6}{episodes:>10}{row.cpu_s:>9.2f}{wall_s:>9.2f}{peak:>10.0f}")
    print(f"a shard costs {each:.2f} CPU s whatever it plays, an episode {1000 * episode:.1f} CPU ms")


if __name__ == "__main__":
    main()
