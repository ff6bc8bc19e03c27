from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from mcpagent.core.placeholders import references
from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.reward.evidence import shows
from mcpagent.reward.record import RecordedCall
from tests.reward.records import Made, episode, make_task, reward, turn, values
from tests.reward.world import box_pool, explored_tasks

READS = frozenset({"desk.list_tickets"})
TICKETS = {
    "tickets": [
        {"id": "OPS-134", "priority": "low", "assignee": {"name": "Tom Weiss"}, "comments": 4},
        {"id": "OPS-110", "priority": "high", "assignee": {"name": "Ana Lima"}, "comments": 4},
    ]
}


def shown(content: Any, tool: str = "list_tickets", **arguments: Any) -> Made:
    text = content if isinstance(content, str) else json.dumps(content)
    call = ToolCall(id="c", server="desk", tool=tool, arguments=arguments)
    return call, ToolResult(call_id="c", server="desk", tool=tool, content=text)


def recorded(made: Made) -> RecordedCall:
    return RecordedCall(turn=0, user_turn=0, call=made[0], result=made[1])


@pytest.mark.parametrize(
    ("value", "about", "made", "is_shown"),
    [
        ("low", ["OPS-134"], shown(TICKETS), True),
        ("low", ["OPS-110"], shown(TICKETS), False),
        ("Ana Lima", ["OPS-110"], shown(TICKETS), True),
        ("high", ["OPS-110"], shown({"priority": "high"}, "get_ticket", id="OPS-110"), True),
        ("high", ["OPS-110"], shown({"priority": "high"}, "get_ticket", id="OPS-111"), False),
        ("high", [["OPS-110", "Broken lift"]], shown({"title": "Broken lift", "priority": "high"}), True),
        (9, ["Aurora", "Oslo"], shown("Aurora | Oslo | 9\nNordlys | Oslo | 8"), True),
        (8, ["Aurora", "Oslo"], shown("Aurora | Oslo | 9\n\nNordlys | Oslo | 8"), False),
        (187.2, ["AAPL"], shown("AAPL closed at 187.20 dollars."), True),
        ("18", [], shown("1834"), False),
        ("Ada", [], shown({"query": "Ada", "hits": 0}, "find", query="Ada"), False),
        (31, [], shown("No results for 'Aurora 31'", "find", query="Aurora 31"), False),
    ],
)
def test_a_fact_is_shown_about_its_thing(value: Any, about: list[Any], made: Made, is_shown: bool) -> None:
    assert shows(value, about, recorded(made)) is is_shown


def task(**truth: Any) -> Any:
    plan = [{"step": 1, "server": "desk", "tool": "list_tickets"}]
    evidence = truth.pop("evidence", [{"value": "low", "about": ["OPS-134"]}])
    answer = {"type": "name", "value": "low"}
    return make_task(tool_sequence=plan, final_answer=answer, evidence=evidence, **truth)


def test_any_call_that_shows_the_fact_is_a_way() -> None:
    by_plan = episode(turn(shown(TICKETS)), answer="It is low.")
    other = episode(
        turn(shown({"id": "OPS-134", "priority": "low"}, "get_ticket", id="OPS-134")), answer="It is low."
    )
    by_plan, other = (replace(record, read_only=READS) for record in (by_plan, other))
    assert values(task(), by_plan)["success"] == values(task(), other)["success"] == 1.0
    assert reward(task(), by_plan) == reward(task(), other) == pytest.approx(1.0)


def test_the_sum_that_a_query_gives_counts_for_what_is_added_up() -> None:
    parts = [{"value": n, "instead": [14.25]} for n in (4.5, 9.75)]
    adding = task(evidence=parts)
    rows = shown({"rows": [{"n": 4.5}, {"n": 9.75}]})
    for made, success in (
        (rows, 1.0),
        (shown({"total": 14.25}, "query"), 1.0),
        (shown({"total": 14.2}, "query"), 0.0),
        (shown({"rows": [{"n": 4.5}]}), 0.0),
    ):
        record = replace(episode(turn(made), answer="low"), read_only=READS | {"desk.query"})
        assert values(adding, record)["success"] == success


def test_an_identifier_may_be_what_an_earlier_step_has_found() -> None:
    fact = {"value": "low", "about": [["${step1.tickets[0].id}", "OPS-0"]]}
    of_found = shown({"id": "OPS-134", "priority": "low"}, "get_ticket", id="OPS-134")
    of_another = shown({"id": "OPS-110", "priority": "low"}, "get_ticket", id="OPS-110")
    list_alone = shown({"tickets": [{"id": "OPS-134"}]})
    for made, success in ((of_found, 1.0), (of_another, 0.0)):
        record = replace(episode(turn(list_alone), turn(made), answer="low"), read_only=READS)
        assert values(task(evidence=[fact]), record)["success"] == success


def test_a_remembered_answer_after_another_call_fails() -> None:
    elsewhere = episode(
        turn(shown({"id": "OPS-110", "priority": "high"}, "get_ticket", id="OPS-110")), answer="It is low."
    )
    assert values(task(), elsewhere)["success"] == 0.0
    assert reward(task(), elsewhere) <= 0.4


def test_a_failed_call_shows_nothing() -> None:
    call, result = shown("OPS-134 is low", "get_ticket", id="OPS-134")
    failed = episode(turn((call, result.model_copy(update={"is_error": True}))), answer="It is low.")
    assert values(task(), failed)["success"] == 0.0


def test_partial_counts_the_facts_that_were_seen() -> None:
    both = task().model_copy()
    truth = both.truth.model_copy(
        update={
            "evidence": (*both.truth.evidence, both.truth.evidence[0].model_copy(update={"value": "absent"}))
        }
    )
    both = both.model_copy(
        update={"reward_spec": both.reward_spec.model_copy(update={"ground_truth": truth})}
    )
    record = replace(episode(turn(shown(TICKETS)), answer="?"), read_only=READS)
    assert values(both, record)["coverage"] == 0.5


def test_required_calls_stay_required() -> None:
    named = task(success={"must_call_tool": "desk.list_tickets"})
    other = episode(
        turn(shown({"id": "OPS-134", "priority": "low"}, "get_ticket", id="OPS-134")), answer="It is low."
    )
    assert values(named, other)["success"] == 0.0


def test_evidence_of_generated_tasks_is_what_was_found_whatever_calls_show_it() -> None:
    async def run() -> list[Any]:
        async with box_pool() as pool:
            return await explored_tasks(pool, count=40, per_class=2)

    made = [task for task in asyncio.run(run()) if task.truth.evidence]
    assert made
    for task in made:
        assert not references([fact.value for fact in task.truth.evidence]), task.id
