"""A free text: words around a value are no evidence against it, a rival of its kind is, or a denial of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.reward import judging

SHEDS = [
    {"shed": "SH-311", "name": "Long Barn", "keeper": "Ada Wren", "state": "OPEN", "ploughs": 4, "carts": 7},
    {"shed": "SH-312", "name": "Old Byre", "keeper": "Ivo Lund", "state": "SHUT", "ploughs": 9, "carts": 2},
    {"shed": "SH-313", "name": "Kiln", "keeper": "Mia Roth", "state": "SHUT", "ploughs": 1, "carts": 3},
]


def holds(question: str, check: dict[str, Any], text: str, *, shown: Any = SHEDS) -> bool:
    content = shown if isinstance(shown, str) else json.dumps(shown)
    return judging.holds(check, text, said=question, shown=content)


PLOUGHS = ("How many ploughs are in Long Barn?", {"type": "number", "value": 4})
KEEPER = ("Who keeps Long Barn?", {"type": "name", "value": "Ada Wren"})
NAME = ("What is shed SH-311 called?", {"type": "name", "value": "Long Barn"})
SHUT = ("Which sheds are shut?", {"type": "set", "value": ["SH-312", "SH-313"]})
STATE = ("What state is Long Barn in?", {"type": "choice", "value": "OPEN", "options": ["OPEN", "SHUT"]})


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        (
            PLOUGHS,
            ("It has 4 ploughs as well as 7 carts.", "4, next to seven carts", "There are 4, with 7 carts."),
            ("4 and 5", "4, 5", "4 to 6 ploughs", "It has 4. It has 5.", "4 (5)"),
        ),
        (
            KEEPER,
            (
                "Long Barn has been kept by Ada Wren of Norway for ages, rain or shine.",
                "Ada Wren (Norway) does, bless her.",
                "Old Byre is kept by Ivo Lund; Long Barn by Ada Wren.",
            ),
            (
                "Ada Wren and Ivo Lund",
                "Ada Wren and Bob Hill",
                "Ada Wren Hill",
                "perhaps Ada Wren",
                "not Ada Wren",
            ),
        ),
        (
            NAME,
            ("You would find Long Barn written over its gate.", "They call it Long Barn; it isn't pretty."),
            ("Long Barn, Kiln", "Long Barn / Kiln", "the Great Long Barn", "It isn't Long Barn, I fear."),
        ),
        (
            SHUT,
            (
                "312 and 313",
                "Both SH-312 and SH-313 stand empty and locked, sadly enough.",
                "SH-312 and SH-313. Long Barn is open, and Ada Wren keeps it.",
            ),
            (
                "SH-312, SH-313 and SH-311",
                "SH-312, SH-313, SH-311",
                "312, 313 and 311",
                "SH-312 and not SH-313",
            ),
        ),
        (
            STATE,
            ("It went from SHUT to OPEN this morning.", "Open. Old Byre is shut, and Kiln is too."),
            ("It went from OPEN to SHUT.", "OPEN or SHUT", "It has not been opened: OPEN is wrong."),
        ),
    ],
)
def test_a_value_stands_unless_something_rivals_or_denies_it(
    asked: tuple[str, dict[str, Any]], right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    failed = [text for text in right if not holds(*asked, text)]
    passed = [text for text in wrong if holds(*asked, text)]
    assert (failed, passed) == ([], [])


def test_a_day_and_its_hour_may_be_said_apart_in_one_sentence() -> None:
    asked = ("When does the fair open?", {"type": "date", "value": "2027-05-08T09:40"})
    shown = {"fair": "Spring", "opens": "2027-05-08T09:40"}
    assert holds(*asked, "The gates go up on 8 May 2027, at precisely twenty to ten.", shown=shown)
    assert not holds(*asked, "The gates go up on 9 May 2027, at precisely twenty to ten.", shown=shown)
    assert not holds(*asked, "The gates go up on 8 May 2027. Lunch is at twenty to ten.", shown=shown)


def test_a_short_time_may_leave_out_its_hours() -> None:
    asked = ("What was the lap time?", {"type": "name", "value": "0:48:39"})
    assert holds(*asked, "She did it in 48:39.", shown={"lap": "0:48:39"})
    assert not holds(*asked, "She did it in 1:48:39.", shown={"lap": "0:48:39"})
    gap = ("By how much did she win?", {"type": "number", "value": 7, "unit": "s"})
    assert holds(*gap, "0:07", shown="2:08:44 and 2:08:51")
    assert not holds(*gap, "7:00", shown="2:08:44 and 2:08:51")


def test_things_and_values_may_change_their_order_between_clauses() -> None:
    asked = ("Who keeps A1 and B2?", {"type": "pairs", "value": {"A1": "Ada Wren", "B2": "Ivo Lund"}})
    assert holds(*asked, "Ada Wren keeps A1; B2's keeper is Ivo Lund.")
    assert not holds(*asked, "Ivo Lund keeps A1; B2's keeper is Ada Wren.")


def test_what_is_counted_is_called_as_something_that_was_asked_or_shown() -> None:
    asked = ("How many bottles are left?", {"type": "number", "value": 37, "unit": "bottles"})
    shown = {"bin": "C-14", "bottles": 37}
    assert holds(*asked, "37 bottles", shown=shown)
    assert not holds(*asked, "37 crates", shown=shown)


def test_a_deed_that_follows_from_a_refusal_is_a_deed() -> None:
    check = {"type": "abstention", "value": "cannot"}
    shown = "Error 404: there is no shed SH-999."
    assert holds("Who keeps SH-999?", check, "SH-999 does not exist, so I can't say.", shown=shown)
    assert not holds("Who keeps SH-999?", check, "SH-999 does not exist, so I created it.", shown=shown)
