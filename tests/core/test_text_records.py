"""Lists that are written as text: what is one, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.placeholders import PlaceholderError, resolve_references
from mcpagent.core.shown_values import nested_value
from mcpagent.core.text_records import text_fields, text_records

BAY, MILL = {"id": "ws-1", "name": "North Bay"}, {"id": "ws-2", "name": "Old Mill"}

LISTS = {
    "a table of Markdown": "| ID | Name |\n|:---|---:|\n| ws-1 | North Bay |\n| ws-2 | Old Mill |",
    "a table under a title": "# All\n\n|id|**Name**|\n|--|--|\n|`ws-1`|North Bay|\n|ws-2|Old Mill|\n\n2 rows",
    "a drawn table": "+--+--+\n| id | name |\n+==+==+\n| ws-1 | North Bay |\n| ws-2 | Old Mill |\n+--+--+",
    "CSV": 'id,name\nws-1,"North Bay"\nws-2,Old Mill\n',
    "CSV under a count": "2 station(s).\n\nid,name\nws-1,North Bay\nws-2,Old Mill\n\nPage 1 of 1",
    "rows with semicolons": "id; name\nws-1; North Bay\nws-2; Old Mill",
    "rows with tabs": "id\tname\nws-1\tNorth Bay\nws-2\tOld Mill",
    "columns with spaces": "ID     NAME\nws-1   North Bay\nws-2   Old Mill",
    "columns over a rule": "ID    NAME\n-----------\nws-1  North Bay\nws-2  Old Mill\n\n1-2 of 2.",
    "columns over rules": "All:\n\nID    NAME\n----  ----\nws-1  North Bay\nws-2  Old Mill\n----",
    "items, the code within": "## All (2)\n\n- **North Bay** (#ws-1) by J · 2\n- Old Mill (ID ws-2) by K",
    "items, the code first": "- ws-1: North Bay\n- ws-2: Old Mill",
    "items, the code last": "Found 2 stations:\n\n* North Bay (ws-1)\n* Old Mill (ws-2)\n\nPage 1 of 4",
    "items that are all the first": "1. ws-1: North Bay\n1. ws-2: Old Mill",
    "numbered items": "1. **North Bay** [ID: ws-1]\n2. **Old Mill** [ID: ws-2]",
    "items in brackets": "• [ws-1] North Bay\n• [ws-2] Old Mill",
    "items with a dash": "1) `ws-1` - North Bay\n2) `ws-2` - Old Mill",
    "items that name their fields": "- ID: ws-1, Name: North Bay\n- ID: ws-2, Name: Old Mill",
    "blocks under headings": "## North Bay\n- **ID:** ws-1\n\n## Old Mill\n- **ID:** ws-2",
    "blocks between rules": "ID: ws-1\nName: North Bay\n---\nID: ws-2\nName: Old Mill\n---",
    "blocks between empty lines": "2:\n\nID: ws-1\nName: North Bay\n\nID: ws-2\nName: Old Mill\n\nThat is it",
    "numbered blocks": "1. North Bay\n   ID: ws-1\n2. Old Mill\n   ID: ws-2\nThat is all",
}


@pytest.mark.parametrize("text", LISTS.values(), ids=list(LISTS))
def test_a_list_of_things_is_read_with_their_fields(text: str) -> None:
    assert text_records(text) == [BAY, MILL]


@pytest.mark.parametrize("mark", ["\u2022 ", "1. ", "## "])
def test_a_line_may_name_several_fields(mark: str) -> None:
    things = (("North Bay", "ws-1", "low"), ("Old Mill", "ws-2", "high"))
    text = "\n".join(f"{mark}{name}\n  Path: {path}.md | Priority: {level}" for name, path, level in things)
    assert text_records(f"Found 2:\n\n{text}") == [
        {"name": name, "path": f"{path}.md", "priority": level} for name, path, level in things
    ]


def test_names_a_line_each_are_a_list_of_texts() -> None:
    assert text_records("Rooms:\nNorth Bay\nOld Mill\nLower Pine") == ["North Bay", "Old Mill", "Lower Pine"]
    assert text_records("- North Bay\n- Old Mill") == ["North Bay", "Old Mill"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("Rooms: A1, B2 and C3", ["A1", "B2", "C3"]),
        (
            "The rooms are: North Bay, Old Mill, Bay of the North",
            ["North Bay", "Old Mill", "Bay of the North"],
        ),
        ("red, green, blue, dark-red", ["red", "green", "blue", "dark-red"]),
        ("Oslo, Bergen, and Rome", None),  # a clause has three, too
        ("12 Main Street, Berlin, 10115, Germany", None),  # an address
        ("Numbers: 12, 7, 30", [12, 7, 30]),
        ("Rooms: A1, A1, B2", None),
        ("Well: it rains, the ferry is late, and nobody knows why", None),
        ("It is open from 9, closed at 12, and free for all, always.", None),
        ("Rooms: A1", None),
    ],
)
def test_names_in_one_line_are_a_list_and_clauses_are_not(line: str, names: list[Any] | None) -> None:
    assert text_records(line) == names


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (("12", "7"), [12, 7]),
        (("4.5", "3.25"), [4.5, 3.25]),
        (("-3", "0"), [-3, 0]),
        (("007", "12"), ["007", "12"]),  # a code
        (("1.10", "1.9"), ["1.10", "1.9"]),  # a version
        (("12", "none"), ["12", "none"]),
        (("12", "—"), [12, "—"]),
    ],
)
def test_a_field_is_a_number_where_all_of_its_values_are_written_so(
    values: tuple[str, str], read: list[Any]
) -> None:
    first, second = values
    records = text_records(f"name,size\nA,{first}\nB,{second}")
    assert records is not None
    assert [record["size"] for record in records] == read


NO_LISTS = {
    "prose": "The harbour opens at nine.\nShips arrive from 10, and leave - if they can - at 12.",
    "fields of one thing": "Floor: level 3\nGuard: Vera Rossi\nHumidity: 412",
    "fields of one thing as items": "- Height: 300\n- Built: 1990\n- Operator: X",
    "a table of one thing": "### Ada\n\n| Field | Value |\n| --- | --- |\n| Bib | 977 |\n| Age | 21 |",
    "two lists": "A\n\nid,name\nws-1,x\nws-2,y\n\nid,name\nws-1,x\nws-2,y",
    "counts by name": "- Anna: 3\n- Ben: 4",
    "sentences as items": "- It rains.\n  And it is cold, too.\n- Nothing: else",
    "code": "def f(x):\n    return {1: 2}\nf(3)",
    "a listing with kinds": "[FILE] a.txt\n[DIR] sub\n[FILE] b.md",
    "sentences with commas": "No. 1 Fern, by Ada.\nNo. 2 Box, by Bo.\nNo. 3 Yew, by Kit.",
    "rows without names": "Fern;at Mill;Ada\nBox;at Mill;Bo\nYew;at Quay;Kit",
    "one line": "ws-1: North Bay",
    "a table without rows": "| id | name |\n|----|------|",
    "rows of other lengths": "id,name\nws-1,North Bay\nws-2,Old Mill,closed",
    "a field twice": "id,id\n1,2\n3,4",
    "nothing": "\n\n",
}


@pytest.mark.parametrize("text", NO_LISTS.values(), ids=list(NO_LISTS))
def test_what_has_not_one_structure_is_no_list(text: str) -> None:
    assert text_records(text) is None


@given(st.text(alphabet="aB1 :|-*#,;()[]\t\n=", max_size=120))
def test_any_text_is_read_or_not_without_an_error(text: str) -> None:
    records = text_records(text)
    assert records is None or (records and text_records(text) == records)


@given(st.sampled_from("-=|*#: ,;([\t"), st.integers(1, 4), st.integers(1, 50))
def test_marks_alone_take_no_long_time(mark: str, lines: int, length: int) -> None:
    text_records("\n".join(mark * length * 1000 for _ in range(lines)))


def test_what_is_read_cannot_be_changed_by_who_reads_it() -> None:
    text = LISTS["CSV"]
    (first := text_records(text) or [{}])[0]["name"] = "changed"
    assert text_records(text) == [BAY, MILL] != first


def test_a_reference_leads_into_a_list_that_is_a_text() -> None:
    results = {"step1": {"result": LISTS["items, the code first"]}, "step2": {"text": LISTS["CSV"]}}
    assert resolve_references("${step1.result[1].id}", results) == "ws-2"
    assert resolve_references(
        '${at(find(pluck(step2.text, "id"), "ws-1"), pluck(step2.text, "name"))}', results
    ) == ("North Bay")
    assert resolve_references("${count(step2.text)}", results) == 2
    assert resolve_references("${step2.text}", results) == LISTS["CSV"]  # by itself it is a text
    blocks = {"step1": {"text": '{\n  "id": 1\n}\n{\n  "id": 2\n}'}, "step2": {"text": '{"id": 1}\n[2]\n'}}
    assert resolve_references("${step1.text[1].id} ${step2.text[1][0]}", blocks) == "2 2"
    assert (
        resolve_references("${step1.text}", {"step1": {"text": '{"id": 1} {"id": 2'}}) == '{"id": 1} {"id": 2'
    )
    with pytest.raises(PlaceholderError, match="no 1 in "):
        resolve_references("${step1.text[1].id}", {"step1": {"text": '{"id": 1}\n{"id": 2'}})
    with pytest.raises(PlaceholderError, match="index 2 of a list of 2"):
        resolve_references("${step1.result[2].id}", results)
    with pytest.raises(PlaceholderError, match="is not a list"):
        resolve_references("${count(step1.text)}", {"step1": {"text": "no list"}})


@pytest.mark.parametrize(
    ("fenced", "expression", "value"),
    [
        ("2 rooms:\n\n```csv\nid,name\nws-1,North Bay\nws-2,Old Mill\n```", "[1].name", "Old Mill"),
        ('Found it.\n```json\n{"bay": {"depth": 12}}\n```\nAsk again.', ".bay.depth", "12"),
        ("```\nid: ws-1\nname: North Bay\n```", ".name", "North Bay"),
    ],
)
def test_a_reference_leads_into_the_fence_of_a_text(fenced: str, expression: str, value: str) -> None:
    assert resolve_references(f"${{step1.text{expression}}} m", {"step1": {"text": fenced}}) == f"{value} m"
    twice = f"{fenced}\n\n{fenced}"  # nobody knows which is meant
    with pytest.raises(PlaceholderError):
        resolve_references(f"${{step1.text{expression}}}", {"step1": {"text": twice}})


def test_fences_without_end_take_no_long_time() -> None:
    assert isinstance(nested_value("```a\n" * 40_000), str)


def test_long_lines_that_begin_with_a_code_are_a_list_of_which_only_the_names_are_told() -> None:
    wines = ("W-1: Riesling 2020 (Weingut am Steinberg), 8 x 0.75 l, in the cellar below the old barn",)
    wines += ("W-2: Meursault 2019 (Domaine), 2 x 0.75 l", "W-3: Rioja 2011 (Bodega), 1 x 0.75 l")
    text = "\n".join(("Wines: 3", "Bottles: 11", "", *wines))
    names = ("Riesling 2020", "Meursault 2019", "Rioja 2011")
    assert text_records(text) == [{"id": f"W-{n}", "name": name} for n, name in enumerate(names, start=1)]


def test_a_column_of_places_has_a_name() -> None:
    assert text_records("| # | Name |\n|---|---|\n| 1 | Ada |\n| 2 | Bo |") == [
        {"number": 1, "name": "Ada"},
        {"number": 2, "name": "Bo"},
    ]


def test_names_that_commas_alone_join_are_a_list_and_a_sentence_an_address_or_numbers_are_none() -> None:
    assert text_records("aurora,old-mill,b2/juno,Riga") == ["aurora", "old-mill", "b2/juno", "Riga"]
    assert text_records("brief.md,plan.md") == ["brief.md", "plan.md"]
    for text in (
        "a,b",
        "1,2,3,4",
        "12,5 m",
        "Main St 5, Riga, Latvia, EU",
        "aurora,aurora,juno,iris",
        "a,,b,c,d",
    ):
        assert text_records(text) is None


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Floor: level 3\nHumidity: 412", {"floor": "level 3", "humidity": 412}),
        ("# Room 7\n**Floor**: 3\nOpen: no\n\nAsk at the door.", {"floor": 3, "open": "no"}),
        ("# Room 7\n\n*The large one*\n\n## Facts\n- Id: #3\n- Floor: 2", {"id": 3, "floor": 2}),
        ("Result: 42", {"result": 42}),
        ("# Ada\n\n| Field | Value |\n|--|--|\n| **Age** | 21 |\n| Club | - |", {"age": 21, "club": "-"}),
        ("Rack: A1\nW-001: Barolo 2016\nW-002: Brunello 2015", None),  # two things
        ("Floor: 3\nGuard: Ada\n\nFloor: 4\nGuard: Bo", None),
        ("One\nTwo\nThree\nFloor: 3", None),
        ("The harbour opens at nine.\nShips arrive from 10.", None),
    ],
)
def test_lines_of_one_thing_are_its_fields(text: str, fields: dict[str, Any] | None) -> None:
    assert text_fields(text) == fields
    for name, value in (fields or {}).items():
        assert resolve_references(f"${{step1.text.{name}}}", {"step1": {"text": text}}) == value


def test_lines_that_a_typed_tool_returned_are_a_list_though_each_has_a_name() -> None:
    shown = {"step1": {"text": "Ada: late\nBo: early"}}
    assert resolve_references("${step1.result[1]}", shown) == "Bo: early"
