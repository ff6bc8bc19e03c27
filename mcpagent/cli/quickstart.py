"""`mcpagent quickstart`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mcpagent.cli.options import ConfigOptions, HeldoutServer, Json, ReadOnly, SeedValue, Servers, Settings
from mcpagent.cli.readers import YesReadOnly, with_readers
from mcpagent.cli.results import part_blocks
from mcpagent.console import Block, Console, Facts, Table, duration
from mcpagent.core.records import JsonObject, Metric
from mcpagent.errors import UserError
from mcpagent.interrupts import Interrupted
from mcpagent.storage.packages import require
from mcpagent.storage.run_folder import step_of

_ROWS = (
    ("success, greedy", "task_success"),
    ("  scored only", "task_success_scored"),
    ("success, temperature 1", "task_success_sampled"),
    ("  scored only", "task_success_sampled_scored"),
    ("tool sequence exact", "tool_sequence_accuracy"),
    ("invalid calls", "invalid_call_rate"),
)

_ROWS_OF_FORM = (
    ("answer in form", "answer_form_rate"),
    ("success in any form (upper bound)", "success_in_any_form"),
)

_WHAT_IT_IS = (
    "What this is: a network of half a million weights, warm-started on demonstrations that mostly stop",
    "too early; GRPO taught it to finish. It shows that the loop learns, not a general agent.",
)


def quickstart(
    model: Annotated[
        str | None,
        typer.Option(
            help="A pretrained model: a folder or a hub id. Default: a network of half a million weights, "
            "which is built from nothing."
        ),
    ] = None,
    servers: Servers = None,
    read_only: ReadOnly = None,
    yes_read_only: YesReadOnly = False,
    seed_value: SeedValue = None,
    heldout_server: HeldoutServer = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. Default: outputs/quickstart, with --servers outputs/own, with --model "
            "outputs/ and its name."
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=1, help="With --model: how long all but the controls may take. Default: 60."),
    ] = None,
    settings: Settings = None,
    seed: Annotated[int, typer.Option(min=0, help="Everything random follows from it.")] = 0,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also run the control experiments (about three times as long).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a small agent on real MCP tools, offline, and show that it learned.

    Takes a few minutes on one CPU core. A second call continues the run. With --servers the
    tools are those of an mcp.json: tasks are made from what its tools answer that only read. With
    --model a pretrained model is measured, with no and with two demonstrations before the question, then
    warm-started on a few, trained by GRPO and measured again, fitted to this machine and the minutes; every
    gain is told against the better of the first two. --set is for both of its runs.

    Example: mcpagent quickstart --out outputs/quickstart --seed 1

    Example: mcpagent quickstart --servers mcp.json --read-only library.get_book

    Example: mcpagent quickstart --servers mcp.json --heldout-server library

    Example: mcpagent quickstart --model Qwen/Qwen2.5-0.5B-Instruct --minutes 60
    """
    from mcpagent.demo.explored import ExploredServers, named_servers
    from mcpagent.demo.job import Stages, check_folder

    for option, value in (
        ("--read-only", read_only),
        ("--yes-read-only", yes_read_only or None),
        ("--seed-value", seed_value),
        ("--heldout-server", heldout_server),
    ):
        if servers is None and value is not None:
            raise UserError(f"{option} is for servers of your own", remedy="name them: --servers mcp.json")
    for option, value in (("--minutes", minutes), ("--set", settings)):
        if model is None and value is not None:
            raise UserError(f"{option} is for a pretrained model", remedy="name it: --model FOLDER")
    if out is None:
        default = "quickstart" if servers is None else "own"
        out = Path("outputs") / (default if model is None else Path(model).name)
    named = None if servers is None else named_servers(str(servers), heldout_server or ())
    check_folder(out, seed=seed, servers=named, model=model)
    require("hf", "report", use="the quickstart")
    from mcpagent.demo.controls import run_controls
    from mcpagent.demo.pretrained import DEFAULT_MINUTES, Pretrained
    from mcpagent.demo.quickstart import quickstart
    from mcpagent.synth.generate import read_seed_values

    console = Console(is_json=as_json)
    explored = None
    if servers is not None:
        options = ConfigOptions(servers=servers)
        tools = options.config(console, has_data=False, read_only=read_only).tools
        tools = with_readers(tools, console, takes_guess=yes_read_only, folder=out / "data")
        explored = ExploredServers(
            tools=tools,
            seed_values=read_seed_values(seed_value or ()),
            heldout_servers=heldout_server or (),
        )

    try:
        document = quickstart(
            out,
            seed=seed,
            stages=Stages(begin=lambda title, total: console.progress(title, total=total), note=console.note),
            explored=explored,
            pretrained=None
            if model is None
            else Pretrained(model=model, minutes=minutes or DEFAULT_MINUTES, settings=settings or ()),
            controls=run_controls if controls else None,
        )
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"what is finished is kept in {out}") from interrupt
    console.print_blocks(document, result_blocks(document, servers))


def result_blocks(document: JsonObject, servers: Path | None) -> Iterator[Block]:
    """Yield what the quickstart came to, and what to type next."""
    from mcpagent.evaluate.baseline import BASELINE_SHOTS
    from mcpagent.evaluate.compare import Comparison
    from mcpagent.evaluate.summary import ABOUT_ANY_FORM

    sides = [name for name in (*BASELINE_SHOTS, "warm_start", "trained") if name in document]
    measured = [document[name]["metrics"] for name in sides]
    shown = (*_ROWS, *(_ROWS_OF_FORM if "gains" in document else ()))
    rows = [(title, *(_shown(metrics[name]) for metrics in measured)) for title, name in shown]
    count, has_grpo = measured[-1]["task_success"]["n"], "trained" in document
    what = "GRPO" if has_grpo else "the warm start; there was no time for GRPO"
    title = f"{count} held-out tasks, before and after {what} (95% intervals)"
    yield Table(title, ("", *(name.replace("_", " ") for name in sides)), rows)
    compared = {how: Comparison.model_validate(one) for how, one in document["comparison"].items()}
    if compared:
        yield from part_blocks(compared, ("warm start", "trained"))
    if "gains" in document:
        yield ABOUT_ANY_FORM
        yield from _gain_lines(document["gains"])
    before, after = (metrics["task_success"]["value"] for metrics in measured[-2:])
    if has_grpo and step_of(Path(document["checkpoint"])) == 0:
        yield "No step of GRPO did as well on the validation tasks: the trained model is the warm start."
    elif has_grpo and after < before:
        folder = shlex.quote(document["run_dir"])
        lost = f"{100 * (before - after):.1f} points"
        yield f"GRPO lost {lost} (greedy); the warm start is kept in {folder}/warm_start. More than chance?"
        yield f"  mcpagent eval compare {folder}/eval/warm_start.json {folder}/eval/trained.json"
    calls = document["tool_calls"]
    counted = "" if calls["servers"] is None else f"; the servers counted {calls['servers']} calls"
    yield f"{calls['trajectories']} tool results over MCP in the trajectories{counted}"
    if "controls" in document:
        tried = [
            (f"{row['name']}{note}", _shown(row[f"greedy{suffix}"]), _shown(row[f"sampled{suffix}"]), cpu_s)
            for row in document["controls"]
            for note, suffix, cpu_s in (("", "", row["cpu_s"]), (", scored only", "_scored", ""))
        ]
        columns = ("control", "success, greedy", "success, temperature 1", "CPU s")
        yield Table("What else was tried, with the CPU seconds of the GRPO steps", columns, tried)
    if "said_s" in document:
        said, took = duration(document["said_s"]), duration(document["wall_s"])
        yield f"It was said to take {said}, and took {took}."
    if "model" not in document:
        yield from _WHAT_IT_IS
    data = f"{document['run_dir']}/data"
    tools = "mcpagent tools list"
    if servers is not None:
        tools = f"mcpagent tools list --servers {shlex.quote(str(servers))}"
    yield Facts(
        [
            ("report", str(document["report"])),
            ("next", f"mcpagent eval checkpoint {document['checkpoint']} --data {data}/heldout.jsonl"),
            ("", tools),
            ("", f"mcpagent train --dry-run --data {data}"),
        ]
    )


def _gain_lines(gains: JsonObject) -> Iterator[str]:
    """Yield each gain over the better of the untrained model without and with shots."""
    from mcpagent.evaluate.report.numbers import change

    for side, by_how in gains.items():
        for how, gained in by_how.items():
            facts = dict(gained)
            over = facts.pop("over").removesuffix("_sampled").replace("_", " ")
            difference = Metric.model_validate(facts)
            yield (
                f"{side.replace('_', ' ')}, {how}: {change(difference, ' points')} over the better baseline "
                f"({over}, {difference.n} tasks)"
            )


def _shown(metric: JsonObject) -> str:
    if metric["value"] is None:
        return "-"
    return f"{metric['value']:.1%} [{metric['ci_low']:.1%}, {metric['ci_high']:.1%}]"
