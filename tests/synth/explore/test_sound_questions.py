"""Questions that are right and can be understood, of lists that are picked by what several things share."""

from __future__ import annotations

import re
from random import Random
from typing import Any, Literal

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.explore.leaves import Leaf
from mcpagent.synth.explore.questions import goal_of
from mcpagent.synth.explore.shapes import Shapes
from mcpagent.synth.explore.tasks import Asked
from tests.synth.explore.worlds import World
from tests.synth.running import explored

_STATES = ("open", "redeemed", "forfeited")
PLEDGES = {
    f"PL-{410 + 17 * n}": {
        "item": item,
        "state": _STATES[n % 2 if n < 7 else 2],  # one pledge alone is forfeited
        "pledged_on": f"2026-05-{n + 3:02}",
        "loan_chf": 40 + 23 * n,
        "interest_percent": 0.75 + n / 4,
        "guard": ("Ada", "Bo", "Kit")[n % 2 + n % 3 // 2],
    }
    for n, item in enumerate(
        ["teapot", "accordion", "bracelet", "camera", "saxophone", "laptop", "necklace", "bicycle"]
    )
}
GUARDS = {
    "Ada": {"shift": "late", "badge": 471},
    "Bo": {"shift": "early", "badge": 385},
    "Kit": {"badge": 902},
    "Zoe": {"badge": 118},
}


def pawnshop() -> World:
    def list_pledges(state: Literal["open", "redeemed", "forfeited"]) -> Any:
        """The pledges in a state."""
        rows = [{"pledge": k, "item": p["item"]} for k, p in PLEDGES.items() if p["state"] == state]
        return rows if len(rows) > 1 else rows[0]

    def get_pledge(pledge: str) -> dict[str, Any]:
        """One pledge, such as PL-410."""
        if pledge not in PLEDGES:
            raise ToolError(f"there is no {pledge}")
        return {"pledge": pledge, **PLEDGES[pledge]}

    def list_guards() -> str:
        """Who keeps the safes, and what they do."""
        return "\n".join(f"{name}: on the {'early' if name == 'Bo' else 'late'} shift" for name in GUARDS)

    def get_guard(guard: str) -> dict[str, Any]:
        """One guard, such as Ada."""
        if guard not in GUARDS:
            raise ToolError(f"there is no {guard}")
        return GUARDS[guard]

    def list_sales(kind: str = "gold") -> list[dict[str, Any]]:
        """Sales of a kind, such as gold or silver."""
        return [{"sale": f"{kind}-{n}", "chf": 310 + 7 * n} for n in range(5 if kind == "gold" else 9)]

    return World("pawnshop", list_pledges, get_pledge, list_guards, get_guard, list_sales)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    weights = {"single": 3, "chain": 3, "both": 4, "counted": 2, "missing_function": 3, "missing_entity": 1}
    made = explored(pawnshop().pool(), {"train": 70}, seed=3, asked=Asked(weights=weights))
    return list(made.tasks["train"])


def said(task: Task) -> str:
    return task.prompt[-1].content.lower()


@pytest.mark.system
def test_a_field_that_is_no_noun_is_asked_for_by_its_words(tasks: list[Task]) -> None:
    assert any("date pledged" in said(task) for task in tasks)
    assert not any("result" in said(task) for task in tasks)


def test_what_a_tool_that_is_left_can_tell_is_not_called_impossible(tasks: list[Task]) -> None:
    lacking = [task for task in tasks if task.extra_info["shape"] == "missing_function"]
    assert lacking
    for task in lacking:
        is_of_state = "the state of" in said(task) or said(task).startswith("state")
        assert not is_of_state or "pawnshop.list_pledges" not in task.extra_info["tools"]


def test_no_chain_goes_back_to_where_it_starts(tasks: list[Task]) -> None:
    chains = [task for task in tasks if task.extra_info["shape"] == "chain"]
    assert chains and not any("of the state of" in said(task) for task in chains)
    assert not any(re.search(r"\b(\w+) of \1 ", said(task)) for task in tasks)
    unsaid = [said(task) for task in tasks if task.extra_info["shape"] in ("told", "asked")]
    assert unsaid and not any("pl-" in text for text in unsaid), "get_pledge tells it without the state"


def test_a_list_of_the_default_kind_is_not_counted_as_all(tasks: list[Task]) -> None:
    counted = [task for task in tasks if task.extra_info["shape"] in ("counted", "highest", "lowest")]
    assert counted
    assert not [t for t in counted if any(step.tool == "list_sales" for step in t.truth.tool_sequence)]


def test_a_line_about_a_thing_is_no_field(tasks: list[Task]) -> None:
    assert not any(re.search(r"\b(ada|bo|kit|zoe) of the guards", said(task)) for task in tasks)
    assert any("guard ada" in said(task) for task in tasks)


def herbarium() -> World:
    names = ["royal fern", "tree fern", "rock daphne", "sea holly", "stinking holly", "king fern"]
    plants = {f"P-{11 + n}": name for n, name in enumerate(names)}

    def list_bed(bed: Literal["north", "south"]) -> dict[str, Any]:
        """The plants of a bed, and who keeps each."""
        rows = [
            {"id": k, "common_name": v, "keeper_name": v[::2].title()}
            for k, v in plants.items()
            if (bed == "north") == (k > "P-13")
        ]
        return {"plants": rows}

    def search_plants(query: str) -> dict[str, Any]:
        """Find plants by a part of their common name."""
        rows = [{"id": k, "common_name": v} for k, v in plants.items() if query in v]
        return {"plants": [{**row, "latin_name": row["common_name"][::-1].title()} for row in rows]}

    def search_keepers(query: str) -> dict[str, Any]:
        """Find keepers by name."""
        rows = [{"name": v[::2].title(), "age": 20 + 7 * n} for n, v in enumerate(plants.values())]
        return {"keepers": [row for row in rows if row["name"] == query]}

    return World("herbarium", list_bed, search_plants, search_keepers)


def test_a_thing_that_is_searched_by_its_name_is_still_that_thing() -> None:
    graph = herbarium().learned()
    shapes, rng = Shapes(graph, graph.facts), Random(5)
    drawn = [walk for _ in range(2000) if (walk := shapes.draw(rng)) is not None]
    asked = {walk.goal.lower() for walk in drawn if walk.shape == "chain"}
    assert "the latin name of plant p-14 of bed north" in asked
    assert "the age of the keeper of plant p-14 of bed north" in asked
    assert not [goal for goal in asked if "the common of" in goal]


def test_two_things_of_one_name_leave_the_others_theirs() -> None:
    games = ["Kiln", "Ashes", "Lowland", "Marrow", "Quorum", "Lowland", "Tesserae", "Ironbark"]

    def list_games() -> str:
        """A table of the games."""
        rows = [f"| {name} | {17 + 3 * n} |" for n, name in enumerate(games)]
        return "\n".join(["| Title | Weight |", "|---|---|", *rows])

    graph = World("club", list_games).learned()
    shapes, rng = Shapes(graph, graph.facts), Random(5)
    asked = {walk.goal.lower() for _ in range(500) if (walk := shapes.draw(rng)) is not None}
    assert "the weight of game kiln" in asked and "the weight of game ironbark" in asked
    assert not [goal for goal in asked if "lowland" in goal]


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


@pytest.mark.parametrize("shape", ["record", "list", "named list", "text"])
def test_what_one_other_thing_has_is_not_told_of_the_thing_that_was_asked_about(shape: str) -> None:
    """Of `get_linked_notes(N-310)` that shows N-327 alone, the tags are those of N-327."""
    graph = notebook(shape).learned(seed=11)
    shapes, rng = Shapes(graph, graph.facts), Random(5)
    walks = [walk for _ in range(1500) if (walk := shapes.draw(rng)) is not None]
    plain = [w for w in walks if re.fullmatch(r"the (?:tags|title) of note N-\d+", w.goal) and not w.lack]
    wrong = [w.goal for w in plain if {step.fact.spec.name for step in w.steps} - {"list_notes", "get_note"}]
    assert not wrong and not [w.goal for w in walks if w.shape == "both" and "N-" in w.goal]
    related = {walk.goal for walk in walks if "the linked note of note N-" in walk.goal}
    assert bool(related) is (shape != "text"), "the text does not say which fields are whose"


@pytest.mark.parametrize(
    ("tool", "description", "goal"),
    [
        ("git_show", "Shows the contents of a commit.", "the date of revision afa689e"),
        ("find_visit", "The visit of a revision.", "the date of the visit of revision afa689e"),
    ],
)
def test_a_thing_has_the_name_by_which_the_tool_tells_of_it(tool: str, description: str, goal: str) -> None:
    spec = ToolSpec(server="almanac", name=tool, description=description, input_schema={})
    fact = Fact(spec, {"revision": "afa689e"}, (Leaf("@.date", "2026-03-04", ("date",)),))
    assert goal_of(fact.leaves[0], fact) == goal


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
    world = World("larder", list_jars, get_jar, list_bees, other)
    made = explored(world.pool(), {"train": 90}, seed=3, asked=Asked(weights=weights))
    lacking = [t for t in made.tasks["train"] if t.extra_info["shape"] == "missing_function"]
    assert len(lacking) >= 5
    for task in lacking:
        assert not task.truth.tool_sequence and "larder.list_bees" in task.extra_info["tools"]
        named = [jar for jar in _JARS if jar.lower() in said(task)]
        if other is _query:
            assert "larder._query" not in task.extra_info["tools"], "a language can ask for anything"
        elif f"larder.{other.__name__}" in task.extra_info["tools"]:
            told = str(other(*named[:1] * (1 + (other is _mix))))
            assert not named or _JARS[named[0]] not in told, said(task)
