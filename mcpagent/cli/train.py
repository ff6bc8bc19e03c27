"""`mcpagent train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcpagent.cli.sampling import Cassette, CassetteMode, ToolFormat, cassette_settings
from mcpagent.config.loader import LoadedConfig, load_train_config
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.storage.jsonl import find_dataset
from mcpagent.storage.task_file import TaskFile

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    epilog="Example: mcpagent train --config configs/quickstart.yaml --set model.name=PATH --set seed=1"
)
def train(
    config: Annotated[
        list[Path] | None,
        typer.Option(help="A YAML file; repeat it to merge several. Default: the three in configs/."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, a.b=value; may be repeated.")
    ] = None,
    algo: Annotated[str | None, typer.Option(help="grpo or sft.")] = None,
    mode: Annotated[str | None, typer.Option(help="lora or full.")] = None,
    backend: Annotated[str | None, typer.Option(help="auto, hf or vllm: what samples the episodes.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    tool_format: ToolFormat = None,
    cassette: Cassette = None,
    cassette_mode: CassetteMode = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved plan; load no model, write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Train a policy: GRPO on real episodes, or supervised on gold demonstrations."""
    options = {
        "algorithm": algo,
        "finetune.mode": mode,
        "rollout.backend": backend,
        "rollout.tool_format": tool_format,
        "device": device,
        **cassette_settings(cassette, cassette_mode),
    }
    overrides = [*(set_ or ()), *(f"{key}={value}" for key, value in options.items() if value is not None)]
    loaded = load_train_config(config or (), overrides)
    console = Console(is_json=as_json)
    for note in loaded.notes:
        console.note(note)
    if dry_run:
        _show_plan(loaded, console)
    else:
        _train(loaded, console, resume=resume)


def _show_plan(loaded: LoadedConfig, console: Console) -> None:
    from mcpagent.train.plan import plan

    with TaskFile(
        find_dataset(loaded.config.data.train, split="train"), max_tasks=loaded.config.data.max_tasks
    ) as tasks:
        result = plan(loaded.config, tasks).as_json()
    if console.is_json:
        console.print_json(result)
        return
    rows = [(key.replace("_", " "), _shown(value)) for key, value in result.items()]
    console.table("Plan (nothing was loaded or written)", ("", "value"), rows)


def _train(loaded: LoadedConfig, console: Console, *, resume: bool) -> None:
    from mcpagent.workflows.train import Watch, train

    config = loaded.config
    title = "GRPO" if config.algorithm == "grpo" else "supervised"
    with console.progress(title) as advance:

        def on_step(record: JsonObject) -> None:
            advance(note=_step_note(record))

        outcome = train(config, resume=resume, watch=Watch(on_step=on_step, note=console.note))
    if console.is_json:
        console.print_json(outcome.as_json())
        return
    console.say(f"run         {outcome.run_dir}")
    console.say(f"checkpoint  {outcome.best_checkpoint}")
    console.say(f"next        mcpagent eval checkpoint {outcome.best_checkpoint} --data FILE")
    console.say(f"            mcpagent report {outcome.run_dir}")


def _step_note(record: JsonObject) -> str:
    """The one line beside the bar."""
    if "reward_mean" in record:
        return f"reward {record['reward_mean']:.2f}  success {record['success_rate']:.0%}"
    return f"loss {record['loss']:.3f}" if "loss" in record else ""


def _shown(value: object) -> str:
    if value is None:
        return "unknown until the model is loaded"
    if isinstance(value, float):
        return f"{value:.2f}"
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
