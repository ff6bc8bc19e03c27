"""One instance of a BFCL backend: calls, results and state as BFCL's own executor has them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.servers.bfcl.names import STATELESS
from mcpagent.servers.bfcl.package import BfclPackage


@dataclass(frozen=True)
class Outcome:
    """What a call came to; `text` is what BFCL compares."""

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
        """Begin anew from `scenario`, which is left as it is."""
        self._instance = self._class()
        self._results.clear()
        if self.name not in STATELESS:
            self._instance._load_scenario(copy.deepcopy(scenario), long_context=long_context)

    def call(self, tool: str, arguments: JsonObject) -> Outcome:
        """Any failure of the backend is a result in BFCL's words. `tool` is one of the tool list."""
        own = copy.deepcopy(arguments)  # some keep a list that they were given, and add to it later
        try:
            outcome = _outcome(getattr(self._instance, tool)(**own))
        except Exception as error:  # noqa: BLE001 - boundary: the backends raise whatever they like
            outcome = Outcome(f"Error during execution: {error}", is_error=True)
        self._results[digest(outcome.text)] += 1
        return outcome

    def missing(self, results: Sequence[str]) -> list[str]:
        """Which of these hashes of results no call since the scenario was loaded came to, one each."""
        return sorted((Counter(results) - self._results).elements())

    def state(self) -> JsonObject:
        """The attributes that BFCL compares: the public ones."""
        return {name: _plain(value) for name, value in vars(self._instance).items() if name[:1] != "_"}

    def state_digest(self) -> str:
        return digest(json.dumps(_comparable(self.state()), sort_keys=True))


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _outcome(value: Any) -> Outcome:
    if isinstance(value, dict):
        try:
            text = json.dumps(value)
        except (TypeError, ValueError):  # some hold objects
            text = str(value)
        return Outcome(text, is_error="error" in value)
    return Outcome(value if isinstance(value, str) else str(value))


def _plain(value: Any) -> Any:
    """A value of a state as JSON. Files and directories are what BFCL compares of them."""
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
    """Numbers that are equal in Python in the same form, so that equal states have equal hashes."""
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value
