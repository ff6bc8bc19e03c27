"""`mcpagent data`: validate a dataset, count, divide, thin out, restate or export it, look at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mcpagent.cli.options import (
    ConfigOptions,
    Json,
    Overwrite,
    Servers,
    Settings,
    group_app,
    out_file,
    refuse_existing,
    task_file,
)
from mcpagent.cli.results import stage_rows
from mcpagent.console import Block, Console, Facts, Table, counted
from mcpagent.errors import UserError
from mcpagent.storage.datasets import read_tasks, task_record, write_jsonl
from mcpagent.storage.packages import require

if TYPE_CHECKING:
    from mcpagent.config.schema import ToolsConfig
    from mcpagent.synth.datasets.validate import ValidationReport

_File = Annotated[Path, typer.Argument(help=".jsonl or .json, also .gz and .zst.", show_default=False)]
_Out = Annotated[
    Path | None,
    typer.Option(
        callback=out_file("tasks.jsonl"),
        help="A file for the good records, or a folder.",
        show_default=False,
    ),
]
_SIMILAR = 0.8  # Jaccard similarity of the questions from which two tasks are one
_Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]


def validate(
    file: _File,
    servers: Servers = None,
    catalog: Annotated[bool, typer.Option(help="Check tools and arguments against the servers.")] = True,
    execute: Annotated[
        bool,
        typer.Option(
            "--execute",
            help="Run every plan twice, and show that it scores 1.0, that silence fails and that no step can "
            "be left out.",
        ),
    ] = False,
    settings: Settings = None,
    out: _Out = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Check every record, stage by stage. Exits 2 if any is wrong.

    Example: mcpagent data validate data/processed/train.jsonl

    Example: mcpagent data validate train.jsonl --execute --out good.jsonl
    """
    from mcpagent.synth.datasets.validate import prove_dataset, validate_dataset
    from mcpagent.synth.generate import carry_servers, write_servers
    from mcpagent.synth.tasks.run import CallCache
    from mcpagent.tools.setup import open_tools

    console = Console(is_json=as_json)
    remembered = None
    if out is not None:
        refuse_existing(out, overwrite=overwrite)
        remembered = carry_servers(file, out.parent, overwrite=overwrite)
    if execute and not catalog:
        raise UserError("--execute needs the servers", remedy="leave out --no-catalog")
    tools = _tools(file, servers, settings, console) if catalog else None
    write_servers(remembered)
    if tools is None:
        report = validate_dataset(file, catalog=None, out=out)
    else:
        with open_tools(tools, on_note=console.note) as opened:
            if execute:
                report = prove_dataset(file, CallCache(opened.pool), opened.io, out=out)
            else:
                report = validate_dataset(file, catalog=opened.pool.tools.values(), out=out)
    if out is not None and not report.valid:
        console.note(f"{out} is not written: no record is good")
    document: dict[str, Any] = {**report.as_json(), **({"path": str(out)} if report.valid and out else {})}
    _print_report(document, report, file, console)
    if report.valid < report.records:
        raise typer.Exit(UserError.exit_code)


def stats(file: _File, as_json: Json = False) -> None:
    """Count the records by class, complexity, server, tool, template and split.

    Example: mcpagent data stats data/processed/train.jsonl --json
    """
    from mcpagent.synth.datasets.describe import count_tasks

    console = Console(is_json=as_json)
    counts = {"path": str(file), **count_tasks(read_tasks(file))}
    console.print_blocks(counts, _counts(counts, file))


def _counts(counts: dict[str, Any], file: Path) -> Iterator[Block]:
    top = max((n for group in counts.values() if isinstance(group, dict) for n in group.values()), default=1)
    rows = [
        (f"{name.removeprefix('by_').replace('_', ' ')}: {key}", count, _bar(count, top))
        for name, group in counts.items()
        if isinstance(group, dict)
        for key, count in group.items()
    ]
    yield Table(f"{file}: {counted(counts['records'], 'record')}", ("", "Records", "Share"), rows)


def split(
    file: _File,
    out: Annotated[Path, typer.Option(help="Folder for the files.", show_default=False)],
    heldout: Annotated[float, typer.Option(min=0, max=1, help="Share of the groups held out.")] = 0.2,
    validation: Annotated[float, typer.Option(min=0, max=1, help="Share for validation.")] = 0.1,
    group_by: Annotated[
        Literal["entity", "plan"],
        typer.Option(help="What must not be in two splits: a thing that tasks name, or a plan."),
    ] = "entity",
    drop_crossing: Annotated[
        bool, typer.Option("--drop-crossing", help="Leave out tasks about things of different splits.")
    ] = False,
    seed: _Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Divide a dataset so that no part gives another away.

    Example: mcpagent data split tasks.jsonl --out data/processed --heldout 0.2
    """
    from mcpagent.synth.datasets.split import split_dataset
    from mcpagent.synth.templates.pools import SplitShares

    console = Console(is_json=as_json)
    outcome = split_dataset(
        file,
        out,
        shares=SplitShares(heldout=heldout, validation=validation),
        seed=seed,
        group_by=group_by,
        drop_crossing=drop_crossing,
        overwrite=overwrite,
    )
    if empty := [name for name, count in outcome.counts.items() if not count]:
        parts = "things that only its tasks are about" if drop_crossing else f"groups ({outcome.groups})"
        console.note(f"{' and '.join(empty)} got no task and no file: there are too few {parts}")
    rows = [(name, count, str(outcome.paths.get(name, "none"))) for name, count in outcome.counts.items()]
    blocks: list[Block] = [Table(f"{file}, by {group_by}", ("Split", "Tasks", "File"), rows)]
    if outcome.groups:
        largest = counted(outcome.largest_group, "task")
        blocks.append(f"{counted(outcome.groups, 'group')}, the largest with {largest}")
    if drop_crossing:
        blocks.append(f"{outcome.crossing} tasks are about things of different splits, and in none")
    console.print_blocks(outcome, blocks)


def dedupe(
    file: _File,
    out: Annotated[
        Path,
        typer.Option(
            callback=out_file("tasks.jsonl"),
            help="A file for the tasks that stay, or a folder.",
            show_default=False,
        ),
    ],
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Remove tasks with the same plan as an earlier one, and those that read like one. Needs mcpagent[data].

    Example: mcpagent data dedupe tasks.jsonl --out distinct.jsonl
    """
    console = Console(is_json=as_json)
    require("data", use="data dedupe")
    from mcpagent.synth.datasets.split import DedupeReport, distinct_tasks
    from mcpagent.synth.generate import carry_servers, write_servers

    refuse_existing(out, overwrite=overwrite)
    write_servers(carry_servers(file, out.parent, overwrite=overwrite))
    report = DedupeReport()
    write_jsonl(out, distinct_tasks(file, threshold=_SIMILAR, report=report))
    console.print_blocks(
        {**report.as_json(), "path": str(out)},
        [
            f"{file}: {report.kept} of {report.records} tasks stay, in {out}",
            *(f"  {reason}: {count}" for reason, count in sorted(report.removed.items())),
            *(f"  {example['task_id']} is like {example['like']}" for example in report.examples),
        ],
    )


def restate(
    file: _File,
    out: Annotated[
        Path,
        typer.Option(
            callback=out_file("tasks.jsonl"), help="A file for all tasks, or a folder.", show_default=False
        ),
    ],
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Say in the questions of an older dataset what form their answers have.

    What no question can state stays as it is and is counted, with the reason.

    Example: mcpagent data restate train.jsonl --out restated.jsonl
    """
    from mcpagent.synth.datasets.restate import OUTCOMES, RestateReport, restated_tasks
    from mcpagent.synth.generate import carry_servers, write_servers

    console = Console(is_json=as_json)
    refuse_existing(out, overwrite=overwrite)
    remembered = carry_servers(file, out.parent, overwrite=overwrite)
    report = RestateReport()
    write_jsonl(out, restated_tasks(file, report))
    write_servers(remembered)
    console.print_blocks(
        {**report.as_json(), "path": str(out)},
        [
            f"{file}: {counted(report.counts.total(), 'task')}, in {out}",
            *(f"  {report.counts[name]} {said}" for name, said in OUTCOMES.items() if report.counts[name]),
            *(
                f"  {left['first']}: {left['reason']} ({counted(left['records'], 'record')} of type {kind})"
                for kind, left in report.left.items()
            ),
        ],
    )


def show(
    file: _File,
    task_id: Annotated[str | None, typer.Option("--id", help="A task_id. Default: the first task.")] = None,
    as_json: Json = False,
) -> None:
    """Print a task in readable form.

    Example: mcpagent data show train.jsonl --id quote-price-0123456789ab
    """
    from mcpagent.synth.datasets.describe import render_task

    console = Console(is_json=as_json)
    task = next((t for t in read_tasks(file) if task_id in (None, t.id)), None)
    if task is None:
        raise UserError(
            f"there is no task {task_id!r}", where=str(file), remedy=f"list them: mcpagent data stats {file}"
        )
    console.print_blocks(task_record(task), render_task(task))


def export(
    source: Annotated[
        Path,
        typer.Argument(
            help="A dataset (a file; of a folder its training tasks), a file of trajectories, or a run.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            callback=out_file("rows.jsonl"),
            help="The rows: .jsonl or .json, also .gz and .zst; .parquet with `datasets`; or a folder.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(callback=task_file, help="Of trajectories: the tasks that they are attempts at."),
    ] = None,
    *,
    options: ConfigOptions,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write conversational rows (`messages`, `tools`) as TRL, Unsloth and axolotl read them.

    Of a dataset the gold plans are played on the real servers; of a run or of trajectories the successes are
    taken, each conversation once.

    Example: mcpagent data export data/mine --out rows.jsonl

    Example: mcpagent data export outputs/mine --out rows.parquet
    """
    from mcpagent.run.rows import export_rows, row_source

    console = Console(is_json=as_json)
    refuse_existing(out, overwrite=overwrite)
    rows = row_source(source, data)
    done = export_rows(rows, out, options.config(console, data=rows.tasks), console)
    of = f"{counted(done.rows, 'row')} of {counted(done.episodes, 'episode')} in {out}"
    console.print_blocks(done, [of, *(f"  left out: {why}: {n}" for why, n in done.left_out.most_common())])


def _tools(file: Path, servers: Path | None, settings: list[str] | None, console: Console) -> ToolsConfig:
    """Return the servers of a file's tasks: those named, else those that its folder remembers, else the
    built-in ones."""
    from mcpagent.config.dataset_servers import read_dataset_servers
    from mcpagent.servers.names import BUILTIN_NAMES

    tools = ConfigOptions(servers=servers, settings=settings).config(console, data=file).tools
    is_told = servers is not None or any(text.lstrip().startswith("tools.") for text in settings or ())
    if not is_told and read_dataset_servers(file) is None:
        # The full set of the built-in servers: it contains the limited one under the same names.
        tools = tools.model_copy(update={"builtin": BUILTIN_NAMES, "limited": False})
    return tools


def samples(
    folder: Annotated[Path, typer.Argument(help="Folder for the files.")] = Path("data/samples"),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write the sample tasks that the pages and help texts name.

    Example: mcpagent data samples data/samples
    """
    from mcpagent.config.environment import resource_path
    from mcpagent.storage.atomic import write_text

    console = Console(is_json=as_json)
    shipped = sorted(resource_path("data/samples").iterdir())
    refuse_existing(*(folder / path.name for path in shipped), overwrite=overwrite)
    for path in shipped:
        write_text(folder / path.name, path.read_text(encoding="utf-8"))
    paths = [str(folder / path.name) for path in shipped]
    console.print_blocks(
        {"folder": str(folder), "paths": paths},
        [
            f"{folder}: {', '.join(path.name for path in shipped)}",
            Facts(
                [
                    ("next", f"mcpagent data show {folder / 'train.jsonl'}"),
                    ("", f"mcpagent env check --data {folder / 'train.jsonl'}"),
                ]
            ),
        ],
    )


def _print_report(document: dict[str, Any], report: ValidationReport, file: Path, console: Console) -> None:
    for where, rejection in report.findings:
        console.note(f"{where}: {rejection.code}: {rejection.detail}")
    if report.rejects.total() > len(report.findings):
        console.note(f"... and {report.rejects.total() - len(report.findings)} more")
    for warning, count in report.warnings.most_common():
        console.note(f"{report.warned[warning]}: {warning} ({count} of {report.records} records)")
    valid = f"{file}: {report.valid} of {report.records} records are valid"
    table = Table(str(file), ("Stage", "In", "Out", "Rejected"), stage_rows(document))
    console.print_blocks(document, [table, valid])


def _bar(count: int, top: int) -> str:
    return "█" * max(1, round(20 * count / top)) if count else ""


app = group_app(
    "Validate a dataset, count, divide, thin out or restate it, or show a task.",
    {
        "validate": validate,
        "stats": stats,
        "split": split,
        "dedupe": dedupe,
        "restate": restate,
        "show": show,
        "samples": samples,
        "export": export,
    },
)
