"""`mcpagent train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mcpagent.cli.options import (
    Json,
    Model,
    Seed,
    Servers,
    Settings,
    settings_of,
)
from mcpagent.cli.train_progress import TrainProgress, step_note
from mcpagent.config.schema import TrainConfig
from mcpagent.config.source import write_tree
from mcpagent.console import Block, Console, Facts, Table
from mcpagent.engines import Engine, choose
from mcpagent.errors import UserError
from mcpagent.storage.packages import require
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.runs import last_run, planned_folder

if TYPE_CHECKING:
    from mcpagent.run.lifecycle import TrainOutcome

_SHUTDOWN_S = 10  # for the processes that are left when one has failed, before they are killed


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The configuration of a run, as the options give it."""

    config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A YAML file; repeat it to merge several. Default: the three in configs/."
        ),
    ] = None
    set_: Settings = None
    data: Annotated[
        str | None,
        typer.Option(help="A dataset's folder, or the file to train on with validation.jsonl next to it."),
    ] = None
    servers: Servers = None
    model: Model = None
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: a new one in outputs/.")] = (
        None
    )
    seed: Seed = None
    algo: Annotated[
        str | None, typer.Option(help="grpo, ppo (GRPO with a value head: configs/ppo.yaml) or sft.")
    ] = None
    mode: Annotated[str | None, typer.Option(help="lora, qlora (4 bits, CUDA) or full.")] = None
    backend: Annotated[str | None, typer.Option(help="auto, hf or vllm: what samples the episodes.")] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None
    no_eval: Annotated[
        bool, typer.Option("--no-eval", help="Train only: play no held-out or validation tasks.")
    ] = False

    def load(self, console: Console, *, resume: bool) -> TrainConfig:
        """Return the checked configuration: the files (to resume: those of the run), `--set`, the options.
        Raises UserError."""
        from mcpagent.run.episodes import load_for_dataset

        out = self.out
        options = {
            "data.train": self.data,
            "tools.servers": None if self.servers is None else str(self.servers),
            "model.name": self.model,
            "seed": self.seed,
            "output_dir": None if out is None else str(out.parent),
            "name": None if out is None else out.name or out.resolve().name,
            "algorithm": self.algo,
            "finetune.mode": self.mode,
            "rollout.backend": self.backend,
            "device": self.device,
            "training.eval_samples": 0 if self.no_eval else None,
            "training.eval_every": 0 if self.no_eval else None,
        }
        files = self.config or (self._started_with() if resume and (out or not self.set_) else ())
        overrides = [*(self.set_ or ()), *settings_of(options)]
        return load_for_dataset(files, overrides, data=None, split="train", note=console.note)

    def _started_with(self) -> list[Path]:
        """Return the settings of the run to resume, if it can be told which one that is."""
        out = self.out
        if out is None:
            try:
                out = last_run(Path("outputs"), kind=self.algo or "grpo")
            except UserError:
                return []  # the configuration may name another folder
        return [RunFolder.open(out).config_path]


def train(
    options: RunOptions,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue from the last checkpoint: the run in --out, else the last one in outputs/, with "
            "the settings that it was started with.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan, or what the run would refuse; load no weights, write nothing. If the model "
            "is not on this machine, the hub is asked for its config.json.",
        ),
    ] = False,
    gpu_memory: Annotated[
        float | None,
        typer.Option(min=0.1, help="With --dry-run: plan for GPUs with this many GiB, also if none is here."),
    ] = None,
    num_processes: Annotated[
        int | None,
        typer.Option(min=1, help="Train in this many processes, one per GPU (starts torchrun)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a policy: GRPO on real episodes, or supervised on gold demonstrations.

    Everything else is a key of the configuration: --set KEY=VALUE.

    Example: mcpagent train --config configs/quickstart.yaml --set model.name=PATH --set seed=1
    """
    from mcpagent.run.inputs import check_inputs

    if gpu_memory is not None and not dry_run:
        raise UserError(
            "--gpu-memory is for a plan: a run trains on the devices of this machine",
            where="--gpu-memory",
            remedy="add --dry-run, or leave it out",
        )
    console = Console(is_json=as_json)
    config = options.load(console, resume=resume)
    check_inputs(config, resume=resume, dry_run=dry_run)
    require("hf", use="training")
    trainer = choose(config, is_dry_run=dry_run)
    if num_processes is not None and not dry_run and "WORLD_SIZE" not in os.environ:
        _launch(num_processes, console)
    if dry_run and trainer.name != "native":
        _show_resolved(trainer, config, console)
    elif dry_run:
        _show_plan(config, console, gpu_memory=gpu_memory, count=num_processes)
    else:
        _train(trainer, config, console, resume=resume)


def _launch(count: int, console: Console) -> NoReturn:
    """Become torchrun, which starts this command `count` times, and ends all if one fails."""
    words, torchrun = sys.argv[1:], [sys.executable, "-m", "torch.distributed.run"]
    options = ["--standalone", "--nproc-per-node", str(count), "--shutdown-timeout", str(_SHUTDOWN_S)]
    console.flush()
    os.execv(sys.executable, [*torchrun, *options, "-m", "mcpagent.cli.main", *words])


def _show_resolved(trainer: Engine, config: TrainConfig, console: Console) -> None:
    """Print the run in the settings of another trainer, all of them."""
    run_dir = planned_folder(Path(config.output_dir), config.name)
    settings = trainer.resolved(config, run_dir=run_dir)
    document = {"engine": trainer.name, "run_dir": str(run_dir), "settings": settings}
    console.print_blocks(document, [write_tree(settings).rstrip()])
    for note in trainer.notes:
        console.note(note)


def _show_plan(config: TrainConfig, console: Console, *, gpu_memory: float | None, count: int | None) -> None:
    from mcpagent.run.train import plan_run

    # A named device need not be here; only without a name does this machine decide.
    is_named = config.device in ("cuda", "mps") or (
        config.device == "auto" and config.finetune.mode == "qlora"
    )
    planned = gpu_memory or (0.0 if is_named else None)
    document = plan_run(config, gpu_memory_gib=planned, count=count, on_note=console.note)
    rows = [(key.replace("_", " "), _shown(value)) for key, value in document.items() if key != "notes"]
    console.print_blocks(document, [Table("Plan (nothing was loaded or written)", ("", "value"), rows)])
    for note in document["notes"]:
        console.note(note)


def _shown(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return "\n".join(f"{name.replace('_', ' ')} {_shown(part)}" for name, part in value.items() if part)
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _train(trainer: Engine, config: TrainConfig, console: Console, *, resume: bool) -> None:
    with TrainProgress(config, console) as progress:
        outcome = trainer.run(config, resume=resume, watch=progress.watch)
    if int(os.environ.get("RANK", "0")):
        return  # of several processes, the first says how it went
    console.print_blocks(outcome, _trained(outcome, config))
    if outcome.is_ill:
        raise typer.Exit(1)


def _trained(outcome: TrainOutcome, config: TrainConfig) -> Iterator[Block]:
    from mcpagent.run.episodes import next_data

    best = str(outcome.best_checkpoint)
    yield Facts(
        [
            ("run", str(outcome.run_dir)),
            ("ended", f"after step {outcome.steps}: {outcome.stop_reason}"),
            ("last step", step_note(outcome.metrics) or "none"),
            ("checkpoint", best + (" (the last good one)" if outcome.is_ill else "")),
            ("note", outcome.advice),
            ("next", f"mcpagent eval checkpoint {best} --data {next_data(config)}"),
            ("", f"mcpagent report {outcome.run_dir}"),
        ]
    )
