import json
from typing import Any

import pytest

from mcpagent.core.tools import ToolAnnotations, ToolSpec
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
        "answer": {"type": "number", "values": ["${step2.price}"], "tolerance": 0.01},
        "final_answer": "It is ${step2.price}.",
    }
    return Draft.model_validate({**base, **changes})


def answer(kind: str, *values: str) -> dict[str, Any]:
    return {"type": kind, "values": list(values), "tolerance": 0}


def test_a_right_draft_is_a_record_with_its_references_still_in_it() -> None:
    task = CHECK.task(draft(FIND, PRICE), complexity="moderate")
    truth = task.truth
    assert [step.params for step in truth.tool_sequence] == [{"query": "lamp"}, PRICE[1]]
    assert truth.success.must_call_tool == "shop.price"
    assert truth.final_answer is not None
    assert (truth.final_answer.value, truth.final_answer.tolerance) == ("${step2.price}", 0.01)
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
        (draft(FIND, PRICE, final_answer="${step9.price}"), "bad_reference", "step 9"),
        (draft(FIND, PRICE, answer=answer("number", "12.5")), "ungrounded", "12.5"),
        (draft(FIND, PRICE, final_answer="It is 12.5."), "ungrounded", "final_answer"),
        (draft(FIND, PRICE, answer=answer("must_include")), "ungrounded", "answer.values"),
        (draft(FIND, PRICE, answer=answer("none")), "ungrounded", "changes something"),
        (draft(FIND, ("price", {"id": 3})), "unused_step", "step 1"),
        (draft(FIND, PRICE, user_prompt=" "), "schema", "user_prompt"),
        (draft(FIND, PRICE, answer=answer("string", "${step1.a}", "${step2.b}")), "schema", "one value"),
    ],
)
def test_each_fault_of_form_has_its_code_and_says_what_is_wrong(wrong: Draft, code: str, words: str) -> None:
    with pytest.raises(FaultFound) as found:
        CHECK.task(wrong, complexity="moderate")
    assert found.value.fault.code == code
    assert words in found.value.fault.detail
    assert found.value.fault.is_repairable


def test_a_change_needs_no_answer_and_its_result_no_reader() -> None:
    plan = draft(FIND, ("order", PRICE[1]), answer=answer("none"), final_answer="Ordered.")
    task = CHECK.task(plan, complexity="moderate")
    assert task.truth.final_answer is None
    assert task.truth.success.must_call_tool == "shop.order"


def test_arguments_may_come_as_an_object_from_servers_without_strict_outputs() -> None:
    assert json.loads(draft(FIND).steps[0].arguments) == FIND[1]
