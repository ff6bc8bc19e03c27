"""Options that several commands share, or that are many: declared once, as the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from typer.models import OptionInfo


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
