"""Which facts an answer of a model's task must have seen, on two calls of a scripted shop."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from mcpagent.core.tools import ToolAnnotations, ToolCall, ToolResult, ToolSpec
from mcpagent.synth.llm.draft import Draft, FormatCheck
from mcpagent.synth.llm.prompts import TaskSettings
from mcpagent.synth.llm.sample import Executor
from mcpagent.synth.tasks.record import ToolSelection
from mcpagent.tools.contract import Purpose

ITEMS = {
    "Lamp": {"name": "Lamp", "price": 12.5, "stock": 3, "maker": 71},
    "Chair": {"name": "Chair", "price": 40.25, "stock": 3, "maker": 72},
}
MAKERS = {
    71: {"maker": "Weiss", "notes": "Mail: weiss@shop.example\nPhone: 0171"},
    72: {"maker": "Lima", "notes": "founded: 1874 in Lisbon"},
}


VIEW = {"enum": ["price", "stock"]}
SCHEMA = {"type": "object", "properties": {"view": VIEW, "name": {}, "id": {}, "sql": {}}}


class Shop:
    """A provider and its only session; every result has a number of its own, as random ids are."""

    def __init__(self) -> None:
        self._calls = 0
        reads = ToolAnnotations(read_only=True)
        self.tools: Mapping[str, ToolSpec] = {
            name: ToolSpec(server="shop", name=name, input_schema=SCHEMA, annotations=reads)
            for name in ("item", "maker", "items", "query")
        }

    def session(self) -> "Shop":
        return self

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        self._calls += 1
        asked = call.arguments
        found: Any = {"rows": [*ITEMS.values()]}
        if call.tool == "query":
            found = {
                "rows": [each for name, each in ITEMS.items() if name in asked["sql"]],
                "message": "Done.",
            }
        elif call.tool != "items":
            found = ITEMS[asked["name"]] if call.tool == "item" else MAKERS[asked["id"]]
        said = json.dumps({**found, "request": f"r-{self._calls}"})
        return ToolResult(call_id=call.id, server="shop", tool=call.tool, content=said)

    async def close(self) -> None:
        pass


CHECK = FormatCheck(
    usable={spec.dotted: spec for spec in Shop().tools.values()},
    offer=ToolSelection(catalog=Shop().tools),
    settings=TaskSettings(max_tools=4, max_turns=8),
)


def item(name: str) -> dict[str, Any]:
    return {"server": "shop", "tool": "item", "arguments": json.dumps({"name": name})}


MAKER = {"server": "shop", "tool": "maker", "arguments": json.dumps({"id": "${step1.maker}"})}
ALL = {"server": "shop", "tool": "items", "arguments": "{}"}
WHICH = "at(argmax(step1.price, step2.price), step1.name, step2.name)"


@pytest.mark.parametrize(
    ("question", "steps", "kind", "expression", "facts"),
    [
        ("What is the lamp?", [item("Lamp")], "number", "step1.price", [(12.5, ["Lamp"], [])]),
        (
            "Who makes the lamps?",
            [item("Lamp"), MAKER],
            "name",
            "step2.maker",
            [("Weiss", [["71", "Lamp"]], [])],
        ),
        (
            "What are a lamp and a chair together?",
            [item("Lamp"), item("Chair")],
            "number",
            "step1.price + step2.price",
            [(12.5, ["Lamp"], [52.75]), (40.25, ["Chair"], [52.75])],
        ),
        (
            "Which costs more, the Lamp or the Chair?",
            [item("Lamp"), item("Chair")],
            "choice",
            WHICH,
            [(12.5, ["Lamp"], []), (40.25, ["Chair"], [])],
        ),
        ("What costs most?", [ALL], "name", 'max_by(step1.rows, "price").name', [("Chair", [], [])]),
        # Constants of the schema say how to look, fields of an expression what to take: no things.
        (
            "What is the price of the lamp?",
            [{**item("Lamp"), "arguments": json.dumps({"name": "Lamp", "view": "price"})}],
            "number",
            "step1.price",
            [(12.5, ["Lamp"], [])],
        ),
        (
            "Who makes what has the highest price?",
            [ALL, {**MAKER, "arguments": json.dumps({"id": '${max_by(step1.rows, "price").maker}'})}],
            "name",
            "step2.maker",
            [("Lima", [["72"]], [])],
        ),
        (
            "What costs over 20?",
            [ALL],
            "set",
            'pluck(where(step1.rows, "price", ">", 20), "name")',
            [("Chair", [], [])],
        ),
        (
            "Where do I write to about the lamp?",
            [item("Lamp"), MAKER],
            "name",
            'after(step2.notes, "Mail: ")',
            [("weiss@shop.example", [["71", "Lamp"]], [])],
        ),
        # Of a short text too the part that is taken, which other tools may tell alone.
        (
            "Since when is there the maker of the chair?",
            [item("Chair"), MAKER],
            "number",
            'number(after(step2.notes, "founded:"), 0)',
            [(1874, [["72", "Chair"]], [])],
        ),
        (
            "Where is the maker of the chair?",
            [item("Chair"), MAKER],
            "name",
            "word(step2.notes, -1)",
            [("Lisbon", [["72", "Chair"]], [])],
        ),
    ],
)
def test_an_answer_must_have_seen_what_it_is_made_of(
    question: str, steps: list[Any], kind: str, expression: str, facts: list[Any]
) -> None:
    options = ["Lamp", "Chair"] if kind == "choice" else []
    value = {"type": kind, "value": f"${{{expression}}}", "unit": "", "decimals": None}
    draft = {
        "user_prompt": question,
        "follow_up": "",
        "asks_after": 0,
        "steps": steps,
        "answer": {**value, "options": options, "would_be": ""},
        "missing": "",
        "proof": None,
    }
    task = CHECK.task(Draft.model_validate(draft), kind="chain", steps=(1, 4))
    made = asyncio.run(Executor(Shop()).run(task))
    assert "fault" not in made, made
    evidence = made["task"]["reward_spec"]["ground_truth"]["evidence"]
    told = [(fact["value"], list(fact.get("about", [])), list(fact.get("instead", []))) for fact in evidence]
    assert told == facts


@pytest.mark.parametrize(("missing", "code"), [("Table", None), ("Lamp", "exists")])
def test_a_query_that_finds_nothing_says_what_it_says_of_any_name_but_for_its_number(
    missing: str, code: str | None
) -> None:
    query = {"sql": f"SELECT price FROM items WHERE name = '{missing}'"}
    none = {"type": "none", "value": "", "unit": "", "decimals": None, "options": [], "would_be": "number"}
    draft = {
        "user_prompt": f"What does the {missing} cost?",
        "follow_up": "",
        "asks_after": 0,
        "steps": [{"server": "shop", "tool": "query", "arguments": json.dumps(query)}],
        "answer": none,
        "missing": missing,
        "proof": None,
    }
    task = CHECK.task(Draft.model_validate(draft), kind="does not exist", steps=(1, 3))
    made = asyncio.run(Executor(Shop()).run(task))
    assert made.get("fault", {}).get("code") == code
