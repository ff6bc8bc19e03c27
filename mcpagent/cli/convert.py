"""`mcpagent convert`: chats, or conversations with tool plans, as a dataset."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcpagent.cli.options import (
    Answers,
    Batch,
    ConfigFiles,
    ConfigOptions,
    Json,
    Overwrite,
    ReadOnly,
    Settings,
    check_batch,
    next_round,
    out_file,
    refuse_existing,
    servers_file,
)
from mcpagent.cli.readers import YesReadOnly, with_readers
from mcpagent.config.dataset_servers import FILE_NAME, DatasetServers
from mcpagent.config.schema import ToolsConfig, TrainConfig
from mcpagent.console import Block, Console, Table, counted
from mcpagent.errors import UserError
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.storage.datasets import write_jsonl
from mcpagent.storage.json_stream import plain_suffix
from mcpagent.storage.locks import locked_file, locked_folder

if TYPE_CHECKING:
    from mcpagent.synth.chats.answer import AnswerWriter
    from mcpagent.synth.chats.convert import ChatConversion
    from mcpagent.synth.dependent.convert import Conversion
    from mcpagent.tools.setup import Tools

_BUILTIN = "builtin"
_SHOWN = 60  # rows of the table of what was left out; the file has all


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="Chats: rows with `messages`, in JSONL, JSON (.gz, .zst) or parquet. Or a dependent spec.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="A folder for train.jsonl, of chats also validation.jsonl and heldout.jsonl; of a spec also "
            "a file: .jsonl or .json, also .gz and .zst.",
        ),
    ] = Path("data/processed"),
    servers: Annotated[
        Path | None,
        typer.Option(
            callback=servers_file,
            help="An mcp.json, a client, or `builtin`. Calls of chats are made there. A spec is checked by "
            "it, and its tools are offered; by default nothing is checked, and the spec names the offer.",
        ),
    ] = None,
    read_only: ReadOnly = None,
    yes_read_only: YesReadOnly = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="Of chats: this model names the type and value of each answer, which a result must show. "
            "Without it chats are graded by their calls, and by what those changed."
        ),
    ] = None,
    batch: Batch = None,
    answers: Answers = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Of a spec: run every plan on the servers as well.")
    ] = False,
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going", help="Of a spec: write the good tasks, and OUT.rejects.jsonl for the others."
        ),
    ] = False,
    files: ConfigFiles = None,
    settings: Settings = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn chats that people had with an agent into tasks, or scenarios with conversations and tool plans.

    The prompt holds the system message and the first user message; later user messages arrive at run time.
    Every call of a chat is made on the live servers before it counts, one that may write only if each
    session has its own state. A table says of every row that was left out why; the rest goes on. On any fault
    of a spec nothing is written, and the command exits 2.

    Example: mcpagent convert chats.jsonl --servers mcp.json --out data/mine

    Example: mcpagent convert chats.jsonl --servers mcp.json --model gpt-5-mini --set api.max_cost=2

    Example: mcpagent convert chats.jsonl --servers mcp.json --model gpt-5-mini --batch round-1.jsonl

    Example: mcpagent convert dependent_spec.json --servers mcp.json --out data/processed/train.jsonl
    """
    from mcpagent.synth.chats.read import holds_chats

    console = Console(is_json=as_json)
    if execute and servers is None:
        raise UserError("--execute needs servers to run the plans on", remedy="add --servers mcp.json")
    options = ConfigOptions(servers=servers, files=files, settings=settings)
    config = None if servers is None else _config(options, read_only, console)
    are_chats = holds_chats(source)
    if are_chats and (execute or keep_going):
        raise UserError(
            "--execute and --keep-going are for a spec: chats are always played, and the rest goes on",
            remedy="leave them out",
        )
    if batch or answers:
        if model is None:
            raise UserError("--batch and --answers are for --model", remedy="add --model gpt-5-mini")
        check_batch(batch, answers, overwrite=overwrite)
    if not are_chats:
        if model is not None:
            raise UserError("--model is for chats", where=str(source), remedy="leave it out")
        tools = None if config is None else config.tools
        out = out_file("train.jsonl")(out) or out
        _convert_spec(
            source, out, tools, console, execute=execute, keep_going=keep_going, overwrite=overwrite
        )
        return
    if plain_suffix(out) in (".json", ".jsonl"):
        raise UserError("chats become a file for each split", where=f"--out {out}", remedy="name a folder")
    if config is None:
        raise UserError(
            "the calls of chats are made on live servers, and none are named",
            where=str(source),
            remedy="add --servers mcp.json (or --servers builtin)",
        )
    if yes_read_only or (console.is_terminal and sys.stdin.isatty() and not as_json):
        tools = with_readers(config.tools, console, takes_guess=yes_read_only, folder=out)
        config = config.model_copy(update={"tools": tools})
    asking = None if model is None else _Asking(model, batch, answers)
    _convert_chats(source, out, config, asking, console, overwrite=overwrite)


@dataclass(frozen=True)
class _Asking:
    """The model that names answers; its questions go into the file `batch` if there is one, and what came
    back for an earlier one is in `answers`."""

    model: str
    batch: Path | None
    answers: Path | None


def _config(options: ConfigOptions, read_only: list[str] | None, console: Console) -> TrainConfig:
    """Return the settings with the servers that are named; `builtin` are all of the built-in ones."""
    if str(options.servers) != _BUILTIN:
        return options.config(console, has_data=False, read_only=read_only)
    config = ConfigOptions(files=options.files, settings=options.settings).config(
        console, has_data=False, read_only=read_only
    )
    tools = config.tools.model_copy(update={"servers": None, "builtin": BUILTIN_NAMES, "limited": False})
    return config.model_copy(update={"tools": tools})


def _convert_chats(
    source: Path, out: Path, config: TrainConfig, asking: _Asking | None, console: Console, *, overwrite: bool
) -> None:
    """Write the tasks and the table of what was left out, or the batch of what is to be asked first. Raises
    UserError if no chat became a task."""
    from mcpagent.synth.chats.convert import placed
    from mcpagent.synth.datasets.describe import count_tasks
    from mcpagent.synth.generate import check_dataset_servers, check_output, split_path, write_placed
    from mcpagent.synth.templates.pools import SPLITS

    rejects = out / "rejects.jsonl"
    remembered = DatasetServers.of(out, config.tools)
    with locked_folder(out):
        check_output(out, overwrite=overwrite)
        check_dataset_servers(remembered, overwrite=overwrite)
        conversion, writer, waiting = _converted_chats(source, config, asking, console)
        if asking is not None and waiting:
            document = {"waiting": waiting, "batch": str(asking.batch), "rows": conversion.rows}
            console.print_blocks(document, _waiting(document))
            return
        if not conversion.tasks:
            console.show_blocks(_left_out(conversion))
            raise UserError(
                f"none of {counted(conversion.rows, 'row')} became a task; nothing was written",
                where=str(source),
                remedy="the table says why",
                details={"rejects": conversion.rejects()},
            )
        placed_tasks = list(placed(conversion.tasks))
        written = write_placed(placed_tasks, out, splits=SPLITS, servers=remembered)
        counts = count_tasks(task for _, task in placed_tasks)
        paths = {split: str(split_path(out, split)) for split in SPLITS if written[split]}
        if conversion.left_out:
            write_jsonl(rejects, conversion.left_out)
        else:
            rejects.unlink(missing_ok=True)  # of an earlier run
    document = {
        **counts,
        "rows": conversion.rows,
        "path": str(out),
        "paths": paths,
        "rejected": len(conversion.left_out),
        "rejects": conversion.rejects(),
        "rejects_path": str(rejects) if conversion.left_out else None,
        "left_out": conversion.left_out,
        "graded_by": conversion.graded_by(),
        **({} if writer is None else {"answers": dict(writer.outcomes)}),
    }
    console.print_blocks(document, _made(document, conversion))


def _converted_chats(
    source: Path, config: TrainConfig, asking: _Asking | None, console: Console
) -> tuple[ChatConversion, AnswerWriter | None, int]:
    """Return what became of the chats, what the model said, and how many questions wait in its batch."""
    from mcpagent.synth.chats.answer import AnswerWriter, prompts
    from mcpagent.synth.chats.convert import convert_chats
    from mcpagent.tools.setup import open_tools

    with ExitStack() as stack:
        opened: Tools = stack.enter_context(open_tools(config.tools, on_note=console.note))
        writer, later = None, None
        if asking is not None:
            from mcpagent.run.api_models import open_api_model, open_batch

            run = {"model": asking.model, "prompts": dict(prompts()), "source": str(source)}
            if asking.batch is not None:
                later = stack.enter_context(
                    open_batch(
                        asking.model,
                        config,
                        name=f"chats-{source.name}",
                        run=run,
                        answers=asking.answers,
                        on_note=console.note,
                    )
                )
                writer = AnswerWriter(later)
            else:
                asked = stack.enter_context(
                    open_api_model(
                        asking.model,
                        config,
                        name=f"chats-{source.name}",
                        run=run,
                        base_url=config.api.base_url,
                        io=opened.io,
                        on_note=console.note,
                    )
                )
                writer = AnswerWriter(asked.client)
            console.note(
                f"{asking.model} is sent the questions, calls and results, secrets replaced by their names"
            )
        advance = stack.enter_context(console.progress("Chats"))
        conversion = opened.io.run(
            convert_chats(
                source,
                opened.pool,
                may_be_changed=opened.may_be_changed,
                writer=writer,
                on_progress=lambda rows, kept: advance(rows, note=counted(kept, "task")),
            )
        )
        waiting = 0
        if asking is not None and asking.batch is not None and later is not None and later.waiting:
            waiting = later.write(asking.batch)
        return conversion, writer, waiting


def _waiting(document: Mapping[str, Any]) -> Iterator[Block]:
    yield f"{counted(document['waiting'], 'question')} in {document['batch']}; no task is written yet"
    yield next_round(document["batch"])


def _left_out(conversion: ChatConversion) -> Iterator[Block]:
    if not conversion.left_out:
        return
    rows = [(row["line"], row["code"], row["why"]) for row in conversion.left_out[:_SHOWN]]
    title = f"Left out: {len(conversion.left_out)} of {counted(conversion.rows, 'row')}"
    yield Table(title, ("Line", "Code", "Why"), rows, is_text=True)


def _made(document: Mapping[str, Any], conversion: ChatConversion) -> Iterator[Block]:
    yield from _left_out(conversion)
    for split, path in document["paths"].items():
        yield f"{counted(document['by_split'][split], 'task')} in {path}"
    yield "graded by " + ", ".join(f"{how} {n}" for how, n in document["graded_by"].items())
    if "answers" in document:
        yield "answers of the model: " + ", ".join(f"{what} {n}" for what, n in document["answers"].items())
    if document["rejects_path"]:
        yield f"{counted(document['rejected'], 'row')} left out, each with why in {document['rejects_path']}"
    yield f"next: mcpagent env check --data {shlex.quote(document['path'])}"


def _convert_spec(
    spec: Path,
    out: Path,
    tools: ToolsConfig | None,
    console: Console,
    *,
    execute: bool,
    keep_going: bool,
    overwrite: bool,
) -> None:
    from mcpagent.synth.datasets.describe import count_tasks
    from mcpagent.synth.generate import check_dataset_servers, write_servers

    refuse_existing(out, overwrite=overwrite)
    remembered = None if tools is None else DatasetServers.of(out.parent, tools)
    if remembered is not None:
        check_dataset_servers(remembered, overwrite=overwrite)
    elif (path := out.parent / FILE_NAME).is_file():
        console.note(f"{path} stays as it is: it will be used for these tasks too")
    rejects = out.with_name(f"{out.name}.rejects.jsonl")
    with locked_file(out):
        conversion = _converted(spec, tools, console, execute=execute)
        for note in conversion.notes:
            console.note(f"note: {note}")
        for fault in conversion.faults:
            console.note(f"{spec}: {fault.pointer}: {fault.code.value}: {fault.message}\n  {fault.remedy}")
        if conversion.faults and not (keep_going and conversion.tasks):
            _refuse(conversion, spec, console)
        if not conversion.tasks:
            raise UserError("the spec holds no task", where=str(spec), remedy="nothing was written")
        write_servers(remembered)
        write_jsonl(out, conversion.tasks)
        if conversion.faults:
            write_jsonl(rejects, conversion.rejects)
    document = {
        **count_tasks(conversion.tasks),
        "path": out,
        "rejected": len(conversion.rejects),
        "rejects": dict(Counter(fault.code.value for fault in conversion.faults)),
        "rejects_path": rejects if conversion.faults else None,
        "notes": conversion.notes,
    }
    blocks: list[Block] = [f"{counted(document['records'], 'task')} in {out}"]
    if conversion.faults:
        blocks.append(f"{document['rejected']} rejected, with their faults in {rejects}")
    console.print_blocks(document, blocks)


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


def _refuse(conversion: Conversion, spec: Path, console: Console) -> None:
    faults, bad, good = conversion.faults, len(conversion.rejects), len(conversion.tasks)
    error = UserError(
        f"{counted(len(faults), 'fault')} in {bad} of {counted(bad + good, 'task')}; nothing was written",
        where=str(spec),
        remedy="fix them"
        + (", or add --keep-going to write the others and a file of rejects" if good else ""),
    )
    if console.is_json:
        console.print_json({**error.as_json(), "faults": faults})
    console.complain(str(error))
    raise typer.Exit(UserError.exit_code)
