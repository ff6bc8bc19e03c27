"""What is learned of a server that nobody described: which values, from where, by how many calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.core.placeholders import resolve_references
from mcpagent.synth.explore.leaves import leaves_of
from mcpagent.synth.explore.questions import is_worth_asking
from tests.synth.explore.worlds import (
    SHIPS,
    STATIONS,
    World,
    harbour,
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
        assert resolve_references(leaf.at_step(1), {"step1": answer}) == leaf.value
    numbers = {int(leaf.value): leaf for leaf in leaves if leaf.name == "tons"}
    assert len(numbers) >= min(length, 100) and max(numbers) > 3 * (length - 1) * 0.9
    for tons, leaf in numbers.items():
        name = f"ship {(tons - 1) // 3}"  # as it was made above
        (level,) = leaf.levels
        assert (leaf.tail, level.key, level.called) == (("tons",), "id", 7 * ((tons - 1) // 3))
        assert level.names == (str(level.called), name, str(tons))
    assert leaves_of(answer, seed=4) == leaves


def test_a_thing_is_called_by_words_else_by_what_no_other_has() -> None:
    def keys(*rows: dict[str, Any]) -> set[str]:
        return {leaf.levels[0].key for leaf in leaves_of(list(rows))} - {""}

    assert keys({"id": 7, "name": "Ash", "tons": 5}, {"id": 9, "name": "Elm", "tons": 6}) == {"name"}
    assert keys({"id": 7, "name": "Ash"}, {"id": 9, "name": "Ash"}) == {"id"}
    ways = [{"from": "Ash", "to": "Elm"}, {"from": "Elm", "to": "Fir"}]
    assert keys(*ways) == set(), "they are of others"
    assert keys({"crew": 7, "of": "Ash"}, {"crew": 8, "of": "Ash"}, {"crew": 8, "of": "Elm"}) == set()


def test_names_and_schemas_say_what_to_try_so_that_few_calls_fail() -> None:
    world = harbour()
    graph = world.learned()
    tools = {fact.spec.name for fact in graph.facts if fact.is_sayable}
    assert tools == {tool.__name__ for tool in world.tools} - {"tide"}, "no tool tells a date"
    assert world.refused.total() < 20 < world.calls.total()
    edges = tool_edges(graph)
    assert edges["harbour.list_ships"]["harbour.ship_captain.ship_id"] > 5
    assert edges["harbour.list_ports"]["harbour.distance.target_port"] > 3


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
    world.learned(seed_values={"notes.list_notes.folder": ["/srv/notes"]})
    assert next(a for name, a in world.asked if name == "list_notes") == {"folder": "/srv/notes"}


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
    labels = {leaf.name: leaf.value for leaf in first.leaves}
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
        assert resolve_references(leaf.at_step(1), {"step1": {"text": text}}) == leaf.value
    assert not leaves, "of which commit?"
    one = leaves_of({"text": f"The last one\n{first}\nAdd two crates"})
    named = {leaf.name: leaf.value for leaf in one}
    assert named == {"commit": "3ad5acc", "author": "Ada Berg", "tons": 1200}
    (only,) = leaves_of({"text": "Tons: 1200"})
    assert (only.name, only.value) == ("tons", 1200)
    (title,) = leaves_of({"title": "Alien: Covenant"})
    assert title.value == "Alien: Covenant"


def test_a_text_that_is_json_is_read_as_the_object_that_it_is() -> None:
    answer = {
        "result": json.dumps({"rows": [{"name": "Aurora", "tons": 1237}, {"name": "Borealis", "tons": 4400}]})
    }
    leaves = {leaf.expression: leaf for leaf in leaves_of(answer)}
    assert leaves["@.result.rows[1].tons"].value == 4400
    assert resolve_references("${step1.result.rows[1].tons}", {"step1": answer}) == 4400


def test_a_value_that_the_user_names_is_given_where_a_tool_refuses_without_it() -> None:
    world = World("moor", _moored("not now"))
    assert not world.learned().facts
    graph = world.learned(seed_values={"moor.moored.place": ["Pier 3"]})
    assert [fact.arguments for fact in graph.facts] == [{"place": "Pier 3"}]


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


def test_nothing_is_asked_that_is_of_today() -> None:
    def arrival(ship: Literal["Aurora", "Juno"]) -> dict[str, str]:
        """When a ship came in."""
        today = date.today()
        return {
            "day": today.isoformat(),
            "weekday": f"{today:%A}",
            "built": "1987-04-05",
            "from": f"{ship}ville",
        }

    facts = World("clock", arrival).learned().facts
    asked = {leaf.name for fact in facts for leaf in fact.leaves if is_worth_asking(leaf, fact)}
    assert asked == {"built", "from"}


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
