"""Two values of a record under each other's names are no answer, though both are said."""

from __future__ import annotations

import json

import pytest

from mcpagent.core.tasks import AnswerCheck
from tests.reward import judging

CALLS = json.dumps(
    {"queue": "north", "failed_calls": 59, "handled_calls": 1204, "lead": "Ida Roth", "deputy": "Bo Lind"}
)
CREW = (
    "Tug Alma, week 9\nPilot        Ida Roth\nCook         Bo Lind\nFuel         38.5 t\nBallast      61.0 t"
)


@pytest.mark.parametrize(
    ("shown", "check", "question", "answer", "holds"),
    [
        (CALLS, AnswerCheck(type="number", value=59), "How many calls failed?", answer, holds)
        for answer, holds in (
            ("1,204 calls failed, and 59 were handled.", False),
            ("We handled 59 of them; 1,204 failed.", False),
            ("59 calls failed, and 1,204 were handled.", True),
            ("We handled 1,204 of them; 59 failed.", True),
            ("59 failed, a small part of the 1,204 that were handled.", True),
        )
    ]
    + [
        (CALLS, AnswerCheck(type="name", value="Ida Roth"), "Who is the lead?", answer, holds)
        for answer, holds in (
            ("The lead is Bo Lind; Ida Roth is only the deputy.", False),
            ("The lead is Ida Roth; Bo Lind is the deputy.", True),
            ("Ida Roth, with Bo Lind as her deputy.", True),
        )
    ]
    + [
        (CREW, AnswerCheck(type="name", value="Ida Roth"), "Who pilots the Alma?", answer, holds)
        for answer, holds in (
            ("Her pilot is Bo Lind, while Ida Roth is the cook.", False),
            ("Her pilot is Ida Roth, while Bo Lind is the cook.", True),
        )
    ]
    + [
        (CREW, AnswerCheck(type="number", value=38.5, unit="t"), "How much fuel is on board?", answer, holds)
        for answer, holds in (
            ("She has 61 t of fuel. Her ballast is 38.5 t.", False),
            ("She has 38.5 t of fuel. Her ballast is 61 t.", True),
        )
    ],
)
def test_each_value_is_said_by_its_own_name(
    shown: str, check: AnswerCheck, question: str, answer: str, holds: bool
) -> None:
    assert judging.holds(check, answer, said=question, shown=shown) is holds
