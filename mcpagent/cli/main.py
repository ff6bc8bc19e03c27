"""Entry point. A command's module is imported when that command runs, so that `--help` stays light."""

from __future__ import annotations

import gc
import importlib
import shlex
import sys
import traceback
from typing import Any, NoReturn

import typer
import typer.core
import typer.main

from mcpagent.core.threads import limit_threads
from mcpagent.errors import MCPAgentError
from mcpagent.interrupts import Interrupted, end_with, listen

# New objects between two collections: episodes and tasks make many objects and few cycles, and with the
# default of 700 looking for cycles costs them CPU time.
GC_THRESHOLD = 50_000

# name -> (module and function, or module and application of a group; the line in the list of commands)
COMMANDS: dict[str, tuple[str, str]] = {
    "quickstart": (
        "mcpagent.cli.quickstart:quickstart",
        "Train a small agent on real MCP tools, offline, and show that it learned.",
    ),
    "doctor": (
        "mcpagent.cli.checks:doctor",
        "Check this machine: packages, device, servers, keys.",
    ),
    "gen-data": (
        "mcpagent.cli.gen_data:gen_data",
        "Make tasks from templates, grounded in what the servers answer.",
    ),
    "convert": ("mcpagent.cli.convert:convert", "Turn a dependent spec into a dataset."),
    "data": ("mcpagent.cli.data:app", "Validate a dataset, or show what is in it."),
    "tools": ("mcpagent.cli.tools:tools_app", "List and call the tools of MCP servers."),
    "serve": ("mcpagent.cli.tools:serve", "Run one of the built-in MCP servers."),
    "env": (
        "mcpagent.cli.checks:env_app",
        "Check the environment: gold, empty and over-eager policies on every task.",
    ),
    "rollout": ("mcpagent.cli.runs:rollout", "Collect trajectories with any policy."),
    "train": ("mcpagent.cli.train:train", "Train with GRPO or supervised; LoRA or full; resumable; dry run."),
    "chat": ("mcpagent.cli.chat:chat", "Talk to an agent with its tools live; a write asks first."),
    "runs": ("mcpagent.cli.runs:runs", "List the training runs: state, steps, success."),
    "eval": ("mcpagent.cli.evaluate:app", "Evaluate a checkpoint or a model on a dataset."),
    "export": (
        "mcpagent.cli.runs:export",
        "Write a checkpoint as a plain Hugging Face folder with a model card.",
    ),
    "report": ("mcpagent.cli.runs:report", "Write the self-contained HTML report of a run."),
    "view": ("mcpagent.cli.runs:view", "Serve a run's report live, on this machine, while it trains."),
    "smoke": ("mcpagent.cli.checks:smoke", "Prove that the sampler of a backend has the new weights."),
}


class _LazyGroup(typer.core.TyperGroup):
    """Lists its commands by name and line; the module of one is imported when that one is to run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: typer.core.TyperCommand(name, short_help=line) for name, (_, line) in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, registered, rest = super().resolve_command(ctx, args)
        if name is None or registered is None:
            return name, registered, rest
        command = load_command(name)
        command.name = name
        return name, command, rest


def load_app(name: str) -> typer.Typer:
    """Return the Typer application of the command, or group of commands, of that name; imports its module."""
    from mcpagent.cli.options import command_app

    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    return command if isinstance(command, typer.Typer) else command_app(command)


def load_command(name: str) -> Any:
    """Return the command, or the group of commands, of that name; imports its module."""
    return typer.main.get_command(load_app(name))


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train and evaluate language-model agents on MCP tool servers.\n\nStart with: mcpagent quickstart",
)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print version and commit, and exit."),
    debug: bool = typer.Option(
        False,
        "--debug",
        help="With any command: tracebacks, and in a run's logs/run.log the messages of all libraries.",
    ),
) -> None:
    from mcpagent.console import Console, guard_process

    guard_process()
    if debug:
        import logging

        logging.getLogger().setLevel(logging.DEBUG)  # `storage.run_folder.is_debugging`
    if version:
        from mcpagent import __version__
        from mcpagent.storage.packages import commit

        of = commit()
        changed = " with changes" if of and of["has_changes"] else ""
        Console().say(f"{__version__} (commit {of['commit'][:12]}{changed})" if of else __version__)
        raise typer.Exit


def run() -> None:
    """Console script: known errors become one message and an exit code; everything else is a bug."""
    limit_threads()
    if "serve" not in sys.argv[1:2]:  # a server ends as whoever started it asks
        listen()
    words = sys.argv[1:]
    if "--debug" in words:  # it may stand anywhere
        words.remove("--debug")
        words.insert(0, "--debug")
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    try:
        app(args=words)
    except ModuleNotFoundError as error:
        from mcpagent.storage.packages import extra_with, missing_error

        extra = extra_with(error.name or "")
        if extra is None:
            raise
        _fail(missing_error([extra], use="this command", also=(error.name or "",)))
    except MCPAgentError as error:
        _fail(error)
    except OSError as error:
        from mcpagent.storage.atomic import disk_error

        if (failure := disk_error(error, where=None)) is None:
            raise
        _fail(failure)
    except SystemExit as end:
        exit_of_typer = end.__context__  # which ends an interrupted command without a word
        if exit_of_typer is None or not isinstance(exit_of_typer.__cause__, KeyboardInterrupt):
            raise
        _end_interrupted(exit_of_typer.__cause__)
    except KeyboardInterrupt as interrupt:  # before the command began
        _end_interrupted(interrupt)


def _end_interrupted(interrupt: KeyboardInterrupt) -> NoReturn:
    def say() -> None:
        from mcpagent.console import Console

        words = ["mcpagent", *sys.argv[1:]]
        if isinstance(interrupt, Interrupted):
            more = [] if interrupt.option is None or interrupt.option in words else [interrupt.option]
            command = shlex.join([*words, *more]) if interrupt.command is None else interrupt.command
            Console().last_note(
                f"interrupted: {interrupt.kept}" + (f"; go on with: {command}" if command else "")
            )
        else:
            done = str(interrupt) or "nothing is half-written"
            Console().last_note(f"interrupted: {done}; begin again with: {shlex.join(words)}")

    end_with(say)
    sys.exit(130)


def _fail(error: MCPAgentError) -> NoReturn:
    from mcpagent.console import Console

    console = Console(is_json="--json" in sys.argv)
    if "--debug" in sys.argv:
        console.note(traceback.format_exc().rstrip())
    console.fail(error)
    sys.exit(error.exit_code)


if __name__ == "__main__":
    run()
