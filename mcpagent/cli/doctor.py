"""`mcpagent doctor`: check this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.sampling import Json, ToolFormat
from mcpagent.errors import RunError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpagent.console import Console
    from mcpagent.core.metrics import CheckResult

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def doctor(
    servers: Annotated[
        Path | None, typer.Option(help="An mcp.json whose servers to start. Default: the built-in ones.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A dataset, or its folder, to check with the servers that it remembers. Default: train and "
            "validation in data/processed."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A hub id or folder: is it safe to train on its template's tokens?")
    ] = None,
    tool_format: ToolFormat = None,
    hub: Annotated[
        bool,
        typer.Option("--hub", help="Ask the model hub whether it answers: one request over the network."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine: Python, packages, device, servers, API keys, hub, data, disk.

    Exits 1 if a check fails; each failure comes with the command that fixes it. Keys are never shown.
    Nothing leaves this machine, but with --hub, and with a --model that is not on it.

    With --model also whether tokens survive: suffixes that do not depend on the history, calls that read
    back, control tokens that tools cannot forge, and what is done to its logits.

    Example: mcpagent doctor --servers mcp.json
    """
    try:
        from mcpagent.console import Console
        from mcpagent.core.metrics import CheckStatus
        from mcpagent.storage.jsonl import dataset_file
        from mcpagent.workflows.dataset_config import load_for_dataset
        from mcpagent.workflows.doctor import doctor as check_all
    except ModuleNotFoundError as error:
        # The one thing that the checks cannot report: without its base packages mcpagent has no checks.
        raise UserError(
            f"the package {error.name} is missing", remedy="python -m pip install --force-reinstall mcpagent"
        ) from error

    console = Console(is_json=as_json)
    if data is not None:
        data = dataset_file(data, "train", "validation", "heldout")
    if data is not None and servers is None:
        tools = load_for_dataset(data=data, split=None, note=console.note, for_training=False).config.tools
        servers = None if tools.servers is None else Path(tools.servers)
    console.note("checking; servers are started and stopped")
    checks = check_all(servers=servers, data=data, model=model, tool_format=tool_format or "auto", hub=hub)
    if as_json:
        console.print_json(checks)
    else:
        _print(checks, console)
    if any(check.status is CheckStatus.FAIL for check in checks):
        raise typer.Exit(RunError.exit_code)


def _print(checks: Sequence[CheckResult], console: Console) -> None:
    from collections import Counter

    from mcpagent.core.metrics import CheckStatus

    rows = [(check.status.value, check.name, check.detail) for check in checks]
    console.table("mcpagent doctor", ("", "Check", "Detail"), rows, is_text=True)
    counts = Counter(check.status.value for check in checks)
    console.say(", ".join(f"{count} {status}" for status, count in counts.items()))
    wrong = [check for check in checks if check.status in (CheckStatus.FAIL, CheckStatus.WARN)]
    if wrong:
        console.say("To fix it:")
    for check in wrong:
        console.say(f"  {check.name}: {check.remedy}")
