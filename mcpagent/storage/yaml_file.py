"""YAML files as values and as the lines they stand in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from mcpagent.core.records import describe, reason
from mcpagent.errors import UserError

_M = TypeVar("_M", bound=BaseModel)
Place = tuple[Any, ...]


@dataclass(frozen=True)
class YamlSource:
    """A parsed file: its data, and the syntax tree that knows the lines."""

    path: Path
    data: Any
    root: yaml.Node | None

    def line(self, place: Place) -> int:
        """Line of the value at `place` (keys and indexes from the top); of its nearest parent if it is
        absent."""
        node, line = self.root, 1 if self.root is None else self.root.start_mark.line + 1
        for part in place:
            child = _child(node, part)
            if child is None:
                break
            line, node = child
        return line


def read_yaml(path: Path, *, remedy: str | None = None) -> YamlSource:
    """Raise UserError for a missing file and for broken YAML, with its line."""
    try:
        text = path.read_text(encoding="utf-8")
        return YamlSource(path, yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader))
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", where=str(path), remedy=remedy) from None
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {error.start})", where=str(path), remedy=remedy) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"not valid YAML: {error.problem}", where=f"{path}:{line}", remedy=remedy) from None
    except RecursionError:
        raise UserError("the values are nested too deeply", where=str(path), remedy=remedy) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that is not one
        raise UserError(f"not valid YAML: {error}", where=str(path), remedy=remedy) from None


def validate_yaml(model: type[_M], source: YamlSource, place: Place = (), *, remedy: str | None = None) -> _M:
    """Return the value at `place` as a record. Raises one UserError that lists every problem with its
    line."""
    value = source.data
    for part in place:
        value = value[part]
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = []
        for item in error.errors():
            text = describe(item) if item["loc"] else reason(item)
            problems.append((source.line((*place, *item["loc"])), text))
        problems.sort()
        first_line, first = problems[0]
        rest = [f"{source.path}:{line}: {text}" for line, text in problems[1:]]
        raise UserError(
            "\n".join([first, *rest]), where=f"{source.path}:{first_line}", remedy=remedy
        ) from None


def _child(node: yaml.Node | None, part: Any) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None
