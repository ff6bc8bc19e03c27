"""A user's copy of the `bfcl-eval` package: its tasks, its tool lists and its backends. None of it ships."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonlines

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.servers.bfcl.names import BACKENDS

VERSION = "2026.3.23"
_GET_IT = (
    f"pip download --no-deps bfcl-eval=={VERSION} -d wheel && python -m zipfile -e wheel/*.whl bfcl, "
    "then --package bfcl"
)
_MODULES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
# One right answer in each category closes ticket 'ticket_001', where the tool list asks for an integer.
_WIDENED = {("close_ticket", "ticket_id"): ["integer", "string"]}


@dataclass(frozen=True)
class BfclPackage:
    """`root` is the folder that holds `bfcl_eval`: an unzipped wheel, or site-packages."""

    root: Path

    def __post_init__(self) -> None:
        if not (self.root / "bfcl_eval" / "data" / "multi_turn_func_doc").is_dir():
            raise UserError("there is no bfcl_eval package in it", where=str(self.root), remedy=_GET_IT)

    def rows(self, category: str) -> list[JsonObject]:
        """The tasks of a multi-turn category, as they are."""
        return self._lines(f"BFCL_v4_multi_turn_{category}.json")

    def answers(self, category: str) -> dict[str, list[list[str]]]:
        """By task, the right calls of each user turn, as Python expressions."""
        lines = self._lines(f"possible_answer/BFCL_v4_multi_turn_{category}.json")
        return {line["id"]: line["ground_truth"] for line in lines}

    def tools(self, backend: str) -> list[JsonObject]:
        """The tools of a backend: name, description and `input_schema` (JSON Schema 2020-12)."""
        return [
            {
                "name": doc["name"],
                "description": doc["description"],
                "input_schema": _json_schema(doc["parameters"], tool=doc["name"]),
            }
            for doc in self._lines(f"multi_turn_func_doc/{BACKENDS[backend]}.json")
        ]

    def backend_class(self, backend: str) -> type[Any]:
        """Imports it. Raises UserError where something that it needs is not installed."""
        if str(self.root) not in sys.path:
            sys.path.append(str(self.root))  # last: nothing beside it may replace what is installed
        try:
            return getattr(importlib.import_module(f"{_MODULES}.{BACKENDS[backend]}"), backend)
        except ModuleNotFoundError as error:
            raise UserError(
                f"BFCL's {backend} needs {error.name}, which is not installed",
                where=str(self.root),
                remedy=f"pip install {error.name}",
            ) from None

    def _lines(self, name: str) -> list[JsonObject]:
        path = self.root / "bfcl_eval" / "data" / name
        try:
            with jsonlines.open(path) as lines:
                return list(lines.iter(type=dict, skip_empty=True))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read it: {error}", where=str(path), remedy=_GET_IT) from error


def _json_schema(schema: JsonObject, *, tool: str, name: str = "") -> JsonObject:
    """BFCL's description of a parameter with the type names of JSON Schema; `any` is no constraint."""
    converted = dict(schema)
    kind = converted.pop("type", "any")
    if kind != "any":
        converted["type"] = _WIDENED.get((tool, name)) or _TYPES.get(kind, kind)
    if "properties" in schema:
        converted["properties"] = {
            key: _json_schema(value, tool=tool, name=key) for key, value in schema["properties"].items()
        }
    if "items" in schema:
        converted["items"] = _json_schema(schema["items"], tool=tool)
    return converted
