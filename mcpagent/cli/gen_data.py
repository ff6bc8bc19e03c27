"""`mcpagent gen-data`: tasks from templates, from exploring servers, or from a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mcpagent.cli.gen_data_llm import (
    LLMOptions,
    has_endpoint,
    next_steps,
    run_llm,
)
from mcpagent.cli.options import (
    ConfigOptions,
    HeldoutServer,
    Json,
    Overwrite,
    ReadOnly,
    SeedValue,
    check_batch,
)
from mcpagent.cli.readers import YesReadOnly, with_readers
from mcpagent.cli.results import dataset_blocks
from mcpagent.config.dataset_servers import DatasetServers
from mcpagent.console import Block, Console
from mcpagent.errors import UserError
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.storage.locks import locked_folder


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options that say where the tasks come from."""

    templates: Annotated[
        str,
        typer.Option(
            help="core: the four servers of the embedded model, in its words. full: every class of task, all "
            "five servers. Or a folder of templates."
        ),
    ] = "core"
    explore: Annotated[
        bool,
        typer.Option(
            "--explore",
            help="Make tasks from what the servers' read-only tools are seen to do, without templates. This "
            "is what happens with --servers if there is no endpoint and no template fits.",
        ),
    ] = False
    read_only: ReadOnly = None
    yes_read_only: YesReadOnly = False
    seed_value: SeedValue = None


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """The options that say how many tasks there are, and where they are written."""

    train: Annotated[int, typer.Option(min=0, help="Tasks for training.")] = 800
    validation: Annotated[int, typer.Option(min=0, help="Tasks for validation.")] = 100
    heldout: Annotated[int, typer.Option(min=0, help="Tasks held out for the final evaluation.")] = 240
    distractors: Annotated[
        int | None,
        typer.Option(min=0, help="Offer this many other tools with those needed. Default: every tool."),
    ] = None
    heldout_server: HeldoutServer = None
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("data/processed")
    overwrite: Overwrite = False


def gen_data(
    source: SourceOptions,
    size: SizeOptions,
    llm: Annotated[
        bool,
        typer.Option(
            "--llm",
            help="Let a model write the tasks, with the options below. This is what happens with --servers "
            "if there is an endpoint: api.base_url, OPENAI_BASE_URL or OPENAI_API_KEY.",
        ),
    ] = False,
    *,
    options: ConfigOptions,
    writer: LLMOptions,
    as_json: Json = False,
) -> None:
    """Write train.jsonl, validation.jsonl and heldout.jsonl.

    Each task is made from what the servers really answer, and its gold plan has run before it is kept. No
    entity of one split occurs in another.

    With --llm a model writes them instead, over any OpenAI-compatible API. What it writes is checked,
    executed, reviewed and solved anew from the question alone; the answers are what the tools really said.
    The numbers of tasks are then proportions. The journal in --out keeps every answer: after a kill the same
    command goes on. Set the server and caps by --set: api.base_url, api.max_cost, api.max_requests; --batch
    and --answers ask by files instead.

    Example: mcpagent gen-data --train 800 --heldout 240 --seed 1 --out data/processed

    Example: mcpagent gen-data --servers mcp.json --read-only sqlite.list_tables,sqlite.describe_table

    Example: mcpagent gen-data --servers mcp.json --read-only sqlite --seed-value table=ships

    Example: mcpagent gen-data --explore --servers mcp.json --yes-read-only --out data/mine

    Example: mcpagent gen-data --explore --servers mcp.json --heldout-server library --out data/unseen

    Example: mcpagent gen-data --explore --servers mcp.json --config notes.yaml

    Example: mcpagent gen-data --llm --n-samples 200 --set api.max_cost=5 --out data/llm

    Example: mcpagent gen-data --llm --servers mcp.json --batch round-1.jsonl

    Example: mcpagent gen-data --llm --servers mcp.json --answers in-1.jsonl --batch round-2.jsonl
    """
    from mcpagent.synth.generate import (
        DatasetOutput,
        check_dataset_servers,
        check_output,
        make_dataset,
        read_seed_values,
    )

    console = Console(is_json=as_json)
    if llm and source.seed_value:
        raise UserError("--seed-value is not for --llm", remedy="leave one of them out")
    if (writer.batch or writer.answers) and not llm:
        raise UserError("--batch and --answers are for --llm", remedy="add --llm")
    check_batch(writer.batch, writer.answers, overwrite=size.overwrite)
    values = read_seed_values(source.seed_value or ())
    with locked_folder(size.out):
        check_output(size.out, overwrite=size.overwrite)
        config = options.config(console, has_data=False, read_only=source.read_only)
        seed, has_servers = config.seed, options.servers is not None
        tools = config.tools
        if has_servers and not llm and _leaves_the_way(source) and has_endpoint(config.api):
            llm = True
            console.note("there is an endpoint: a model writes the tasks; --explore makes them without one")
        if not has_servers and not llm and (source.templates == "full" or source.explore):
            tools = tools.model_copy(update={"builtin": BUILTIN_NAMES, "limited": False})
        if (
            source.templates == "core"
            and (source.explore or has_servers)
            and not (llm and writer.allow_writes)
        ):
            tools = with_readers(tools, console, takes_guess=source.yes_read_only, folder=size.out)
        remembered = DatasetServers.of(size.out, tools)
        check_dataset_servers(remembered, overwrite=size.overwrite)
        counts = {"train": size.train, "validation": size.validation, "heldout": size.heldout}
        output = DatasetOutput(
            folder=size.out,
            counts=counts,
            servers=remembered,
            overwrite=size.overwrite,
            heldout_servers=size.heldout_server or (),
        )
        if llm:
            asked = config.model_copy(update={"tools": tools})
            run_llm(writer, asked, output, distractors=size.distractors, console=console)
            return
        document = make_dataset(
            source.templates,
            tools,
            output,
            seed=seed,
            distractors=size.distractors,
            explore=source.explore,
            console=console,
            seed_values=values,
        )
    console.print_blocks(document, _made(document, size.out))


def _leaves_the_way(source: SourceOptions) -> bool:
    """Return True if no option says how the tasks of servers of one's own are made."""
    return not (source.explore or source.seed_value) and source.templates == "core"


def _made(document: Mapping[str, Any], out: Path) -> Iterator[Block]:
    yield from dataset_blocks(document)
    yield f"{document['executed_calls']} calls over MCP in {document['seconds']:.1f} s"
    yield from next_steps(out)
