"""Parts that are loaded by their dotted name when they are used, so that no layer imports one above it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.parts import MODEL_BUILDERS


class ModelBuilder(Protocol):
    """Builds a model from nothing. GRPO cannot begin with one, and `advice` says what to do first."""

    advice: str

    def architecture(self) -> Any:
        """Return the model's transformers configuration."""
        ...

    def build(
        self,
        demonstrations: Sequence[Trajectory],
        tasks: Mapping[str, Task],
        *,
        catalog: Mapping[str, ToolSpec],
        seed: int,
        wording: Collection[str] | None = None,
    ) -> tuple[Any, Any]:
        """Return a model of random weights for supervised training on the demonstrations, and its tokenizer.
        `tasks` are by id; `wording` are the words that no name of a thing is made of, if that is known."""
        ...

    def build_small(self) -> tuple[Any, Any]:
        """Return the smallest model that samples, with random weights, and its tokenizer."""
        ...


def is_built(name: str) -> bool:
    """Return whether mcpagent builds `model.name`: it has no files, and training begins with random
    weights."""
    return name in MODEL_BUILDERS


def model_builder(name: str) -> ModelBuilder:
    """Return the builder of a model for which `is_built` holds."""
    return load_named(MODEL_BUILDERS[name], where="model.name")


def load_named(name: str, *, where: str) -> Any:
    """Return what "package.module:attribute" names, imported now. Raises UserError if it does not exist;
    `where` is the setting that names it."""
    module, _, attribute = name.partition(":")
    _make_importable(module)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise UserError(
            f"{where} is {name}, which cannot be imported: {kind}{error}",
            where=where,
            remedy="name a function as package.module:function, of a package that is installed here or of a "
            "file in the current folder",
        ) from error


def _make_importable(module: str) -> None:
    """A module in the current folder can be named too: an installed command does not look there. It comes
    last, so that it hides nothing."""
    top, here = module.partition(".")[0], Path.cwd()
    if ((here / top).is_dir() or (here / f"{top}.py").is_file()) and str(here) not in sys.path:
        sys.path.append(str(here))
        importlib.invalidate_caches()
