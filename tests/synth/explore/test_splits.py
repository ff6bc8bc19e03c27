"""What is asked about in one split is neither asked about nor named in training, whichever tool tells it."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from mcpagent.core.tasks import Task
from tests.synth.explore.worlds import World
from tests.synth.running import explored

_SECOND = ("Star", "Rose", "Pearl", "Wind", "Crown", "Dawn", "Grace", "Bell", "Maid", "Queen")
_SHIPS = {
    f"{first} {second}": 10 * i + j
    for i, first in enumerate(("Aurora", "Lydia", "Orion", "Swift"))
    for j, second in enumerate(_SECOND)
}
_CAPTAINS = ["Ada Berg", "Edsger Lund", "Grace Moor", "Ines Vidal", "Kofi Mensah", "Lena Roth", "Omar Haddad",
             "Petra Novak", "Sven Dahl", "Tariq Aziz", "Uma Patel", "Yuki Mori"]  # fmt: skip


def list_ships() -> list[str]:
    """List the ships."""
    return list(_SHIPS)


def ship(ship: str) -> dict[str, object]:
    """Who commands a ship, and how long it is."""
    return {"captain": _CAPTAINS[_SHIPS[ship] % 12], "length_m": 90 + 7 * _SHIPS[ship]}


def cargo(ship: str) -> dict[str, object]:
    """What a ship carries."""
    return {"crates": 311 + 13 * _SHIPS[ship]}


def captain(captain: str) -> dict[str, object]:
    """Life of a captain."""
    return {"born": 1940 + 3 * _CAPTAINS.index(captain), "licence": f"L{701 * _CAPTAINS.index(captain) + 17}"}


def asked_about(task: Task) -> set[str]:
    return {str(value) for value in json.loads(task.extra_info["about"])[1].values()}


def named(task: Task) -> set[str]:
    literal = {str(value) for step in task.truth.tool_sequence for value in step.params.values()}
    return {value for value in literal if "${" not in value}


@pytest.mark.system
def test_training_neither_asks_about_nor_begins_with_what_another_split_asks_about() -> None:
    fleet = World("fleet", list_ships, ship, cargo, captain)
    counts = {"train": 60, "validation": 5, "heldout": 25}
    tasks = explored(fleet.pool(), counts, seed=4).tasks
    assert explored(fleet.pool(), counts, seed=4).tasks == tasks, "the same seed gives the same tasks"
    things = {*_SHIPS, *_CAPTAINS}
    trained = {name for task in tasks["train"] for name in asked_about(task) | named(task)} & things
    held_out = {name for task in tasks["heldout"] for name in asked_about(task)} & things
    assert trained and held_out and not trained & held_out
    # A question that is held out may begin with what training knows.
    chains = [task for task in tasks["heldout"] if task.extra_info["class"] == "sequential"]
    assert any(named(task) & trained for task in chains)


def test_of_several_parameters_the_one_with_the_most_values_is_the_subject() -> None:
    def list_trains() -> dict[str, Any]:
        """List the trains."""
        return {"trains": [{"train": f"Comet {n}"} for n in range(9)]}

    def departure(day: Literal["monday", "friday"], train: str) -> dict[str, Any]:
        """Tell when a train departs."""
        return {"minute": len(day) + int(train.split()[-1]), "train": train}

    facts = World("trains", list_trains, departure).learned().facts
    assert {fact.subject for fact in facts} == {"trains.list_trains", *(f"Comet {n}" for n in range(9))}
