"""An answer of any length is graded at once: a model that repeats itself until its tokens are spent must not
hold up those it is trained with."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.tools import ToolResult
from mcpagent.reward.answer import answer_holds
from mcpagent.reward.text.phrasing import AnswerContext

CHECKS: list[tuple[dict[str, Any], str]] = [
    ({"type": "number", "value": 68, "unit": "€"}, "68"),
    ({"type": "date", "value": "2026-04-07T09:34"}, "2026-04-07"),
    ({"type": "name", "value": "Ana Lima"}, "Ana"),
    ({"type": "set", "value": ["A-1", "B-2"]}, "A-1"),
    ({"type": "list", "value": ["Stand-up", "Lunch"]}, "Lunch"),
    ({"type": "pairs", "value": {"A-1": "9.00 EUR", "B-2": "7.50 EUR"}}, "A-1: 9.00"),
    ({"type": "choice", "value": "HB-327", "options": ["HB-327", "HB-328"]}, "HB-327"),
    ({"type": "yes_no", "value": True}, "yes"),
    ({"type": "must_include", "value": ["Ana Lima", 68]}, "68"),
    ({"type": "abstention", "value": "cannot"}, "none"),
    ({"type": "abstention", "value": "asks", "about": ["ship"]}, "Which ship?"),
]
SHOWN = "Ana Lima booked A-1 for 9.00 EUR and B-2 for 7.50 EUR, 68 € in all, on 2026-04-07 at 09:34."
REPEATED = (
    "can , ",
    "x",
    "1",
    "(",
    "\n",
    "$",
    "9,",
    "1 ",
    "1:",
    "1/",
    "a-",
    "A1",
    "no, ",
    "to ",
    "12:30 ",
    "€1 ",
    "{",
    "[1,",
)


@pytest.mark.parametrize("on_line", [True, False])
@pytest.mark.parametrize(("check", "own"), CHECKS, ids=[f"{c['type']}-{c['value']}" for c, _ in CHECKS])
def test_what_repeats_until_its_tokens_are_spent_is_graded_at_once(
    check: dict[str, Any], own: str, on_line: bool
) -> None:
    shown = ToolResult(call_id="c", server="s", tool="t", content=SHOWN)
    context = AnswerContext(said="What did Ana Lima book, and what is it in €?", results=(shown,))
    for repeated in (*REPEATED, own, f"{own} ", f"{own}, "):
        for length in (1_000, 50_000):
            text = (repeated * length)[:length]
            begun = time.process_time()
            answer_holds(
                AnswerCheck.model_validate(check),
                f"It is this.\nAnswer: {text}" if on_line else text,
                {},
                context,
                on_line=on_line,
            )
            assert time.process_time() - begun < 1, (repeated, length)
