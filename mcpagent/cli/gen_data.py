"""`mcpagent gen-data` and `mcpagent convert`: tasks from templates, from a model, from a dependent spec."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcpagent.cli.gen_data_llm import LLMOptions, rewriting, run_llm, shard_line
from mcpagent.cli.options import (
    CassetteModeOption,
    CassetteOption,
    ConfigFiles,
    ConfigOptions,
    Json,
    Overwrite,
    Settings,
    out_file,
    refuse_existing,
    shard_of,
    with_options,
)
from mcpagent.errors import UserError

if TYPE_CHECKING:
    from mcpagent.config.dataset_servers import DatasetServers
    from mcpagent.console import Console
    from mcpagent.synth.datasets.describe import DatasetCounts
    from mcpagent.synth.dependent.convert import Conversion

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_options
def gen_data(
    templates: Annotated[
        str,
        typer.Option(
            help="core: the four servers of the embedded model, in its words. full: every class of task, all "
            "five servers. Or a folder of templates."
        ),
    ] = "core",
    explore: Annotated[
        bool,
        typer.Option(
            "--explore",
            help="Make tasks from what the servers' read-only tools are seen to do, without templates. This "
            "is what happens with --servers where no template fits.",
        ),
    ] = False,
    servers: Annotated[
        Path | None, typer.Option(help="An mcp.json with the servers to use. Default: the built-in ones.")
    ] = None,
    read_only: Annotated[
        str | None,
        typer.Option(
            metavar="TOOL,...",
            help="server.tool or a server that only reads, though it does not say so; it may be called "
            "to see what it does.",
        ),
    ] = None,
    seed_value: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[SERVER.][TOOL.]PARAM=VALUE",
            help="A value that exploring cannot guess, such as path=notes/todo.md; may be repeated.",
        ),
    ] = None,
    seed_values: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Many of them: a name and its value, or values, a line."),
    ] = None,
    cassette: CassetteOption = None,
    cassette_mode: CassetteModeOption = None,
    train: Annotated[int, typer.Option(min=0, help="Tasks for training.")] = 800,
    validation: Annotated[int, typer.Option(min=0, help="Tasks for validation.")] = 100,
    heldout: Annotated[int, typer.Option(min=0, help="Tasks held out for the final evaluation.")] = 240,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    distractors: Annotated[
        int | None,
        typer.Option(min=0, help="Offer this many other tools beside those needed. Default: every tool."),
    ] = None,
    from_failures: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Only tasks near those that the policy of a run failed: the same calls about other things, "
            "one call less, one more. They are for training: train.jsonl alone.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Only the I-th of N shares of the candidates, as a file in --out; data merge makes the "
            "dataset of one run from all N.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("data/processed"),
    overwrite: Overwrite = False,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite",
            help="With --explore: let a model say the questions in its own words; those are kept from which "
            "the answer is reached again. The options below name the model and the caps.",
        ),
    ] = False,
    llm: Annotated[
        bool, typer.Option("--llm", help="Let a model write the tasks; everything below belongs to it.")
    ] = False,
    config: ConfigFiles = None,
    settings: Settings = None,
    *,
    options: LLMOptions,
    as_json: Json = False,
) -> None:
    """Write train.jsonl, validation.jsonl and heldout.jsonl.

    Each task is made from what the servers really answer, and its gold plan has run before it is kept. No
    entity of one split occurs in another.

    With --llm a model writes them instead, over any OpenAI-compatible API. What it writes is checked,
    executed and voted on; the answers are what the tools really said. The numbers of tasks are then
    proportions. The journal in --out keeps every answer: after a kill the same command goes on.

    Example: mcpagent gen-data --train 800 --heldout 240 --seed 1 --out data/processed

    Example: mcpagent gen-data --servers mcp.json --read-only sqlite.list_tables,sqlite.describe_table

    Example: mcpagent gen-data --servers mcp.json --read-only sqlite --seed-value table=ships

    Example: mcpagent gen-data --explore --servers mcp.json --config notes.yaml

    Example: mcpagent gen-data --from-failures outputs/mine --train 200 --out data/harder

    Example: mcpagent gen-data --explore --servers mcp.json --rewrite --max-cost 5 --out data/mine

    Example: mcpagent gen-data --train 800 --heldout 240 --shard 1/8 --out data/parts

    Example: mcpagent gen-data --llm --n-samples 200 --max-cost 5 --out data/llm
    """
    from mcpagent.config.dataset_servers import DatasetServers
    from mcpagent.console import Console, counted
    from mcpagent.servers.names import BUILTIN_NAMES
    from mcpagent.storage.datasets import part_path
    from mcpagent.storage.locks import locked_file, locked_folder
    from mcpagent.synth.failures import read_failures
    from mcpagent.synth.generate import (
        DatasetOutput,
        check_dataset_servers,
        check_output,
        make_dataset,
        read_seed_values,
    )

    console = Console(is_json=as_json)
    values = read_seed_values(seed_value or (), seed_values)
    if values and llm:
        raise UserError("--seed-value is for exploring, not for --llm", remedy="leave one of them out")
    failures = None
    if from_failures is not None:
        if llm:
            raise UserError("--from-failures is not for --llm", remedy="leave one of them out")
        failures = read_failures(from_failures, seed=seed)
        console.note(
            f"{failures.n_tasks} of the {failures.n_played} tasks that {from_failures} met were failed, of "
            f"{counted(len(failures.variation.failed), 'kind')}"
        )
    if rewrite and (llm or not explore):
        raise UserError("--rewrite is for the questions of --explore", remedy="add --explore, without --llm")
    of = None if shard is None else shard_of(shard)
    if of is not None and rewrite:
        raise UserError(
            "--rewrite is not for --shard: a shard makes some tasks that the merge leaves out",
            remedy="leave one of them out",
        )
    with locked_folder(out) if of is None else locked_file(part_path(out, of)):
        if of is None:
            check_output(out, overwrite=overwrite)
        else:
            refuse_existing(part_path(out, of), overwrite=overwrite)
        counts = {"train": train, "validation": validation, "heldout": heldout}
        if failures is not None:
            counts = {"train": train}
        config_options = ConfigOptions(
            servers=servers,
            read_only=read_only,
            cassette=cassette,
            cassette_mode=cassette_mode,
            files=config,
            settings=settings,
        )
        tools = config_options.config(console, has_data=False).tools
        if failures is not None and servers is None:
            tools = failures.config.tools
        elif servers is None and not llm and (templates == "full" or explore):
            tools = tools.model_copy(update={"builtin": BUILTIN_NAMES, "limited": False})
        remembered = DatasetServers.of(out, tools)
        check_dataset_servers(remembered, overwrite=overwrite)
        output = DatasetOutput(folder=out, counts=counts, servers=remembered, overwrite=overwrite)
        if llm:
            run_llm(options, tools, output, seed=seed, distractors=distractors, console=console, shard=of)
            return
        document = make_dataset(
            templates,
            tools,
            output,
            seed=seed,
            distractors=distractors,
            explore=explore,
            console=console,
            seed_values=values,
            failures=failures,
            rewriting=rewriting(options, out, seed=seed, console=console) if rewrite else None,
            shard=of,
        )
        if as_json:
            console.print_json(document)
        elif of is not None:
            console.say(shard_line(document))
        else:
            _print(document, console)


def _print(document: Mapping[str, Any], console: Console) -> None:
    splits = [(split, document["by_split"][split], path) for split, path in document["paths"].items()]
    console.table("Tasks", ("Split", "Tasks", "File"), splits)
    if document["by_template"]:  # what exploring finds has no template
        console.table("By template", ("Template", "Tasks"), list(document["by_template"].items()))
    console.table("By class", ("Class", "Tasks"), list(document["by_class"].items()))
    stages = [
        (row["name"], row["in"], row["out"], ", ".join(f"{c} {n}" for c, n in row["rejects"].items()))
        for row in document["stages"]
    ]
    console.table("Yield", ("Stage", "In", "Out", "Rejected"), stages)
    if "rewrite" in document:
        console.say(_rewritten(document["rewrite"]))
    for code, texts in document["reject_examples"].items():
        console.say(f"  {code}: {texts[0]}")
    console.say(f"{document['executed_calls']} calls over MCP in {document['seconds']:.1f} s")


def _rewritten(told: Mapping[str, Any]) -> str:
    kept = ", ".join(f"{reason} {count}" for reason, count in told["kept_as_they_were"].items())
    requests = f"{told['spend']['requests']} requests"
    return f"{told['rewritten']} questions in the model's words, by {requests}" + (
        f"; as they were: {kept}" if kept else ""
    )


convert_app = typer.Typer(add_completion=False, rich_markup_mode=None)
_BUILTIN = "builtin"


@convert_app.command()
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
    env_class: Annotated[str, typer.Option(help="The record's env_class.")] = "MCPToolEnv",
    data_source: Annotated[str, typer.Option(help="The record's data_source.")] = "synthetic/dependent",
    as_json: Json = False,
) -> None:
    """Turn scenarios with conversations and tool plans into training tasks; a fault writes nothing, exit 2.

    The prompt holds the system message and the first user message; later user messages arrive at run time.

    Example: mcpagent convert dependent_spec.json --servers mcp.json --out data/processed/train.jsonl
    """
    from mcpagent.console import Console
    from mcpagent.storage.datasets import write_jsonl
    from mcpagent.storage.locks import locked_file
    from mcpagent.synth.datasets.describe import DatasetCounts
    from mcpagent.synth.generate import check_dataset_servers, write_servers

    console = Console(is_json=as_json)
    if execute and servers is None:
        raise UserError("--execute needs servers to run the plans on", remedy="add --servers mcp.json")
    refuse_existing(out, overwrite=overwrite)
    remembered = _remembered(servers, out, console)
    if remembered is not None:
        check_dataset_servers(remembered, overwrite=overwrite)
    with locked_file(out):
        conversion = asyncio.run(
            _convert(spec, servers, console, execute=execute, env_class=env_class, data_source=data_source)
        )
        for note in conversion.notes:
            console.note(f"note: {note}")
        for fault in conversion.faults:
            console.note(f"{spec}: {fault.pointer}: {fault.code.value}: {fault.message}\n  {fault.remedy}")
        rejects = out.with_name(f"{out.name}.rejects.jsonl")
        if conversion.faults and not (keep_going and conversion.good):
            _refuse(conversion, spec, console, as_json=as_json)
        if not conversion.good:
            raise UserError("the spec holds no task", where=str(spec), remedy="nothing was written")
        write_servers(remembered)
        counts = DatasetCounts()
        write_jsonl(out, counts.passed(conversion.tasks))
        if conversion.faults:
            write_jsonl(
                rejects,
                (
                    {"pointer": item.pointer, "faults": [f.as_json() for f in item.faults], "raw": item.raw}
                    for item in conversion.bad
                ),
            )
    _report(conversion, counts, console, out=out, rejects=rejects if conversion.faults else None)


def _remembered(servers: str | None, out: Path, console: Console) -> DatasetServers | None:
    """What the folder of `out` is to remember; None where no servers are named."""
    from mcpagent.config.dataset_servers import FILE_NAME, DatasetServers
    from mcpagent.config.schema import ToolsConfig
    from mcpagent.servers.names import BUILTIN_NAMES

    if servers is None:
        if (path := out.parent / FILE_NAME).is_file():
            console.note(f"{path} stays as it is: it will be used for these tasks too")
        return None
    is_builtin = servers == _BUILTIN
    tools = ToolsConfig(builtin=BUILTIN_NAMES, limited=False) if is_builtin else ToolsConfig(servers=servers)
    return DatasetServers.of(out.parent, tools)


async def _convert(
    spec: Path,
    servers: str | None,
    console: Console,
    *,
    execute: bool,
    env_class: str,
    data_source: str,
) -> Conversion:
    from mcpagent.cli.options import chosen_servers
    from mcpagent.synth.dependent.convert import convert_spec, execute_plans
    from mcpagent.synth.tasks.run import CallCache
    from mcpagent.tools.pool import ToolPool

    if servers is None:
        return convert_spec(spec, catalog=None, env_class=env_class, data_source=data_source)
    path = None if servers == _BUILTIN else Path(servers)
    async with ToolPool(chosen_servers(path, console=console, limited=False)) as pool:
        conversion = convert_spec(spec, catalog=pool.tools, env_class=env_class, data_source=data_source)
        return await execute_plans(conversion, CallCache(pool)) if execute else conversion


def _refuse(conversion: Conversion, spec: Path, console: Console, *, as_json: bool) -> None:
    from mcpagent.console import counted

    faults, bad, good = conversion.faults, len(conversion.bad), len(conversion.good)
    error = UserError(
        f"{counted(len(faults), 'fault')} in {bad} of {counted(bad + good, 'task')}; nothing was written",
        where=str(spec),
        remedy="fix them"
        + (", or add --keep-going to write the others and a file of rejects" if good else ""),
    )
    if as_json:
        console.print_json({**error.as_json(), "faults": [fault.as_json() for fault in faults]})
    console.complain(str(error))
    raise typer.Exit(UserError.exit_code)


def _report(
    conversion: Conversion, of_tasks: DatasetCounts, console: Console, *, out: Path, rejects: Path | None
) -> None:
    from mcpagent.console import counted

    counts = of_tasks.as_json()
    codes: dict[str, int] = {}
    for fault in conversion.faults:
        codes[fault.code.value] = codes.get(fault.code.value, 0) + 1
    document = {
        **counts,
        "path": str(out),
        "rejected": len(conversion.bad),
        "rejects": codes,
        "rejects_path": None if rejects is None else str(rejects),
        "notes": conversion.notes,
    }
    if console.is_json:
        console.print_json(document)
        return
    console.say(f"{counted(counts['records'], 'task')} in {out}")
    if rejects is not None:
        console.say(f"{document['rejected']} rejected, with their faults in {rejects}")
