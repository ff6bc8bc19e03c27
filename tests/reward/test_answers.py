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
    eighteenth         6     1     9    1      after `reward/text/rivals.py`; times of day, versions
    nineteenth         4     0     6    2      after the eighteenth; what is asked for, explained
    twentieth          2.5   1     5    1.5    after the nineteenth; bounds that are asked for, units
    twentyfirst        5.5   0.5  13    2.5    after the twentieth; hosts that begin or end alike, remarks
    twentysecond       5     1    11    2      after the twenty-first; paths, rates by what they count
    twentythird        7     0.6  12    2      after the twenty-second; values with "not", no clocks
    twentyfourth       3     0     4    0.4    after the twenty-third; codes that begin alike, dotted times
    twentyfifth        3     0.4   5    0.4    the same; servers that developers have
    twentysixth        2     0     3    0.9    after the twentyfifth; half of such servers, half of others
    twentyseventh      1.5   0.5   5.5  1.5    after the twentysixth; numbers behind codes, e-mail addresses
    twentyeighth       5     0.5  10    1      after the twentyseventh; ranges of times, sizes, other words
    twentyninth        1     0.5   9.5  1.5    the same; hobbies, asides that compare
    thirtieth          3     1     8    1      after the twentyninth; cents, kibibytes, lines of logs
    thirtyfirst        7.5   0.5  11    1      after the thirtieth; !415, accounts, other spellings
    thirtysecond       3.5   1     9    1      after the thirtyfirst; codes in remarks, dates as things
    thirtythird        2     1     4    1      after the thirtysecond; mostly short and plain
    thirtyfourth       3.5   0     5    1      after the thirtythird; codes in sets, reasons, "No"
    thirtyfifth        0.9   0.5   3    0      after the thirtyfourth; initials, names without a measure
    thirtysixth        0.5   0     2.5  0.5    after the thirtyfifth; versions in sets, bounds that are asked
    thirtyseventh      6     1    16    1      after the thirtysixth; differences, other lines, identifiers
    thirtyeighth       9     1    12    1.5    the same; scaled units, file names, formulas, compass points
    thirtyninth        2.5   1    11    0.4    after these two; signs, tebibytes, brackets, limits, May
    fortieth           3     0.4   9    1      after the thirtyninth; dotted names, mixed fractions, dates
    fortyfirst         5     0     9    1      after the fortieth; pairs turned round, "no" of another thing
    fortysecond        2     0     4    1      after the fortyfirst; names without what the question says
    fortythird         7     1    10    1      after the fortysecond; steps in other words, currencies
    fortyfourth        5     0.4   8    0.4    after the fortythird; grades, options by a part, forms of firms
    fortyfifth         2     0     6    0      after the fortyfourth; codes with their place, what follows
    fortysixth         2     0     9    0.4    after the fortyfifth; "A's turn", numbers between items, ranges
    fortyseventh       4     0.4  16    0.4    the same; "enabled", zones behind am, sentences told otherwise
    fortyeighth        2.5   0    10    3      after these two; "forbidden", "not before", keys
    fortyninth         5     2    15      8    after the fortyeighth; refusals that tell, exchanged values
    fiftieth           0.4   0.4   2      1    after the fortyninth; another value among those of a set
    fiftyfirst         2     0.4   7      0    after the fiftieth; days before prices, words of options
    fiftysecond        1     0.4   6      0    the same
    fiftythird         2     0.4  10      0.8  after the fiftysecond; remarks about another option
    fiftyfourth        2     0     7      1    the same; shares of a whole, kilobytes of 1024 bytes
    fiftyfifth         2.5   0    13      0    after these two; "not" for what is asked as lacking, clocks
    fiftysixth         0.4   0     7.5    0.8  the same; totals of "your 23", what pairs are told besides
    fiftyseventh       0     0.4   6      1    after these two; weeks and rooms by number
    fiftyeighth        0.4   0     7      0.8  the same; conversions of pairs, numbers of other fields
    fiftyninth         3     0    20      0.4  after the fiftyeighth; colleagues, in other words than shown
    sixtieth           0     0.4   5      1    the same; signs, other days, what takes a value back
    sixtyfirst         2     0    10      2    after these two; letters behind a word, numbers of rooms
    sixtysecond        7     1     4      1    tasks that `gen-data` made; what is asked back on the line
    sixtythird         6     0    13      0.4  the same, half as it is spoken; years, ranges, "that one"
    sixtyfourth        4     0.4  10      2    the same, people and models; tables, fields of the same thing
    sixtyfifth         5     0    11.5    0    after all these; short forms of pairs, other endings, remarks
    sixtysixth         1.5   0     6      0    after the sixtyfifth

Since the sixteenth a free text is judged by what speaks against its value (`reward/text/rivals.py`). The
twentyfirst to the twentythird are as hard as the thirteenth: most of their right answers say something of
other things too. Since then asides are as rare as the writer found natural.

Ten answers of the fortythird that round more than the result does ("about 68%" of 67.7) were taken out of it:
a number is asked for with the precision that is shown.

An `ending` is the whole end of an answer, if it is not written as `Answer: LINE`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.tools import ToolResult
from mcpagent.reward.answer import answer_holds
from mcpagent.reward.text.phrasing import AnswerContext

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


# What is misjudged of each set, with the line and without it: right ones that fail, wrong ones that pass.
KNOWN = {
    ".": ((0, 0), (1, 0)),
    "second": ((0, 0), (0, 0)),
    "third": ((0, 0), (0, 0)),
    "fourth": ((0, 0), (0, 0)),
    "fifth": ((2, 1), (3, 1)),
    "sixth": ((0, 0), (2, 0)),
    "seventh": ((0, 0), (1, 0)),
    "eighth": ((8, 0), (13, 0)),
    "ninth": ((6, 0), (7, 0)),
    "tenth": ((1, 0), (4, 1)),
    "eleventh": ((8, 1), (11, 3)),
    "twelfth": ((3, 2), (1, 3)),
    "thirteenth": ((1, 0), (0, 0)),
    "fourteenth": ((1, 0), (7, 1)),
    "fifteenth": ((2, 0), (5, 1)),
    "sixteenth": ((0, 0), (3, 0)),
    "seventeenth": ((0, 0), (4, 0)),
    "eighteenth": ((0, 1), (4, 1)),
    "nineteenth": ((2, 0), (4, 1)),
    "twentieth": ((0, 0), (0, 1)),
    "twentyfirst": ((1, 1), (5, 2)),
    "twentysecond": ((0, 1), (5, 2)),
    "twentythird": ((2, 1), (4, 3)),
    "twentyfourth": ((0, 0), (2, 0)),
    "twentyfifth": ((1, 0), (2, 0)),
    "twentysixth": ((2, 0), (2, 0)),
    "twentyseventh": ((0, 0), (7, 0)),
    "twentyeighth": ((2, 0), (6, 1)),
    "twentyninth": ((1, 0), (6, 0)),
    "thirtieth": ((1, 0), (9, 0)),
    "thirtyfirst": ((4, 0), (9, 1)),
    "thirtysecond": ((2, 0), (10, 0)),
    "thirtythird": ((0, 0), (1, 0)),
    "thirtyfourth": ((2, 0), (1, 1)),
    "thirtyfifth": ((1, 0), (1, 0)),
    "thirtysixth": ((1, 0), (5, 1)),
    "thirtyseventh": ((3, 0), (15, 0)),
    "thirtyeighth": ((4, 0), (9, 0)),
    "thirtyninth": ((2, 0), (16, 0)),
    "fortieth": ((3, 0), (13, 2)),
    "fortyfirst": ((3, 0), (13, 0)),
    "fortysecond": ((2, 0), (4, 1)),
    "fortythird": ((6, 1), (12, 1)),
    "fortyfourth": ((2, 0), (5, 0)),
    "fortyfifth": ((3, 0), (8, 0)),
    "fortysixth": ((1, 0), (9, 0)),
    "fortyseventh": ((1, 0), (23, 0)),
    "fortyeighth": ((2, 0), (11, 5)),
    "fortyninth": ((3, 1), (22, 11)),
    "fiftieth": ((0, 0), (2, 0)),
    "fiftyfirst": ((1, 1), (10, 0)),
    "fiftysecond": ((1, 0), (9, 0)),
    "fiftythird": ((3, 0), (8, 1)),
    "fiftyfourth": ((1, 0), (9, 2)),
    "fiftyfifth": ((2, 0), (20, 0)),
    "fiftysixth": ((1, 0), (11, 2)),
    "fiftyseventh": ((0, 1), (13, 3)),
    "fiftyeighth": ((1, 0), (12, 1)),
    "fiftyninth": ((5, 0), (39, 0)),
    "sixtieth": ((0, 0), (6, 0)),
    "sixtyfirst": ((0, 0), (21, 1)),
    "sixtysecond": ((3, 1), (5, 1)),
    "sixtythird": ((6, 0), (15, 0)),
    "sixtyfourth": ((5, 0), (11, 2)),
    "sixtyfifth": ((7, 0), (14, 0)),
    "sixtysixth": ((1, 0), (7, 0)),
}


_LATEST = [".", *[*KNOWN][-8:]]  # the others are read with the tests of whole programs: it takes a minute


@pytest.mark.parametrize(
    "folder", [each if each in _LATEST else pytest.param(each, marks=pytest.mark.system) for each in KNOWN]
)
def test_of_no_set_more_are_misjudged_than_is_known(folder: str) -> None:
    for on_line, (of_right, of_wrong) in zip((True, False), KNOWN[folder], strict=True):
        failed, passed, _, _ = misjudged(answered_tasks(FOLDER / folder), on_line=on_line)
        assert len(failed) <= of_right, failed
        assert len(passed) <= of_wrong, passed


def test_of_all_sets_one_in_a_hundred_is_misjudged_with_the_line_and_four_and_two_without() -> None:
    count = Counter(
        a["right"] for folder in KNOWN for t in answered_tasks(FOLDER / folder) for a in t["answers"]
    )
    (failed, passed), (failed_free, passed_free) = (
        [sum(column) for column in zip(*side, strict=True)] for side in zip(*KNOWN.values(), strict=True)
    )
    assert failed <= 0.01 * count[True] and passed <= 0.01 * count[False]
    assert failed_free <= 0.04 * count[True] and passed_free <= 0.02 * count[False]
    assert {path.parent for path in FOLDER.rglob("*.jsonl")} == {FOLDER / folder for folder in KNOWN}
