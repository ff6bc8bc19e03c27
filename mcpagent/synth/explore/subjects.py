"""What calls are about, which decides the split of what is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.explore.walks import Walk


class Subjects:
    """The things that calls are about: the value of their parameter, and if a tool takes several, of the one
    that has the most values; the others say how."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        values = values_of((fact.spec.dotted, fact.arguments) for fact in facts)
        self._parameter = {tool: widest(of_tool) for tool, of_tool in values.items()}

    def parameter_of(self, fact: Fact) -> str:
        """Return the parameter of a call that says what it is about; empty if there is none."""
        return self._parameter.get(fact.spec.dotted, "")

    def of_fact(self, fact: Fact) -> str:
        """Return the subject of a fact, or its tool if it has none."""
        return self._of_call(fact) or fact.spec.dotted

    def of_walk(self, walk: Walk) -> list[str]:
        """Return the subjects of all calls of a walk: what it names, and what earlier results give."""
        return [subject for step in walk.steps if (subject := self._of_call(step.fact)) is not None]

    def _of_call(self, fact: Fact) -> str | None:
        value = fact.arguments.get(self.parameter_of(fact))
        return None if value is None else format_value(value)


def values_of(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, set[str]]]:
    """Return the values that each parameter of each tool has in the calls; tools without any are left out."""
    values: dict[str, dict[str, set[str]]] = {}
    for tool, arguments in calls:
        for name, value in arguments.items():
            values.setdefault(tool, {}).setdefault(name, set()).add(format_value(value))
    return values


def widest(of_tool: Mapping[str, set[str]]) -> str:
    """Return the parameter that has the most values."""
    return max(of_tool, key=lambda name: len(of_tool[name]))
