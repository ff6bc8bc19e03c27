"""`mcpagent gen-data`: synthesise tasks from templates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcpagent.cli.sampling import Cassette, CassetteMode, Chosen

if TYPE_CHECKING:
    from mcpagent.config.schema import ToolsConfig
    from mcpagent.console import Console
    from mcpagent.core.records import JsonObject
    from mcpagent.synth.rules import GeneratedData
    from mcpagent.synth.templates import TemplateSet

app = typer.Typer(add_completion=False)


@app.command()
def gen_data(
    templates: Annotated[
        Path | None, typer.Option(help="A folder of task templates. Default: those that ship with mcpagent.")
    ] = None,
    servers: Annotated[
        Path | None, typer.Option(help="An mcp.json with the servers to use. Default: the built-in ones.")
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the splits in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write train.jsonl, validation.jsonl and heldout.jsonl.

    Each task is made from what the servers really answer, and its gold plan has run before it is kept. No
    entity of one split occurs in another.

    Example: mcpagent gen-data --train 800 --heldout 240 --seed 1 --out data/processed
    """
    from mcpagent.config.resources import resource_path
    from mcpagent.console import Console
    from mcpagent.synth.output import check_output, write_splits
    from mcpagent.synth.templates import load_templates

    started = time.perf_counter()
    console = Console(is_json=as_json)
    check_output(out, overwrite=overwrite)
    chosen = load_templates(templates or resource_path("templates/tasks"))
    counts = {"train": train, "validation": validation, "heldout": heldout}
    tools = Chosen(servers=servers, cassette=cassette, cassette_mode=cassette_mode).config(console).tools
    data, taped = _generate(chosen, tools, console, counts=counts, seed=seed, distractors=distractors)
    paths = write_splits(data.tasks, out, overwrite=overwrite)
    document = _document(data, paths, chosen, seed=seed, seconds=time.perf_counter() - started)
    if taped is not None:
        document["cassette"] = taped
    if as_json:
        console.print_json(document)
    else:
        _print(document, console)


def _generate(
    templates: TemplateSet,
    tools: ToolsConfig,
    console: Console,
    *,
    counts: Mapping[str, int],
    seed: int,
    distractors: int | None,
) -> tuple[GeneratedData, JsonObject | None]:
    """The tasks, and what the cassette did where there is one."""
    from mcpagent.rollout.setup import open_tools
    from mcpagent.synth.rules import generate_dataset

    done: dict[str, int] = {}
    with (
        open_tools(tools, on_note=console.note) as opened,
        console.progress("Tasks", total=sum(counts.values())) as advance,
    ):

        def on_progress(split: str, kept: int, _: int) -> None:
            advance(kept - done.get(split, 0), note=split)
            done[split] = kept

        data = opened.io.run(
            generate_dataset(
                opened.pool,
                templates,
                counts=counts,
                seed=seed,
                distractors=distractors,
                on_progress=on_progress,
            )
        )
        return data, opened.take_cassette_counts()


def _document(
    data: GeneratedData, paths: Mapping[str, Path], templates: TemplateSet, *, seed: int, seconds: float
) -> dict[str, Any]:
    from mcpagent.synth.describe import count_tasks

    everything = count_tasks(task for tasks in data.tasks.values() for task in tasks).as_json()
    return {
        "records": everything["records"],
        **{name: everything[name] for name in everything if name.startswith("by_")},
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
    console.table("By template", ("Template", "Tasks"), list(document["by_template"].items()))
    rejects = ", ".join(f"{code} {count}" for code, count in document["rejects"].items()) or "none"
    console.say(f"Rejected candidates: {rejects}")
    for code, texts in document["reject_examples"].items():
        console.say(f"  {code}: {texts[0]}")
    console.say(f"{document['executed_calls']} calls over MCP in {document['seconds']:.1f} s")
