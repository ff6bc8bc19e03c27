"""Questions of which a reader can tell what is asked, of a server with the habits of published ones."""

from __future__ import annotations

from datetime import date
from random import Random
from typing import Any, Literal

import pytest

from mcpagent.errors import UserError
from mcpagent.synth.explore.shapes import Shapes
from mcpagent.synth.explore.tasks import Asked
from mcpagent.synth.explore.walks import Walk
from tests.synth.explore.worlds import World
from tests.synth.running import explored

COMMITS = [
    {"hash": f"{7919 * (n + 3):x}", "author": ("Ada", "Bo", "Kit")[n % 3], "subject": subject}
    for n, subject in enumerate(
        ["Read quoted fields", "Fix a leak", "Drop the cache", "Speed up the lexer", "Test two systems"]
    )
]
MOVES = {
    name: {"type": kind, "power": 40 + 15 * n}
    for n, (name, kind) in enumerate(
        [("ember", "fire"), ("gust", "flying"), ("surf", "water"), ("bite", "dark"), ("peck", "flying")]
    )
}
MONSTERS = {
    f"mon-{n}": {"types": ", ".join(["fire", "flying"][: 1 + n % 2]), "weight": 71 + n} for n in range(4)
}
GUARDS = {"Fluffy": "halves contact damage", "Sturdy": "survives any hit", "Levitate": "is above the ground"}


def workshop() -> World:
    def git_log(author: Literal["Ada", "Bo", "Kit"] | None = None) -> list[dict[str, Any]]:
        """The commits, of all or of one author."""
        return [commit for commit in COMMITS if author in (None, commit["author"])]

    def get_move(move: Literal["ember", "gust", "surf", "bite", "peck"], lines: int | None = None) -> str:
        """What is known of a move; `lines` of it, or all."""
        return f"## {move}\nType: {MOVES[move]['type']}\nPower: {MOVES[move]['power']}" + "\n" * (
            lines is None
        )

    def get_monster(monster: Literal["mon-0", "mon-1", "mon-2", "mon-3"]) -> dict[str, Any]:
        """What is known of a monster."""
        return MONSTERS[monster]

    def effect(types: list[str]) -> dict[str, Any]:
        """How strong it is against all of the types."""
        return {"factor": 16 + sum(map(ord, "".join(types))) % 7}

    def list_guards(kind: Literal["all", "strong", "weak"]) -> str:
        """The guards of a kind."""
        shown = list(GUARDS)[: {"all": 3, "strong": 2, "weak": 1}[kind]]
        return "\n".join(f"- {name}: {GUARDS[name]}" for name in shown)

    def search_notes(tag: Literal["sea", "sun", "salt"]) -> str:
        """Find notes with a tag."""
        return "\n\n".join(f"{n}. Note {n}\n   Tags: {tag}, x{n}\n   Page: {40 + n}" for n in (1, 2, 3))

    def now(zone: Literal["Riga", "Porto", "Graz"]) -> dict[str, Any]:
        """What day it is somewhere."""
        return {"date": date.today().isoformat(), "week": 48, "zone": zone.upper()}

    def long_run(duration: int = 10, steps: int = 5) -> str:
        """Run for long."""
        return f"Completed. Duration: {duration} seconds, steps: {steps}."

    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return f"The sum of {a} and {b} is {a + b}."

    readers = (git_log, get_move, get_monster, effect, list_guards, search_notes, now, long_run, add)
    return World("workshop", *readers)


@pytest.fixture(scope="module")
def walks() -> list[Walk]:
    graph = workshop().learned()
    shapes, rng = Shapes(graph, graph.facts), Random(5)
    drawn = (shapes.draw(rng) for _ in range(4000))
    return [walk for walk in drawn if walk is not None]


def goals(walks: list[Walk], tool: str) -> set[str]:
    """What is asked by calls that end with one of a tool."""
    return {walk.goal.lower() for walk in walks if walk.steps[-1].fact.spec.name == tool}


def test_a_thing_goes_by_what_tells_it_apart_in_every_list(walks: list[Walk]) -> None:
    asked = goals(walks, "git_log")
    assert 'the hash for "fix a leak"' in asked
    assert not [goal for goal in asked if 'for "ada"' in goal or "log" in goal], "Ada has more commits"


def test_a_parameter_that_makes_no_difference_is_not_said(walks: list[Walk]) -> None:
    asked = goals(walks, "get_move")
    assert "the power of move bite" in asked and not [goal for goal in asked if "line" in goal]


def test_a_heading_a_name_in_a_list_and_one_of_several_are_no_fields(walks: list[Walk]) -> None:
    assert not [goal for goal in goals(walks, "get_move") if "name" in goal]
    asked = goals(walks, "list_guards") | goals(walks, "search_notes")
    assert not [goal for goal in asked if any(word in goal for word in ("fluffy", "sturdy", "tags", "page"))]


def test_several_types_in_one_text_are_not_given_as_one(walks: list[Walk]) -> None:
    given = [walk.steps[-1].fact.arguments for walk in walks if walk.steps[-1].fact.spec.name == "effect"]
    assert given and not [arguments for arguments in given if "," in str(arguments["types"][0])]


def test_neither_what_is_of_now_nor_a_default_is_asked(walks: list[Walk]) -> None:
    assert not goals(walks, "now") and not goals(walks, "long_run")


def test_only_things_with_one_argument_are_compared(walks: list[Walk]) -> None:
    compared = [walk for walk in walks if walk.kind == "parallel"]
    assert compared and goals(walks, "add") and not goals(compared, "add")


def test_nobody_is_said_not_to_know_what_can_be_worked_out(walks: list[Walk]) -> None:
    lacking = [walk for walk in walks if walk.lack == "function"]
    assert lacking and not goals(lacking, "add")


def test_a_number_that_tools_are_asked_by_names_a_thing_and_is_compared_with_none() -> None:
    cellar = {f"bottle-{n}": {"batch": 31 + 7 * n, "weight": 700 + 9 * n} for n in range(4)}

    def get_bottle(bottle: Literal["bottle-0", "bottle-1", "bottle-2", "bottle-3"]) -> dict[str, int]:
        """What is known of a bottle."""
        return cellar[bottle]

    def list_bottles(batch: Literal[31, 38, 45, 52]) -> list[str]:
        """The bottles of a batch."""
        return [name for name, bottle in cellar.items() if bottle["batch"] == batch]

    graph = World("cellar", get_bottle, list_bottles).learned()
    shapes, rng = Shapes(graph, graph.facts, {"both": 1}), Random(5)
    drawn = [walk for _ in range(200) if (walk := shapes.draw(rng)) is not None]
    assert {walk.goal for walk in drawn if walk.shape == "most"} == {
        "the highest weight",
        "the lowest weight",
    }
    assert any("batch" in walk.goal for walk in drawn)


def test_who_is_asked_for_a_date_need_not_say_the_time() -> None:
    def get_event(event: Literal["fair", "race", "feast"]) -> dict[str, str]:
        """When an event begins."""
        return {
            "date": {"fair": "2024-02-07", "race": "2024-05-09", "feast": "2024-11-23"}[event] + " 10:12:00"
        }

    pool, asked = World("town", get_event).pool(), Asked(weights={"single": 1})
    made = explored(pool, {"train": 6}, seed=1, asked=asked)
    answers = [task.truth.final_answer for task in made.tasks["train"]]
    checks = [check for check in answers if check and check.type == "date"]
    assert checks and {check.precision for check in checks} == {"day"}


def test_what_a_reader_could_guess_or_take_for_another_is_not_asked() -> None:
    rows = [
        {"name": name, "place": n + 1, "cellar": "North", "wine": wine, "weight": 225 + 31 * n}
        for n, (name, wine) in enumerate(
            [("Ash", "Merlot"), ("Bay", "Syrah"), ("Elm", "MERLOT"), ("Fir", "Gamay"), ("Oak", "Malbec")]
        )
    ]

    def list_casks() -> list[dict[str, Any]]:
        """List the casks."""
        return rows

    def get_cask(cask: Literal["Ash", "Bay", "Elm", "Fir", "Oak"]) -> dict[str, Any]:
        """One cask."""
        row = next(row for row in rows if row["name"] == cask)
        return {
            "wine": row["wine"],
            "cellar": "North",
            "label": f"{cask[:2]} {cask[2:]}",
            "mark": f" {cask.upper()}",
        }

    graph = World("winery", list_casks, get_cask).learned()
    shapes, rng = Shapes(graph, graph.facts), Random(5)
    drawn = [walk for _ in range(3000) if (walk := shapes.draw(rng)) is not None]
    asked = {walk.goal for walk in drawn if walk.shape in ("single", "chain", "both", "missing_function")}
    assert {"the weight of cask Elm", "the wine of cask Fir", "the label of cask Elm"} <= asked
    for field in ("place", "cellar", "mark"):
        assert not [goal for goal in asked if field in goal], field
    named = {name for goal in asked if "wine" in goal for name in ("Ash", "Elm") if name in goal}
    assert not named, "Merlot and MERLOT are one answer and two wines"


@pytest.mark.system
def test_an_amount_or_a_day_that_was_drawn_is_in_no_question() -> None:
    fares = {"Alder": 310, "Birch": 425, "Cedar": 577, "Dove": 713, "Elm": 828}

    def list_stops() -> list[dict[str, Any]]:
        """List the stops."""
        return [{"id": 3100 + n, "name": name} for n, name in enumerate(fares)]

    def get_stop(stop_id: int) -> dict[str, Any]:
        """Get a stop."""
        return {"fare": list(fares.values())[range(3100, 3105).index(stop_id)]}

    def timetable(stop: str, day: str) -> dict[str, Any]:
        """The timetable of a stop on a day (YYYY-MM-DD)."""
        return {"trains": fares[stop] % 37 + sum(map(ord, day))}

    def convert(amount: float, unit: Literal["mile", "league"] = "mile") -> dict[str, Any]:
        """Convert an amount to metres."""
        return {"metres": amount * {"mile": 1609, "league": 4828}[unit]}

    def settled(amount: int = 0) -> dict[str, Any]:
        """What is settled of an amount."""
        return {"settled": 7919 + 3 * amount}

    world = World("line", list_stops, get_stop, timetable, convert, settled)
    graph = world.learned()
    assert {"timetable", "convert"} <= {fact.spec.name for fact in graph.facts}, "they answer"
    said = [silence.sentence for silence in graph.silences]
    assert any("convert answered drawn values" in text and "--seed-value amount=" in text for text in said)
    made = explored(world.pool(), {"train": 20}, seed=1).tasks["train"]
    steps = [step for task in made for step in task.truth.tool_sequence]
    assert {step.tool for step in steps} <= {"list_stops", "get_stop", "settled"}
    assert any(step.tool == "get_stop" for step in steps), "an id that a list has shown"
    assert all(not step.params for step in steps if step.tool == "settled")
    with pytest.raises(UserError, match="convert: answered drawn values alone"):
        explored(World("line", convert).pool(), {"train": 2})
    named = World("line", convert).learned(seed_values={"line.convert.amount": [3, 26.2]})
    assert {fact.arguments["amount"] for fact in named.facts if fact.is_sayable} == {3, 26.2}
