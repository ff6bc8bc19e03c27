"""Values with marks, codes, times and things of their own, said on the answer line and in a free text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpagent.core.tasks import AnswerCheck
from mcpagent.reward.answer import answer_holds
from mcpagent.reward.text.phrasing import AnswerContext
from tests.reward.judging import holds, those_that_hold

VERSIONS = """\
version   released     python
2.9.2     2025-10-30   >=3.9
2.8.0     2025-07-11   >=3.8
2.7.5     2025-03-25   >=3.8"""
PORTS = {"port": 80, "admin_port": 81}


@pytest.mark.parametrize("on_line", [True, False])
@pytest.mark.parametrize(
    ("check", "said", "shown", "right", "wrong"),
    [
        (
            {"type": "name", "value": "AB+"},
            "What is the blood group?",
            '{"group": "AB+"}',
            ("AB+", "AB+.", "The group is AB+."),
            ("AB", "AB-", "A+"),
        ),
        (
            {"type": "name", "value": ">=0.9"},
            "Which version is needed?",
            '{"needs": ">=0.9"}',
            (">=0.9", "It needs >=0.9."),
            ("<0.9", ">0.9"),
        ),
        (
            {"type": "name", "value": "M-0638"},
            "What is the catalogue no of it?",
            '{"catalogue_no": "M-0638"}',
            ("M-0638", "The catalogue no is M-0638.", "catalogue no: M-0638"),
            ("not M-0638", "No: M-0638"),
        ),
        ({"type": "name", "value": "-"}, "Who signed?", '{"signed": "-"}', ("-",), ("Ada",)),
        (
            {"type": "pairs", "value": {"load1": 5.42, "load15": 4.18}},
            "What are the loads?",
            "load1: 5.42\nload15: 4.18",
            ("load1: 5.42, load15: 4.18", "load15 = 4.18, load1 = 5.42"),
            ("load1: 4.18, load15: 5.42",),
        ),
        (
            {"type": "pairs", "value": PORTS},
            "On which port does it listen and which is its admin port?",
            "port: 80\nadmin_port: 81",
            ("It listens on 80; its admin port is 81.", "80; the admin port is 81"),
            (
                "It listens on 81; its admin port is 80.",
                "The admin port is 81.",
                "It listens on 80 or 81; the admin port is 81.",
                "It listens on 82; the admin port is 81.",
            ),
        ),
        (
            {"type": "pairs", "value": {"adults": 2, "children": 1}},
            "How many adults and how many children are there?",
            "adults: 2, children: 1",
            ("2 adults, 1 child", "one child and two adults"),
            ("1 adult, 2 children", "2 adults"),
        ),
        (
            {"type": "pairs", "value": {"exposure": 120, "frames": 45}},
            "What was the exposure and how many frames were taken?",
            "exposure_s,frames\n120,45\n60,30",
            ("exposure: 120 s, frames: 45", "exposure 120 s; frames forty-five"),
            ("exposure: 45 s, frames: 120",),
        ),
        (
            {"type": "date", "value": "11:30"},
            "By what time must she leave?",
            "depart: 2026-08-03 until 11:30",
            ("11.30", "11:30", "half past eleven"),
            ("11.3", "11.35", "12.30"),
        ),
        (
            {"type": "set", "value": ["09:30", "11:00"]},
            "When does it start and end?",
            "09:30-11:00 Review",
            ("9:30 AM to 11 AM", "from 9.30 am to 11 am"),
            ("9:30 AM to 11:30 AM", "9:30 AM"),
        ),
        (
            {"type": "set", "value": ["2026-04-24", "2026-04-25"]},
            "On which days?",
            "2026-04-24 x\n2026-04-25 y\n2026-04-26 z",
            ("24 and 25 April", "24, 25 April"),
            ("24, 25 and 26 April", "24 or 25 April", "24 April"),
        ),
        (
            {"type": "set", "value": ["HR 7 B", "HR 7 C"]},
            "What companions does HR 7 have?",
            "HR 7\nCompanions: HR 7 B, HR 7 C",
            ("HR 7 C and HR 7 B",),
            ("HR 7 A, HR 7 B and HR 7 C", "HR 7 B"),
        ),
        (
            {"type": "list", "value": ["2.7.5", "2.8.0"]},
            "Which versions support Python 3.8, oldest first?",
            VERSIONS,
            ("2.7.5, 2.8.0", "2.7.5 and then 2.8.0"),
            ("2.7.5, 2.8.0, 2.9.2", "2.8.0, 2.7.5"),
        ),
        (
            {"type": "number", "value": 51.2, "unit": "GiB"},
            "How much memory does it use?",
            "used: 51.2\ntotal: 64",
            ("51.2 GiB of 64 GiB",),
            ("64 GiB of 51.2 GiB", "51.2 GiB or 64 GiB"),
        ),
        (
            {"type": "number", "value": 0.12, "unit": "%"},
            "What share was damaged?",
            "Damaged: 23 (0.12 %)",
            ("0.12 %", "0.12"),
            ("12%", "0.12, so 12%"),
        ),
        (
            {"type": "number", "value": 158, "unit": "bpm"},
            "What was his average heart rate?",
            '{"avg_heart_rate": 158, "rank": 57}',
            ("158 beats per minute", "158 bpm"),
            ("57 beats per minute",),
        ),
        (
            {"type": "number", "value": 8.0, "unit": "%"},
            "By what percentage did the bill change?",
            '{"total": 18342.67, "previous_total": 16987.3, "change_pct": 8.0}',
            ("It rose eight percent, from $16,987.30 to $18,342.67.", "up 8%"),
            ("It fell by 8%.", "down 8%", "8% or 9%"),
        ),
        (
            {"type": "choice", "value": "awaiting permit", "options": ["delivered", "awaiting permit"]},
            "What is the status of O-778?",
            "O-778,7,21,,awaiting permit",
            ("It is still awaiting a permit.", "awaiting permit"),
            ("delivered", "It is not awaiting a permit."),
        ),
        (
            {"type": "set", "value": ["2026-04-21", "2026-04-25"]},
            "Which nights are sold out?",
            "2026-04-20 dark\n2026-04-21 sold out\n2026-04-25 sold out",
            ("21 and 25 April",),
            ("20, 21 and 25 April 2026",),
        ),
        (
            {
                "type": "list",
                "value": ["Tell the team", "Make a key pair", "Upload the key", "Revoke the old one"],
            },
            "List the steps in order.",
            "Steps:\n1. Tell the team\n2. Make a key pair\n3. Upload the key\n4. Revoke the old one",
            ("1. Tell the team\n2. Make a key pair\n3. Upload the key\n4. Revoke the old one",),
            ("1. Tell the team\n2. Upload the key\n3. Make a key pair\n4. Revoke the old one",),
        ),
        (
            {"type": "pairs", "value": {"K1": 500, "K3": 300}},
            "How big are casks K1 and K3, in litres?",
            "cask,litres\nK1,500\nK2,225\nK3,300",
            ("K1 500, K3 300", "K3: three hundred litres; K1: five hundred litres"),
            ("K1 300, K3 500", "K1 500, K2 300"),
        ),
        (
            {"type": "name", "value": "annelie@forsberg-design.se"},
            "What is her e-mail address?",
            "email: annelie@forsberg-design.se",
            ("annelie@forsberg-design.se", "<annelie@forsberg-design.se>"),
            ("annelie.forsberg@design.se", "annelie@forsberg.design.se", "annelie@forsberg-design.se.com"),
        ),
        (
            {"type": "set", "value": ["2", "4"]},
            "On which boards did Black win?",
            "1 draw\n2 Black\n3 White\n4 Black",
            ("boards 2 and 4", "2, 4"),
            ("boards 1, 2 and 4", "2, 3 and 4"),
        ),
        (
            {"type": "number", "value": 184, "unit": "millicores"},
            "How much CPU does it use?",
            "app 184m 412Mi",
            ("184m", "184 millicores"),
            ("184 cores", "412m"),
        ),
        (
            {"type": "yes_no", "value": True},
            "Is test_token quarantined?",
            "quarantined: yes",
            ("It is quarantined.", "yes"),
            ("You want to know whether test_token is quarantined.",),
        ),
        (
            {"type": "yes_no", "value": False},
            "Is anyone driving it?",
            "in_use: false",
            ("Nobody is.", "No one", "I'm afraid not"),
            ("Somebody is.", "Nobody knows."),
        ),
    ],
)
def test_a_value_is_read_as_what_it_is(
    check: dict[str, Any],
    said: str,
    shown: str,
    right: tuple[str, ...],
    wrong: tuple[str, ...],
    on_line: bool,
) -> None:
    told = those_that_hold(check, (*right, *wrong), said=said, shown=shown, on_line=on_line)
    assert told == list(right)


def test_what_a_thing_lacks_denies_it_to_no_question_for_that() -> None:
    check, shown = {"type": "name", "value": "P-2"}, "P-1: Ada\nP-2: nobody"
    asked = "Which issue has nobody working on it?"
    assert holds(check, "P-2 has no assignee.", said=asked, shown=shown, on_line=False)
    for denied in ("P-2 isn't it.", "P-2 can't be it.", "P-2 doesn't.", "P-2 has nothing to do with it."):
        assert not holds(check, denied, said=asked, shown=shown, on_line=False), denied
    assert not holds(check, "P-1 has no assignee.", said=asked, shown=shown, on_line=False)


def test_an_item_may_be_told_by_its_name_too() -> None:
    check, shown = (
        {"type": "set", "value": ["H-15", "H-16"]},
        "HIVE  NAME\nH-09  Gate\nH-15  Ditch\nH-16  Old Oak",
    )
    asked = "Which hives have more than 3 mites?"
    assert holds(check, "H-15, named Ditch, and H-16, named Old Oak.", said=asked, shown=shown, on_line=False)
    assert not holds(check, "H-15 and H-09, named Gate.", said=asked, shown=shown, on_line=False)
    keeper, told = {"type": "name", "value": "Ada Berg"}, "keeper: Ada Berg\nhelper: Ivo Lund"
    assert not holds(keeper, "Ada Berg named Ivo Lund", said="Who keeps it?", shown=told, on_line=True)


@pytest.mark.parametrize(
    ("check", "said", "shown", "right", "wrong"),
    [
        (
            {"type": "number", "value": 35, "unit": "%"},
            "For how many percent of users is it rolled out?",
            "rollout_pct: 35",
            "It's rolled out to 35% of users (raised from 20% on January 22).",
            "It's rolled out to 20% of users (raised from 35%).",
        ),
        (
            {"type": "number", "value": 23},
            "How many times has D-7 donated?",
            "donations: 23\nlast_donation: 2026-01-29",
            "twenty-three donations, the last one on 29 January",
            "22 donations, the last one on 29 January",
        ),
        (
            {"type": "date", "value": "2026-02-03", "precision": "day"},
            "When was it first seen?",
            "firstSeen: 2026-02-03\nlastSeen: 2026-02-19",
            "It first appeared on Feb 3rd, 2026 and was last seen on Feb 19th.",
            "It appears to be Feb 3rd, 2026.",
        ),
    ],
)
def test_what_was_before_or_comes_later_is_no_rival_in_a_free_text(
    check: dict[str, Any], said: str, shown: str, right: str, wrong: str
) -> None:
    assert those_that_hold(check, (right, wrong), said=said, shown=shown, on_line=False) == [right]


WRITTEN = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=16)


@pytest.mark.parametrize("value", [5, None, True, "${step1.names}"])
@pytest.mark.parametrize("kind", ["list", "set"])
def test_a_list_that_is_none_or_a_reference_is_held_without_an_error(kind: str, value: Any) -> None:
    check = AnswerCheck.model_validate({"type": kind, "value": value})
    results = {"step1": {"names": ["Ana", "Ben"]}}
    for on_line, text in ((True, "Answer: 1 Ana, 2 Ben"), (False, "1 Ana, 2 Ben")):
        is_right = answer_holds(check, text, results, AnswerContext(), on_line=on_line)
        assert is_right or value != "${step1.names}" or kind == "set"


def test_numbers_of_a_list_are_not_those_before_its_items() -> None:
    check = {"type": "list", "value": ["1 apple", "2 pears"]}
    assert holds(check, "1 apple, 2 pears", said="What is packed, in order?", shown="", on_line=True)
    assert not holds(
        check, "Answer: 2 pears, 1 apple", said="What is packed, in order?", shown="", on_line=True
    )


@example(kind="set", value="/", other="/", text="<")
@example(kind="set", value="/", other="/", text=":")
@given(
    kind=st.sampled_from(("name", "set", "list", "pairs", "choice")),
    value=WRITTEN,
    other=WRITTEN,
    text=WRITTEN,
)
def test_any_value_is_held_against_any_answer_without_an_error(
    kind: str, value: str, other: str, text: str
) -> None:
    values: dict[str, Any] = {"set": [value, other], "list": [value, other], "pairs": {value: other}}
    check = {"type": kind, "value": values.get(kind, value), "options": [value, other] * (kind == "choice")}
    for on_line in (True, False):
        for answer in (text, f"{value} {text}", f"{other}: {value}"):
            holds(check, answer, said=text, shown=f"{other}: {value}\n{text}", on_line=on_line)
