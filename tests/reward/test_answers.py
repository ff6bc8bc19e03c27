"""How often people's answers are misjudged: those of `answers/`, written by hand with who is right and why.

A file has the tasks of one server, a task a line: its question, what a call showed, the check, and answers in
a person's words (`text`) with the line that would end them (`line`). About half of them are right.

`second` to `seventh` were written after the code had been fitted to the sets before. Unseen, with the line, 5
of 58, 3 of 70 and 3 of 36 right answers of the first three failed, and none of 136 wrong ones passed; without
it 4, 5 and 2 failed, and one passed. `fifth` has more voices (German, French and Indian English, LaTeX, JSON,
tables, sentences on the line): 102 of 497 failed with the line and 6 of 293 passed, without it 76 and 11. Of
`sixth` 14 of 152 failed and 1 of 92 passed, without it 13 and 1. Of `seventh`, written after the forms of
`forms.py` were read right, 9 of 163 failed and 1 of 116 passed, without the line 18 and 1 (before: 8, 1, 17
and 1). What they showed has been fixed since. `eighth` and `ninth` are answers to tasks that `gen-data`
made: of `eighth` 44 of 283 failed with the line and 3 of 252 passed, without it 71 and 4; of `ninth` 43 of
240 and 3 of 220, without it 66 and 4. `tenth` is of five servers more, written before it was graded: 29 of
230 failed with the line and 1 of 210 passed, without it 38 and 3 (with the code before: 35, 1, 42 and 3); 11
of the 29 and none of the wrong ones would have gone to a judge. `eleventh` is of six servers more, written
before the code was read: of 202 right and 204 wrong ones 20.3% and 2.9% were misjudged with the line, 24.3%
and 5.4% without it; with the grammar of `line.py`, unseen, 12.9% and 3.4%, 18.8% and 5.4%. `twelfth` is of
five servers more, written before it was graded: of 139 right and 156 wrong ones 8.6% and 6.4% were misjudged
with the line, 6.5% and 7.7% without it (with the code before the grammar: 12.2, 7.1, 11.5 and 8.3%).
Not all of that is fixed: the tests of these five say how much is left.
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
        ("eighth", (0.039, 0.0), (0.1, 0.0)),
        ("ninth", (0.03, 0.0), (0.092, 0.0)),
        ("tenth", (0.035, 0.0), (0.096, 0.005)),
        ("eleventh", (0.11, 0.01), (0.16, 0.025)),
        ("twelfth", (0.036, 0.013), (0.036, 0.02)),
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
