"""BFCL's single-turn questions as records: their functions are the tools, and one turn is played."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from examples.bfcl.package import IRRELEVANCE, VERSION, JsonObject
from mcpagent import Task

SERVER = "functions"  # has the functions of all questions
# BFCL's own system prompt, up to the form of a call, which is that of the model.
_INSTRUCTION = (
    "You are an expert in composing functions. You are given a question and a set of possible functions. "
    "Based on the question, you will need to make one or more function/tool calls to achieve the purpose.\n"
    "If none of the functions can be used, point it out. If the given question lacks the parameters required "
    "by the function, also point it out.\n"
    "You should only return the function calls in your response."
)


def question(row: JsonObject, answer: Sequence[JsonObject], category: str) -> Task:
    """Return a row as a record. Its right calls are one group whose order is free."""
    listed = [f"{f['name']}: {f['description'].partition(chr(10))[0]}" for f in row["function"]]
    truth = {
        "task_id": row["id"],
        "max_turns": 1,
        **({"abstain": True} if category == IRRELEVANCE else {"tool_sequence": plan(answer)}),
    }
    system = {"role": "system", "content": "\n".join([_INSTRUCTION, *listed])}
    return Task.model_validate(
        {
            "data_source": f"bfcl/{category}",
            "prompt": [system, *row["question"][0]],
            "reward_spec": {"ground_truth": truth},
            "extra_info": {
                "tools": [f"{SERVER}.{function['name']}" for function in row["function"]],
                "generator": "examples/bfcl",
                "class": category,
                "bfcl_eval": VERSION,
            },
        }
    )


def plan(answer: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the steps of right calls; what else a parameter may be is its `match` rule."""
    steps: list[JsonObject] = []
    for number, right in enumerate(answer, start=1):
        ((tool, acceptable),) = right.items()
        step: JsonObject = {"step": number, "server": SERVER, "tool": tool, "params": {}, "match": {}}
        for name, values in acceptable.items():
            stated = expanded(values)
            rule: JsonObject = {"optional": True} if "" in values else {}
            if stated:
                step["params"][name] = stated[0]
            if len(stated) > 1:
                rule["any_of"] = stated[1:]
            if rule:
                step["match"][name] = rule
        steps.append({**step, "parallel_group": 1})
    return steps


def expanded(values: Sequence[Any]) -> list[Any]:
    """Return the acceptable values of a parameter, without the mark that it is optional; those of an object,
    which are given by field, and of a list of objects, one by one."""
    return [whole for value in values if value != "" for whole in _expanded(value)]


def _expanded(value: Any) -> list[Any]:
    if isinstance(value, dict):
        choices = [[(key, item) for item in _field_values(values)] for key, values in value.items()]
        return [{k: v for k, v in fields if v != ""} for fields in product(*choices)]
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [list(items) for items in product(*(_expanded(item) for item in value))]
    return [value]


def _field_values(values: Any) -> list[Any]:
    """Return the values of a field of an object; "" means that it may be left out."""
    listed = values if isinstance(values, list) else [values]
    return [whole for value in listed for whole in ([""] if value == "" else _expanded(value))]
