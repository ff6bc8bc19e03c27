"""Your own copy of the `bfcl-eval` package: its tasks, tool lists and backends."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonlines

from mcpagent import UserError

JsonObject = dict[str, Any]

# The class of a backend, which is also the name of its server, and the module and the tool list of it.
BACKENDS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
STATELESS = frozenset({"MathAPI"})  # takes no scenario

MULTI_TURN = ("base", "miss_func", "miss_param", "long_context")
IRRELEVANCE = "irrelevance"  # no function of the question fits it, and no call is right
SINGLE_TURN = ("simple_python", "multiple", "parallel", IRRELEVANCE)

VERSION = "2026.3.23"
_GET_IT = (
    f"pip download --no-deps bfcl-eval=={VERSION} -d wheel && python -m zipfile -e wheel/*.whl bfcl, "
    "then --package bfcl"
)
_MODULES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
# One right answer in each category closes ticket 'ticket_001', where the tool list asks for an integer.
_WIDENED = {("close_ticket", "ticket_id"): ["integer", "string"]}


def load_tool(backend: str) -> str:
    """Return the tool that brings a backend into its initial state; it is never offered to a model."""
    return f"{backend}_load_scenario"


def state_tool(backend: str) -> str:
    """Return the tool that reads a backend's state; it is never offered to a model."""
    return f"{backend}_read_state"


@dataclass(frozen=True)
class BfclPackage:
    """`root` is the folder that holds `bfcl_eval`: an unzipped wheel, or site-packages."""

    root: Path

    def __post_init__(self) -> None:
        if not (self.root / "bfcl_eval" / "data" / "multi_turn_func_doc").is_dir():
            raise UserError("there is no bfcl_eval package in it", where=str(self.root), remedy=_GET_IT)

    def rows(self, category: str) -> list[JsonObject]:
        """Return the rows of a category."""
        return self._lines(_file_of(category))

    def answers(self, category: str) -> dict[str, list[Any]]:
        """Return what is right, by task: for each user turn its calls as Python expressions; of a single turn
        each call as `{function: {parameter: acceptable values}}`."""
        if category == IRRELEVANCE:
            return {row["id"]: [] for row in self.rows(category)}
        lines = self._lines(f"possible_answer/{_file_of(category)}")
        return {line["id"]: line["ground_truth"] for line in lines}

    def tools(self, backend: str) -> list[JsonObject]:
        """Return the tools of a backend, as `tool_of` has them."""
        return [tool_of(doc) for doc in self._lines(f"multi_turn_func_doc/{BACKENDS[backend]}.json")]

    def add_to_path(self) -> None:
        """Let `bfcl_eval` be imported from here."""
        if str(self.root) not in sys.path:
            sys.path.append(str(self.root))  # last: nothing next to it may replace what is installed

    def backend_class(self, backend: str) -> type[Any]:
        """Import the class of a backend. Raises UserError if a package that it needs is not installed."""
        self.add_to_path()
        try:
            return getattr(importlib.import_module(f"{_MODULES}.{BACKENDS[backend]}"), backend)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("bfcl_eval"):
                raise UserError(
                    f"the package lacks BFCL's {backend}", where=str(self.root), remedy=_GET_IT
                ) from None
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


def category_of(task_id: str) -> str:
    """Return the category of a task, which its id begins with."""
    return task_id.removeprefix("multi_turn_").rpartition("_")[0]


def _file_of(category: str) -> str:
    return f"BFCL_v4_{'multi_turn_' if category in MULTI_TURN else ''}{category}.json"


def tool_of(function: JsonObject) -> JsonObject:
    """Return a function of BFCL as a tool: name, description and `input_schema` (JSON Schema 2020-12)."""
    schema = json_schema(function["parameters"], tool=function["name"])
    return {"name": function["name"], "description": function["description"], "input_schema": schema}


def json_schema(schema: JsonObject, *, tool: str, name: str = "") -> JsonObject:
    """Return BFCL's description of a parameter as JSON Schema; `any` is not a constraint."""
    converted = dict(schema)
    kind = converted.pop("type", "any")
    if kind != "any":
        converted["type"] = _WIDENED.get((tool, name)) or _TYPES.get(kind, kind)
    if "properties" in schema:
        converted["properties"] = {
            key: json_schema(value, tool=tool, name=key) for key, value in schema["properties"].items()
        }
    if "items" in schema:
        converted["items"] = json_schema(schema["items"], tool=tool)
    return converted


@dataclass(frozen=True)
class BackendOutcome:
    """The result of a call; `text` is what BFCL compares."""

    text: str
    is_error: bool = False


class Backend:
    """A backend in the state of a scenario; the empty one until another is loaded."""

    def __init__(self, package: BfclPackage, name: str) -> None:
        self.name = name
        self._class = package.backend_class(name)
        self._results: Counter[str] = Counter()
        self.load({})

    def load(self, scenario: JsonObject, *, long_context: bool = False) -> None:
        """Start again from `scenario`, which is not changed."""
        self._instance = self._class()
        self._results.clear()
        if self.name not in STATELESS:
            self._instance._load_scenario(copy.deepcopy(scenario), long_context=long_context)

    def call(self, tool: str, arguments: JsonObject) -> BackendOutcome:
        """Call a tool of the tool list. A failure is a result too, in BFCL's words."""
        arguments = copy.deepcopy(arguments)  # some keep a list that they were given, and add to it later
        try:
            outcome = _outcome(getattr(self._instance, tool)(**arguments))
        except Exception as error:  # noqa: BLE001 - boundary: the backends raise whatever they like
            outcome = BackendOutcome(f"Error during execution: {error}", is_error=True)
        self._results[state_digest(outcome.text)] += 1
        return outcome

    def missing(self, results: Sequence[str]) -> list[str]:
        """Return the hashes of `results` that no call since the scenario was loaded had as its result."""
        return sorted((Counter(results) - self._results).elements())

    def state(self) -> JsonObject:
        """Return the attributes that BFCL compares: the public ones."""
        return {name: _plain(value) for name, value in vars(self._instance).items() if name[:1] != "_"}

    def state_digest(self) -> str:
        """Return the SHA-256 of the state; numbers that are equal in Python hash alike."""
        return state_digest(json.dumps(_comparable(self.state()), sort_keys=True))


def state_digest(text: str) -> str:
    """Return the SHA-256 of a text, shortened and with its name."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _outcome(value: Any) -> BackendOutcome:
    if isinstance(value, dict):
        try:
            text = json.dumps(value)
        except (TypeError, ValueError):  # some hold objects
            text = str(value)
        return BackendOutcome(text, is_error="error" in value)
    return BackendOutcome(value if isinstance(value, str) else str(value))


def _plain(value: Any) -> Any:
    """Return a value of a state as JSON. Of files and directories BFCL compares name and content."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "contents"):
        return {"directory": value.name, "contents": _plain(value.contents)}
    if hasattr(value, "content"):
        return {"file": value.name, "content": value.content}
    return str(value)


def _comparable(value: Any) -> Any:
    """Return `value` with numbers that are equal in Python in the same form."""
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value
