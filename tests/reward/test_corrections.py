"""A value that is followed by another one of its kind, which takes it back, is no answer, whatever the result
is: prose, in which nobody can tell what each value is of, or records."""

from __future__ import annotations

from typing import Any

import pytest

from tests.reward.judging import holds, those_that_hold

FORMS = [
    *("{v} - sorry, I meant {o}", "{v}. Sorry, I meant {o}.", "{v}. I meant {o}.", "{v}. Correction: {o}."),
    *("{v}. Or rather {o}.", "{v}. Make that {o}.", "{v}... no, {o}.", "{v}. Wait, it is {o}.", "{v}; {o}"),
    *("{v}. On second thought, {o}.", "{v}. Actually {o}.", "{v}. It is {o}.", "{v}. {o}.", "{v}\n{o}"),
    *("{v}. That should read {o}.", "Not {o} but {v}? {o}!", "{v} (I mean {o})", "{v}, I mean {o}"),
    *("It is {v}. Scratch that: {o}.", "{v}. Oops, {o}.", "{v}. The answer is {o}.", "{v}. No, {o}."),
]
OFFERS = [
    *("{v} or {o}", "either {v} or {o}", "{v}/{o}", "{v}, {o}", "{v} and {o}", "{o}, {v}", "{o} and {v}"),
    *("between {v} and {o}", "possibly {v}, possibly {o}", "{v} | {o}", "{v} {o}", "{o} {v}"),
    *("It is {v} or {o}, one of them.", "The values are {v} and {o}.", "| {v} | {o} |", "{v} → {o}"),
    *("{v} as well as {o}", "{v}, but also {o}", "{v} to {o}", "{v}, alternatively {o}", "{v} vs {o}"),
]
Case = tuple[dict[str, Any], str, str, str, str, str]
CASES: list[Case] = [  # a check, the question, its value, another one, what is shown in prose and in records
    (
        {"type": "date", "value": "2026-03-04T10:41"},
        "When does a arrive?",
        *("2026-03-04T10:41", "2026-05-28T14:01"),
        *("a,2026-03-04T10:41\nb,2026-05-28T14:01", '[{"id": "a", "at": "%v"}, {"id": "b", "at": "%o"}]'),
    ),
    (
        {"type": "name", "value": "Tomasz Wilk"},
        "Who is the assignee of a?",
        *("Tomasz Wilk", "Ines Carvalho"),
        *(
            "a goes to Tomasz Wilk; b to Ines Carvalho",
            '[{"id": "a", "who": "%v"}, {"id": "b", "who": "%o"}]',
        ),
    ),
    (
        {"type": "number", "value": 52},
        "How many has a?",
        *("52", "47"),
        *("a has 52, b has 47", '[{"id": "a", "n": %v}, {"id": "b", "n": %o}]'),
    ),
    (
        {"type": "choice", "value": "high", "options": ["low", "high"]},
        "What priority has a?",
        *("high", "low"),
        *("a is high, b low", '[{"id": "a", "priority": "%v"}, {"id": "b", "priority": "%o"}]'),
    ),
]


def passing(case: Case, forms: list[str]) -> list[str]:
    check, said, value, other, *shown = case
    held: list[str] = []
    for content in shown:
        content = content.replace("%v", value).replace("%o", other)
        for text in (form.format(v=value, o=other) for form in forms):
            for on_line in (False, True):
                if holds(check, text, said=said, shown=content, on_line=on_line):
                    held.append(f"{'line' if on_line else 'free'}: {text}")
    return held


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0]["type"])
def test_a_value_that_is_taken_back_is_no_answer(
    case: Case,
) -> None:
    assert passing(case, FORMS) == []
    assert passing(case, OFFERS) == []
    assert len(passing(case, ["{v}", "It is {v}."])) == 8, "the value alone is one"


def test_a_reason_that_doubts_offers_another_option() -> None:
    doubted = ["{v}, though some say {o}", "It is {v}, although probably {o}", "{v}, though I think {o}"]
    assert passing(CASES[3], doubted) == []
    assert len(passing(CASES[3], ["{v}, though it was {o}", "{v}, although it is no longer {o}"])) == 8


@pytest.mark.parametrize("case", CASES[2:3], ids=lambda case: case[0]["type"])
def test_what_is_said_of_another_one_takes_nothing_back(
    case: Case,
) -> None:
    held = passing(case, ["{v}. The run before took {o}."])
    assert [text[:4] for text in held] == ["free"]


OF_SEVERAL: list[tuple[dict[str, Any], str, list[str], list[str], list[str]]] = [
    (  # a check, the question, what is shown, what is right, what is not
        {"type": "set", "value": ["dune", "birch"]},
        "Which are open?",
        ["open: dune, birch; closed: amber", "dune is open\nbirch is open\namber is closed"],
        ["dune and birch", "Dune and birch; amber is closed.", "birch, dune. (Not amber.)"],
        [
            *("dune and birch. Also amber.", "dune and birch (and amber)", "dune and birch. Amber too."),
            *("Dune and birch. No, dune and amber.", "dune, birch - sorry, amber instead of birch"),
            *("dune and birch, plus amber", "Amber, dune and birch.", "They are dune, birch. amber."),
            *(
                "dune and birch; amber",
                "dune, birch\namber",
                "dune, amber, birch",
                "dune, birch, maybe amber",
            ),
        ],
    ),
    (
        {"type": "list", "value": ["dune", "birch"]},
        "In which order do they come?",
        ["first dune, then birch, then amber is out", '[{"n": "dune"}, {"n": "birch"}]'],
        ["dune, birch", "First dune, then birch."],
        ["dune, birch. No, birch, dune.", "dune, birch - or the other way round", "birch then dune"],
    ),
    (
        {"type": "pairs", "value": {"a": 52, "b": 47}},
        "How many have a and b?",
        ["a has 52, b has 47", '[{"k": "a", "n": 52}, {"k": "b", "n": 47}]', "k | n\na | 52\nb | 47"],
        ["a: 52, b: 47", "a has 52 and b has 47, not the other way round."],
        [
            *("a: 52, b: 47. Sorry, a: 47, b: 52.", "a has 52, b has 47. No, a has 47 and b 52."),
            *("a: 52/47, b: 47/52", "a has 52 and 47; b has 47 and 52", "a has 52 and 47"),
            *("a 52, b 47 - the other way round", "a: 52, b: 47 (or reversed)"),
        ],
    ),
    (
        {"type": "yes_no", "value": True},
        "Is the gate open?",
        ["the gate is open", '{"open": true}'],
        ["Yes", "Yes, it is open.", "Yes. It is."],
        [
            *("Yes. I mean no.", "Yes, it is closed.", "Yes. It isn't.", "Yes. Actually it is not."),
            *("Yes. Absolutely not.", "Yes. On second thought, no.", "Yes. Scratch that.", "Yes; no"),
        ],
    ),
]


@pytest.mark.parametrize("on_line", [True, False])
@pytest.mark.parametrize(
    ("check", "said", "shown", "right", "wrong"), OF_SEVERAL, ids=[case[0]["type"] for case in OF_SEVERAL]
)
def test_several_values_that_are_taken_back_or_have_another_among_them_are_no_answer(
    check: dict[str, Any], said: str, shown: list[str], right: list[str], wrong: list[str], on_line: bool
) -> None:
    for content in shown:
        held = those_that_hold(check, (*right, *wrong), said=said, shown=content, on_line=on_line)
        assert not {*held} & {*wrong}
        assert on_line or held == right
        assert right[0] in held


def test_a_name_that_another_one_is_followed_by_or_replaced_by_is_no_answer() -> None:
    check = {"type": "name", "value": "Sara Lytken"}
    shown = ["1. Sara Lytken\n2. Jens Holm", '[{"place": 1, "who": "%v"}, {"place": 2, "who": "%o"}]']
    case: Case = (check, "Who is first in the queue?", "Sara Lytken", "Jens Holm", *shown)
    held = passing(case, ["{v}, followed by {o}.", "{o}, followed by {v}.", "{v} was, but it is {o} now."])
    assert {text.partition(": ")[2] for text in held} == {"Sara Lytken, followed by Jens Holm."}
