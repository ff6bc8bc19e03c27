"""`mcpagent runs`, `report`, `view`, `export` and `rollout`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mcpagent.cli.options import (
    Checkpoint,
    ConfigOptions,
    Data,
    Json,
    Overwrite,
    Samples,
    Shard,
    out_file,
    refuse_existing,
    shard_of,
)
from mcpagent.console import Block, Console, Facts, Table
from mcpagent.errors import UserError
from mcpagent.storage.packages import require

if TYPE_CHECKING:
    from mcpagent.run.rollout import RolloutOutcome
    from mcpagent.storage.runs import RunInfo

_DEFAULT = Path("outputs")


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = _DEFAULT,
    as_json: Json = False,
) -> None:
    """List the training runs in a folder, the latest first: state, steps and success.

    A run is running, finished, interrupted (Ctrl-C, or was killed: --resume continues it) or failed.
    Success is that on the held-out tasks after training, else the best one on the validation set, else
    that of the last step's episodes.

    Example: mcpagent runs outputs
    """
    from mcpagent.storage.runs import list_runs

    run_infos = list_runs(folder) if folder.exists() or folder != _DEFAULT else []
    Console(is_json=as_json).print_blocks(run_infos, _listed(folder, run_infos))


def _listed(folder: Path, run_infos: list[RunInfo]) -> Iterator[Block]:
    if not run_infos:
        yield f"no runs in {folder}"
        return
    rows = [(run.name, run.kind, run.state, _steps(run), _success(run), _started(run)) for run in run_infos]
    columns = ("run", "kind", "state", "steps", "success", "started")
    yield Table(f"Runs in {folder}", columns, rows, is_text=True)
    if any(run.success_of == "training" for run in run_infos):
        yield "* of the last step's episodes; the run has no evaluation"
    for run in run_infos:
        if run.state == "failed" and run.reason is not None:
            yield f"{run.name} failed: {run.reason}"
        if run.state == "running" and run.process is not None:
            yield f"{run.name} is written by pid {run.process.get('pid')} on {run.process.get('host')}"


def _steps(run: RunInfo) -> str:
    if run.warm_start is not None:
        return f"warm start {_steps(run.warm_start)}"
    # A run that was resumed with fewer steps than it has taken has no such share.
    is_share = run.total_steps is not None and run.steps <= run.total_steps
    return f"{run.steps}/{run.total_steps}" if is_share else str(run.steps)


def _success(run: RunInfo) -> str:
    return "" if run.success is None else f"{run.success:.0%}{'*' if run.success_of == 'training' else ''}"


def _started(run: RunInfo) -> str:
    if run.started_at is None:
        return ""
    return f"{datetime.fromisoformat(run.started_at).astimezone():%Y-%m-%d %H:%M}"


def report(
    run: Annotated[
        Path,
        typer.Argument(
            help="Run folder, such as outputs/quickstart. For inspect a file of trajectories too.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A file for the report, or a folder. Default: report.html or report.json, or the folder "
            "inspect, in the run, written anew each time.",
        ),
    ] = None,
    format_: Annotated[
        Literal["html", "json", "inspect"],
        typer.Option(
            "--format",
            help="html: a self-contained page. json: every figure of the page. inspect: a folder with all "
            "episodes as logs for Inspect's viewer (inspect view); needs mcpagent[inspect].",
        ),
    ] = "html",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run and print its path.

    Example: mcpagent report outputs/quickstart

    Example: mcpagent report outputs/quickstart --format inspect
    """
    console = Console(is_json=as_json)
    if format_ == "inspect":
        _write_inspect_logs(run, out, overwrite=overwrite, console=console)
        return
    out = out_file(f"report.{format_}")(out)
    if out is not None:
        refuse_existing(out, overwrite=overwrite)
    require("report", use="the report")
    from mcpagent.evaluate.report.page import write_page
    from mcpagent.evaluate.report.run_data import read_run

    path = out or run / f"report.{format_}"
    written = write_page(read_run(run), path, as_json=format_ == "json")
    document = {"report": str(path), "format": format_, "verdicts": written.verdicts}
    console.print_blocks(document, [str(path)])


def _write_inspect_logs(run: Path, out: Path | None, *, overwrite: bool, console: Console) -> None:
    require("inspect", use="the report for Inspect")
    from mcpagent.evaluate.report.episodes import stem_of, trajectory_files
    from mcpagent.evaluate.report.inspect_log import write_log

    if out is None and run.is_file():
        raise UserError("a file of trajectories has no place for its logs", remedy="name a folder with --out")
    folder = run / "inspect" if out is None else out
    if folder.exists() and not folder.is_dir():
        raise UserError("is not a folder", where=str(folder), remedy="name a folder with --out")
    files = {stem_of(run): run} if run.is_file() else trajectory_files(run / "trajectories")
    if not files:
        raise UserError(
            "holds no trajectories",
            where=str(run),
            remedy="name a run folder after its first step, or a file of trajectories",
        )
    logs = {folder / f"{stem}.eval": records for stem, records in files.items()}
    if out is not None:
        refuse_existing(*logs, overwrite=overwrite)
    for path, records in logs.items():
        write_log(records, path, run_dir=None if run.is_file() else run)
    document = {"report": str(folder), "format": "inspect", "logs": [str(log) for log in logs]}
    opened = f"{len(logs)} logs; open them with: inspect view --log-dir {folder}"
    console.print_blocks(document, [str(folder), opened])


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
    if not run.is_dir():
        raise UserError(
            f"{run} is not a run folder",
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


def export(
    checkpoint: Checkpoint,
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

    done = export_checkpoint(checkpoint, out, merge=merge)
    facts = [
        (done.kind, str(done.out)),
        ("checkpoint", f"{done.checkpoint}{f' ({done.why})' if done.why else ''}"),
        ("card", str(done.out / "README.md")),
        *zip(("next", *len(done.commands) * [""]), done.commands, strict=False),
    ]
    Console(is_json=as_json).print_blocks(done, [Facts(facts)])


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
            "logprobs go next to it as .safetensors.",
            show_default=False,
        ),
    ],
    data: Data = None,
    samples: Samples = 1,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="0 is greedy. Default: rollout.temperature, which is 1."),
    ] = None,
    *,
    options: ConfigOptions,
    shard: Shard = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Collect trajectories with any policy, for analysis: every call is a real one over MCP.

    If MCPAGENT_CALL_LEDGER names a file, the built-in servers write a line to it for each of these calls.

    Example: mcpagent rollout --policy gold --data data/samples/train.jsonl --out gold.jsonl.zst
    """
    from mcpagent.run.rollout import collect_rollouts
    from mcpagent.storage.trajectories import token_file

    console = Console(is_json=as_json)
    refuse_existing(out, token_file(out), overwrite=overwrite)
    outcome = collect_rollouts(
        options.config(console, policy=policy, data=data, temperature=temperature),
        policy=policy,
        out=out,
        data=data,
        samples=samples,
        shard=shard_of(shard),
        console=console,
    )
    console.print_blocks(outcome, _collected(outcome))


def _collected(outcome: RolloutOutcome) -> Iterator[Block]:
    from mcpagent.cli.results import cassette_fact, ended_by, metrics_blocks

    count, tokens = outcome.nonces, f" and {outcome.tokens}" if outcome.tokens else ""
    calls = (
        f"{count.results.total()} answered by servers, {count.stamped.total()} of them with the stamp of a "
        "built-in one"
    )
    yield from metrics_blocks(outcome.result)
    yield Facts(
        [
            ended_by(outcome.result),
            ("calls", calls),
            cassette_fact(outcome.result.cassette),
            ("written", f"{outcome.path}{tokens}"),
        ]
    )
