"""`mcpagent env`: check the environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.sampling import (
    Cassette,
    CassetteMode,
    Chosen,
    ConfigFiles,
    Json,
    MaxTasks,
    Seed,
    Servers,
    Settings,
)

if TYPE_CHECKING:
    from mcpagent.console import Console
    from mcpagent.workflows.env_check import EnvCheckOutcome

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Check the environment.")
_SHOWN = 20  # failing tasks listed on a terminal; --json has all


@app.callback()
def _group() -> None:
    """A group of commands, though there is one now."""


@app.command()
def check(
    data: Annotated[
        Path | None,
        typer.Option(help="Tasks: .jsonl or .json, also .gz and .zst. Default: a small sample set."),
    ] = None,
    servers: Servers = None,
    cassette: Cassette = None,
    cassette_mode: CassetteMode = None,
    max_tasks: MaxTasks = None,
    seed: Seed = None,
    config: ConfigFiles = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Check that the environment tells right from wrong; exits 1 where it does not.

    The gold plan must score 1.0 on every task, silence must fail every task but those where no call is right,
    and a policy that always calls must fail those. MCPToolEnv must have the methods that SkyRL calls.

    Example: mcpagent env check --data data/processed/train.jsonl
    """
    from mcpagent.console import Console
    from mcpagent.workflows.env_check import env_check

    console = Console(is_json=as_json)
    chosen = Chosen(
        files=config,
        settings=settings,
        servers=servers,
        cassette=cassette,
        cassette_mode=cassette_mode,
        max_tasks=max_tasks,
        seed=seed,
    )
    outcome = env_check(chosen.config(console), data=data, console=console)
    if as_json:
        console.print_json(outcome.as_json())
    else:
        _print(outcome, console)
    if not outcome.passed:
        raise typer.Exit(1)


def _print(outcome: EnvCheckOutcome, console: Console) -> None:
    console.say(f"{outcome.n_tasks} tasks from {outcome.source}")
    for result in outcome.checks:
        console.say(f"{result.status.value:<5} {result.name}: {result.detail}")
        if result.remedy is not None:
            console.say(f"      {result.remedy}")
    if outcome.failing:
        console.say("failing tasks:")
    for task_id, names in list(outcome.failing.items())[:_SHOWN]:
        console.say(f"  {task_id}: {'; '.join(names)}")
    if len(outcome.failing) > _SHOWN:
        console.say(f"  and {len(outcome.failing) - _SHOWN} more (--json lists all)")
