"""What of a tool's schema a chat template leaves out, and where the model is told it instead.

Templates know the schemas of their day: most write no alternatives (`anyOf`), and Gemma's drops nested
parameters that are called as a keyword. A model cannot use what its prompt does not show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mcpagent.core.input_schemas import parameter_paths
from mcpagent.core.records import JsonObject

Render = Callable[[JsonObject], str]  # a prompt with one tool
_TOLD = "Parameters as a JSON schema:"


def parameters_left_out(tool: JsonObject, render: Render) -> list[tuple[Any, ...]]:
    """Return where the parameters are defined that the rendering of a tool (`core.tools.chat_schema`) does
    not show: without one of them it would be the same. Those of the tool itself are looked for by name."""
    paths = list(parameter_paths(tool["function"]["parameters"]))
    shown = render(tool) if paths else ""

    def changes_nothing(path: tuple[Any, ...]) -> bool:
        parameters = _without(tool["function"]["parameters"], path)
        return render({**tool, "function": {**tool["function"], "parameters": parameters}}) == shown

    return [path for path in paths if path[-1] not in shown or (len(path) > 2 and changes_nothing(path))]


def completed(tool: JsonObject, render: Render) -> JsonObject:
    """Return the tool with what its rendering leaves out in its description."""
    parameters, parts = tool["function"]["parameters"], dict[str, Any]()
    for path in parameters_left_out(tool, render):
        if path[0] == "properties":
            parts.setdefault("properties", {})[path[1]] = parameters["properties"][path[1]]
        else:
            parts[path[0]] = parameters[path[0]]
    if not parts:
        return tool
    described = [tool["function"].get("description", ""), _TOLD, json.dumps(parts, ensure_ascii=False)]
    function = {**tool["function"], "description": " ".join(filter(None, described))}
    return {**tool, "function": function}


def _without(schema: Any, path: Sequence[Any]) -> Any:
    """Return the schema without what stands at the path."""
    key, *below = path
    if isinstance(schema, list):
        return [_without(part, below) if index == key else part for index, part in enumerate(schema)]
    if below:
        return {**schema, key: _without(schema[key], below)}
    return {name: part for name, part in schema.items() if name != key}
