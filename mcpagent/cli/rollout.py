"""`mcpagent rollout`: collect trajectories with any policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.options import (
    BaseUrl,
    Chosen,
    Data,
    Json,
    Overwrite,
    Samples,
    ToolFormat,
    out_file,
    refuse_existing,
    with_options,
)

if TYPE_CHECKING:
    from mcpagent.console import Console
    from mcpagent.run.rollout import RolloutOutcome

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_options
def rollout(
    policy: Annotated[
        str,
        typer.Option(
            help="gold, empty, over-eager, a checkpoint or run folder, a hub id, or openai:NAME.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            callback=out_file("trajectories.jsonl.zst"),
            help="File for the trajectories: .jsonl.zst, .jsonl.gz or .jsonl; or a folder. Token ids and "
            "logprobs go beside it as .safetensors.",
            show_default=False,
        ),
    ],
    base_url: BaseUrl = None,
    data: Data = None,
    samples: Samples = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 is greedy. Default: rollout.temperature, which is 1.")
    ] = None,
    tool_format: ToolFormat = None,
    *,
    chosen: Chosen,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Collect trajectories with any policy, for analysis: every call is a real one over MCP.

    Where MCPAGENT_CALL_LEDGER names a file, the built-in servers write a line to it for each of these calls.

    Example: mcpagent rollout --policy gold --data data/samples/train.jsonl --out gold.jsonl.zst
    """
    from mcpagent.console import Console
    from mcpagent.run.rollout import rollout as collect
    from mcpagent.storage.trajectories import token_file

    console = Console(is_json=as_json)
    refuse_existing(out, token_file(out), overwrite=overwrite)
    chosen = replace(chosen, tool_format=tool_format, base_url=base_url, temperature=temperature)
    outcome = collect(
        chosen.config(console, policy=policy, data=data),
        policy=policy,
        out=out,
        data=data,
        samples=samples,
        console=console,
    )
    if as_json:
        console.print_json(outcome.as_json())
    else:
        _print(outcome, console)


def _print(outcome: RolloutOutcome, console: Console) -> None:
    from mcpagent.cli.evaluate import print_cassette, print_metrics

    summary = outcome.summary
    print_metrics(summary, console)
    console.say("ended by  " + ", ".join(f"{name} {n}" for name, n in summary.stop_reasons.items()))
    count = outcome.nonces
    console.say(
        f"calls     {count.results.total()} answered by servers, "
        f"{count.stamped.total()} of them with the stamp of a built-in one"
    )
    if outcome.cassette is not None:
        print_cassette(outcome.cassette, console)
    console.say(f"written   {outcome.path}" + (f" and {outcome.tokens}" if outcome.tokens else ""))
