"""Options that several commands share, or that are many: declared once, as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from mcpagent.console import Console
from mcpagent.errors import UserError

if TYPE_CHECKING:
    from mcpagent.config.schema import TrainConfig


def command_app(command: Callable[..., None]) -> typer.Typer:
    """Return the application of a command that has no subcommands."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(with_options(command))
    return app


def group_app(help: str, commands: Mapping[str, Callable[..., None]]) -> typer.Typer:
    """Return the application of a group of commands; its list shows the whole first paragraph of each."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, help=help)
    for name, command in commands.items():
        summary = " ".join((command.__doc__ or "").partition("\n\n")[0].split())
        app.command(name, short_help=summary)(with_options(command))
    return app


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command that takes dataclasses of options (`options: ConfigOptions`) one for Typer: the fields
    declared as `Annotated[..., typer.Option(...)]` become options at the place of the parameter."""
    parameters: list[inspect.Parameter] = []
    made: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind: Any = parameter.annotation
        if dataclasses.is_dataclass(parameter.annotation):
            options = inspect.signature(kind, eval_str=True).parameters
            made[parameter.name] = (kind, list(options))
            parameters += options.values()
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def run(**given: Any) -> None:
        for name, (kind, names) in made.items():
            given[name] = kind(**{option: given.pop(option) for option in names})
        command(**given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return run


ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option("--config", metavar="FILE", help="A YAML file; repeat it to merge several."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, such as seed=1; may be repeated."),
]


def task_file(value: Path | None) -> Path | None:
    """Return the file of an option for tasks: of a folder its held-out tasks. Raises UserError."""
    if value is None:
        return None
    from mcpagent.storage.datasets import dataset_file

    return dataset_file(value, "heldout", "validation", "train")


def servers_file(value: Path | None) -> Path | None:
    """Return the file of `--servers`; if it is not there, but has the name of an MCP client, that client's.
    Before the first start of its servers the programs are shown, and a person at the terminal is asked.
    Raises UserError."""
    client = str(value)
    if value is None or value.exists():
        return value
    from mcpagent.tools.clients import client_file, client_places
    from mcpagent.tools.servers_config import StdioServer, load_servers
    from mcpagent.tools.setup import is_named, note_named

    places, place, console = client_places(client), client_file(client), Console()
    if not places:
        return value
    if place is None:
        raise UserError(f"{client} has none of {', '.join(map(str, places))}", where=f"--servers {client}")
    console.note(f"servers of {client}: {place}")
    if not is_named(place):
        for server in load_servers(place).servers:
            started = server.in_shell if isinstance(server, StdioServer) else urlsplit(server.url).hostname
            console.note(f"  {server.name}: {started}")
        if console.is_terminal and sys.stdin.isatty():
            typer.confirm("Start them?", abort=True, err=True)
        note_named(place)
    return place


Checkpoint = Annotated[
    Path,
    typer.Argument(
        help="A checkpoint folder, or a run folder: its best one; RUN@latest and RUN@STEP name others.",
        show_default=False,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        callback=task_file,
        help="Tasks: .jsonl or .json, also .gz and .zst; or a dataset's folder: its held-out tasks.",
    ),
]
Model = Annotated[
    str | None, typer.Option("--model", help="A folder, a run, a hub id, or embedded: the built-in one.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Servers = Annotated[
    Path | None,
    typer.Option(
        "--servers",
        callback=servers_file,
        help="An mcp.json, or a client whose file is taken: claude, claude-code, cursor, vscode, windsurf, "
        "zed and others. Default: those that the dataset remembers, else those of the run, else the built-in "
        "ones.",
    ),
]
ReadOnly = Annotated[
    list[str] | None,
    typer.Option(
        "--read-only",
        metavar="TOOL,...",
        help="With --servers: tools (server.tool) or servers that only read but do not say so; they may be "
        "called to see what they do; may be repeated.",
    ),
]
SeedValue = Annotated[
    list[str] | None,
    typer.Option(
        "--seed-value",
        metavar="[SERVER.][TOOL.]PARAM=VALUE",
        help="With --servers: a value that exploring cannot guess, such as path=notes/todo.md; may be "
        "repeated.",
    ),
]
HeldoutServer = Annotated[
    list[str] | None,
    typer.Option(
        "--heldout-server",
        metavar="SERVER",
        help="Keep this server from training and validation: no task of theirs calls it or offers a tool of "
        "it, and half of the held-out tasks need it; may be repeated.",
    ),
]


def shard_of(value: str | None) -> tuple[int, int]:
    """Return the numbers of `--shard I/N`; without it the whole. Raises UserError."""
    match = re.fullmatch(r"([1-9][0-9]*)/([1-9][0-9]*)", value or "1/1")
    if match is None or int(match[1]) > int(match[2]):
        raise UserError("is not I/N with 1 <= I <= N", where=f"--shard {value}", remedy="such as --shard 1/8")
    return int(match[1]), int(match[2])


Shard = Annotated[
    str | None, typer.Option("--shard", metavar="I/N", help="Every N-th task from the I-th on.")
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature", min=0.0, help="Default: 0 (greedy) with one sample a task, 1 with several."
    ),
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="Attempts at each task.")]
Shots = Annotated[
    int,
    typer.Option(
        "--shots",
        min=0,
        help="So many training tasks, with their gold plans played now, stand before every question as "
        "earlier turns.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="The same seed gives the same episodes.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


Batch = Annotated[
    Path | None,
    typer.Option(
        "--batch",
        metavar="OUT.jsonl",
        help="Write every question as a line of the Batch API's format and end; no service is asked.",
    ),
]
Answers = Annotated[
    Path | None,
    typer.Option(
        "--answers",
        metavar="IN.jsonl",
        help="What came back for the file of an earlier --batch: go on from there. What is still asked goes "
        "into --batch.",
    ),
]


def check_batch(batch: Path | None, answers: Path | None, *, overwrite: bool) -> None:
    """Raise UserError for batch options that cannot be."""
    if answers and not batch:
        raise UserError(
            "--answers without --batch: what is still to be asked has no file",
            remedy="name another file for the next round: --batch round-2.jsonl",
        )
    if batch and batch.exists() and not overwrite:
        raise UserError("is there already", where=str(batch), remedy="name another file, or add --overwrite")


def next_round(batch: str) -> str:
    """Return what to type after a batch is written."""
    return (
        f"Next: have {shlex.quote(batch)} answered, then the same command with --answers IN.jsonl --batch "
        "NEXT.jsonl"
    )


def out_file(name: str) -> Callable[[Path | None], Path | None]:
    """Return the callback of an `--out` for a file: a folder means the file `name` in it."""

    def in_folder(value: Path | None) -> Path | None:
        return value / name if value is not None and (value.is_dir() or not value.suffix) else value

    return in_folder


def refuse_existing(
    *paths: Path, overwrite: bool, remedy: str = "add --overwrite, or name another place"
) -> None:
    """Raise UserError if one of the paths exists, unless it is to be written over."""
    there = [str(path) for path in paths if path.exists()]
    if there and not overwrite:
        raise UserError(f"{', '.join(there)} would be replaced", remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """The options as they were given; None if they were not."""

    servers: Servers = None
    seed: Seed = None
    files: ConfigFiles = None
    settings: Settings = None

    def config(
        self,
        console: Console,
        *,
        policy: str | None = None,
        data: Path | None = None,
        has_data: bool = True,
        read_only: Sequence[str] | None = None,
        temperature: float | None = None,
        default_temperature: float | None = None,
    ) -> TrainConfig:
        """Return the checked configuration: the files (none: those of the run that `policy` is a checkpoint
        of, else the ones that ship with mcpagent), then what the folder of `data` (None: of the validation
        set) remembers of its servers, unless the command `has_data` not, then `--set`, then the options:
        these, and `read_only` and `temperature` of the commands that have them. Without a
        `default_temperature` it is what the files say. Raises UserError."""
        from mcpagent.run.episodes import load_for_dataset
        from mcpagent.run.policies import config_of_run

        files, defaults = self.files or (), list[str]()
        run_config = None if files or policy is None else config_of_run(policy)
        if run_config is not None:
            console.note(f"settings: {run_config}")
            # What the run was trained with and on says nothing about what it is to be judged with and on.
            defaults = ["seed=0", "data.max_tasks=null", "model.tokenizer=null"]
        if default_temperature is not None and not _sets_temperature(self.settings or ()):
            defaults.append(f"rollout.temperature={default_temperature}")
        options = {
            "tools.servers": None if self.servers is None else str(self.servers),
            "tools.read_only": None if read_only is None else ",".join(read_only).split(","),
            "seed": self.seed,
            "rollout.temperature": temperature,
        }
        return load_for_dataset(
            files,
            [*defaults, *(self.settings or ()), *settings_of(options)],
            data=data,
            split="validation" if has_data else None,
            note=console.note,
            for_training=False,
            inherited=run_config,
        )


def settings_of(options: dict[str, Any]) -> list[str]:
    """Return what the options set, as `--set` would; those that are None were not given."""
    # A JSON text is a YAML text too, whatever characters a path holds.
    return [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]


def _sets_temperature(settings: Sequence[str]) -> bool:
    """Return whether a setting is the temperature, in any of its spellings."""
    return any(text.partition("=")[0].strip().rpartition(".")[2] == "temperature" for text in settings)
