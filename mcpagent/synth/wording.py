"""A walk over tools as a question in words."""

from __future__ import annotations

import json

from mcpagent.synth.graph import Edge, Fact, Walk

_THANKS = ("Thanks, that is all about {}.", "We are done with {}, thank you.", "{} is clear now, thanks.")


def words_of(walk: Walk) -> tuple[str, list[str]]:
    """The first message, and those that follow."""
    last = walk.facts[-1]
    if walk.kind == "irrelevance":
        return _THANKS[walk.wording].format(next(last.texts)[1]), []
    asked = walk.asked[0].label
    if walk.kind == "missing_parameter":
        return f"{_task_of(last)}: what is the {asked}?", [f"Take {_arguments(last, None)}."]
    if walk.kind == "parallel":
        both = " and also ".join(_arguments(fact, None) for fact in walk.facts)
        return f"{_task_of(last)}, with {both}. What is the {asked} in each of the two?", []
    parts: list[str] = []
    for fact, edge in zip(walk.facts, walk.edges, strict=True):
        arguments = _arguments(fact, edge)
        start = "Then " if parts else ""
        parts.append(f"{start}{_task_of(fact)}{', with ' + arguments if arguments else ''}.")
    ends = (f"What is the {asked}?", f"Tell me the {asked}.", f"I need the {asked}.")
    return " ".join([*parts, ends[walk.wording]]), []


def _task_of(fact: Fact) -> str:
    """The first sentence of the description: what the tool is for, without its name."""
    lines = fact.spec.description.strip().splitlines()
    sentence = lines[0].partition(". ")[0].rstrip(". ") if lines else ""
    return sentence or fact.spec.name.replace("_", " ")


def _arguments(fact: Fact, edge: Edge | None) -> str:
    said: list[str] = []
    for name, value in fact.arguments.items():
        if edge is not None and name == edge.parameter:
            before = f"{edge.prefix} followed by " if edge.prefix else ""
            said.append(f"as {name} {before}the {edge.leaf.label} of that result")
        else:
            said.append(f"{name} {json.dumps(value, ensure_ascii=False)}")
    return " and ".join(said)
