"""`mcpagent train`."""

from __future__ import annotations

import json
import os
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
    gpu_memory: Annotated[
        float | None,
        typer.Option(min=0.1, help="With --dry-run: plan for a GPU of so many GiB, which need not be here."),
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
    if gpu_memory is not None and not dry_run:
        raise UserError(
            "a run trains on what this machine has",
            where="--gpu-memory",
            remedy="add --dry-run, or leave it out",
        )
    files = config or (_started_with(out, algo) if resume and (out or not set_) else ())
    console = Console(is_json=as_json)
    loaded = load_for_dataset(files, overrides, data=None, split="train", note=console.note)
    for note in loaded.notes:
        console.note(note)
    check_inputs(loaded.config, resume=resume, dry_run=dry_run)
    require("hf", use="training")
    trainer = choose(loaded.config, note=console.note, is_dry_run=dry_run)
    if num_processes is not None and not dry_run and "WORLD_SIZE" not in os.environ:
        _launch(num_processes, console)
    if dry_run and trainer.name != "native":
        _show_resolved(trainer, loaded.config, console)
    elif dry_run:
        _show_plan(loaded.config, console, gpu_memory=gpu_memory)
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


def _show_plan(config: TrainConfig, console: Console, *, gpu_memory: float | None) -> None:
    from mcpagent.run.train import plan_run

    # A named device need not be here; only without a name does this machine decide.
    is_named = config.device in ("cuda", "mps") or (
        config.device == "auto" and config.finetune.mode == "qlora"
    )
    planned = gpu_memory or (0.0 if is_named else None)
    result = plan_run(config, gpu_memory_gib=planned, on_note=console.note).as_json()
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

    config, folder = loaded.config, Path()
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
        except KeyboardInterrupt:
            stack.close()
            if (latest := RunFolder(folder).latest_checkpoint()) is not None:
                console.note(f"stopped after step {step_of(latest)}, which is kept; go on with")
                console.note(f"  mcpagent train --config {folder / 'config.yaml'} --resume")
            raise
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
