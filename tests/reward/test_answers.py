"""How often people's answers are misjudged: those of `answers/`, written by hand with who is right and why.

A file has the tasks of one server, a task a line: its question, what a call showed, the check, and answers in
a person's words (`text`) with the line that would end them (`line`). About half of them are right.

Each later set was written before the code was fitted to it. Per cent misjudged when it was unseen (right ones
that fail, wrong ones that pass), with the line and without it; what they showed has been fixed since, and the
tests of the last ones say how much is left:

    second to fourth   7     0     7    0.7
    fifth             21     2    15    4      more voices: German, French, Indian English, LaTeX, JSON
    sixth              9     1     9    1
    seventh            6     1    11    1
    eighth            16     1    25    2      tasks that `gen-data` made
    ninth             18     1    28    2
    tenth             13     0.5  17    1
    eleventh          20     3    24    5
    twelfth            9     6     7    8
    thirteenth        14     3    27    4      enumerations in words, rates, remarks, zones
    fourteenth         4     1    16    2      before the thirteenth was read: 6, 0, 23 and 1
    fifteenth          6     2    18    2      before: 9, 3, 28 and 2
    sixteenth          3     0    14    0.6    as models and colleagues answer, not as hard as can be
    seventeenth        4     0.6  18    1
    eighteenth         6     1     9    1      after `reward/rivals.py`; times of day, versions
    nineteenth         4     0     6    2      after the eighteenth; what is asked for, explained
    twentieth          2.5   1     5    1.5    after the nineteenth; bounds that are asked for, units
    twentyfirst        5.5   0.5  13    2.5    after the twentieth; hosts that begin or end alike, remarks
    twentysecond       5     1    11    2      after the twenty-first; paths, rates by what they count
    twentythird        7     0.6  12    2      after the twenty-second; values with "not", no clocks
    twentyfourth       3     0     4    0.4    after the twenty-third; codes that begin alike, dotted times
    twentyfifth        3     0.4   5    0.4    the same; servers that developers have
    twentysixth        2     0     3    0.9    after the twentyfifth; half of such servers, half of others
    twentyseventh      1.5   0.5   5.5  1.5    after the twentysixth; numbers behind codes, e-mail addresses

Since the sixteenth a free text is judged by what speaks against its value (`reward/rivals.py`). The
twentyfirst to the twentythird are as hard as the thirteenth: most of their right answers say something of
other things too. In the last four asides are as rare as the writer found natural.

An `ending` is the whole end of an answer, if it is not written as `Answer: LINE`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.tools import ToolResult
from mcpagent.reward.answer import answer_holds
from mcpagent.reward.phrasing import AnswerContext

FOLDER = Path(__file__).with_name("answers")


def answered_tasks(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


def misjudged(tasks: list[dict[str, Any]], *, on_line: bool) -> tuple[list[str], list[str], int, int]:
    """Right answers that fail, wrong ones that pass, and how many there are of each."""
    wrongly: dict[bool, list[str]] = {True: [], False: []}
    count = {True: 0, False: 0}
    for task in tasks:
        check = AnswerCheck.model_validate(task["final_answer"])
        call = task["call"]
        shown = ToolResult(call_id="c", server=task["server"], tool=call["tool"], content=task["shown"])
        context = AnswerContext(said=task["question"], results=(shown,))
        for answer in task["answers"]:
            ending = answer.get("ending", f"Answer: {answer['line']}")
            text = f"{answer['text']}\n{ending}" if on_line else answer["text"]
            count[answer["right"]] += 1
            if answer_holds(check, text, {}, context, on_line=on_line) is not answer["right"]:
                wrongly[answer["right"]].append(f"{task['id']} ({answer['why']}): {text!r}")
    return wrongly[True], wrongly[False], count[True], count[False]


def test_there_are_four_hundred_answers_for_a_hundred_and_twenty_tasks_of_ten_servers() -> None:
    tasks = answered_tasks(FOLDER)
    answers = [answer for task in tasks for answer in task["answers"]]
    assert len({task["server"] for task in tasks}) >= 10
    assert len(tasks) >= 120 and len(answers) >= 400
    assert 0.4 < sum(answer["right"] for answer in answers) / len(answers) < 0.6


@pytest.mark.parametrize("folder", ["second", "third", "fourth"])
def test_later_sets_are_judged_as_well(folder: str) -> None:
    for on_line, share in ((True, 0.01), (False, 0.04)):
        failed, passed, right, _ = misjudged(answered_tasks(FOLDER / folder), on_line=on_line)
        assert len(failed) <= share * right, failed
        assert passed == []


@pytest.mark.parametrize("folder", ["fifth", "sixth", "seventh"])
def test_sets_of_many_voices_are_judged_as_well(folder: str) -> None:
    for on_line, of_right, of_wrong in ((True, 0.01, 0.01), (False, 0.04, 0.02)):
        failed, passed, right, wrong = misjudged(answered_tasks(FOLDER / folder), on_line=on_line)
        assert len(failed) <= of_right * right, failed
        assert len(passed) <= of_wrong * wrong, passed


# Rounding, family names alone, several values in one text; words of the world around a value; units of
# another kind, and what is counted. Shares of right ones that fail and of wrong ones that pass.
@pytest.mark.parametrize(
    ("folder", "with_the_line", "without_it"),
    [
        ("eighth", (0.032, 0.0), (0.057, 0.0)),
        ("ninth", (0.025, 0.0), (0.038, 0.0)),
        ("tenth", (0.009, 0.0), (0.027, 0.005)),
        ("eleventh", (0.065, 0.005), (0.075, 0.015)),
        ("twelfth", (0.036, 0.013), (0.008, 0.02)),
        ("thirteenth", (0.01, 0.0), (0.0, 0.0)),
        ("fourteenth", (0.019, 0.0), (0.05, 0.007)),
        ("fifteenth", (0.013, 0.0), (0.032, 0.007)),
        ("sixteenth", (0.013, 0.0), (0.038, 0.0)),
        ("seventeenth", (0.0, 0.0), (0.038, 0.0)),
        ("eighteenth", (0.007, 0.007), (0.025, 0.007)),
        ("nineteenth", (0.019, 0.0), (0.038, 0.019)),
        ("twentieth", (0.005, 0.0), (0.015, 0.01)),
        ("twentyfirst", (0.02, 0.005), (0.055, 0.025)),
        ("twentysecond", (0.018, 0.006), (0.058, 0.018)),
        ("twentythird", (0.035, 0.006), (0.086, 0.018)),
        ("twentyfourth", (0.0, 0.0), (0.009, 0.0)),
        ("twentyfifth", (0.009, 0.0), (0.018, 0.0)),
        ("twentysixth", (0.01, 0.0), (0.015, 0.0)),
        ("twentyseventh", (0.0, 0.0), (0.035, 0.0)),
    ],
)
def test_of_the_last_sets_no_more_are_misjudged_than_is_known(
    folder: str, with_the_line: tuple[float, float], without_it: tuple[float, float]
) -> None:
    for on_line, (of_right, of_wrong) in ((True, with_the_line), (False, without_it)):
        failed, passed, right, wrong = misjudged(answered_tasks(FOLDER / folder), on_line=on_line)
        assert len(failed) <= of_right * right, failed
        assert len(passed) <= of_wrong * wrong, passed


def test_with_the_answer_line_one_in_a_hundred_is_misjudged() -> None:
    failed, passed, right, wrong = misjudged(answered_tasks(FOLDER), on_line=True)
    assert len(failed) <= 0.01 * right, failed
    assert len(passed) <= 0.01 * wrong, passed


def test_without_it_four_right_ones_in_a_hundred_fail_and_two_wrong_ones_pass() -> None:
    failed, passed, right, wrong = misjudged(answered_tasks(FOLDER), on_line=False)
    assert len(failed) <= 0.04 * right, failed
    assert len(passed) <= 0.02 * wrong, passed
