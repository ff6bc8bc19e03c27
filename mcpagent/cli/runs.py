"""`mcpagent runs`, `report`, `view`, `export` and `rollout`."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.options import (
    BaseUrl,
    ConfigOptions,
    Data,
    Json,
    Overwrite,
    Samples,
    Shard,
    ToolFormat,
    out_file,
    refuse_existing,
    shard_of,
    with_options,
)
from mcpagent.console import Console

if TYPE_CHECKING:
    from mcpagent.run.rollout import RolloutOutcome
    from mcpagent.storage.runs import RunInfo

runs_app = typer.Typer(add_completion=False, rich_markup_mode=None)
_DEFAULT = Path("outputs")


@runs_app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = _DEFAULT,
    as_json: Json = False,
) -> None:
    """List the training runs in a folder, the latest first: state, steps and success.

    A run is running, finished, interrupted (Ctrl-C, or its process was killed: --resume goes on) or failed.
    Success is the best one on the validation set, or that of the last step's episodes.

    Example: mcpagent runs outputs
    """
    from mcpagent.console import Console
    from mcpagent.storage.runs import list_runs

    console = Console(is_json=as_json)
    run_infos = list_runs(folder) if folder.exists() or folder != _DEFAULT else []
    if as_json:
        console.print_json([run.as_json() for run in run_infos])
        return
    if not run_infos:
        console.say(f"no runs in {folder}")
        return
    rows = [(run.name, run.kind, run.state, _steps(run), _success(run), _started(run)) for run in run_infos]
    console.table(
        f"Runs in {folder}", ("run", "kind", "state", "steps", "success", "started"), rows, is_text=True
    )
    if any(run.success_of == "training" for run in run_infos):
        console.say("* of the last step's episodes; the run has no evaluation")
    for run in run_infos:
        if run.state == "failed" and run.reason is not None:
            console.say(f"{run.name} failed: {run.reason}")
        if run.state == "running" and run.process is not None:
            console.say(f"{run.name} is written by pid {run.process.get('pid')} on {run.process.get('host')}")


def _steps(run: RunInfo) -> str:
    return str(run.steps) if run.total_steps is None else f"{run.steps}/{run.total_steps}"


def _success(run: RunInfo) -> str:
    return "" if run.success is None else f"{run.success:.0%}{'*' if run.success_of == 'training' else ''}"


def _started(run: RunInfo) -> str:
    if run.started_at is None:
        return ""
    return f"{datetime.fromisoformat(run.started_at).astimezone():%Y-%m-%d %H:%M}"


report_app = typer.Typer(add_completion=False, rich_markup_mode=None)


class ReportFormat(StrEnum):
    """What a report is written as."""

    HTML = "html"
    MARKDOWN = "md"
    PNG = "png"
    JSON = "json"
    INSPECT = "inspect"


@report_app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS",
            help="Run folder, such as outputs/quickstart; several are shown side by side. For inspect a file "
            "of trajectories too.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A file for the report, or a folder. Default: report.html (.md, .png, .json) or the folder "
            "inspect in the run, written anew each time.",
        ),
    ] = None,
    format_: Annotated[
        ReportFormat,
        typer.Option(
            "--format",
            help="html: a self-contained page. md: a summary for a pull request. json: every figure of the "
            "page. png: the page as a picture, drawn by an installed Chromium or Chrome. inspect: a folder "
            "with all episodes as logs for Inspect's viewer (inspect view).",
        ),
    ] = ReportFormat.HTML,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run, or of several side by side, and print its path.

    Several runs are written to comparison.html (.md, .png, .json) beside the first one.

    Example: mcpagent report outputs/quickstart

    Example: mcpagent report outputs/quickstart --format md

    Example: mcpagent report outputs/quickstart --format inspect

    Example: mcpagent report outputs/first outputs/second
    """
    from mcpagent.errors import UserError
    from mcpagent.storage.packages import require

    console, is_alone = Console(is_json=as_json), len(runs) == 1
    if format_ is ReportFormat.INSPECT:
        if not is_alone:
            raise UserError("--format inspect takes one run", remedy="write the logs of each run by itself")
        _write_inspect_logs(runs[0], out, overwrite=overwrite, console=console)
        return
    name = f"{'report' if is_alone else 'comparison'}.{format_}"
    out = out_file(name)(out)
    if out is not None:
        refuse_existing(out, overwrite=overwrite)
    if format_ in (ReportFormat.HTML, ReportFormat.PNG):
        require("report", use="the report")
    from mcpagent.evaluate.report.formats import find_browser, write_comparison_as, write_report_as
    from mcpagent.evaluate.report.run_data import read_run
    from mcpagent.evaluate.report.verdicts import judge

    if format_ is ReportFormat.PNG:
        find_browser()
    views = [read_run(run) for run in runs]
    if is_alone:
        path = write_report_as(format_.value, views[0], out or runs[0] / name)
    else:
        path = write_comparison_as(format_.value, views, out or runs[0].resolve().parent / name)
    if not as_json:
        console.say(str(path))
        return
    document: dict[str, object] = {"report": str(path), "format": format_.value}
    if is_alone:
        document["verdicts"] = [dataclasses.asdict(v) for v in judge(views[0])]
    console.print_json(document)


def _write_inspect_logs(run: Path, out: Path | None, *, overwrite: bool, console: Console) -> None:
    from mcpagent.errors import UserError
    from mcpagent.evaluate.report.inspect_log import sources, write_log

    if out is None and run.is_file():
        raise UserError("a file of trajectories has no place for its logs", remedy="name a folder with --out")
    folder = run / "inspect" if out is None else out
    if folder.exists() and not folder.is_dir():
        raise UserError("is not a folder", where=str(folder), remedy="name a folder with --out")
    logs = {folder / f"{source.name}.eval": source for source in sources(run)}
    if out is not None:
        refuse_existing(*logs, overwrite=overwrite)
    for path, source in logs.items():
        write_log(source, path)
    if console.is_json:
        console.print_json({"report": str(folder), "format": "inspect", "logs": [str(log) for log in logs]})
        return
    console.say(str(folder))
    console.say(f"{len(logs)} logs; open them with: inspect view --log-dir {folder}")


view_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@view_app.command()
def view(
    run: Annotated[Path, typer.Argument(help="Run folder, such as outputs/quickstart.", show_default=False)],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1. Default: any free one.")
    ] = 0,
) -> None:
    """Serve a run's report while it trains, with every stored episode; Ctrl-C ends it.

    The page follows the run: curves, verdicts and episodes come as they are written. It is for the browsers
    of this machine (127.0.0.1), it only reads, and it loads nothing from elsewhere.

    Example: mcpagent view outputs/quickstart
    """
    from mcpagent.console import Console
    from mcpagent.errors import UserError
    from mcpagent.storage.packages import require

    if not run.is_dir():
        raise UserError(
            f"there is no run folder {run}",
            remedy="pass the folder that `mcpagent train` or `mcpagent quickstart` printed",
        )
    require("report", use="the live view")
    from mcpagent.evaluate.report.live import LiveServer

    console = Console()
    with LiveServer(run, port=port) as server:
        console.say(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt("the page is no longer served") from interrupt


export_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@export_app.command()
def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint folder, or a run folder: its best one; RUN@latest and RUN@STEP name others.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The new folder.", show_default=False)],
    merge: Annotated[
        bool, typer.Option("--merge", help="Add LoRA adapters to their base: a model that needs no PEFT.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as a plain Hugging Face folder with a model card; without --merge, LoRA adapters
    stay adapters.

    Example: mcpagent export outputs/mine --merge --out model
    """
    from mcpagent.run.export import export as export_checkpoint

    console = Console(is_json=as_json)
    done = export_checkpoint(checkpoint, out, merge=merge)
    if as_json:
        console.print_json(done.as_json())
        return
    console.say(f"{done.kind:<10}  {done.out}")
    console.say(f"checkpoint  {done.checkpoint}{f' ({done.why})' if done.why else ''}")
    console.say(f"card        {done.out / 'README.md'}")
    console.say(f"next        mcpagent eval checkpoint {done.out} --data {done.data}")


rollout_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@rollout_app.command()
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
    options: ConfigOptions,
    shard: Shard = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Collect trajectories with any policy, for analysis: every call is a real one over MCP.

    Where MCPAGENT_CALL_LEDGER names a file, the built-in servers write a line to it for each of these calls.

    Example: mcpagent rollout --policy gold --data data/samples/train.jsonl --out gold.jsonl.zst
    """
    from mcpagent.run.rollout import rollout as collect
    from mcpagent.storage.trajectories import token_file

    console = Console(is_json=as_json)
    refuse_existing(out, token_file(out), overwrite=overwrite)
    options = replace(options, tool_format=tool_format, base_url=base_url, temperature=temperature)
    outcome = collect(
        options.config(console, policy=policy, data=data),
        policy=policy,
        out=out,
        data=data,
        samples=samples,
        shard=shard_of(shard),
        console=console,
    )
    console.print_result(outcome, _print_rollout)


def _print_rollout(outcome: RolloutOutcome, console: Console) -> None:
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
