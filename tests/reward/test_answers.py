"""The reader of answer lines: a table of each type, and properties of writer and reader over all values."""

from __future__ import annotations

import string
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from mcpagent.core.answer_line import form_of, form_problem, with_form, without_form, written_answer
from mcpagent.core.tasks import AnswerCheck
from mcpagent.reward.answer.verdict import Verdict, verdict_on

TABLE = yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text("utf-8"))
RIGHT, WRONG, OUT, MISSING = Verdict.RIGHT, Verdict.WRONG, Verdict.OUT_OF_FORM, Verdict.MISSING


def verdict(check: AnswerCheck, message: str | None) -> Verdict:
    return verdict_on(check, message, {}, on_line=True)


def of_line(check: AnswerCheck, line: str) -> Verdict:
    return verdict(check, f"Looked up: 918.27, or perhaps not.\nAnswer: {line}")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['check']['type']}-{row['sentence']}"[:40])
def test_each_line_of_the_table_gets_its_verdict(row: dict[str, Any]) -> None:
    check = AnswerCheck.model_validate(row["check"])
    asked = dict.fromkeys(row["right"], RIGHT) | dict.fromkeys(row["wrong"], WRONG)
    asked |= dict.fromkeys(row.get("out", ()), OUT)
    assert {line: of_line(check, line) for line in asked} == asked
    assert form_of(check) == row["sentence"]
    assert form_problem(check) is None


def test_the_table_has_ten_lines_of_each_kind_for_each_type() -> None:
    for kind in ("number", "date", "name", "set", "list", "pairs", "choice", "yes_no", "none"):
        rows = [row for row in TABLE if row["check"]["type"] == kind]
        assert sum(len(row["right"]) for row in rows) >= 10, kind
        assert sum(len(row["wrong"]) + len(row.get("out", ())) for row in rows) >= 10, kind


NAME = AnswerCheck(type="name", value="Folk")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Answer: Folk", RIGHT),
        ("**Answer:** Folk", RIGHT),
        ("**Answer: Folk**", RIGHT),
        ("### answer: Folk\n\n", RIGHT),
        ("> - ANSWER: Folk", RIGHT),
        ("It may be Jazz.\n\nAnswer: Folk\n---\n", RIGHT),
        ("```\nAnswer: Folk\n```", RIGHT),
        ("The answer: Jazz\nAnswer: Folk", RIGHT),
        ("Answer: Jazz", WRONG),
        ("Answer: none", WRONG),
        ("Answer: Folk\nAnswer: Folk", OUT),
        ("Answer: Jazz\nAnswer: Folk", OUT),
        ("Answer: Folk\nActually, ignore that.", OUT),
        ("Answer: no\nActually, ignore that.", OUT),
        ("Answer: Folk\n\nLet me know if you need more!", OUT),
        ("Answer: Folk\u2028Answer: Jazz", OUT),
        ("Answer: Folk\x0bor Jazz", OUT),
        *(
            (f"{second}\nAnswer: Folk", OUT)
            for second in (
                "1. Answer: Jazz",
                "- [x] Answer: Jazz",
                "+ Answer: Jazz",
                "~~Answer: Jazz~~",
                "Answer : Jazz",
                "\u200bAnswer: Jazz",
                "An\u00adswer: Jazz",
                "\uff21nswer\uff1a Jazz",
                '"Answer: Jazz"',
                "(Answer: Jazz)",
            )
        ),
        ("**Answer: Folk", RIGHT),
        ("Answer: *Folk", WRONG),
        ("Answer: **", OUT),
        ("Answer:", OUT),
        ("Answer:\nFolk", OUT),
        ("Folk", MISSING),
        ("Final answer: Folk", MISSING),
        ("The answer is Folk", MISSING),
        ("Answer Folk", MISSING),
        ("", MISSING),
        (None, MISSING),
    ],
)
def test_exactly_one_line_begins_with_the_label_and_is_the_last(
    message: str | None, expected: Verdict
) -> None:
    assert verdict(NAME, message) is expected


def test_a_reference_that_no_result_resolves_makes_any_answer_wrong() -> None:
    check = AnswerCheck(type="number", value="${step1.x}")
    assert of_line(check, "7") is WRONG
    assert of_line(check, "none") is WRONG
    assert verdict_on(check, "Answer: 7", {"step1": {"x": 7}}, on_line=True) is RIGHT


def test_other_accepted_values_are_right_too() -> None:
    check = AnswerCheck(type="name", value="Oslo", accept=("Christiania",))
    assert of_line(check, "Christiania") is RIGHT
    assert of_line(check, "Bergen") is WRONG


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ({"type": "name", "value": "a\nb"}, "line break"),
        ({"type": "name", "value": "x" * 81}, "80 characters"),
        ({"type": "name", "value": "None"}, "no answer"),
        ({"type": "choice", "value": "a;b", "options": ["a;b", "c"]}, "has a ;"),
        ({"type": "choice", "value": "a", "options": ["a", "A"]}, "differ"),
        ({"type": "choice", "value": "d", "options": ["a", "b"]}, "not one of"),
        ({"type": "set", "value": []}, "not a list with items"),
        ({"type": "list", "value": [1, "a"]}, "several types"),
        ({"type": "list", "value": [["a"], ["b"]]}, "several types, or nested"),
        ({"type": "set", "value": ["none", "a"]}, "no answer"),
        ({"type": "pairs", "value": {"a": {"b": 1}}}, "nested"),
        ({"type": "pairs", "value": {"a": 1, "A": 2}}, "one name"),
        ({"type": "number", "value": "many"}, "not a number"),
        ({"type": "number", "value": 1 / 3}, "decimals"),
        ({"type": "date", "value": "5 May 2026"}, "ISO form"),
        ({"type": "yes_no", "value": "maybe"}, "not true or false"),
        ({"type": "name", "value": None}, "no value"),
        ({"type": "name", "value": "**"}, "no answer"),
        ({"type": "number", "value": 5, "unit": "E3"}, "cannot be told from a number"),
    ],
)
def test_what_the_sentence_cannot_state_is_refused_with_the_reason(check: dict[str, Any], words: str) -> None:
    assert words in (form_problem(AnswerCheck.model_validate(check)) or "")


# Properties: the reader finds every value right that the writer writes, and nothing next to it.

NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=40
)
NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12),
    st.decimals(-(10**9), 10**9, places=4).map(float),
)
DATES = st.one_of(
    st.dates().map(str),
    st.times().map(lambda t: f"{t:%H:%M}"),
    st.datetimes().map(lambda d: d.isoformat(timespec="seconds")),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "number": NUMBERS,
    "date": DATES,
    "name": NAMES,
    "set": st.one_of(st.lists(NAMES, min_size=1, max_size=5), st.lists(NUMBERS, min_size=1, max_size=5)),
    "list": st.one_of(st.lists(NAMES, min_size=1, max_size=5), st.lists(NUMBERS, min_size=1, max_size=5)),
    "pairs": st.one_of(
        st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=4),
        st.dictionaries(NAMES, NAMES, min_size=1, max_size=4),
    ),
    "yes_no": st.booleans(),
}


@st.composite
def checks(draw: st.DrawFn) -> AnswerCheck:
    kind = draw(st.sampled_from(sorted(VALUES)))
    value = draw(VALUES[kind])
    more: dict[str, Any] = {}
    if kind == "number":
        more = {"unit": draw(st.sampled_from([None, "kg", "%", "EUR"]))}
        more["decimals"] = draw(st.sampled_from([None, 0, 2]))
    check = AnswerCheck(type=kind, value=value, **more)  # pyright: ignore[reportArgumentType]
    assume(form_problem(check) is None)
    return check


@pytest.mark.hypothesis
@given(checks())
def test_the_reader_finds_every_value_right_that_the_writer_writes(check: AnswerCheck) -> None:
    line = written_answer(check, check.value)
    assert of_line(check, line) is RIGHT
    assert verdict(check, f"**Answer:** {line}\n") is RIGHT
    assert verdict(check, f"Answer: {line}\nAnswer: {line}") is OUT
    assert verdict(check, f"Answer: {line}\nor not") is OUT
    assert without_form(with_form("Which?", check)) == "Which?"


@pytest.mark.hypothesis
@given(checks(), st.data())
def test_no_value_next_to_the_right_one_passes(check: AnswerCheck, data: st.DataObject) -> None:
    line = written_answer(check, check.value)
    ways = [
        f"{line} or {line}x",
        f"not {line}",
        f"{line} (probably)",
        f"{line}; {line}; 918.27",
        f"{line}, but I am not sure",
        "none",
        "",
    ]
    digits = [at for at, sign in enumerate(line) if sign in string.digits]
    if digits and check.type != "yes_no":
        at = data.draw(st.sampled_from(digits))
        other = str((int(line[at]) + 1 + data.draw(st.integers(0, 7))) % 10)
        near = line[:at] + other + line[at + 1 :]
        if not (check.type == "number" and Decimal(near) == Decimal(line)):
            ways.append(near)
    passed = [way for way in ways if of_line(check, way) is RIGHT]
    assert passed == []


@pytest.mark.hypothesis
@given(st.lists(NAMES, min_size=2, max_size=5))
def test_one_item_more_or_less_or_moved_is_wrong(items: list[str]) -> None:
    check = AnswerCheck(type="list", value=items)
    assume(form_problem(check) is None and len({item.casefold() for item in items}) == len(items))
    for given_items in (items[1:], [*items, items[0]], items[::-1]):
        line = written_answer(check, given_items)
        assert of_line(check, line) is not RIGHT


@pytest.mark.parametrize(
    ("check", "message", "is_right"),
    [
        ({"type": "string", "value": "Folk Rock"}, " folk  rock ", True),
        ({"type": "string", "value": "Folk Rock"}, "It is Folk Rock", False),
        ({"type": "regex", "value": r"\b42\b"}, "It is 42.", True),
        ({"type": "regex", "value": r"\b42\b"}, "It is 421.", False),
        ({"type": "must_include", "value": ["Oslo", 7]}, "In Oslo it is 7.", True),
        ({"type": "must_include", "value": ["Oslo", 7]}, "In Oslo it is 17.", False),
        ({"type": "number", "value": 7.5}, "That makes 7.50 kg.", True),
        ({"type": "number", "value": 7.5}, "That makes 75 kg.", False),
        ({"type": "name", "value": "Oslo"}, "It is oslo.", True),
        ({"type": "name", "value": "Oslo"}, "It is Osloer.", False),
        ({"type": "date", "value": "2026-05-05T09:34"}, "On 2026-05-05 09:34, I think.", True),
        ({"type": "date", "value": "2026-05-05T09:34"}, "On 2026-05-05 09:35.", False),
        ({"type": "yes_no", "value": True}, "Yes, it is.", True),
        ({"type": "yes_no", "value": True}, "Yes and no.", False),
        ({"type": "pairs", "value": {"a": 1}}, "a has 1", True),
        ({"type": "abstention", "value": "cannot"}, "I have no tool for that.", True),
        ({"type": "abstention", "value": "cannot"}, "?!", False),
    ],
)
def test_datasets_of_others_are_graded_by_equality_or_containment(
    check: dict[str, Any], message: str, is_right: bool
) -> None:
    got = verdict_on(AnswerCheck.model_validate(check), message, {}, on_line=False)
    assert (got is RIGHT) is is_right
