"""`mcpagent convert`: conversations with tool plans as a dataset."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.options import Json, Overwrite, out_file, refuse_existing
from mcpagent.config.dataset_servers import FILE_NAME, DatasetServers
from mcpagent.config.schema import ToolsConfig
from mcpagent.console import Block, Console, counted
from mcpagent.errors import UserError
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.storage.datasets import write_jsonl
from mcpagent.storage.locks import locked_file

if TYPE_CHECKING:
    from mcpagent.synth.datasets.describe import DatasetCounts
    from mcpagent.synth.dependent.convert import Conversion

_BUILTIN = "builtin"


def convert(
    spec: Annotated[Path, typer.Argument(help="The dependent spec, a JSON file.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(
            callback=out_file("train.jsonl"),
            help="The dataset: .jsonl or .json, also .gz and .zst; or a folder for train.jsonl.",
        ),
    ] = Path("data/processed/train.jsonl"),
    servers: Annotated[
        str | None,
        typer.Option(
            help="An mcp.json, or `builtin`: check tools and arguments against it, and offer all of its "
            "tools. Default: no check; the offer is what the spec names."
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Run every plan on the servers as well.")
    ] = False,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="Write the good tasks, and OUT.rejects.jsonl for the others."),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn scenarios with conversations and tool plans into tasks; on any fault, write nothing and exit 2.

    The prompt holds the system message and the first user message; later user messages arrive at run time.

    Example: mcpagent convert dependent_spec.json --servers mcp.json --out data/processed/train.jsonl
    """
    from mcpagent.synth.datasets.describe import DatasetCounts
    from mcpagent.synth.generate import check_dataset_servers, write_servers

    console = Console(is_json=as_json)
    if execute and servers is None:
        raise UserError("--execute needs servers to run the plans on", remedy="add --servers mcp.json")
    refuse_existing(out, overwrite=overwrite)
    tools = None if servers is None else _tools(servers)
    remembered = _remembered(tools, out, console)
    if remembered is not None:
        check_dataset_servers(remembered, overwrite=overwrite)
    with locked_file(out):
        conversion = _converted(spec, tools, console, execute=execute)
        for note in conversion.notes:
            console.note(f"note: {note}")
        for fault in conversion.faults:
            console.note(f"{spec}: {fault.pointer}: {fault.code.value}: {fault.message}\n  {fault.remedy}")
        rejects = out.with_name(f"{out.name}.rejects.jsonl")
        if conversion.faults and not (keep_going and conversion.tasks):
            _refuse(conversion, spec, console, as_json=as_json)
        if not conversion.tasks:
            raise UserError("the spec holds no task", where=str(spec), remedy="nothing was written")
        write_servers(remembered)
        counts = DatasetCounts()
        write_jsonl(out, counts.passed(conversion.tasks))
        if conversion.faults:
            write_jsonl(rejects, conversion.rejects)
    _report(conversion, counts, console, out=out, rejects=rejects if conversion.faults else None)


def _tools(servers: str) -> ToolsConfig:
    from mcpagent.tools.setup import note_named

    if servers == _BUILTIN:
        return ToolsConfig(builtin=BUILTIN_NAMES, limited=False)
    note_named(Path(servers))
    return ToolsConfig(servers=servers)


def _remembered(tools: ToolsConfig | None, out: Path, console: Console) -> DatasetServers | None:
    """Return what the folder of `out` is to remember; None if no servers are named."""
    if tools is None:
        if (path := out.parent / FILE_NAME).is_file():
            console.note(f"{path} stays as it is: it will be used for these tasks too")
        return None
    return DatasetServers.of(out.parent, tools)


def _converted(spec: Path, tools: ToolsConfig | None, console: Console, *, execute: bool) -> Conversion:
    from mcpagent.synth.dependent.convert import convert_spec
    from mcpagent.synth.tasks.prove import grounded
    from mcpagent.synth.tasks.run import CallCache
    from mcpagent.tools.setup import open_tools

    if tools is None:
        return convert_spec(spec, catalog=None)
    with open_tools(tools, on_note=console.note) as opened:
        catalog, cache = opened.pool.tools, CallCache(opened.pool)
        if not execute:
            return convert_spec(spec, catalog=catalog)
        return convert_spec(spec, catalog=catalog, execute=lambda task: opened.io.run(grounded(task, cache)))


def _refuse(conversion: Conversion, spec: Path, console: Console, *, as_json: bool) -> None:
    faults, bad, good = conversion.faults, len(conversion.rejects), len(conversion.tasks)
    error = UserError(
        f"{counted(len(faults), 'fault')} in {bad} of {counted(bad + good, 'task')}; nothing was written",
        where=str(spec),
        remedy="fix them"
        + (", or add --keep-going to write the others and a file of rejects" if good else ""),
    )
    if as_json:
        console.print_json({**error.as_json(), "faults": faults})
    console.complain(str(error))
    raise typer.Exit(UserError.exit_code)


def _report(
    conversion: Conversion, of_tasks: DatasetCounts, console: Console, *, out: Path, rejects: Path | None
) -> None:
    counts = of_tasks.as_json()
    document = {
        **counts,
        "path": out,
        "rejected": len(conversion.rejects),
        "rejects": dict(Counter(fault.code.value for fault in conversion.faults)),
        "rejects_path": rejects,
        "notes": conversion.notes,
    }
    blocks: list[Block] = [f"{counted(counts['records'], 'task')} in {out}"]
    if rejects is not None:
        blocks.append(f"{document['rejected']} rejected, with their faults in {rejects}")
    console.print_blocks(document, blocks)
