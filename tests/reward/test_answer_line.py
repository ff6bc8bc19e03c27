from __future__ import annotations

import time
from typing import Any

import pytest

from mcpagent.core.answer_line import asks_for_line, split_answer, with_answer_line
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.tools import ToolResult
from mcpagent.reward.answer import answer_holds
from mcpagent.reward.text.phrasing import AnswerContext
from mcpagent.reward.validate import task_problems
from tests.reward.records import QUOTE, make_task


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("It is 5.\nAnswer: 5", "5"),
        ("**Answer:** 5 euros", "5 euros"),
        ("Final answer: 5", "5"),
        ("Answer: 5\nAnswer: 6", "5\nAnswer: 6"),
        ("The answer is 5.", None),
        ("Answer:\n- a\n- b", "- a\n- b"),
    ],
)
def test_the_answer_line_is_found_and_what_follows_belongs_to_it(text: str, line: str | None) -> None:
    assert split_answer(text)[1] == line


def test_a_line_is_added_once() -> None:
    once = with_answer_line("It is so.", {"A": 1, "B": True})
    assert once == "It is so.\nAnswer: A: 1, B: yes"
    assert with_answer_line(once, "other") == once
    assert with_answer_line("Sorry.", None) == "Sorry.\nAnswer: none"


def holds(check: dict[str, Any], line: str, said: str = "") -> bool:
    given = f"I looked it up; other things are 1, 2 and 3.\nAnswer: {line}"
    return answer_holds(AnswerCheck.model_validate(check), given, {}, AnswerContext(said=said), on_line=True)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            {"type": "number", "value": 3155, "unit": "cents"},
            ("3155", "3,155 cents", "3,155 cents (€31.55)", "€31.55, so 3155 cents", "€31.55"),
            (
                "3155 euros",
                "3156",
                "3155 or 3156",
                "not 3155",
                "more than 3155",
                "3155, 3156",
                "3155 million",
            ),
        ),
        (
            {"type": "number", "value": 17},
            ("Seventeen euros", "17.", "**17**", "It is 17", "17.0"),
            ("17%", "seventeen or eighteen", "18", "٢١", "maybe 17", "17?", "~~17~~ 18"),
        ),
        (
            {"type": "number", "value": 2173824.8249999997},
            ("2173824.82", "2,173,824.82"),
            ("2173825", "2.17"),
        ),
        ({"type": "number", "value": 12.384615}, ("12,384615", "12.384615"), ("12384615", "1,2384615")),
        ({"type": "number", "value": 12428, "unit": "s"}, ("3h27m08s", "3:27:08"), ("3h27m", "3h28m08s")),
        ({"type": "number", "value": 1858.025}, ("1858.03", "1858.02"), ("1858", "1858.0", "1858.04")),
        (
            {"type": "date", "value": "2026-05-05T09:34:00Z"},
            ("5 May 2026 at 09:34", "May 5th, 2026, 9:34 am", "2026-05-05 09:34", "09:34 UTC on 5 May 2026"),
            ("5 May 2026", "6 May 2026 at 09:34", "5 May 2026 at 09:43", "5 or 6 May 2026 at 09:34"),
        ),
        (
            {"type": "date", "value": "2017-03-23"},
            ("23 March 2017", "the 23rd of March, 2017", "23.03.2017", "23/3/2017", "Thursday, 23 Mar 2017"),
            ("32 March 2017", "23 March 2018", "before 23 March 2017", "23 March 2017 or 24 March 2017"),
        ),
        (
            {"type": "name", "value": "tom.weiss"},
            ("Tom Weiss", "tom.weiss", "It is Tom Weiss."),
            (
                "Tom",
                "Tom Weiss or Ana Lima",
                "Ana Lima as well as Tom Weiss",
                "Tom Weiss along with Ana Lima",
                "Tom Weiss's brother",
                "not Tom Weiss",
            ),
        ),
        (
            {"type": "set", "value": ["Fire", "Flying"]},
            ("Fire and Flying", "Flying, Fire", "Fire as well as Flying", "- Fire\n- Flying", "Fire/Flying"),
            ("Fire", "Fire, Flying, Water", "Fire or Flying", "Fire and not Flying"),
        ),
        (
            {"type": "list", "value": ["Oslo", "Bergen", "Narvik"]},
            ("Oslo, Bergen, Narvik", "1. Oslo\n2. Bergen\n3. Narvik"),
            ("Bergen, Oslo, Narvik", "Oslo, Bergen"),
        ),
        (
            {"type": "pairs", "value": {"OPS-134": "low", "OPS-110": "high"}},
            ("OPS-134: low, OPS-110: high", "low for OPS-134 and high for OPS-110", "low and high"),
            (
                "OPS-134 high, OPS-110 low",
                "high and low",
                "low",
                "both low",
                "OPS-134: low or high, OPS-110: high",
            ),
        ),
        (
            {"type": "choice", "value": "OPS-134", "options": ["OPS-134", "OPS-110"]},
            ("OPS-134", "the first one", "OPS-134, not OPS-110", "OPS-134 rather than OPS-110"),
            ("OPS-110", "OPS-134 or OPS-110", "both", "OPS-134 and OPS-110", "they both have 4"),
        ),
        (
            {"type": "yes_no", "value": True},
            ("Yes", "yes, it is", "True"),
            ("No", "yes and no", "open", "not yes"),
        ),
        (
            {"type": "must_include", "value": ["Marta", 7]},
            ("Marta and 7", "7, Marta"),
            ("Marta", "Marta, 7, 8"),
        ),
        (
            {"type": "name", "value": "3.11.2"},
            ("3.11.2", "v3.11.2", "version 3.11.2"),
            ("3.1.12", "31.1.2", "3.11.2 or 3.1.12"),
        ),
        (
            {"type": "set", "value": ["M-2026-117", "M-2026-119"]},
            ("M-2026-117 and M-2026-119", "117 and 119"),
            ("117", "117, 118 and 119", "2026"),
        ),
        (
            {"type": "pairs", "value": {"reef shark": 4, "garibaldi": 11}},
            ("reef sharks: 4, garibaldis: 11", "4 reef sharks and 11 garibaldis"),
            ("11 reef sharks, 4 garibaldis", "4 reef sharks"),
        ),
        (
            {"type": "name", "value": "WT-11"},
            ("WT-11", "turbine WT-11"),
            ("WT-03, WT-11", "WT-11, WT-03", "WT-11 3"),
        ),
        (
            {"type": "name", "value": "Rue Vautier 27, 1227 Carouge"},
            ("Rue Vautier 27, 1227 Carouge", "27 Rue Vautier, 1227 Carouge"),
            ("Rue Vautier 12, 1227 Carouge", "27 Rue Vautier", "1227 Rue Vautier, 27 Carouge"),
        ),
        (
            {"type": "pairs", "value": {"left eye": 15, "right eye": 170}},
            ("left 15, right 170", "right eye: 170, left eye: 15"),
            ("left 170, right 15", "left 15"),
        ),
        (
            {"type": "name", "value": "vpn.tannhof.example"},
            ("vpn.tannhof.example", "the host is vpn.tannhof.example"),
            ("mail.tannhof.example", "tannhof.example", "vpn.tannhof.example, mail.tannhof.example"),
        ),
        (
            {"type": "set", "value": ["vpn.tannhof.example", "git.tannhof.example"]},
            ("git.tannhof.example and vpn.tannhof.example",),
            ("git.tannhof.example and mail.tannhof.example", "git.tannhof.example"),
        ),
        (
            {"type": "list", "value": ["/", "/guides", "/shop"]},
            ("/, /guides, /shop", "1. / 2. /guides 3. /shop"),
            ("/guides, /, /shop", "/guides, /shop", "/"),
        ),
        (
            {"type": "name", "value": "Active, not recruiting"},
            ("Active, not recruiting", "active, not recruiting"),
            ("recruiting", "active", "not active, recruiting"),
        ),
        (
            {"type": "date", "value": "2026-03-18"},
            ("2026-03-18", "18 March 2026"),
            ("2026-03-17 (77.35 kg)", "2026-03-18 or 2026-03-17"),
        ),
        (
            {"type": "number", "value": -6.3, "unit": "celsius"},
            ("-6.3 °C", "6.3 °C below zero", "minus 6.3 degrees"),
            ("6.3 °C", "6.3 °C above zero", "36 °C below zero"),
        ),
        ({"type": "string", "value": "Energy"}, ("energy", "Energy."), ("Energy or Mining",)),
        ({"type": "regex", "value": "^Yes"}, ("Yes, it is",), ("No. Yes",)),
    ],
)
def test_the_line_is_read_as_what_it_is_and_says_nothing_else(
    check: dict[str, Any], right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    failed = [line for line in right if not holds(check, line)]
    passed = [line for line in wrong if holds(check, line)]
    assert (failed, passed) == ([], [])


ENDED = {"type": "date", "value": "2026-03-09T19:26"}
LOAD = {"type": "number", "value": 630, "unit": "kg"}
AUTO_RENEW = {"type": "yes_no", "value": False}


@pytest.mark.parametrize(
    ("check", "said", "line", "is_right"),
    [
        (ENDED, "At what time did S-77120 end?", "19:26", True),
        (ENDED, "At what time did S-77120 end?", "19:27", False),
        (ENDED, "At what time did S-77120 end?", "19:26 on 10 March 2026", False),
        (ENDED, "When on 9 March 2026 did S-77120 end?", "7:26 pm", True),
        (ENDED, "When on 8 March 2026 did S-77120 begin?", "7:26 pm", False),
        (ENDED, "What is the end of S-77120?", "19:26", False),
        (LOAD, "What is the maximum load of EL-07?", "up to 630 kg", True),
        (LOAD, "What is the maximum load of EL-07?", "at least 630 kg", False),
        (LOAD, "What is the maximum load of EL-07?", "more than 630 kg", False),
        (LOAD, "What is the minimum order?", "at least 630 kg", True),
        (LOAD, "What is the load of EL-07?", "up to 630 kg", False),
        (LOAD, "What is the load in kg after 5 min?", "at least 630 kg", False),
        (LOAD, "Which load has the most trips?", "at most 630 kg", False),
        (AUTO_RENEW, "Is auto-renew on for the domain?", "it is off", True),
        (AUTO_RENEW, "Is auto-renew enabled?", "disabled", True),
        (AUTO_RENEW, "Is auto-renew enabled?", "enabled", False),
        (AUTO_RENEW, "Is there a discount on shoes?", "20% off", False),
    ],
)
def test_what_is_asked_says_what_may_go_unsaid(
    check: dict[str, Any], said: str, line: str, is_right: bool
) -> None:
    assert holds(check, line, said) is is_right


def test_a_line_is_no_copy_of_a_result() -> None:
    check = {"type": "name", "value": "ZPSV"}
    for line in (
        '{"symbol": "ZPSV", "name": "Torrix"}',
        '"{\\"symbol\\": \\"ZPSV\\"}"',
        '**{"results": [{"symbol": "ZPSV"}]}**',
        "symbol ZPSV name Torrix ZPSV",
    ):
        assert not holds(check, line, "Find the symbol of Torrix."), line
    assert holds(check, "symbol ZPSV", "Find the symbol of Torrix.")


@pytest.mark.parametrize("on_line", [True, False])
@pytest.mark.parametrize(
    "word", ["tons!", "the!", "of the!", "(tons)!", "qux!", "tons,", "Zog!", "\n", "1,", "5/"]
)
def test_many_words_without_spaces_take_no_second(word: str, on_line: bool) -> None:
    shown = ToolResult(
        call_id="c", server="s", tool="get", content='{"ship": "B", "tons": 1248, "note": "tons"}'
    )
    context = AnswerContext(said="What is the weight of A and B?", results=(shown,))
    for kind, value, text in (
        ("number", 1248, "1248 {} Zog 1248"),
        ("pairs", {"A": 3.5, "B": 1248}, "A: 3.5 {} Zog B: 1248"),
        ("date", "2026-05-05", "2026-05-05 {} Zog"),
    ):
        check = AnswerCheck.model_validate({"type": kind, "value": value})
        said = text.format(2000 * word)
        before_s = time.process_time()
        is_right = answer_holds(check, f"Answer: {said}" if on_line else said, {}, context, on_line=on_line)
        assert not (is_right and on_line)
        assert time.process_time() - before_s < 1


def test_without_a_line_there_is_no_answer() -> None:
    check = AnswerCheck(type="number", value=5)
    assert not answer_holds(check, "It is 5.", {}, on_line=True)


def test_an_abstention_says_none_and_invents_nothing() -> None:
    check = AnswerCheck(type="abstention", value="cannot")
    context = AnswerContext(said="Who is the captain of the Aurora?")

    def abstains(text: str) -> bool:
        return answer_holds(check, text, {}, context, on_line=True)

    assert abstains("None of my tools tells who the captain is.\nAnswer: none")
    assert abstains("Answer: not possible")
    assert abstains("I looked for the Aurora.\nAnswer: ship Aurora not found")
    assert not abstains("None of my tools tells that.")
    assert not abstains("I do not have such a tool. Musa is its captain.\nAnswer: none")
    assert not abstains("I have no tool for that.\nAnswer: Musa")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("I have no tool for that. Which ship do you mean, for example the Kestrel?", True),
        ("My tools do not cover prices. You could check a site such as Marine Traffic or Lloyd's.", True),
        ("I only have two tools, and neither of them tells the captain.", True),
        ("I have no tool for that. You could say that Musa is its captain.", False),
        ("None of my tools tells that, but it cost five euros.", False),
        ("I have no tool for that. Zorblax owns the Aurora.", False),
        ("There is no tool for that. I sold it anyway.", False),
        ("I cannot tell; it has forty-seven cabins.", False),
        ("My tools do not cover that. You would have to look in the register yourself.", True),
        ("I cannot tell: the lookup returned an error.", True),
        ("I have no tool for that. They need weekly care.", False),
        ("I have no tool for that. The error is its colour.", False),
        ("I have no tool for that. You have to pay weekly.", False),
        ("I looked for it, but the search came back empty.", True),
        ("I have no tool for that; it has to be done elsewhere.", True),
        ("I have no tool for that. Someone at the port can look it up.", True),
        ("I have no tool for that. Someone at the port sold it.", False),
        ("I have no tool for that, so it was done elsewhere.", False),
        ("I have no tool for that. A register of ships would be a good place to look.", True),
        ("I cannot change that. Someone with the rights would need to do it.", True),
        ("I'm unable to do that. Please ask the port to have the captain of it changed.", True),
        ("I'm unable to do that. The captain was changed.", False),
        ("I have no tool for that. The port can send you a list.", True),
        ("I have no tool for that, but I can tell you Musa is its captain.", False),
        ("I have no tool for that. Anyone can tell you that its captain is Musa.", False),
        ("No AIS record is listed, and the DOC does not say", True),
        ("I cannot say, IBM owns the Aurora.", False),
        ("I cannot tell, but its owner is IBM.", False),
    ],
)
def test_an_abstention_may_advise_and_give_examples_but_not_tell(text: str, holds: bool) -> None:
    check = AnswerCheck(type="abstention", value="cannot")
    context = AnswerContext(said="Who is the captain of the Aurora?")
    assert answer_holds(check, text, {}, context) is holds
    assert answer_holds(check, f"{text}\nAnswer: none", {}, context, on_line=True) is holds


@pytest.mark.parametrize(
    ("text", "line", "holds"),
    [
        ("Which ship do you mean?", "Which ship do you mean?", True),
        ("For which ship?", "none", True),
        ("Sure - just tell me the ship, and I'll look who its captain is.", "Which ship is it?", True),
        ("Happy to look that up.", "Which ship?", True),
        ("Musa. Which ship do you mean?", "Which ship do you mean?", False),
        ("Which ship do you mean?", "Musa", False),
        ("Which port do you mean?", "Which port?", False),
        ("The ship is fine, which is good news.", "none", False),
        ("There are four captains of the ship, which is fine.", "none", False),
    ],
)
def test_what_is_missing_is_asked_for_in_the_text_or_on_the_line(text: str, line: str, holds: bool) -> None:
    check = AnswerCheck(type="abstention", value="asks", about=("ship",))
    context = AnswerContext(said="Who is its captain?")
    assert answer_holds(check, f"{text}\nAnswer: {line}", {}, context, on_line=True) is holds


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        ({"type": "date", "value": "tomorrow"}, "needs a date"),
        ({"type": "set", "value": "a"}, "needs a list"),
        ({"type": "pairs", "value": ["a"]}, "needs an object"),
        ({"type": "choice", "value": "c", "options": ["a", "b"]}, "needs one of two or more options"),
        ({"type": "yes_no", "value": "open"}, "needs true or false"),
        ({"type": "number", "value": "many"}, "needs a number"),
    ],
)
def test_a_value_of_another_type_is_refused(check: dict[str, Any], problem: str) -> None:
    problems = task_problems(make_task(tool_sequence=[QUOTE], final_answer=check))
    assert any(problem in said for said in problems), problems


@pytest.mark.parametrize(
    "check",
    [
        {"type": "date", "value": "2026-05-05T09:34:00Z"},
        {"type": "set", "value": ["a", "b"]},
        {"type": "list", "value": ["Oslo", "Bergen"]},
        {"type": "pairs", "value": {"OPS-1": "low", "OPS-2": "high"}},
        {"type": "choice", "value": "a2", "options": ["a2", "b7"]},
        {"type": "yes_no", "value": False},
        {"type": "number", "value": 5, "unit": "km"},
        {"type": "name", "value": "Tom Weiss"},
    ],
)
def test_a_typed_check_passes_its_own_answer(check: dict[str, Any]) -> None:
    assert task_problems(make_task(tool_sequence=[QUOTE], final_answer=check)) == []


def test_a_record_with_a_line_asks_for_it_and_its_own_answer_passes() -> None:
    task = make_task(answer_line=True, tool_sequence=[QUOTE], final_answer={"type": "number", "value": 187.2})
    assert ["asks for it" in problem for problem in task_problems(task)] == [True]
    system = {"role": "system", "content": asks_for_line("You have tools.", may_abstain=False)}
    asking = task.model_copy(update={"prompt": (type(task.prompt[0]).model_validate(system), *task.prompt)})
    assert task_problems(asking) == []
