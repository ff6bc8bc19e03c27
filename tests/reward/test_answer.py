from __future__ import annotations

import json
from typing import Any

import pytest

from mcpagent.core.tasks import AnswerCheck, StateCheck
from mcpagent.core.tools import ToolResult
from mcpagent.reward.answer import answer_holds, state_holds
from mcpagent.reward.text.phrasing import AnswerContext
from mcpagent.reward.text.reading import says
from tests.reward.records import made

RESULTS = {"step1": {"close": 187.2, "name": "Apple Inc."}}


@pytest.mark.parametrize(
    ("check", "answer", "holds"),
    [
        ({"type": "number", "value": 187.2}, "It closed at $187.20.", True),
        ({"type": "number", "value": "187.2"}, "187.2", True),
        ({"type": "number", "value": "${step1.close}"}, "187.2 on 2025-03-04", True),
        ({"type": "number", "value": "about ${step1.close}"}, "187.2", True),
        ({"type": "number", "value": "${step2.close}"}, "187.2", False),
        ({"type": "number", "value": 1234567}, "1,234,567", True),
        ({"type": "number", "value": 12.5}, "up 12.5%", True),
        ({"type": "number", "value": 187.2}, "187.3", False),
        ({"type": "number", "value": 187.2, "tolerance": 0.1}, "187.3", True),
        ({"type": "number", "value": 187.2, "tolerance": 0.1}, "187.31", False),
        ({"type": "number", "value": 187.2}, "no idea", False),
        ({"type": "number", "value": 5_000_000_001}, "It has 5,000,000,001 shares.", True),
        ({"type": "number", "value": 5_000_000_001}, "It has 5,000,000,002 shares.", False),
        ({"type": "number", "value": 6.674e-11}, "It is 0.", False),
        ({"type": "must_include", "value": [6.674e-11]}, "It is 6.674e-11.", True),
        ({"type": "must_include", "value": [6.674e-11]}, "It is 6.7e-11.", False),
        ({"type": "number", "value": -4}, "it fell by -4", True),
        ({"type": "string", "value": "Apple Inc."}, "  apple  inc. ", True),
        ({"type": "string", "value": "Apple Inc."}, "It is Apple Inc.", False),
        ({"type": "regex", "value": r"^Yes\b"}, "Yes, it is.", True),
        ({"type": "regex", "value": r"^Yes\b"}, "No. Yes.", False),
        ({"type": "must_include", "value": ["${step1.name}", 187.2]}, "Apple Inc. closed at 187.20", True),
        ({"type": "must_include", "value": ["Apple Inc.", 187.2]}, "Apple Inc. closed at 188", False),
        ({"type": "must_include", "value": "AAP"}, "AAPL", False),
        ({"type": "must_include", "value": [1]}, "1 2 3 4 5", True),
        ({"type": "must_include", "value": [1]}, "1 2 3 4 5 6", False),
        ({"type": "must_include", "value": "yes", "max_words": 2}, "well, well, yes", False),
        # Times and dates are no quantities, and the digits of a fact do not count towards the four.
        ({"type": "number", "value": 187.2}, "187.2 as of 14:05:33 UTC+1 on March 4, 2025", True),
        ({"type": "number", "value": 187.2}, "It was 187.2 at 3 pm, on 4/3/2025.", True),
        ({"type": "number", "value": 2025}, "It is from March 2025.", True),
        ({"type": "must_include", "value": ["10.0.0.1 22 80 443 8080"]}, "10.0.0.1 22 80 443 8080", True),
        ({"type": "must_include", "value": ["2025-03-04 14:05"]}, "On 2025-03-04 14:05, line 1", True),
        ({"type": "must_include", "value": ["1234567"]}, "There are 1,234,567.", True),
        ({"type": "must_include", "value": ["007"]}, "It is 7.", False),
        ({"type": "number", "value": 2900000000}, "about $2.9 billion", True),
        ({"type": "number", "value": -4.2}, "It fell by 4.2%.", True),
        ({"type": "number", "value": -4.2}, "It rose by 4.2%.", False),
        ({"type": "must_include", "value": "Energy"}, "It is not Mining, it is Energy.", True),
        ({"type": "must_include", "value": "Mining"}, "It is not Mining but Energy.", False),
        ({"type": "must_include", "value": "Energy"}, "It is Energy and does not change.", True),
    ],
)
def test_answers_are_judged_by_their_check(check: dict[str, Any], answer: str, holds: bool) -> None:
    assert answer_holds(AnswerCheck.model_validate(check), answer, RESULTS) is holds


@pytest.mark.parametrize(
    ("words", "zeros"),
    [
        (("thousand", "k"), "000"),
        (("million", "m", "mn", "mio"), "000000"),
        (("billion", "b", "bn"), "000000000"),
        (("trillion", "t", "tn"), "000000000000"),
    ],
)
def test_a_number_may_be_said_with_its_scale(words: tuple[str, ...], zeros: str) -> None:
    for word in words:
        for value, holds in ((f"7{zeros}", True), (f"7{zeros}0", False), (f"7{zeros[1:]}", False)):
            check = AnswerCheck(type="number", value=int(value))
            assert answer_holds(check, f"It is 7 {word}.", {}) is holds, (value, word)


def test_numbers_of_the_question_do_not_count_where_they_are_all_that_the_answer_repeats() -> None:
    check = AnswerCheck(type="must_include", value=["Moreau", "Rossi"])
    said = "the last names of driver be9020ba-a63a-4194-b628-07eb0247d202 and 31, 32, 33, 34, 35 and 36?"
    asked = f"You asked for {said} It is Moreau and Rossi."
    assert answer_holds(check, asked, {}, AnswerContext(said=said))
    assert not answer_holds(check, asked, {})
    dumped = "It is Moreau and Rossi, 41, 42, 43, 44, 45 or 46."
    assert not answer_holds(check, dumped, {}, AnswerContext(said=said))


def test_an_answer_to_a_short_reference_may_have_sixty_words() -> None:
    check = AnswerCheck(type="must_include", value="yes")
    assert answer_holds(check, "well " * 59 + "yes", {})
    assert not answer_holds(check, "well " * 60 + "yes", {})


def test_a_number_is_said_however_it_is_written_and_its_opposite_is_not() -> None:
    assert says(187.2, "It is 187.20.")
    assert not says(187.2, "It is -187.20.")


def test_an_answer_to_a_pattern_may_say_what_the_reference_says() -> None:
    shown = made("station", structured={"id": 5, "name": "North Bay", "region": "coast"})[1]
    check = AnswerCheck(type="regex", value="North Bay")
    said = "ID 5, name: North Bay, region: coast"
    assert answer_holds(check, said, {}, AnswerContext(reference=f"{said}.", results=(shown,)))
    assert not answer_holds(check, said, {}, AnswerContext(reference="North Bay", results=(shown,)))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("number", 1248),
        ("name", "Caravel Rose"),
        ("date", "1954-03-02"),
        ("pairs", {"HMS Caravel": 1248, "HMS Dawn": 1285}),
        ("pairs", {"HMS Caravel": "1954-03-02", "HMS Dawn": "1955-07-19"}),
        ("list", ["Caravel Rose", "Dawn"]),
        ("set", ["Caravel Rose", "Dawn"]),
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_records_that_are_pasted_whole_answer_nothing(type_: Any, value: Any, rows: int) -> None:
    """Lines of `name: value` as a server writes them; without an answer line."""
    records = [
        "name: Caravel Rose\nlaid down: 1954-03-02\nport: Riga\ntons: 1248",
        "name: Dawn\nlaid down: 1955-07-19\nport: Turku\ntons: 1285",
    ][:rows]
    shown = [made("hull")[1].model_copy(update={"content": text, "structured": None}) for text in records]
    context = AnswerContext(said="Of HMS Caravel and HMS Dawn?", results=tuple(shown))
    check = AnswerCheck(type=type_, value=value)
    for between in ("\n", "\n\n", " "):
        assert not answer_holds(check, between.join(records), {}, context), between


def test_records_told_as_prose_before_a_number_are_a_dump() -> None:
    told = [("ZWBF", 761.17), ("ZPDP", 239.23)]
    results = tuple(
        ToolResult(
            call_id=code, server="s", tool="t", content=json.dumps({"symbol": code, "previous_close": close})
        )
        for code, close in told
    )
    context = AnswerContext(said="How far are the closes of ZWBF and ZPDP apart?", results=results)
    check = AnswerCheck(type="number", value=521.94)
    prose = " ".join(f"symbol {code} previous close {close}" for code, close in told)
    assert not answer_holds(check, f"{prose} 521.94", {}, context)
    assert answer_holds(check, "They closed at 761.17 and 239.23, so 521.94 apart.", {}, context)


def test_no_answer_is_no_pass() -> None:
    assert not answer_holds(AnswerCheck(type="regex", value=""), None, {})


@pytest.mark.parametrize(
    ("expect", "holds"),
    [
        ({"messages[0].text": "hi", "count": 1}, True),
        ({"messages[0].text": "hi", "count": 2}, False),
        ({"messages[1].text": "hi"}, False),
        ({"messages[0].text": "${step1.name}"}, False),
    ],
)
def test_the_state_holds_when_every_path_has_its_value(expect: dict[str, Any], holds: bool) -> None:
    check = StateCheck.model_validate({"call": {"tool": "history"}, "expect": expect})
    result = made("history", structured={"messages": [{"text": "hi"}], "count": 1})[1]
    assert state_holds(check, result, RESULTS) is holds
