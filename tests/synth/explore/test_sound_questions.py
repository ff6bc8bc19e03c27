"""Questions that are right and can be understood, of lists that are picked by what several things share."""

from __future__ import annotations

import re
from random import Random
from typing import Any, Literal

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.core.tasks import Task
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
