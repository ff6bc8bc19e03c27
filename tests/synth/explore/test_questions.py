"""What is asked, in words: a field of a thing, each as the server calls it, and nothing that a reader would
take for something else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from random import Random
from typing import Annotated, Any, Literal

import pytest
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.graph import Fact, Relations
from mcpagent.synth.explore.leaves import leaves_of
from mcpagent.synth.explore.questions import Namer, is_worth_asking, wish_of
from mcpagent.synth.explore.shapes import Shapes
from mcpagent.synth.explore.tasks import Asked
from mcpagent.synth.explore.walks import Walk
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.words import own_words
from tests.synth.explore.worlds import World
from tests.synth.running import explored


def fact(tool: str, arguments: dict[str, Any], answer: Any, **properties: Any) -> Fact:
    spec = ToolSpec(server="port", name=tool, input_schema={"type": "object", "properties": properties})
    return Fact(spec, arguments, leaves_of(answer))


def goals(of: Fact, kinds: Mapping[tuple[str, str], str]) -> list[str]:
    namer = Namer(kinds, Relations({of.spec.dotted: own_words(of.spec, ())}))
    return [goal for leaf in of.leaves if is_worth_asking(leaf, of) and (goal := namer.goal_of(leaf, of))]


SHIPS = [{"id": 71, "name": "Aurora", "tons": 800}, {"id": 84, "name": "Juno", "tons": 950}]
KINDS = {("port.get_ship", "ship_id"): "ship", ("port.get_ship", "name"): "ship"}


@pytest.mark.parametrize(
    ("of", "goal"),
    [
        (fact("get_ship", {"name": "Mistral"}, {"captain": "Lito"}), "the captain of Mistral"),
        (fact("get_ship", {"name": "Mistral"}, {"weightKg": 812}), "the weight kg of Mistral"),
        (
            fact("get_ship", {"name": "Mistral"}, {"wind": {"speed": 812}, "f": 3}),
            "the wind speed of Mistral",
        ),
        (fact("get_ship", {"name": "Mistral"}, {"data": {"tons": 812}, "ok": True}), "the tons of Mistral"),
        (fact("get_ship", {"name": "man of war"}, {"tons": 800}), 'the tons of "man of war"'),
        (fact("get_ship", {"ship_id": 71}, {"tons": 800}), "the tons of ship 71"),
        (fact("get_ship", {"id": 71}, {"tons": 800}), "the tons of ship id 71"),
        (fact("get_ship", {"flag": "K-7"}, {"tons": 800}), "the tons of flag K-7"),
        (
            fact("tide", {"port": "Riga", "day": "2026-01-02"}, {"cm": 210}),
            "the cm for port Riga and day 2026-01-02",
        ),
        (fact("rows", {"sql": "SELECT * FROM ships"}, SHIPS), "the tons of Aurora"),
        (fact("list_ships", {}, {"ships": SHIPS}), "the tons of Aurora"),
        (
            fact("list_ships", {}, [{"no": 71, "tons": 800}, {"no": 84, "tons": 800}]),
            "the tons of ship no 71",
        ),
        (fact("list_ships", {"port": "Riga"}, SHIPS), "the tons of Aurora (port Riga)"),
        (fact("find", {"name": "Juno"}, [SHIPS[1]]), "the tons of Juno"),
        (fact("find", {"name": "Juno"}, SHIPS), "the tons of Juno"),
        (fact("get_ship", {"name": "Mistral"}, "Tons: 812\nFlag: red"), "the tons of Mistral"),
        (fact("get_unit", {"unit": "knot"}, {"si": "metre"}, unit={"enum": ["knot"]}), "the si of unit knot"),
    ],
)
def test_a_field_of_a_thing_is_asked_for_as_the_server_calls_both(of: Fact, goal: str) -> None:
    assert goal in goals(of, KINDS)


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (fact("get", {"name": "Mistral"}, "a text"), "it has no name"),
        (fact("get", {}, {"count": 12}), "it is of no thing"),
        (fact("get", {"name": "Mistral"}, {"id": "Mistral"}), "it was given"),
        (fact("get", {"name": "Mistral"}, {"said": "This is Mistral."}), "it repeats what was given"),
        (fact("get", {"name": "Mistral"}, {"name": "Juno", "tons": 17}), "it is of another thing"),
        (fact("get", {"name": "Mistral"}, [SHIPS[1]]), "it is of the only thing that was found"),
        (fact("get", {"name": "Mistral"}, {"limit": 10}, limit={"default": 10}), "it is a default"),
        (fact("get", {"name": "Mistral"}, {"about": "x" * 81}), "it is long"),
        (fact("get", {"name": "Mistral"}, {"about": "None"}), "it is nothing"),
        (fact("get", {"name": "Mistral"}, {"co2_t": 812}), "its field is no words"),
        (fact("get", {"name": "Mistral"}, {"crew": "about 20."}), "it is the end of a sentence"),
        (fact("get", {"name": "Mistral"}, {"flags": "[red, blue]"}), "it is a list"),
        (fact("get", {"name": "Mistral"}, {"at": f"{date.today()}T10:00"}), "it is of today"),
        (fact("get", {"name": "Mistral"}, {"crew": [{"n": "A"}, {"n": "B"}], "size": 2}), "it is a count"),
        (fact("get", {"name": "Mistral"}, {"a": {"b": {"c": 17}, "d": 1}, "e": 1}), "it lies too deep"),
        (
            fact("get", {}, [{"flag": "red", "tons": 17}, {"flag": "red", "tons": 17}]),
            "nothing tells them apart",
        ),
        (fact("get", {}, [[{"a": "Ash", "t": 17}, {"a": "Elm", "t": 18}]]), "it is in a list in a list"),
    ],
)
def test_what_is_no_answer_or_of_which_nobody_can_say_whose_it_is_is_not_asked(of: Fact, why: str) -> None:
    assert goals(of, KINDS) == [], why


def test_a_change_is_wished_for_in_the_words_of_the_tool() -> None:
    spec = ToolSpec(server="shop", name="shop_add_note", input_schema={})
    wish = wish_of(spec, {"task_id": 12, "text": "two words"}, own_words(spec, ()))
    assert wish == 'add note with task id 12 and text "two words"'


def test_what_a_reader_could_guess_or_take_for_another_is_not_asked() -> None:
    wines = [("Ash", "Merlot"), ("Bay", "Syrah"), ("Elm", "MERLOT"), ("Fir", "Gamay"), ("Oak", "Malbec")]
    rows = [
        {
            "name": name,
            "code": f"c{n}",
            "place": n + 1,
            "cellar": "North",
            "wine": wine,
            "weight": 225 + 31 * n,
        }
        for n, (name, wine) in enumerate(wines)
    ]

    def list_casks() -> list[dict[str, Any]]:
        """List the casks."""
        return rows

    def get_cask(code: str) -> dict[str, Any]:
        """One cask."""
        return next({"wine": row["wine"], "cellar": "North"} for row in rows if row["code"] == code)

    asked = {walk.goal for walk in drawn(World("winery", list_casks, get_cask)) if not walk.lack}
    assert {"the weight of Elm", "the wine of Fir", "the wine of cask c3"} <= asked
    for field in ("place", "cellar", "code"):
        assert not [goal for goal in asked if f"the {field} " in goal], "a place, one for all, and for tools"
    named = {name for goal in asked if "wine" in goal for name in ("Ash", "Elm") if name in goal}
    assert not named, "Merlot and MERLOT are one answer and two wines"


def test_a_thing_goes_by_what_tells_it_apart_in_every_list() -> None:
    notes = {"Ash": [("ali", "red clay"), ("bo", "dry")], "Elm": [("ali", "wet"), ("ali", "cold and dark")]}

    def list_trees() -> dict[str, list[str]]:
        """List the trees."""
        return {"trees": list(notes)}

    def notes_on(tree: str) -> dict[str, list[dict[str, str]]]:
        """What was noted on a tree."""
        return {"notes": [{"author": author, "mark": f"{text[:3]}-9"} for author, text in notes[tree]]}

    world = World("wood", list_trees, notes_on)
    asked = {walk.goal for walk in drawn(world)}
    assert world.calls["notes_on"] and not [goal for goal in asked if " ali " in goal or " bo " in goal], (
        "of Elm, ali wrote both"
    )


def asked_of(world: World) -> set[str]:
    return {walk.goal for walk in drawn(world) if not walk.lack}


@pytest.mark.parametrize("pay", ["pay", "terms"])
def test_what_goes_by_a_number_is_not_asked_about_if_it_has_another_like_it(pay: str) -> None:
    def list_rows() -> dict[str, list[int]]:
        """The rows of the sheet."""
        return {"rows": list(range(4, 20))}

    def get_row(row: int) -> dict[str, Any]:
        """One row of the sheet."""
        if row not in range(4, 20):
            raise ToolError("no such row")
        money = 900 + 17 * row
        return {
            "num": row - shift,
            "maker": f"Maker {row:c}x",
            pay: money if pay == "pay" else {"sum": money},
        }

    shift = 1
    assert not asked_of(World("sheet", list_rows, get_row)), "row 7 has number 6, and number 7 is in row 8"
    shift = 4000
    assert asked_of(World("sheet", list_rows, get_row)), "nobody takes -3993 for a row"


def test_where_a_thing_is_listed_is_said_only_if_its_name_alone_is_unclear() -> None:
    harvest = {"north": {"Ada Berg": 310, "Bo Lund": 420}, "south": {"Ada Berg": 515, "Kit Moe": 640}}

    def growers(side: Literal["north", "south"]) -> list[dict[str, Any]]:
        """The growers of a side."""
        return [{"name": name, "litres": litres} for name, litres in harvest[side].items()]

    asked = asked_of(World("hill", growers))
    assert {"the litres of Bo Lund", "the litres of Kit Moe", "the litres of Ada Berg (side north)"} <= asked
    assert "the litres of Ada Berg" not in asked


def test_a_field_that_the_server_does_not_name_is_not_asked_for() -> None:
    def pins(board: Literal["uno", "nano"]) -> str:
        """The pins of a board that can be measured."""
        return "\n".join(f"- Pin {n} ({board}-{n}A) - ADC_{n + (board == 'uno')}" for n in range(6))

    def levels(board: Literal["uno", "nano"]) -> str:
        """The levels of a board."""
        rows = (f"{board}-{n}A | Pin {n} | {20 + 7 * n}" for n in range(6))
        return "\n".join(["id | name | level", "---|---|---", *rows])

    assert not {goal for goal in asked_of(World("bench", pins)) if "name" in goal}
    assert {goal for goal in asked_of(World("bench", levels)) if "level" in goal}


@pytest.mark.parametrize("failed", [{"success": False}, {"ok": False}])
def test_what_a_tool_says_when_it_fails_is_no_answer(failed: dict[str, bool]) -> None:
    codes = [f"KA{n:02}-{830 + 17 * n}" for n in range(65, 80)]

    def list_cases() -> dict[str, list[str]]:
        """The cases."""
        return {"cases": codes}

    def case(case: str) -> dict[str, Any]:
        """Read a case."""
        part = {"court": f"<{case[4:]}"} if case in codes else {}
        return {"data": part, **failed, "reasons": ["it must have sixteen letters"]}

    assert not asked_of(World("court", list_cases, case))


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_tool_that_answers_nonsense_as_it_answers_names_is_not_asked(is_strict: bool) -> None:
    codes = {f"KA{n:02}-{830 + 17 * n}": f"Court {n:c}" for n in range(65, 80)}

    def list_cases() -> dict[str, list[str]]:
        """The cases."""
        return {"cases": list(codes)}

    def case(case: str) -> dict[str, Any]:
        """Read a case."""
        is_known = case in codes if is_strict else False
        return {"ok": is_known, "part": f"<{case[:4]}", "errors": [] if is_known else ["no such case"]}

    assert bool(asked_of(World("court", list_cases, case))) == is_strict


def test_an_id_next_to_a_name_is_of_another_thing_if_that_has_another_name() -> None:
    makers = [f"Maker {n:c}n" for n in range(65, 77)]

    def list_watched() -> list[dict[str, Any]]:
        """What is watched."""
        return [{"watched_pot_id": n + 3, "maker": maker} for n, maker in enumerate(makers)]

    def get_pot(pot_id: int) -> dict[str, Any]:
        """One pot."""
        if not 0 < pot_id < 20:
            raise ToolError("no such pot")
        return {"maker": makers[(5 * pot_id) % 12], "litres": 31 + 7 * pot_id}

    asked = asked_of(World("kiln", list_watched, get_pot))
    assert asked and not {goal for goal in asked if goal.startswith("the litres of Maker")}


def test_a_place_in_what_a_call_lists_names_nothing() -> None:
    wines = [f"Wine {n:c}n" for n in range(65, 80)]

    def list_wines() -> dict[str, list[str]]:
        """The wines."""
        return {"wines": wines}

    def similar(wine: str) -> dict[str, Any]:
        """What is like a wine."""
        at = wines.index(wine)
        return {"similar": [{"rank": n + 1, "score": 50 * at + n} for n in range(4)]}

    def cellar() -> dict[str, Any]:
        """What is in the cellar."""
        return {"shelves": [{"shelf": n + 1, "bottles": 31 + 7 * n} for n in range(8)]}

    asked = asked_of(World("cellar", list_wines, similar, cellar))
    assert not {goal for goal in asked if "score" in goal}, "the third of which list?"
    assert "the bottles of shelf 3" in asked


def test_of_several_arguments_a_question_is_about_the_one_that_tells_things_apart() -> None:
    people = {("lead", "Ada Berg"): "Riga", ("lead", "Bo Lund"): "Bonn", ("lead", "Kit Moe"): "Oslo"}

    def names(stage: str = "lead") -> dict[str, Any]:
        """Names."""
        return {"stage": "lead", "names": [name for _, name in people]}

    def person(stage: str, name: str) -> dict[str, Any]:
        """One person of a stage."""
        if (stage, name) not in people:
            raise ToolError("nobody")
        return {"town": people[stage, name]}

    assert "the town of Bo Lund (stage lead)" in asked_of(World("desk", names, person))


@pytest.mark.parametrize("is_told", [True, False])
def test_an_example_of_a_schema_is_asked_about_only_if_the_result_is_of_it(is_told: bool) -> None:
    def search(firm: Annotated[str, Field(description="A firm, such as 'Acme'")]) -> dict[str, Any]:
        """Search the firms."""
        if not firm.startswith("A"):
            raise ToolError("none")
        return {**({"firm": firm} if is_told else {}), "chair": "Lea Roe", "founded": 1923}

    assert bool(asked_of(World("trade", search))) is is_told


def drawn(world: World, **weights: float) -> list[Walk]:
    graph = world.learned(seed=11)
    shapes, rng = Shapes(graph, graph.facts, weights or {"single": 1, "chain": 2, "both": 1}), Random(5)
    return [walk for _ in range(2000) if (walk := shapes.draw(rng)) is not None]


_TITLES = ("Raku", "Celadon", "Slips", "Wedging", "Bisque", "Ash", "Salt", "Terra")
_TAGS = (
    "firing, kiln",
    "glaze, kiln",
    "clay, blue",
    "clay, hands",
    "firing, first",
    "glaze, wood",
    "salt, red",
)
NOTES = {
    f"N-{310 + 17 * n}": {"title": title, "tags": tags}
    for n, (title, tags) in enumerate(zip(_TITLES, (*_TAGS, "clay, old"), strict=True))
}


def notebook(shape: str) -> World:
    """Of notes that each are linked to the next one."""

    def list_notes() -> dict[str, Any]:
        """All notes."""
        return {"notes": [{"note_id": note, "title": told["title"]} for note, told in NOTES.items()]}

    def get_note(title: str) -> dict[str, Any]:
        """One note, by its title."""
        if title not in _TITLES:
            raise ToolError(f"there is no {title}")
        return next({"note_id": n, **told} for n, told in NOTES.items() if told["title"] == title)

    def get_linked_notes(note_id: str) -> Any:
        """The notes that a note is linked to."""
        if note_id not in NOTES:
            raise ToolError(f"there is no {note_id}")
        other = [*NOTES][([*NOTES].index(note_id) + 1) % len(NOTES)]
        row = {"note_id": other, **NOTES[other]}
        text = f"1. {row['title']} (ID: {other})\n   Tags: {row['tags']}"
        return {"record": row, "list": [row], "named list": {"notes": [row]}, "text": text}[shape]

    return World("slips", list_notes, get_note, get_linked_notes)


@pytest.mark.parametrize("shape", ["record", "list", "named list"])
def test_what_one_other_thing_has_is_not_told_of_the_thing_that_was_asked_about(shape: str) -> None:
    """Of `get_linked_notes(N-310)` that shows N-327 alone, the tags are those of N-327."""
    walks = drawn(notebook(shape))
    plain = [w for w in walks if re.fullmatch(r"the (?:tags|title) of note N-\d+", w.goal) and not w.lack]
    wrong = [w.goal for w in plain if {step.fact.spec.name for step in w.steps} - {"list_notes", "get_note"}]
    assert not wrong and not [w.goal for w in walks if w.shape == "both" and "N-" in w.goal]


def said(task: Task) -> str:
    return task.prompt[-1].content.lower()


_JARS = {f"J-{100 + 7 * n}": f"{chr(97 + n % 26) * 2}{n}" for n in range(200)}  # more than are learned


def list_jars(shelf: Literal[0, 1, 2, 3]) -> dict[str, Any]:
    """List the jars of a shelf."""
    return {"jars": [{"jar": jar, "name": f"pot {n}"} for n, jar in enumerate(_JARS) if n % 4 == shelf]}


def get_jar(jar: str) -> dict[str, Any]:
    """Get one jar."""
    return {"honey": _inside(jar)}


def list_bees() -> dict[str, Any]:
    """List the bees."""
    return {"bees": ["Anthophora", "Bombus", "Osmia", "Xylocopa"]}


def _inside(jar: str) -> str:
    if jar not in _JARS:
        raise ToolError(f"there is no {jar}")
    return _JARS[jar]


def _open(jar: str) -> dict[str, str]:
    """Open one jar."""
    return {"inside": _inside(jar)}


def _look(jar: str | None = None) -> dict[str, str]:
    """Look at the jars, or at one jar."""
    return {"jars": "150"} if jar is None else {"seen": f"a spoon of {_inside(jar)}"}


def _mix(jar: str, spoon: str) -> list[str]:
    """Mix the jar with another jar (the spoon)."""
    return [f"part {_inside(jar)}", f"part {_inside(spoon)}"]


def _query(sql: str) -> list[dict[str, str]]:
    """Run SQL: SELECT * FROM jars or SELECT 1."""
    return [{"one": "1 row"}]


@pytest.mark.system
@pytest.mark.parametrize("other", [_open, _look, _mix, _query])
def test_no_tool_that_is_left_gives_the_answer_if_it_is_called_with_what_is_named(other: Any) -> None:
    weights = {"single": 2, "missing_function": 3}
    pool = ToolPool([World("larder", list_jars, get_jar).served(), World("shed", list_bees, other).served()])
    made = explored(pool, {"train": 90}, seed=3, asked=Asked(weights=weights))
    lacking = [t for t in made.tasks["train"] if t.extra_info["shape"] == "missing_function"]
    lacking = [task for task in lacking if "shed.list_bees" in task.extra_info["tools"]]
    assert len(lacking) >= 5
    for task in lacking:
        assert not task.truth.tool_sequence and "larder" not in str(task.extra_info["tools"])
        named = [jar for jar in _JARS if jar.lower() in said(task)]
        if other is _query:
            assert "shed._query" not in task.extra_info["tools"], "a language can ask for anything"
        elif f"shed.{other.__name__}" in task.extra_info["tools"] and named:
            told = str(other(*named[:1] * (1 + (other is _mix))))
            asked = f"pot {[*_JARS].index(named[0])}" if "the name of" in said(task) else _JARS[named[0]]
            assert asked not in told, said(task)
