"""`mcpagent train`."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from mcpagent.cli.options import (
    CassetteModeOption,
    CassetteOption,
    Json,
    Model,
    Seed,
    Servers,
    Settings,
    ToolFormat,
    cassette_settings,
)
from mcpagent.config.loader import LoadedConfig
from mcpagent.config.schema import TrainConfig
from mcpagent.config.source import write_tree
from mcpagent.console import Advance, Console, ProgressRate, duration
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.engines import Engine, choose
from mcpagent.errors import UserError
from mcpagent.interrupts import Interrupted
from mcpagent.run.episodes import load_for_dataset
from mcpagent.run.inputs import check_inputs
from mcpagent.storage.packages import require
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.runs import last_run

_SHUTDOWN_S = 10  # for the processes that are left when one has failed, before they are killed

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def train(
    config: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A YAML file; repeat it to merge several. Default: the three in configs/."
        ),
    ] = None,
    set_: Settings = None,
    data: Annotated[
        str | None,
        typer.Option(help="A dataset's folder, or the file to train on with validation.jsonl beside it."),
    ] = None,
    servers: Servers = None,
    model: Model = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: a new one in outputs/.")
    ] = None,
    seed: Seed = None,
    engine: Annotated[
        str | None, typer.Option(help="native, skyrl (SkyRL on Ray: docs/scale.md) or auto: what trains.")
    ] = None,
    bake_tools: Annotated[
        bool,
        typer.Option("--bake-tools", help="With --engine skyrl: write the tools' schemas into the records."),
    ] = False,
    algo: Annotated[
        str | None, typer.Option(help="grpo, ppo (GRPO with a value head: configs/ppo.yaml) or sft.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="lora, qlora (4 bits, CUDA) or full.")] = None,
    backend: Annotated[str | None, typer.Option(help="auto, hf or vllm: what samples the episodes.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    tool_format: ToolFormat = None,
    cassette: CassetteOption = None,
    cassette_mode: CassetteModeOption = None,
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
            help="Print the plan, or what the run would refuse; load no weights, write nothing. Of a model "
            "that is not on this machine it asks the hub for the config.json.",
        ),
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Print the memory that the model takes by part on 1 to 16 devices, then that of models of "
            "0.6B to 32B with LoRA, QLoRA and all weights, and the largest that fits. Needs no data.",
        ),
    ] = False,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="With --dry-run or --estimate: plan for GPUs of so many GiB, which need not be here.",
        ),
    ] = None,
    num_processes: Annotated[
        int | None,
        typer.Option(min=1, help="Train in so many processes of this machine, one a GPU (starts torchrun)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a policy: GRPO on real episodes, or supervised on gold demonstrations.

    Example: mcpagent train --config configs/quickstart.yaml --set model.name=PATH --set seed=1
    """
    options = {
        "data.train": None if data is None else json.dumps(data),
        "tools.servers": None if servers is None else json.dumps(str(servers)),
        "model.name": None if model is None else json.dumps(model),
        "seed": seed,
        **_run_settings(out),
        "engine": engine,
        "skyrl.bake_tools": "true" if bake_tools else None,
        "algorithm": algo,
        "finetune.mode": mode,
        "rollout.backend": backend,
        "rollout.tool_format": tool_format,
        "device": device,
        **cassette_settings(cassette, cassette_mode),
    }
    overrides = [*(set_ or ()), *(f"{key}={value}" for key, value in options.items() if value is not None)]
    if gpu_memory is not None and not (dry_run or estimate):
        raise UserError(
            "a run trains on what this machine has",
            where="--gpu-memory",
            remedy="add --dry-run or --estimate, or leave it out",
        )
    files = config or (_started_with(out, algo) if resume and (out or not set_) else ())
    console = Console(is_json=as_json)
    loaded = load_for_dataset(files, overrides, data=None, split="train", note=console.note)
    for note in loaded.notes:
        console.note(note)
    if estimate:
        require("hf", use="the shape of a model")
        _show_estimate(loaded.config, console, gpu_memory=gpu_memory)
        return
    check_inputs(loaded.config, resume=resume, dry_run=dry_run)
    require("hf", use="training")
    trainer = choose(loaded.config, note=console.note, is_dry_run=dry_run)
    if num_processes is not None and not dry_run and "WORLD_SIZE" not in os.environ:
        _launch(num_processes, console)
    if dry_run and trainer.name != "native":
        _show_resolved(trainer, loaded.config, console)
    elif dry_run:
        _show_plan(loaded.config, console, gpu_memory=gpu_memory, count=num_processes)
    else:
        _train(trainer, loaded, console, resume=resume)


def _launch(count: int, console: Console) -> NoReturn:
    """Become torchrun, which starts this command `count` times, and ends all where one fails."""
    words, torchrun = sys.argv[1:], [sys.executable, "-m", "torch.distributed.run"]
    options = ["--standalone", "--nproc-per-node", str(count), "--shutdown-timeout", str(_SHUTDOWN_S)]
    console.flush()
    os.execv(sys.executable, [*torchrun, *options, "-m", "mcpagent.cli.main", *words])


def _run_settings(out: Path | None) -> dict[str, str | None]:
    """What `--out` sets."""
    if out is None:
        return {}
    return {"output_dir": json.dumps(str(out.parent)), "name": json.dumps(out.name or out.resolve().name)}


def _started_with(out: Path | None, algo: str | None) -> list[Path]:
    """The settings of the run that is to be resumed, where it can be told which one that is."""
    if out is None:
        try:
            out = last_run(Path("outputs"), kind=algo or "grpo")
        except UserError:
            return []  # the configuration may name another folder
    return [RunFolder.open(out).config_path]


def _show_resolved(trainer: Engine, config: TrainConfig, console: Console) -> None:
    """The run in the settings of another trainer, all of them."""
    from mcpagent.storage.runs import planned_folder

    run_dir = planned_folder(Path(config.output_dir), config.name)
    settings = trainer.resolved(config, run_dir=run_dir)
    if console.is_json:
        console.print_json({"engine": trainer.name, "run_dir": str(run_dir), "settings": settings})
    else:
        console.say(write_tree(settings).rstrip())
    for note in trainer.notes(config):
        console.note(note)


def _show_estimate(config: TrainConfig, console: Console, *, gpu_memory: float | None) -> None:
    from mcpagent.train.forecast import DEVICES, Estimate
    from mcpagent.train.plan import estimate_run

    made = estimate_run(config, gpu_memory_gib=gpu_memory)
    notes = [f"architecture: {made.architecture}"]
    if not made.configured:
        notes.append("the memory of the configured model is not known: see the other models")
    elif made.configured[-1].parallel == "fsdp" and config.training.parallel != "fsdp":
        notes.append(
            "several devices share the weights with --set training.parallel=fsdp; else each holds all"
        )
    if any(row.parallel != "replicate" for row in made.table):
        notes.append("with shards, vLLM servers on other devices sample the episodes; they are not counted")
    if any(row.mode == "qlora" for row in made.table):
        notes.append("weights of 4 bits are not sharded: with qlora each device holds all of them")
    if made.device_memory_gib is None:
        notes.append("the memory of a device is not known: --gpu-memory GIB names it")
    if config.training.cpu_offload:
        notes.append("training.cpu_offload: what several devices share is in the memory of the host")
    if console.is_json:
        console.print_json(made.as_json() | {"notes": notes})
        return

    def cell(row: Estimate) -> str:
        return f"{row.memory_gib:.1f}{'!' if row.fits is False else ''}"

    heads = [f"{count} device{'s' if count > 1 else ''}" for count in DEVICES]
    if made.configured:
        first = made.configured[0]
        names = [n for n in first.memory_gib_by_part if any(r.memory_gib_by_part[n] for r in made.configured)]
        rows = [
            (name.replace("_", " "), *(f"{row.memory_gib_by_part[name]:.1f}" for row in made.configured))
            for name in names
        ]
        if any(row.host_gib for row in made.configured):
            rows.append(("(on the host)", *(f"{row.host_gib:.1f}" for row in made.configured)))
        rows.append(("at most at once", *map(cell, made.configured)))
        title = f"{first.model}, {first.mode}, {made.dtype}: GiB that each {made.device} device holds"
        console.table(title, ("part", *heads), rows)
    by_row = {(row.model, row.mode): row for row in made.table}
    rows = [
        (model, mode, *(cell(row) for row in made.table if (row.model, row.mode) == (model, mode)))
        for model, mode in by_row
    ]
    memory = made.device_memory_gib
    title = "Other models, with the same settings" + (
        "" if memory is None else f"; ! does not fit into {memory:.0f} GiB"
    )
    console.table(title, ("model", "mode", *map(str, DEVICES)), rows)
    sizes = {row["device_memory_gib"]: None for row in made.largest}
    modes = {row["mode"]: None for row in made.largest}
    rows = [
        (
            f"{size:.0f} GiB",
            mode,
            *(
                str(row["model"] or "none").rpartition("-")[2]
                for row in made.largest
                if (row["device_memory_gib"], row["mode"]) == (size, mode)
            ),
        )
        for size in sizes
        for mode in modes
    ]
    console.table("The largest of them that fits", ("device", "mode", *map(str, DEVICES)), rows)
    for note in notes:
        console.note(note)


def _show_plan(config: TrainConfig, console: Console, *, gpu_memory: float | None, count: int | None) -> None:
    from mcpagent.run.train import plan_run

    # A named device need not be here; only without a name does this machine decide.
    is_named = config.device in ("cuda", "mps") or (
        config.device == "auto" and config.finetune.mode == "qlora"
    )
    planned = gpu_memory or (0.0 if is_named else None)
    result = plan_run(config, gpu_memory_gib=planned, count=count, on_note=console.note).as_json()
    notes = result.pop("notes")
    if console.is_json:
        console.print_json(result | {"notes": notes})
    else:
        rows = [(key.replace("_", " "), _shown(value)) for key, value in result.items()]
        console.table("Plan (nothing was loaded or written)", ("", "value"), rows)
    for note in notes:
        console.note(note)


def _train(trainer: Engine, loaded: LoadedConfig, console: Console, *, resume: bool) -> None:
    from mcpagent.run.episodes import next_data
    from mcpagent.run.lifecycle import Watch

    config = loaded.config
    folder: Path | None = None
    is_grpo = config.algorithm == "grpo"
    of_step = f"/{config.prompts_per_step * config.rollout.group_size}" if is_grpo else ""
    last, episodes = "", 0
    with ExitStack() as stack:
        advance: Advance = lambda amount=1, *, note="": None  # noqa: E731 - until the bar is there

        def on_folder(path: Path) -> None:
            nonlocal folder
            folder = path
            console.note(f"run folder: {path}")

        rows, pace = _Rows(), ProgressRate(None)

        def on_start(done: int, total: int) -> None:
            nonlocal advance, pace
            bar = console.progress(config.method.upper() if is_grpo else "supervised", total=total)
            advance = stack.enter_context(bar)
            advance(done)
            pace = ProgressRate(total)
            pace.add(done)
            console.note(rows.head(is_grpo=is_grpo))

        def on_episode(_: Trajectory) -> None:
            nonlocal episodes
            episodes += 1
            advance(0, note=f"{last}  episodes {episodes}{of_step}".lstrip())

        def on_step(record: JsonObject) -> None:
            nonlocal last, episodes
            last, episodes = _step_note(record), 0
            pace.add(1)
            console.note(rows.row(record, left_s=pace.left_s(time.monotonic())))
            advance(note=last)

        watch = Watch(
            on_folder=on_folder, on_start=on_start, on_step=on_step, on_episode=on_episode, note=console.note
        )
        try:
            outcome = trainer.run(config, resume=resume, watch=watch)
        except KeyboardInterrupt as interrupt:
            if folder is None or not (run := RunFolder(folder)).config_path.is_file():
                raise
            latest = run.latest_checkpoint()
            where = "before its first checkpoint"
            if latest is not None:
                where = f"after step {step_of(latest)}, which is kept"
            command = f"mcpagent train --config {shlex.quote(str(run.config_path))} --resume"
            raise Interrupted(f"stopped {where}", command=command) from interrupt
    if int(os.environ.get("RANK", "0")):
        return  # of several processes, the first says how it went
    if console.is_json:
        console.print_json(outcome.as_json())
    else:
        console.say(f"run         {outcome.run_dir}")
        console.say(f"ended       after step {outcome.steps}: {outcome.stop_reason}")
        console.say(f"last step   {_step_note(outcome.metrics) or 'none'}")
        console.say(
            f"checkpoint  {outcome.best_checkpoint}{' (the last good one)' if outcome.is_ill else ''}"
        )
        console.say(
            f"next        mcpagent eval checkpoint {outcome.best_checkpoint} --data {next_data(config)}"
        )
        console.say(f"            mcpagent report {outcome.run_dir}")
    if outcome.is_ill:
        raise typer.Exit(1)


class _Rows:
    """The table of a run, a row a step."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def head(self, *, is_grpo: bool) -> str:
        """The names of the columns."""
        self._last_s = time.monotonic()
        names = ("reward", "success", "KL", "length") if is_grpo else ("loss", "", "", "")
        return f"{'step':>7}" + "".join(f"{name:>9}" for name in (*names, "tokens/s", "left"))

    def row(self, record: JsonObject, *, left_s: float | None) -> str:
        """A step. `length` is tokens an episode; tokens/s counts what the step trained on."""
        now = time.monotonic()
        passed, self._last_s = now - self._last_s, now
        tokens, episodes = record.get("tokens", 0), record.get("episodes", 0)
        kl = record.get("kl", record.get("approx_kl"))
        cells = (
            [
                _cell(record.get("reward_mean"), ".3f"),
                _cell(record.get("success_rate_all", record.get("success_rate")), ".0%"),
                _cell(kl, ".4f"),
                _cell(tokens / episodes if episodes else None, ".0f"),
            ]
            if "reward_mean" in record
            else [_cell(record.get("loss"), ".4f"), "", "", ""]
        )
        cells += [_cell(tokens / passed if passed else None, ".0f"), duration(left_s) if left_s else ""]
        return f"{record['step']:>7}" + "".join(f"{cell:>9}" for cell in cells)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _step_note(record: JsonObject) -> str:
    """The one line beside the bar."""
    if "reward_mean" in record:
        shown = f"reward {record['reward_mean']:.2f}  success {record['success_rate_all']:.0%}"
        if unscored := record["unscored"]:
            shown += f" ({record['success_rate']:.0%} of the scored, {unscored} unscored)"
        validated = record.get("validation_success_all")
        return shown if validated is None else f"{shown}  validation {validated:.0%}"
    return f"loss {record['loss']:.3f}" if "loss" in record else ""


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
