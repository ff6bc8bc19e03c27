"""Options that several commands share, or that are many: declared once, as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, get_type_hints

import typer.core
from typer.models import OptionInfo


class Group(typer.core.TyperGroup):
    """A group of commands whose list shows the whole first paragraph of each, not its first words."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in self.commands.values():
            command.short_help = " ".join((command.help or "").partition("\n\n")[0].split())


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes dataclasses of options (`chosen: Chosen`), for Typer: the fields that are declared
    as `Annotated[..., typer.Option(...)]` stand as options where the parameter stands. Other fields keep
    their defaults."""
    parameters: list[inspect.Parameter] = []
    made: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(kind := parameter.annotation):
            own = _options(kind)
            made[parameter.name] = (kind, [option.name for option in own])
            parameters += own
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


def _options(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(kind)
        if any(isinstance(extra, OptionInfo) for extra in getattr(hints[field.name], "__metadata__", ()))
    ]


# What an option sets, for the commands that take `--set` and not the option.
SETTING_OF = {
    "--algo": "algorithm",
    "--backend": "rollout.backend",
    "--base-url": "api.base_url",
    "--cassette": "tools.cassette",
    "--cassette-mode": "tools.cassette_mode",
    "--data": "data.train",
    "--device": "device",
    "--max-tasks": "data.max_tasks",
    "--mode": "finetune.mode",
    "--model": "model.name",
    "--read-only": "tools.read_only",
    "--seed": "seed",
    "--servers": "tools.servers",
    "--temperature": "rollout.temperature",
    "--tool-format": "rollout.tool_format",
}
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)(?:[ =]([^\s,;()]+))?")


def options_of(command: Any, words: Sequence[str]) -> set[str]:
    """The options of a command; of the subcommand that `words` name, where it is a group."""
    while hasattr(command, "commands") and (name := next((w for w in words if w in command.commands), None)):
        command = command.commands[name]
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def fitted(remedy: str, taken: Collection[str]) -> str:
    """A remedy in the options that the command takes: where it names another one, `--set KEY=VALUE` says the
    same. What stands after the name of another mcpagent command is that one's."""
    mine, command, rest = remedy.partition("mcpagent ")

    def replaced(match: re.Match[str]) -> str:
        option, value = match.groups()
        if option in taken or "--set" not in taken or option not in SETTING_OF:
            return match[0]
        return f"--set {SETTING_OF[option]}={value or 'VALUE'}"

    return _OPTION.sub(replaced, mine) + command + rest
