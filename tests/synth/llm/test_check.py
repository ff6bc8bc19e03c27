import json
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolAnnotations, ToolSpec
from mcpagent.reward.rule import is_optional
from mcpagent.synth.llm.draft import Draft, FaultFound, FormatCheck
from mcpagent.synth.llm.prompts import TaskSettings
from mcpagent.synth.tasks.record import ToolSelection


def tool(server: str, name: str, *, reads: bool = True, **properties: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": [n for n in properties if n != "limit"]}
    annotations = ToolAnnotations(read_only=reads)
    return ToolSpec(server=server, name=name, input_schema=schema, annotations=annotations)


TOOLS = {
    t.dotted: t
    for t in (
        tool("shop", "find", query={"type": "string"}, limit={"type": "integer", "maximum": 9}),
        tool("shop", "price", id={"type": "integer"}),
        tool("shop", "order", reads=False, id={"type": "integer"}),
    )
}
CHECK = FormatCheck(
    usable=TOOLS,
    offer=ToolSelection(catalog={t.name: t for t in TOOLS.values()}),
    settings=TaskSettings(max_tools=3, max_turns=8),
)
FIND = ("find", {"query": "lamp"})
PRICE = ("price", {"id": "${step1.items[0].id}"})


def draft(*steps: tuple[str, Any], **changes: Any) -> Draft:
    written = [{"server": "shop", "tool": name, "arguments": arguments} for name, arguments in steps]
    base = {
        "user_prompt": "What does the first lamp cost?",
        "steps": written,
        "answer": answer("number", "${step2.price}", decimals=2),
        "follow_up": "",
        "asks_after": 0,
        "missing": "",
        "proof": None,
    }
    return Draft.model_validate({**base, **changes})


def answer(kind: str, value: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "value": value, "unit": "", "decimals": None, "options": [], "would_be": "", **more}


def checked(made: Draft, kind: str = "look-up", steps: tuple[int, int] = (2, 3)) -> Task:
    return CHECK.task(made, kind=kind, steps=steps)


def test_a_right_draft_is_a_record_with_its_references_still_in_it() -> None:
    task = checked(draft(FIND, PRICE))
    truth = task.truth
    assert [step.params for step in truth.tool_sequence] == [{"query": "lamp"}, PRICE[1]]
    assert truth.success.must_call_tool == "shop.price"
    assert truth.final_answer is not None
    assert (truth.final_answer.value, truth.final_answer.decimals) == ("${step2.price}", 2)
    assert task.offered_tools == ("shop.find", "shop.price", "shop.order")


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        (draft(FIND), "limits", "2 to 3"),
        (draft(FIND, PRICE, PRICE, PRICE), "limits", "4 steps"),
        (draft(FIND, ("prices", {"id": 1})), "unknown_tool", "Did you mean shop.price?"),
        (draft(FIND, ("price", "not json")), "invalid_arguments", "step 2"),
        (draft(FIND, ("price", "[1]")), "invalid_arguments", "not a JSON object"),
        (draft(FIND, ("price", {"id": "seven"})), "invalid_arguments", "'seven' is not of type 'integer'"),
        (draft(FIND, ("price", {"id": 7, "shop": "x"})), "invalid_arguments", "'shop' is not an argument"),
        (draft(("find", {"limit": 3}), PRICE), "invalid_arguments", "'query' is a required property"),
        (draft(("find", {"query": "lamp", "limit": 99}), PRICE), "invalid_arguments", "99"),
        (draft(FIND, ("price", {"id": "${step2.id}"})), "bad_reference", "step 2"),
        (draft(FIND, ("price", {"id": "${import os}"})), "bad_reference", "import os"),
        (draft(FIND, PRICE, answer=answer("number", "${step9.price}")), "bad_reference", "step 9"),
        (draft(FIND, PRICE, answer=answer("number", "12.5")), "ungrounded", "12.5"),
        (draft(FIND, PRICE, answer=answer("number", "")), "ungrounded", "no reference"),
        (draft(FIND, PRICE, answer=answer("list", '["${step2.a}", "lamp"]')), "ungrounded", "lamp"),
        (draft(FIND, PRICE, answer=answer("list", "[${step2.a}")), "schema", "nor JSON"),
        (draft(FIND, PRICE, answer=answer("number", "${number(step2.text, -11)}")), "by_place", "after("),
        (
            draft(FIND, PRICE, proof={"server": "shop", "tool": "price", "arguments": "{}", "expect": "{}"}),
            "invalid_arguments",
            "'id' is a required property",
        ),
        (draft(FIND, ("price", {"id": 3})), "unused_step", "step 1"),
        (draft(FIND, PRICE, user_prompt=" "), "schema", "user_prompt"),
    ],
)
def test_each_fault_of_form_has_its_code_and_says_what_is_wrong(wrong: Draft, code: str, words: str) -> None:
    with pytest.raises(FaultFound) as found:
        checked(wrong)
    assert found.value.fault.code == code
    assert words in found.value.fault.detail
    assert found.value.fault.is_repairable


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("chain", "the answer is none"),
        ("two servers", "of one server"),
        ("missing information", "follow_up is empty"),
        ("does not exist", "missing"),
        ("change", "no proof"),
    ],
)
def test_a_draft_of_another_class_than_was_asked_for_is_a_fault(kind: str, words: str) -> None:
    with pytest.raises(FaultFound, match=words) as found:
        checked(draft(FIND, ("order", PRICE[1]), answer=answer("none", "")), kind)
    assert found.value.fault.code == "other_class"


def test_a_change_needs_no_answer_and_its_end_state_is_read() -> None:
    proof = {"server": "shop", "tool": "price", "arguments": '{"id": 7}', "expect": '{"ordered": true}'}
    task = checked(draft(FIND, ("order", PRICE[1]), answer=answer("none", ""), proof=proof), "change")
    assert task.truth.final_answer is None
    assert task.truth.success.must_call_tool == "shop.order"
    (check,) = task.truth.state["shop"]
    assert (check.call.tool, check.expect) == ("price", {"ordered": True})


def test_what_is_added_when_asked_back_is_a_turn_of_its_own() -> None:
    later = draft(FIND, PRICE, user_prompt="What does it cost?", follow_up="The first lamp.", asks_after=0)
    asked = checked(later, "missing information")
    assert [step.user_turn for step in asked.truth.tool_sequence] == [1, 1]
    assert "Answer:" in asked.truth.user_turns[0] and "Answer:" not in asked.prompt[-1].content
    looked = draft(FIND, ("price", {"id": 7}), follow_up="That of 7.", asks_after=1)
    first, second = checked(looked).truth.tool_sequence
    assert (first.user_turn, second.user_turn) == (0, 1)
    assert is_optional(first) and not is_optional(second)  # it may ask back without looking


def test_a_name_that_nothing_has_is_looked_for_in_vain() -> None:
    sought = draft(("find", {"query": "moon"}), answer=answer("none", "", would_be="number"), missing="moon")
    task = checked(sought, "does not exist", (1, 3))
    assert not task.truth.success.must_call
    assert task.truth.tool_sequence[-1].finds_nothing and task.extra_info["invented"] == "moon"
    assert task.prompt[-1].content.endswith('End with "Answer: " and a number.')
    queried = draft(("find", {"query": "name is 'moon'"}), answer=answer("none", ""), missing="moon")
    (step,) = checked(queried, "does not exist", (1, 3)).truth.tool_sequence
    assert step.match == {"query": {"contains": "moon"}}


def test_arguments_may_come_as_an_object_from_servers_without_strict_outputs() -> None:
    assert json.loads(draft(FIND).steps[0].arguments) == FIND[1]
