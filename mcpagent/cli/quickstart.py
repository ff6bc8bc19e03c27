"""`mcpagent quickstart`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mcpagent.cli.options import ConfigOptions, Json
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.interrupts import Interrupted
from mcpagent.storage.packages import require

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_ROWS = (
    ("success, greedy", "task_success_all"),
    ("  scored only", "task_success"),
    ("success, temperature 1", "task_success_sampled_all"),
    ("  scored only", "task_success_sampled"),
    ("tool sequence exact", "tool_sequence_accuracy"),
    ("invalid calls", "invalid_call_rate"),
)

_WHAT_IT_IS = (
    "What this is: a network of half a million weights, warm-started on demonstrations that mostly stop",
    "too early; GRPO taught it to finish. It shows that the loop learns, not a general agent.",
)


@app.command()
def quickstart(
    servers: Annotated[
        Path | None,
        typer.Option(
            help="An mcp.json: explore these servers, and learn to use them. Default: the built-in ones."
        ),
    ] = None,
    read_only: Annotated[
        str | None,
        typer.Option(
            metavar="TOOL,...",
            help="With --servers: server.tool or a server that only reads, though it does not say so; it may "
            "be called to see what it does.",
        ),
    ] = None,
    seed_value: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SERVER.][TOOL.]PARAM=VALUE",
            help="With --servers: a value that exploring cannot guess; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run. Default: outputs/quickstart, with --servers outputs/own."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Everything random follows from it.")] = 0,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also run the control experiments (three times as long).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a small agent on real MCP tools, offline, and show that it learned.

    Takes a few minutes on one CPU core. A second call goes on where the first stopped. With --servers the
    tools are those of an mcp.json: tasks are made from what those that only read are seen to answer.

    Example: mcpagent quickstart --out outputs/quickstart --seed 1

    Example: mcpagent quickstart --servers mcp.json --read-only library.get_book
    """
    from mcpagent.demo.job import Stages, check_folder

    for option, value in (("--read-only", read_only), ("--seed-value", seed_value)):
        if servers is None and value is not None:
            raise UserError(f"{option} is for servers of your own", remedy="name them: --servers mcp.json")
    if out is None:
        out = Path("outputs/quickstart" if servers is None else "outputs/own")
    check_folder(out, seed=seed, servers=None if servers is None else str(servers))
    require("hf", "report", use="the quickstart")
    from mcpagent.demo.controls import run_controls
    from mcpagent.demo.explored import ExploredServers
    from mcpagent.demo.quickstart import quickstart
    from mcpagent.synth.generate import read_seed_values

    console = Console(is_json=as_json)
    explored = None
    if servers is not None:
        tools = ConfigOptions(servers=servers, read_only=read_only).config(console, has_data=False).tools
        explored = ExploredServers(tools=tools, seed_values=read_seed_values(seed_value or (), None))

    @contextmanager
    def begin(title: str, total: int | None) -> Iterator[Any]:
        with console.progress(title, total=total) as advance:
            yield advance

    try:
        document = quickstart(
            out,
            seed=seed,
            stages=Stages(begin=begin, note=console.note),
            explored=explored,
            controls=run_controls if controls else None,
        )
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"what is finished is kept in {out}") from interrupt
    if as_json:
        console.print_json(document)
    else:
        _show(document, console)


def _show(document: JsonObject, console: Console) -> None:
    before, after = document["warm_start"]["metrics"], document["trained"]["metrics"]
    rows = [(title, _shown(before[name]), _shown(after[name])) for title, name in _ROWS]
    n = after["task_success"]["n"]
    console.table(
        f"{n} held-out tasks, before and after GRPO (95% intervals)", ("", "warm start", "trained"), rows
    )
    calls = document["tool_calls"]
    counted = "" if calls["servers"] is None else f"; the servers counted {calls['servers']} calls"
    console.say(f"{calls['trajectories']} tool results over MCP in the trajectories{counted}")
    if "controls" in document:
        tried = [
            (f"{row['name']}{note}", _shown(row[f"greedy{suffix}"]), _shown(row[f"sampled{suffix}"]), cpu_s)
            for row in document["controls"]
            for note, suffix, cpu_s in (("", "_all", row["cpu_s"]), (", scored only", "", ""))
        ]
        columns = ("control", "success, greedy", "success, temperature 1", "CPU s")
        console.table("What else was tried, with the CPU seconds of the GRPO steps", columns, tried)
    if "wasteful" in document:
        shown = [
            (
                row["name"],
                *(_shown(row[key]) for key in ("success", "as_planned")),
                f"{row['calls']['value']:.2f}",
            )
            for row in document["wasteful"]
        ]
        columns = ("trained by", "success, temperature 1", "calls as planned", "calls")
        console.table("Right, but wasteful: what comparing attempts is for", columns, shown)
    for line in _WHAT_IT_IS:
        console.say(line)
    data = f"{document['run_dir']}/data"
    console.say(f"report  {document['report']}")
    console.say("next")
    console.say(f"  mcpagent eval checkpoint {document['checkpoint']} --data {data}/heldout.jsonl")
    console.say("  mcpagent tools list")
    console.say(f"  mcpagent train --dry-run --set data.train={data}/train.jsonl")


def _shown(metric: JsonObject) -> str:
    return f"{metric['value']:.1%} [{metric['ci_low']:.1%}, {metric['ci_high']:.1%}]"
