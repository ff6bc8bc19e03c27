"""What only the run shows, on a scripted server: `lamp` is a fact, `clock` changes with every call."""

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolAnnotations, ToolCall, ToolResult, ToolSpec
from mcpagent.synth.llm.draft import Draft, FormatCheck
from mcpagent.synth.llm.prompts import TaskSettings
from mcpagent.synth.llm.sample import Executor
from mcpagent.synth.tasks.record import ToolSelection
from mcpagent.tools.contract import Purpose


class Shop:
    """A provider and its only session."""

    def __init__(self) -> None:
        self._ticks = itertools.count(100)
        annotations = ToolAnnotations(read_only=True)
        self.tools: Mapping[str, ToolSpec] = {
            name: ToolSpec(server="shop", name=name, input_schema={"type": "object"}, annotations=annotations)
            for name in ("lamp", "clock", "broken")
        }

    def session(self) -> "Shop":
        return self

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        assert purpose is Purpose.SYNTH
        said: JsonObject = {"price": 12.5} if call.tool == "lamp" else {"price": next(self._ticks)}
        return ToolResult(
            call_id=call.id,
            server="shop",
            tool=call.tool,
            content=json.dumps(said),
            structured=said,
            is_error=call.tool == "broken",
        )

    async def close(self) -> None:
        pass


def task_of(shop: Shop, tool: str, **changes: Any) -> Task:
    answer = {"type": "number", "value": "${step1.price}", "unit": "EUR", "decimals": 2}
    draft = {
        "user_prompt": "What does it cost?",
        "follow_up": "",
        "asks_after": 0,
        "steps": [{"server": "shop", "tool": tool, "arguments": "{}"}],
        "answer": {"options": [], "would_be": "", **answer, **changes.pop("answer", {})},
        "missing": "",
        "proof": None,
    }
    check = FormatCheck(
        usable={spec.dotted: spec for spec in shop.tools.values()},
        offer=ToolSelection(catalog=shop.tools),
        settings=TaskSettings(max_tools=2, max_turns=5),
    )
    return check.task(Draft.model_validate({**draft, **changes}), kind="look-up", steps=(1, 1))


def run(tool: str, **changes: Any) -> JsonObject:
    shop = Shop()
    return asyncio.run(Executor(shop).run(task_of(shop, tool, **changes)))


def test_the_answer_is_what_the_tool_said_and_the_call_is_kept_for_the_review() -> None:
    executed = run("lamp")
    truth = executed["task"]["reward_spec"]["ground_truth"]
    assert truth["final_answer"]["value"] == 12.5
    assert truth["evidence"] == [{"value": 12.5}]
    assert executed["calls"] == [
        {"server": "shop", "tool": "lamp", "arguments": {}, "result": '{"price": 12.5}'},
    ]


@pytest.mark.parametrize(
    ("tool", "changes", "code"),
    [
        ("clock", {}, "not_repeatable"),
        ("broken", {}, "step_failed"),
        ("lamp", {"answer": {"value": "${step1.cost}"}}, "reference_unresolved"),
        ("lamp", {"answer": {"type": "date"}}, "answer_invalid"),
        ("lamp", {"user_prompt": "Does it cost 12.5?"}, "answer_in_prompt"),
    ],
)
def test_what_the_run_shows_to_be_wrong_is_a_fault(tool: str, changes: Any, code: str) -> None:
    fault = run(tool, **changes)["fault"]
    assert (fault["stage"], fault["code"]) == ("execute", code)


@pytest.mark.parametrize(
    ("tool", "value", "says"),
    [
        ("lamp", "${step1.price}", None),
        ("lamp", "${step1.price + 1}", "came to '13.50' by"),
        ("lamp", "", "came to 'none' by"),
        ("clock", "${step1.price}", "came to '100.00' by"),
        ("clock", "12.5", "came to '12.50' too, but its calls lack 12.5:"),
        ("lamp", "${step1.cost}", "no 'cost'"),
    ],
)
def test_a_task_is_solved_by_a_way_that_ends_in_its_answer(tool: str, value: str, says: str | None) -> None:
    shop = Shop()

    async def solved() -> JsonObject:
        executor = Executor(shop)
        made = Task.model_validate((await executor.run(task_of(shop, "lamp")))["task"])
        return await executor.solve(made, [{"step": 1, "server": "shop", "tool": tool, "params": {}}], value)

    outcome = asyncio.run(solved())
    if says is None:
        assert outcome == {"answer": "12.50"}
    else:
        assert outcome["fault"]["code"] == "not_solved" and says in outcome["fault"]["detail"]
