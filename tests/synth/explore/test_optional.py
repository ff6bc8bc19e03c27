"""Servers that do not say which parameters are required: a look-up is tried with the optional ones too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from tests.synth.explore.worlds import World
from tests.synth.running import explored

_TOWERS = ("Amber", "Basalt", "Cobalt", "Dune", "Ember", "Flint", "Garnet", "Hazel", "Indigo", "Jasper")
_BELLS = {
    f"bl-{31 + 17 * n}": {"bell": f"bl-{31 + 17 * n}", "tower": f"{name} Tower", "weight": 410 + 37 * n}
    for n, name in enumerate(_TOWERS)
}


def list_bells() -> dict[str, Any]:
    """List the bells."""
    return {"bells": [{"bell": row["bell"], "tower": row["tower"]} for row in _BELLS.values()]}


def _told(bell: str | None, tower: str | None = None) -> dict[str, Any]:
    row = _BELLS.get(bell or "")
    if row is None or tower not in (None, row["tower"]):
        raise ToolError("no such bell")
    return row


def _alone(bell: str | None = None) -> dict[str, Any]:
    """Read a bell."""
    return _told(bell)


def _tells_nothing(bell: str | None = None) -> dict[str, Any]:
    """Read a bell."""
    return _BELLS.get(bell or "", {})


def _among_others(
    loud: bool = False, limit: int | None = None, note: str | None = None, bell: str | None = None
) -> dict[str, Any]:
    """Read a bell."""
    return _told(bell)


def _two_together(tower: str | None = None, bell: str | None = None) -> dict[str, Any]:
    """Read a bell of a tower."""
    if tower is None:
        raise ToolError("no such bell")
    return _told(bell, tower)


def _next_to_a_required(detail: bool, bell: str | None = None) -> dict[str, Any]:
    """Read a bell."""
    return _told(bell) | {"detail": detail}


@pytest.mark.parametrize("read", [_alone, _tells_nothing, _among_others, _two_together, _next_to_a_required])
def test_a_look_up_is_tried_with_its_optional_parameters(read: Callable[..., Any]) -> None:
    world = World("belfry", list_bells, read)
    graph = world.learned()
    asked = {fact.arguments.get("bell") for fact in graph.facts if fact.spec.name == read.__name__}
    assert asked - {None} == set(_BELLS), "each bell that the list names"
    assert world.calls[read.__name__] < 60


@pytest.mark.system
@pytest.mark.parametrize("read", [_alone, _two_together])
def test_what_is_learned_with_optional_parameters_gives_tasks(read: Callable[..., Any]) -> None:
    data = explored(World("belfry", list_bells, read).pool(), {"train": 4, "heldout": 2})
    assert {split: len(tasks) for split, tasks in data.tasks.items()} == {"train": 4, "heldout": 2}


def test_a_tool_that_refuses_with_every_parameter_is_left_alone_and_the_option_is_named() -> None:
    def read_bell(
        bell: str | None = None, key: str | None = None, code: str | None = None, loud: bool = False
    ) -> dict[str, Any]:
        """Read a bell."""
        raise ToolError("no such bell")

    world = World("belfry", list_bells, read_bell)
    (silence,) = world.learned().silences
    assert silence.text == (
        "refused every call, also with bell or key or code; "
        "name one: --seed-value bell=... --seed-value key=... --seed-value code=..."
    )
    assert world.calls["read_bell"] <= 35
    opened = World("belfry", _alone).learned(seed_values={"belfry._alone.bell": [next(iter(_BELLS))]})
    assert opened.facts, "as the option gives it"


def bell_codes() -> dict[str, Any]:
    """List the bells."""
    return {"tower_codes": {code: row["tower"] for code, row in _BELLS.items()}, "year": "2025"}


def read_bell(bell_code: str, year: str = "", tower: str = "") -> dict[str, Any]:
    """Read a bell."""
    return _told(bell_code)


def test_the_keys_of_a_table_are_tried_before_optional_parameters() -> None:
    graph = World("belfry", bell_codes, read_bell).learned()
    read = [fact for fact in graph.facts if fact.spec.name == "read_bell"]
    assert {fact.arguments["bell_code"] for fact in read if fact.is_sayable} == set(_BELLS)


def _counts(by: Literal["tower", "maker"] = "tower") -> dict[str, Any]:
    """Count the bells by where they hang or by who made them."""
    first = 5 if by == "tower" else 40
    return {"groups": [{"name": name, "rung": first + 3 * n} for n, name in enumerate(_TOWERS)]}


def _cast(bell: str, tower: str = "") -> dict[str, Any]:
    """Tell when a bell was cast, or the one that hung there before."""
    return {"cast": {"year": 1650 + 7 * (len(tower) + len(_BELLS) * [*_BELLS].index(_told(bell)["bell"]))}}


def _pitch(bell: str, is_struck: bool = False) -> dict[str, Any]:
    """Tell the pitch of a bell."""
    return {"pitch": 2 * _told(bell)["weight"] + is_struck, "unit": "Hz"}


def _rung(bell: str, start_date: str | None = None) -> dict[str, Any]:
    """Tell how often a bell was rung, and when last."""
    at = [*_BELLS].index(_told(bell)["bell"])
    if start_date and not start_date.startswith("2026-"):
        raise ToolError("no date")
    return {"strokes": (900 if start_date is None else 30) + at, "date": f"2026-03-{at + 11}"}


def _swung(bell: str, days: int = 400) -> dict[str, Any]:
    """Tell how often a bell was swung."""
    return {"swings": days + [*_BELLS].index(_told(bell)["bell"])}


def _told_alike(limit: int = 50, order: Literal["up", "down"] = "up") -> dict[str, Any]:
    """List what the bells weigh."""
    rows = [{"name": row["tower"].split()[0], "weight": row["weight"]} for row in _BELLS.values()]
    return {"scales": sorted(rows, key=lambda row: row["weight"], reverse=order == "down")[:limit]}


@pytest.mark.parametrize(
    ("read", "field", "is_asked"),
    [
        (_counts, "rung", False),
        (_cast, "year", False),
        (_pitch, "pitch", False),
        (_rung, "strokes", False),
        (_swung, "swings", False),
        (_rung, "date", True),
        (_told_alike, "weight", True),
    ],
)
def test_what_an_optional_argument_decides_is_not_asked_without_it(
    read: Callable[..., Any], field: str, is_asked: bool
) -> None:
    graph = World("belfry", list_bells, read).learned()
    asked = [fact for fact in graph.facts if fact.spec.name == read.__name__]
    assert asked, "the tool is known"
    told = [leaf for fact in asked for leaf in fact.leaves if leaf.name == field]
    assert bool(told) == is_asked
    if read in (_counts, _told_alike):
        names = {leaf.value for fact in asked for leaf in fact.leaves if leaf.name == "name"}
        assert len(names) == len(_TOWERS), "what things are called is known"
