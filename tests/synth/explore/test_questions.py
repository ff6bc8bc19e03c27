"""What is asked for, in words: the field and the thing with its kind."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.explore.leaves import leaves_of
from mcpagent.synth.explore.paging import is_whole
from mcpagent.synth.explore.questions import (
    ask,
    goal_of,
    is_amount,
    is_worth_asking,
    singular,
    wish_of,
)


def fact(tool: str, arguments: dict[str, Any], answer: Any, **properties: Any) -> Fact:
    spec = ToolSpec(server="port", name=tool, input_schema={"type": "object", "properties": properties})
    return Fact(spec, arguments, leaves_of(answer), is_whole=is_whole(spec, arguments, answer))


def goals(of: Fact) -> list[str]:
    return [goal for leaf in of.leaves if is_worth_asking(leaf, of) and (goal := goal_of(leaf, of))]


SHIPS = [{"id": 71, "name": "Aurora", "tons": 800}, {"id": 84, "name": "Juno", "tons": 950}]


@pytest.mark.parametrize(
    ("of", "goal"),
    [
        (fact("get_ship", {"ship": "Mistral"}, {"captain": "Lito"}), "the captain of ship Mistral"),
        (fact("get_ship", {"name": "Mistral"}, {"weight_kg": 812}), "the weight kg of ship Mistral"),
        (
            fact("list_ships", {"port": "Riga"}, {"name": "Juno", "tons": 950}),
            "the number of tons of the ship of port Riga",
        ),
        (
            fact("list_ships", {"port": "Riga"}, {"result": [{"name": "Juno", "tons": 950}]}),
            "the number of tons of the ship of port Riga",
        ),
        (
            fact("bookings", {"booked_by": "Ada"}, {"bookings": [{"room": "B-12", "booked_by": "Ada"}]}),
            "the room of the booking booked by Ada",
        ),
        (fact("ship", {"which": "Mistral"}, {"captain": "Lito"}), "the captain of ship Mistral"),
        (fact("get_ship", {"ship_id": 71}, {"berths": 12}), "the number of berths of ship 71"),
        (fact("list_ships", {}, {"ships": SHIPS}), "the number of tons of ship Aurora"),
        (
            fact("tide", {"port": "Riga", "date": "2026-01-02"}, {"cm": 210}),
            "the cm of port Riga and date 2026-01-02",
        ),
        (fact("captain_of", {"ship": "Mistral"}, {"text": "Lito"}), "the captain of ship Mistral"),
        (
            fact("open_node", {"name": "Juno"}, {"entities": [{"name": "Juno", "kind": "ship"}]}),
            "the kind of node Juno",
        ),
        (fact("get_sum", {"a": 31.5, "b": 73}, {"total": 104.5}), "the total of 31.5 and 73"),
        (
            fact("get_weather", {"city": "Riga"}, {"wind": 17}, city={"enum": ["Riga"]}),
            "the wind of city Riga",
        ),
        (
            fact("list_comments", {"task_id": 12}, {"comments": [{"author": "Ada"}, {"author": "Bo"}]}),
            "the author of the first comment of task 12",
        ),
        (fact("get_owner", {"owner": "O52"}, {"client_since": 2004}), 'the "client since" of owner O52'),
        (fact("get_ship", {"ship": "Juno"}, {"built": 1971}), "the year built of ship Juno"),
        (
            fact("get_visit", {"patient": "Anna Keller"}, {"date": "2024-05-01"}),
            "the date of the visit of patient Anna Keller",
        ),
        (fact("get_hearing", {"hearing": "H7"}, {"at": "14:30"}), 'the "at" of hearing H7'),
        (
            fact("get_pass", {"pass": "day"}, {"text": "Valid for: 9 hours\nValid from: 08:00"}),
            'the "valid from" of pass day',
        ),
        (
            fact("convert", {"amount": 97, "from_currency": "CHF"}, {"rate": 91.3}),
            "the rate of amount 97 and from currency CHF",
        ),
        (
            fact("read_query", {"query": "SELECT * FROM ships"}, {"result": SHIPS}),
            "the number of tons of ship Aurora",
        ),
        (fact("days", {"city": "Riga"}, {"business_days": 21}), "the number of business days of city Riga"),
        (fact("days", {"city": "Riga"}, {"duration_days": 21}), "the number of duration days of city Riga"),
        (fact("days", {"city": "Riga"}, {"iso_week": 48}), "the iso week of city Riga"),
        (fact("get_order", {"order": 7}, {"ordered": "2025-01-02"}), "the date ordered of order 7"),
        (fact("get_order", {"order": 7}, {"created_at": "2025-01-02"}), "the date created of order 7"),
        (fact("size_of", {"file": "a.csv"}, {"rows": 12}), "the number of rows of file a.csv"),
        (
            fact("get_info", {"file": "a.csv"}, {"text": "Mode: x\nPermissions: 644"}),
            "the permissions of file a.csv",
        ),
        (
            fact(
                "describe_table",
                {"table": "ships"},
                {"result": [{"name": "tons", "type": "REAL"}, {"name": "a", "type": "TEXT"}]},
            ),
            'the type for "tons" of table ships',
        ),
        (
            fact("get_contact", {"contact": "C-7"}, {"notes": [{"author": "Ada", "pages": 4}]}),
            "the author of the note of contact C-7",
        ),
        (
            fact("find_nodes", {"query": "has bees"}, {"entities": [{"name": "Ivo", "sort": "person"}]}),
            'the sort of the entity for "has bees"',
        ),
        (
            fact(
                "list_tasks",
                {"owner": "Bo"},
                {"result": [{"id": "T-1", "hours": 7}, {"id": "T-2", "hours": 9}]},
                owner={},
            ),
            "the number of hours of task T-1",
        ),
        (
            fact(
                "days",
                {"year": 1999},
                {"holidays_in_range": [{"name": n, "pay": 7} for n in ("New Year", "May")]},
            ),
            "the pay of holiday May of year 1999",
        ),
    ],
)
def test_a_thing_is_named_with_its_kind(of: Fact, goal: str) -> None:
    assert goal in goals(of)


@pytest.mark.parametrize(
    ("answer", "properties"),
    [
        ({"text": "MicVocal is a duo of two singers."}, {}),
        ({"owner": "None", "city": "unknown", "ok": "true"}, {}),
        ({"branch": "main"}, {"branch": {"type": "string", "default": "main"}}),
        ({"ship": "Mistral", "n": 2}, {}),
        ({"next_cursor": "abc123"}, {}),
        ({"filter": "ships like Mistral"}, {}),
    ],
)
def test_prose_nothing_defaults_and_what_was_given_are_not_asked(
    answer: Any, properties: dict[str, Any]
) -> None:
    assert goals(fact("get_ship", {"ship": "Mistral"}, answer, **properties)) == []


@pytest.mark.parametrize(
    ("answer", "arguments", "properties", "whole"),
    [
        ({"books": [1, 2, 3]}, {}, {}, True),
        ({"books": [1, 2, 3], "total": 3}, {}, {}, True),
        ({"books": [1, 2, 3], "total": 60}, {}, {}, False),
        ({"books": [1, 2, 3], "total_books": 60}, {}, {}, False),
        ({"books": [1, 2, 3], "totalCount": 60}, {}, {}, False),
        ({"books": [1, 2, 3], "next_cursor": "x"}, {}, {}, False),
        ({"books": [1, 2, 3], "hasMore": True}, {}, {}, False),
        ({"books": [1, 2, 3], "page": 1, "pages": 4}, {}, {}, False),
        ({"books": [1, 2, 3]}, {"limit": 3}, {"limit": {}}, False),
        ({"books": list(range(10))}, {}, {"limit": {"default": 10}}, False),
        ({"books": list(range(20))}, {}, {"page": {}}, False),
        ({"books": list(range(7))}, {}, {"limit": {"default": 10}}, True),
        ({"text": "- a\n- b\n- c\n... and 14 more"}, {}, {}, False),
        ({"text": "Showing 1-3 of 48\n- a\n- b\n- c"}, {}, {}, False),
    ],
)
def test_a_list_is_counted_only_if_nothing_says_that_there_is_more(
    answer: Any, arguments: dict[str, Any], properties: dict[str, Any], whole: bool
) -> None:
    assert fact("list_books", arguments, answer, **properties).is_whole is whole


@pytest.mark.parametrize(
    ("tool", "arguments", "wish"),
    [
        ("set_status", {"task_id": 12, "status": "done"}, "set the status of task 12 to done"),
        ("borrow_book", {"book_id": "B-7"}, "borrow book B-7"),
        ("withdraw", {"book_id": "B-7"}, "withdraw book B-7"),
        ("add_note", {"title": "To do", "text": "two words"}, 'add note "To do" with text "two words"'),
        ("add_comment", {"task_id": 12, "text": "a b"}, 'add a comment for task 12 with text "a b"'),
        (
            "create_entities",
            {"entities": [{"name": "Juno", "kind": "ship"}]},
            "create entity Juno with kind ship",
        ),
    ],
)
def test_a_change_is_wished_for_in_the_words_of_the_tool(
    tool: str, arguments: dict[str, Any], wish: str
) -> None:
    assert wish_of(fact(tool, arguments, {}).spec, arguments) == wish


def test_nobody_asks_for_what_is_first_in_some_order() -> None:
    best = {"ships": [{"captain": "Lito Brandt"}, {"captain": "Ada Kurz"}]}
    facts = [fact("top_ships", {name: "tons"}, best) for name in ("by", "sort", "sort_by", "order_by")]
    assert not any(each.is_sayable for each in facts)
    assert (
        fact("get_order", {"order": 12}, best).is_sayable
        and fact("ships", {"owned_by": "A"}, best).is_sayable
    )


def test_frames_differ() -> None:
    said = {ask("the captain of ship Mistral", Random(seed)) for seed in range(60)}
    assert len(said) >= 10 and all(
        "captain of ship Mistral" in text.replace("Captain", "captain") for text in said
    )


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("born", [1606, 1853, 1881], False),
        ("tons", [1237, 4400, 950], True),
        ("height_m", [1606.5, 1853.0], True),
        ("ship_id", [7, 8], False),
        ("year", [12, 13], False),
        ("page", [42, 41, 43], False),
    ],
)
def test_a_number_that_names_a_thing_or_a_year_is_no_amount(
    field: str, values: list[float], expected: bool
) -> None:
    (leaf,) = leaves_of({field: values[0]})
    assert is_amount(leaf, values) is expected


@pytest.mark.parametrize(
    ("several", "one"),
    [
        ("seed species", "seed species"),
        ("series", "series"),
        ("cases", "case"),
        ("buses", "bus"),
        ("cities", "city"),
    ],
)
def test_one_of_several_is_called_as_it_is_in_english(several: str, one: str) -> None:
    assert singular(several) == one


def test_the_only_item_of_a_list_without_a_name_is_not_asked_about() -> None:
    of = fact("directory_tree", {"path": "/a"}, {"result": [{"name": "b.csv", "type": "file"}]})
    assert goals(of) == []
    assert goals(fact("search_ships", {"query": "x"}, {"result": [{"name": "Juno", "type": "brig"}]})) == [
        'the name for "x"',
        'the type for "x"',
    ]


def test_what_has_no_name_is_counted_to_only_in_a_list_with_one() -> None:
    rows = [{"rows": 12}, {"rows": 15}]
    assert goals(fact("list_workbooks", {"directory": "/b"}, {"result": rows})) == []
    named = goals(fact("list_workbooks", {"directory": "/b"}, {"workbooks": rows}))
    assert named == [
        f"the number of rows of the {which} workbook of directory /b" for which in ("first", "second")
    ]
