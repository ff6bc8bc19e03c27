"""`mcpagent gen-data`: synthesise tasks, from templates or with a model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcpagent.cli.gen_data_llm import run_llm
from mcpagent.cli.gen_data_options import LLMOptions
from mcpagent.cli.options import with_options
from mcpagent.cli.sampling import Cassette, CassetteMode, Chosen, Json, Overwrite

if TYPE_CHECKING:
    from mcpagent.config.schema import ToolsConfig
    from mcpagent.console import Console
    from mcpagent.core.records import JsonObject
    from mcpagent.synth.rules import GeneratedData
    from mcpagent.synth.templates import TemplateSet

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
    cassette: Cassette = None,
    cassette_mode: CassetteMode = None,
    train: Annotated[int, typer.Option(min=0, help="Tasks for training.")] = 800,
    validation: Annotated[int, typer.Option(min=0, help="Tasks for validation.")] = 100,
    heldout: Annotated[int, typer.Option(min=0, help="Tasks held out for the final evaluation.")] = 240,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    distractors: Annotated[
        int | None,
        typer.Option(min=0, help="Offer this many other tools beside those needed. Default: every tool."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("data/processed"),
    overwrite: Overwrite = False,
    llm: Annotated[
        bool, typer.Option("--llm", help="Let a model write the tasks; everything below belongs to it.")
    ] = False,
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

    Example: mcpagent gen-data --llm --n-samples 200 --max-cost 5 --out data/llm
    """
    from mcpagent.config.dataset_servers import DatasetServers
    from mcpagent.console import Console
    from mcpagent.servers.names import BUILTIN_NAMES
    from mcpagent.storage.locks import locked_folder
    from mcpagent.synth.output import check_output, check_servers, short_note, write_splits

    started = time.perf_counter()
    console = Console(is_json=as_json)
    with locked_folder(out):
        check_output(out, overwrite=overwrite)
        counts = {"train": train, "validation": validation, "heldout": heldout}
        chosen = Chosen(servers=servers, read_only=read_only, cassette=cassette, cassette_mode=cassette_mode)
        tools = chosen.config(console, has_data=False).tools
        if servers is None and not llm and (templates == "full" or explore):
            tools = tools.model_copy(update={"builtin": BUILTIN_NAMES, "limited": False})
        remembered = DatasetServers.of(out, tools)
        check_servers(remembered, overwrite=overwrite)
        if llm:
            run_llm(
                options,
                tools,
                console,
                counts=counts,
                seed=seed,
                distractors=distractors,
                out=out,
                servers=remembered,
                overwrite=overwrite,
            )
            return
        template_set = _template_set(templates)
        data, taped = _generate(
            template_set, tools, console, counts=counts, seed=seed, distractors=distractors, explore=explore
        )
        paths = write_splits(data.tasks, out, servers=remembered, overwrite=overwrite)
        document = _document(data, paths, template_set, seed=seed, seconds=time.perf_counter() - started)
        if taped is not None:
            document["cassette"] = taped
        if short := data.short_of(counts):
            document["short"] = {
                split: {"made": made, "asked": asked} for split, (made, asked) in short.items()
            }
            console.note(short_note(short, _why_short(data)))
        if as_json:
            console.print_json(document)
        else:
            _print(document, console)


def _template_set(name: str) -> TemplateSet:
    from mcpagent.config.resources import resource_path
    from mcpagent.synth.templates import load_templates

    shipped = {"core": "templates/tasks", "full": "templates/full"}
    return load_templates(resource_path(shipped[name]) if name in shipped else Path(name))


def _generate(
    templates: TemplateSet,
    tools: ToolsConfig,
    console: Console,
    *,
    counts: Mapping[str, int],
    seed: int,
    distractors: int | None,
    explore: bool,
) -> tuple[GeneratedData, JsonObject | None]:
    """The tasks, and what the cassette did where there is one."""
    from mcpagent.rollout.setup import open_tools
    from mcpagent.synth.explore import explore_dataset
    from mcpagent.synth.rules import generate_dataset

    done: dict[str, int] = {}
    with (
        open_tools(tools, on_note=console.note) as opened,
        console.progress("Tasks", total=sum(counts.values())) as advance,
    ):

        def on_progress(split: str, kept: int, _: int) -> None:
            advance(kept - done.get(split, 0), note=split)
            done[split] = kept

        fitting = templates.for_servers({tool.server for tool in opened.pool.tools.values()})
        wanted = {"counts": counts, "seed": seed, "distractors": distractors, "on_progress": on_progress}
        if explore or not fitting.templates:
            console.note("no templates: the tasks come from what the read-only tools are seen to do")
            untold = sorted(t.dotted for t in opened.pool.tools.values() if not t.annotations.read_only)
            if untold:
                console.note(
                    f"never called, since they do not say that they only read: {', '.join(untold)}; "
                    "--read-only names those that do"
                )
            data = opened.io.run(explore_dataset(opened.pool, **wanted))
        else:
            data = opened.io.run(generate_dataset(opened.pool, fitting, **wanted))
        return data, opened.take_cassette_counts()


def _why_short(data: GeneratedData) -> str:
    sizes = data.entities.values()
    if all("facts" in of_split for of_split in sizes):  # explored
        things = sum(of_split["facts"] for of_split in sizes)
        return f"the read-only tools gave {things} things to ask about, each of which belongs to one split"
    tried = {
        split: ", ".join(f"{n} {pool}" for pool, n in data.entities[split].items()) for split in data.tasks
    }
    told = "; ".join(f"{split}: {of_split}" for split, of_split in tried.items())
    return f"the templates give no other task with the entities of a split ({told}); add some to pools.yaml"


def _document(
    data: GeneratedData, paths: Mapping[str, Path], templates: TemplateSet, *, seed: int, seconds: float
) -> dict[str, Any]:
    from mcpagent.synth.describe import count_tasks

    everything = count_tasks(task for tasks in data.tasks.values() for task in tasks).as_json()
    return {
        "records": everything["records"],
        **{name: everything[name] for name in everything if name.startswith("by_")},
        "candidates": data.candidates,
        "surplus": data.surplus,
        "stages": data.stages,
        "rejects": {code.value: count for code, count in data.rejects.items()},
        "reject_examples": {code.value: list(texts) for code, texts in data.examples.items()},
        "entities": data.entities,
        "executed_calls": data.executed_calls,
        "paths": {split: str(path) for split, path in paths.items()},
        "catalog_hash": data.catalog_hash,
        "templates_sha256": templates.sha256,
        "seed": seed,
        "seconds": round(seconds, 3),
    }


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
    for code, texts in document["reject_examples"].items():
        console.say(f"  {code}: {texts[0]}")
    console.say(f"{document['executed_calls']} calls over MCP in {document['seconds']:.1f} s")
