"""What is learned of a server that nobody described: which values, from where, by how many calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.core.placeholders import resolve_references
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.candidates import LIKELY, POSSIBLE, argument_shape, learned_rank
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.explore.leaves import leaves_of
from mcpagent.synth.explore.paging import is_paging, next_page
from mcpagent.synth.explore.questions import is_worth_asking
from tests.synth.explore.worlds import (
    BOOKS,
    NOTES,
    SHIPS,
    STATIONS,
    World,
    harbour,
    library,
    notes,
    stations,
    tool_edges,
)
from tests.synth.running import explored

_Letter = Literal["a", "bb", "ccc", "dddd", "eeeee"]


@pytest.mark.system
def test_the_ships_of_a_long_list_are_asked_about_wherever_they_stand_in_it() -> None:
    tasks = explored(harbour().pool(), {"train": 150}).tasks["train"]
    asked = json.dumps([[step.params for step in task.truth.tool_sequence] for task in tasks])
    asked += json.dumps([[task.prompt[-1].content, task.truth.user_turns] for task in tasks])
    places = [place for place, name in enumerate(SHIPS) if name in asked]
    assert len(places) > 45
    assert min(places) < 20 and max(places) > 100 and sum(place >= 60 for place in places) > 25


@pytest.mark.parametrize("length", [3, 30, 1000])
def test_a_value_of_any_length_of_list_is_where_its_expression_says(length: int) -> None:
    answer = {"ships": [{"id": 7 * n, "name": f"ship {n}", "tons": 3 * n + 1} for n in range(length)]}
    leaves = leaves_of(answer, seed=4)
    for leaf in leaves:
        assert resolve_references("${" + leaf.at_step(1) + "}", {"step1": answer}) == leaf.value
    numbers = {leaf.value: leaf for leaf in leaves if leaf.name == "tons"}
    assert len(numbers) >= min(length, 100) and max(numbers) > 3 * (length - 1) * 0.9
    for tons, leaf in numbers.items():
        name = f"ship {(tons - 1) // 3}"  # as it was made above
        assert leaf.level is not None and leaf.is_near
        assert (leaf.tail, leaf.level.key, leaf.level.called) == (("tons",), "name", name)
    assert leaves_of(answer, seed=4) == leaves


def test_what_has_no_name_of_its_own_is_asked_for_only_where_a_person_would_count_to_it() -> None:
    leaves = leaves_of({"cells": [f"cell {n}" for n in range(40)]})
    near = {leaf.value for leaf in leaves if leaf.is_near and leaf.expression.startswith("@")}
    assert near == {f"cell {n}" for n in range(3)}


def test_a_deep_thing_is_called_by_another_field_where_its_name_is_asked_for() -> None:
    rows = [{"id": 900 + n, "title": f"Book {n}"} for n in range(60)]
    leaves = {leaf.expression: leaf for leaf in leaves_of({"books": rows})}
    levels = {place: leaves[place].level for place in ("@.books[40].title", "@.books[40].id")}
    assert [level and level.called for level in levels.values()] == [940, "Book 40"]


def test_pages_are_followed_by_cursor_by_number_and_by_offset() -> None:
    world = library()
    graph = world.learned()
    books = {leaf.value for fact in graph.facts for leaf in fact.leaves if leaf.name == "isbn"}
    assert books >= {book["isbn"] for book in BOOKS}
    asked = {tool: [a for name, a in world.asked if name == tool] for tool in world.calls}
    assert {"cursor": "c40"} in asked["list_books"]
    assert {"page": 5} in asked["list_loans"] and {"page": 6} not in asked["list_loans"]
    assert {0, 5, 10, 15} == {arguments["offset"] for arguments in asked["list_rooms"]}
    assert {fact.arguments["isbn"] for fact in graph.facts if fact.spec.name == "get_book"} == {
        book["isbn"] for book in BOOKS
    }
    assert world.refused.total() < 8


def test_a_cursor_leads_to_no_other_tool_and_nobody_asks_for_it() -> None:
    rows = {"crews": [f"crew {n}" for n in range(30)], "masts": [f"mast {n}" for n in range(30)]}

    def part(kind: str, cursor: str | None) -> dict[str, Any]:
        start = int(cursor or "0")
        more = {"nextCursor": str(start + 10)} if start < 20 else {}
        return {kind: [{"name": name} for name in rows[kind][start : start + 10]]} | more

    def list_crews(cursor: str | None = None) -> dict[str, Any]:
        """The crews."""
        return part("crews", cursor)

    def list_masts(cursor: str | None = None) -> dict[str, Any]:
        """The masts."""
        return part("masts", cursor)

    graph = World("deck", list_crews, list_masts).learned()
    assert {fact.page for fact in graph.facts} == {1, 2, 3}
    assert not [edge for fact in graph.facts for edge in graph.edges_into(fact)]
    cursors = [(leaf, fact) for fact in graph.facts for leaf in fact.leaves if leaf.name == "nextCursor"]
    assert cursors and not any(is_worth_asking(leaf, fact) for leaf, fact in cursors)


@pytest.mark.parametrize(
    ("parameter", "value", "is_part"),
    [
        ("start", 20, True), ("start", "20", True), ("start", "2024-05-01", False), ("after", "x9", True),
        ("after", "2024-05-01", False), ("offset", 5, True), ("cursor", "x9", True), ("first", "Ada", False),
    ],
)  # fmt: skip
def test_a_date_is_not_a_part_of_a_list(parameter: str, value: object, is_part: bool) -> None:
    assert is_paging(parameter, value) == is_part


def test_a_bound_or_an_amount_is_not_looked_up() -> None:
    def list_rooms(min_seats: int = 0) -> list[dict[str, Any]]:
        """The rooms."""
        rooms = [{"name": f"{color} room", "seats": 4 + 3 * n} for n, color in enumerate(("Red", "Blue"))]
        return [room for room in rooms if room["seats"] >= min_seats]

    def later(day: str, days: int) -> str:
        """The date so many days after a date (YYYY-MM-DD)."""
        return (date.fromisoformat(day) + timedelta(days=days)).isoformat()

    graph = World("rooms", list_rooms, later).learned()
    assert {fact.spec.name for fact in graph.facts} == {"list_rooms", "later"}
    graph.add(Fact(graph.facts[0].spec, {"min_seats": 7}, graph.facts[0].leaves))
    assert not [edge for fact in graph.facts for edge in graph.edges_into(fact)]


@pytest.mark.parametrize(
    ("parameters", "arguments", "answer", "further"),
    [
        (["cursor"], {}, {"items": [1], "next_cursor": "x"}, {"cursor": "x"}),
        (["cursor"], {}, {"items": [1], "nextCursor": None}, None),
        (["pageToken", "q"], {"q": "a"}, {"items": [1], "meta": {"nextPageToken": "t"}}, {"pageToken": "t"}),
        (["page"], {"page": 3}, {"items": [1, 2], "hasMore": True}, {"page": 4}),
        (["page"], {}, {"items": [1, 2], "total": 2}, None),
        (["page"], {}, {"items": [1, 2], "total": 5}, {"page": 2}),
        (["offset", "limit"], {"offset": 4}, {"items": [1, 2], "total": 9}, {"offset": 6}),
        (["offset", "limit"], {"offset": 4}, {"items": [1, 2], "has_more": False, "total": 9}, None),
        (["query"], {}, {"items": [1, 2], "has_more": True}, None),
        (["page", "per_page"], {}, {"items": [1, 2], "page": 1, "pages": 2}, {"page": 2}),
        (["page"], {"page": 2}, {"items": [1, 2], "totalPages": 2, "total": 9}, None),
        (["page"], {"page": 2}, {"items": [1, 2], "last_page": 3}, {"page": 3}),
        (["page"], {}, {"result": '{"items": [1, 2], "pages": 2}'}, {"page": 2}),
        (["page"], {}, {"result": "- a-1: North\n- a-2: South\n\nPage 1 of 3"}, {"page": 2}),
        (["page"], {"page": 3}, {"result": "- a-1: North\n- a-2: South\n\nPage 3 of 3"}, None),
        (["offset"], {}, {"text": "Showing 1-3 of 48\n1. North\n2. South\n3. East"}, {"offset": 3}),
        (["offset"], {"offset": 45}, {"text": "Showing 46-48 of 48\n1. North\n2. South\n3. East"}, None),
    ],
)
def test_the_next_page_is_asked_for_as_the_answer_and_the_schema_say(
    parameters: list[str], arguments: dict[str, object], answer: object, further: object
) -> None:
    assert next_page(parameters, arguments, answer) == further


def test_names_and_schemas_say_what_to_try_so_that_few_calls_fail() -> None:
    world = harbour()
    graph = world.learned()
    tools = {fact.spec.name for fact in graph.facts}
    assert tools == set(world.calls) == {tool.__name__ for tool in world.tools}
    assert world.refused.total() < 20 < world.calls.total()
    edges = tool_edges(graph)
    assert edges["harbour.list_ships"]["harbour.ship_captain.ship_id"] > 5
    assert edges["harbour.list_ports"]["harbour.distance.target_port"] > 3
    days = {arguments["date"] for name, arguments in world.asked if name == "tide"}
    assert len(days) > 20 and "YYYY-MM-DD" not in days


def test_a_kind_of_value_that_is_refused_five_times_is_not_tried_again() -> None:
    world = notes()
    world.learned()
    assert world.refused["list_notes"] <= 5 and world.refused["read_note"] <= 5
    given = [arguments["badge"] for name, arguments in world.asked if name == "find_owner"]
    sentences = [text for text in given if text.endswith(".") or text.istitle() or " " in text]
    assert 0 < len(given) <= 15 and len(sentences) <= 10


def test_what_is_asked_and_learned_depends_on_the_seed_and_not_on_who_answers_first() -> None:
    worlds = [harbour() for _ in range(3)]
    even, uneven, other = (
        world.learned(seed=seed, delays=delays)
        for world, seed, delays in zip(
            worlds, (3, 3, 4), ((), (0.003, 0.0, 0.001, 0.002, 0.0), ()), strict=True
        )
    )
    facts = [[(fact.spec.name, fact.arguments) for fact in graph.facts] for graph in (even, uneven, other)]
    assert facts[0] == facts[1] != facts[2]
    assert tool_edges(even) == tool_edges(uneven)


def test_read_only_calls_run_side_by_side_and_not_all_at_once() -> None:
    world = harbour()
    world.learned(delays=(0.001,))
    assert 4 <= world.most_at_once <= 32


def test_a_value_that_a_person_names_opens_what_could_not_be_guessed() -> None:
    world = notes()
    graph = world.learned(seed_values={"notes.list_notes.folder": ["/srv/notes"]})
    assert next(a for name, a in world.asked if name == "list_notes") == {"folder": "/srv/notes"}
    read = {fact.arguments["path"] for fact in graph.facts if fact.spec.name == "read_note"}
    assert read == set(NOTES)
    edges = tool_edges(graph)["notes.list_notes"]
    assert edges["notes.read_note.path"] >= 3 and edges["notes.note_size.path"] >= 3


@pytest.mark.parametrize(
    ("form", "head"),
    [
        ("- {0}: {1}", "All stations:\n"),
        ("1. **{1}** ({0})", ""),
        ("| {0} | {1} |", "| Station ID | Name |\n|---|---|\n"),
        ("{0},{1}", "station,name\n"),
        ("{0}", ""),
        ('{{"station": "{0}"}}', ""),
    ],
)
def test_a_list_that_is_a_text_gives_what_other_tools_ask_for(form: str, head: str) -> None:
    world = stations(form.format, head)
    graph = world.learned()
    assert {fact.arguments["station_id"] for fact in graph.facts if fact.spec.name == "station"} == set(
        STATIONS
    )
    assert {"weather.station.station_id", "weather.sensor.station_id"} <= set(
        tool_edges(graph)["weather.list_stations"]
    )
    sensors = [fact.arguments for fact in graph.facts if fact.spec.name == "sensor"]
    assert {arguments["kind"] for arguments in sensors} == {"rain", "wind"}
    (first, *_) = [fact for fact in graph.facts if fact.spec.name == "station"]
    row = STATIONS[first.arguments["station_id"]]
    labels = {leaf.name: leaf.value for leaf in first.leaves if not leaf.in_prose}
    shelf = f"shelf {first.arguments['station_id'][-2:]}"
    assert labels == {"height": f"{row['height_m']} m", "shelf": shelf}


def test_a_value_that_the_schema_names_is_not_what_a_refusal_is_about() -> None:
    world = World("weather", stations("{0}".format).tools[0])  # no tool that lists the stations
    graph = world.learned()
    (silence,) = graph.silences
    assert "cannot be asked without station_id" in silence.sentence
    assert "kind" not in silence.text and "--seed-value station_id=" in silence.text


def test_why_tools_gave_nothing_is_one_sentence_for_each_reason() -> None:
    world = notes()
    graph = world.learned()
    sentences = {silence.reason + str(len(silence.tools)): silence.sentence for silence in graph.silences}
    assert "--seed-value path=" in sentences["no_value2"] and "notes.note_size" in sentences["no_value2"]
    said = " ".join(silence.sentence for silence in graph.silences)
    assert "badges have nine digits" in said and "--seed-value folder=" in said


def test_the_records_of_a_plain_text_are_asked_for_by_what_their_lines_call_them() -> None:
    first, second = "Commit: 3ad5acc\nAuthor: Ada Berg\nTons: 1200", "Commit: 25279c6\nAuthor: Edsger Lund"
    text = f"History:\n{first}\n\n{second}\nAdd two crates"
    leaves = leaves_of({"text": text})
    for leaf in leaves:
        assert resolve_references("${" + leaf.at_step(1) + "}", {"step1": {"text": text}}) == leaf.value
    values = {leaf.name: leaf.value for leaf in leaves if not leaf.in_prose}
    assert values == {}, "of which commit?"
    assert {leaf.value for leaf in leaves} >= {"25279c6", "1200"}
    one = leaves_of({"text": f"The last one\n{first}\nAdd two crates"})
    named = {leaf.name: leaf.value for leaf in one if not leaf.in_prose}
    assert named == {"commit": "3ad5acc", "author": "Ada Berg", "tons": 1200}
    (only,) = leaves_of({"text": "Tons: 1200"})
    assert (only.name, only.value) == ("tons", 1200)
    (title,) = [leaf for leaf in leaves_of({"title": "Alien: Covenant"}) if not leaf.in_prose]
    assert title.value == "Alien: Covenant"


def test_words_in_one_line_are_asked_for_one_by_one_and_together() -> None:
    answer = {"tags": "new, red, large, cheap", "rows": '[{"id": 1}]'}
    leaves = {leaf.expression: leaf.value for leaf in leaves_of(answer)}
    assert (leaves["@.tags"], leaves["@.tags[1]"]) == ("new, red, large, cheap", "red")
    assert "@.rows" not in leaves


def test_a_text_that_is_json_is_read_as_the_object_that_it_is() -> None:
    answer = {
        "result": json.dumps({"rows": [{"name": "Aurora", "tons": 1237}, {"name": "Borealis", "tons": 4400}]})
    }
    leaves = {leaf.expression: leaf for leaf in leaves_of(answer)}
    assert leaves["@.result.rows[1].tons"].value == 4400
    assert resolve_references("${step1.result.rows[1].tons}", {"step1": answer}) == 4400


@pytest.mark.parametrize(("parameter", "rank"), [("observation", LIKELY), ("entity_type", POSSIBLE)])
def test_an_item_of_a_list_goes_by_the_name_of_its_list(parameter: str, rank: int) -> None:
    graph = ToolSpec(server="s", name="read_graph", input_schema={})
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    target = ToolSpec(server="s", name="find_entity", input_schema=schema)
    leaf, *_ = leaves_of({"entities": [{"observations": ["was built in 1971", "weighs 12 tons"]}]})
    (slot,) = argument_shape(target).required
    assert learned_rank(slot, target, graph, "was built in 1971", leaf) == rank


def test_what_the_description_lists_is_tried_where_nothing_else_does() -> None:
    moons = {"mars": ["Phobos", "Deimos"], "saturn": ["Rhea", "Titan"]}

    def moons_of(planet: str) -> str:
        known = moons.get(planet.casefold())
        return "\n".join(known) if known else f"I know no moons of {planet}."

    moons_of.__doc__ = "The moons of a planet, one of mars, saturn or uranus."
    world = World("sky", moons_of)
    asked = {fact.arguments["planet"].casefold() for fact in world.learned().facts}
    assert asked == {"mars", "saturn"} and world.calls.total() < 16


def test_a_text_that_says_that_there_is_none_is_no_fact_and_what_it_names_is_tried() -> None:
    def runner(bib: int) -> str:
        """One runner."""
        return f"**No runner with bib {bib}.**" if bib % 3 else f"| Field | Value |\n|--|--|\n| Age | {bib} |"

    def ward(ward: str) -> str:
        """One ward."""
        beds = {"Rowan": 14, "Hazel": 9}
        return f"Beds: {beds[ward]}" if ward in beds else f"No such ward. Available wards: {', '.join(beds)}."

    facts = World("race", runner, ward).learned().facts
    bibs = [fact.arguments["bib"] for fact in facts if fact.spec.name == "runner"]
    assert bibs and not any(bib % 3 for bib in bibs)
    assert {fact.arguments["ward"] for fact in facts if fact.spec.name == "ward"} == {"Rowan", "Hazel"}


def test_what_a_refusal_repeats_of_a_value_cut_short_is_not_tried() -> None:
    def days() -> list[dict[str, str]]:
        """List days."""
        return [{"name": f"day {n}", "opened": f"2024-03-{n:02}T09:{n + 9}:00"} for n in range(1, 20)]

    def story(opened: str) -> dict[str, str]:
        """The story of a day."""
        raise ToolError(f"Reference '{opened.partition(':')[0]}' is none; known: 'night'")

    world = World("diary", days, story)
    world.learned()
    tried = {arguments["opened"] for name, arguments in world.asked if name == "story"}
    assert "night" in tried and any(text.startswith("2024") and ":" in text for text in tried)
    assert not [text for text in tried if text.startswith("2024") and ":" not in text]


def test_a_value_that_the_user_names_is_given_where_a_tool_refuses_without_it() -> None:
    world = World("moor", _moored("not now"))
    assert not world.learned().facts
    graph = world.learned(seed_values={"moor.moored.place": ["Pier 3"]})
    assert [fact.arguments for fact in graph.facts] == [{"place": "Pier 3"}]


def test_a_number_is_whole_though_the_schema_allows_parts() -> None:
    def read_log(first_line: float) -> dict[str, float]:
        """Read a log."""
        return {"bytes": first_line * 7}

    world = World("logs", read_log)
    world.learned()
    lines = {arguments["first_line"] for _, arguments in world.asked}
    assert len(lines) > 5 and all(float(line).is_integer() for line in lines)


def _moored(refusal: str) -> Callable[..., Any]:
    def moored(place: str = "") -> dict[str, Any]:
        """What is moored."""
        if not place.startswith("Pier "):
            raise ToolError(refusal)
        return {"ship": f"Ship {place}", "tons": 100 * len(place) + 7 * int(place[5:])}

    return moored


def test_files_in_the_folder_that_a_server_was_started_with_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("a.log", "b.log", "logs/c.log", ".hidden"):
        (tmp_path / name).write_text(f"{name} {len(name)}")

    def size_of(path: str) -> dict[str, Any]:
        """The size of a file."""
        if not Path(path).is_file():
            raise ToolError(f"{path!r} is not a file")
        return {"bytes": len(Path(path).read_text())}

    def size_below(file: str) -> dict[str, Any]:
        """The size of a file in the shared folder."""
        if file.startswith("/"):
            raise ToolError("outside of the folder")
        return size_of(str(tmp_path / file))

    graph = World("disk", size_of, size_below).learned(places={"disk": [str(tmp_path)]})
    asked = {tuple(fact.arguments.values()) for fact in graph.facts}
    below = {("a.log",), ("b.log",), ("logs/c.log",)}
    assert asked == below | {(f"{tmp_path}/{name}",) for (name,) in below}


def test_a_value_that_nothing_speaks_for_meets_the_likeliest_of_the_other_parameter(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"note {number}.md").write_text("a note")
    rows = [(f"{n * 7919:07x}", f"2024-03-{n:02}T09:{n + 9}:00", f"Mend net {n}") for n in range(1, 23)]

    def history(archive_path: str) -> list[dict[str, str]]:
        """What was written."""
        if archive_path != str(tmp_path):
            raise ToolError(f"{archive_path!r} is no archive")
        return [{"key": key, "written": written, "title": title} for key, written, title in rows]

    def version(archive_path: str, revision: str) -> dict[str, str]:
        """Show one version."""
        history(archive_path)
        if revision not in {key for key, _, _ in rows}:
            raise ToolError(f"Reference '{revision.partition(':')[0]}' did not resolve")
        return {"lines": f"{int(revision, 16) % 97} lines"}

    world = World("archive", history, version)
    graph = world.learned(places={"archive": [str(tmp_path)]})
    shown = {fact.arguments["revision"] for fact in graph.facts if fact.spec.name == "version"}
    assert shown == {key for key, _, _ in rows}
    tried = [arguments for name, arguments in world.asked if name == "version"]
    assert world.refused["version"] <= 15
    assert not [each for each in tried if each["archive_path"].startswith("2024")]  # of a refusal


def test_nothing_is_asked_that_is_of_today() -> None:
    def arrival(ship: Literal["Aurora", "Juno"]) -> dict[str, str]:
        """When a ship came in."""
        today = date.today()
        return {
            "day": today.isoformat() if ship == "Juno" else "1987-04-06",
            "weekday": f"{today:%A}",
            "built": "1987-04-05",
            "from": f"{ship}ville",
        }

    facts = World("clock", arrival).learned().facts
    asked = {leaf.name for fact in facts for leaf in fact.leaves if is_worth_asking(leaf, fact)}
    assert asked == {"built", "from", "day"}


def test_a_call_has_no_more_than_one_of_the_parameters_that_may_be_left_out() -> None:
    def log(
        author: _Letter | None = None, word: _Letter | None = None, path: _Letter | None = None
    ) -> dict[str, int]:
        """The commits of a repository."""
        return {"commits": 40 + len(author or "") + 7 * len(word or "") + 49 * len(path or "")}

    facts = World("repo", log).learned().facts
    assert max(len(fact.arguments) for fact in facts) == 1


def test_a_list_that_is_cut_still_names_things_to_ask_of_the_other_tools() -> None:
    kinds = ["Room", "Hall", "Attic", "Den", "Loft", "Vault", "Nook", "Bay"]
    names = [
        f"{color} {kind} {n}" for n in range(4) for color in ("Red", "Blue", "Jade", "Teal") for kind in kinds
    ]
    rooms = [{"name": name, "seats": 4 + 3 * n, "at": "behind the stairs"} for n, name in enumerate(names)]

    def read_all() -> dict[str, Any]:
        """All rooms."""
        return {"rooms": rooms}

    def open_room(name: str) -> dict[str, Any]:
        """One room."""
        for room in rooms:
            if room["name"] == name:
                return room
        raise ToolError(f"there is no {name}")

    graph = World("house", read_all, open_room).learned()
    assert {fact.spec.name for fact in graph.facts} == {"open_room"} and len(graph.facts) >= 10
    assert [silence.reason for silence in graph.silences] == ["too_long"]


def test_a_value_that_the_user_names_is_tried_before_what_a_schema_suggests() -> None:
    def search_rows(expression: str, sheet: str = "birds") -> dict[str, Any]:
        """Search rows. expression: one of "(30 + 29) * 15", "2 + 2" or "7 / 2"."""
        if expression != "Nightjar":
            raise ToolError(f"nothing is found for {expression}")
        return {"row": 14, "ring": "KE-1180", "sheet": sheet}

    world = World("orchard", search_rows)
    graph = world.learned(seed_values={"orchard.search_rows.expression": ["Nightjar"]})
    assert world.asked[0][1]["expression"] == "Nightjar"
    assert graph.facts
