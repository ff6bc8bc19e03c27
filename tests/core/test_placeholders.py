from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.placeholders import (
    PlaceholderError,
    lookup_path,
    reference_texts,
    references,
    resolve_references,
    text_value,
)

RESULTS: dict[str, Any] = {
    "step1": {"close": 187.2, "from": "desk", "tags": ["a", "b"], "ok": True, "none": None},
    "step3": {
        "rows": [
            {"name": "Aurora", "tons": 5, "port": "Oslo"},
            {"name": "Borealis", "tons": 30, "port": "Oslo"},
            {"name": "Caravel", "tons": 12, "port": "Cadiz"},
        ]
    },
    "step2": {"results": [{"title": "up 3 points to $1,234.5 on Friday"}, {"title": "last"}], "close": 0.1},
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${step1.close}", 187.2),
        ("${step1.from}", "desk"),  # a field may have the name of a Python keyword
        ("${step1.tags}", ["a", "b"]),
        ("${step2.results[0].title}", "up 3 points to $1,234.5 on Friday"),
        ("${step2.results[-1].title}", "last"),
        ("${step1['close']}", 187.2),
        ("${step1.close - step2.close}", 187.1),  # 187.1 exactly: binary noise is removed
        ("${-(step1.close + 1) * 2 / 4}", -94.1),
        ("${round(step1.close / 3, 1)}", 62.4),
        ("${round(2.6)}", 3),
        ("${abs(step2.close - 1)}", 0.9),
        ("${min(step1.close, 5)}", 5),
        ("${max(step1.close, step2.close)}", 187.2),
        ("${number(step2.results[0].title, 0)}", 3),
        ("${number(step2.results[0].title, -1)}", 1234.5),
        ("${word(step2.results[0].title, -1)}", "Friday"),
        ("${text(step1.close)}", "187.2"),
        ("${sum(step1.close, step2.close)}", 187.3),  # 187.29999999999998 with binary noise
        ("${count(step1.tags)}", 2),
        ('${count(pluck(step3.rows, "tons"))}', 3),
        ('${count_over(pluck(step3.rows, "tons"), 10)}', 2),
        ('${count_under(pluck(step3.rows, "tons"), 10.5)}', 1),
        ('${sum(pluck(step3.rows, "tons"))}', 47),
        ('${max(pluck(step3.rows, "tons"))}', 30),
        ('${at(argmax(pluck(step3.rows, "tons")), pluck(step3.rows, "name"))}', "Borealis"),
        ('${at(argmin(pluck(step3.rows, "tons")), pluck(step3.rows, "name"))}', "Aurora"),
        ('${at(find(pluck(step3.rows, "name"), "Caravel"), pluck(step3.rows, "tons"))}', 12),
        ("${at(argmax(1, 5, 3), 7, 8, 9)}", 8),
        ("at ${step1.close}, ${step1.ok}, ${step1.none}, ${step1.tags}", 'at 187.2, true, null, ["a", "b"]'),
        ("${0.1 + 0.2} and ${1 / 3}", "0.3 and 0.3333333333"),
        ({"a": ["${step1.close}", 7]}, {"a": [187.2, 7]}),
        ("costs $5 {x}", "costs $5 {x}"),
        (3, 3),
    ],
)
def test_references_become_values(value: Any, expected: Any) -> None:
    resolved = resolve_references(value, RESULTS)
    assert resolved == expected
    assert type(resolved) is type(expected)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("step1.open", "no 'open'"),
        ("step4.close", "step4 has no result"),
        ("step2.results[2].title", "index 2 of a list of 2"),
        ("step1.close / 0", "division"),
        ("step1.from + 1", "not a number"),
        ("step1.ok * 2", "not a number"),
        ("number(step1.close, 0)", "not a text"),
        ("number(step1.from, 0)", "index 0 of a list of 0"),
        ('find(pluck(step3.rows, "port"), "Oslo")', "'Oslo' occurs 2 times"),
        ('find(pluck(step3.rows, "port"), "Genoa")', "'Genoa' occurs 0 times"),
        ("argmax(3, 5, 5)", "5 occurs 2 times"),
        ('pluck(step3.rows, "flag")', "no 'flag'"),
        ('max(pluck(step3.rows, "name"))', "not a number"),
        ("count(step1.close)", "not a list"),
        ("count_over(step1.tags, 2)", "not a number"),
        ("at(3, 1, 2)", "index 3 of a list of 2"),
        ("argmax()", "at least one number"),
        ("count(step1.tags, 1)", "does not take 2 arguments"),
        ("round(1, 2, 3)", "does not take 3 arguments"),
        ("round(1.5, 400)", "from 0 to 10"),
        ("1e308 * 10", "not finite"),
        ("close", "not a step"),
        ("", "not an expression"),
        ("step1.", "not an expression"),
        ("__import__('os')", "only paths"),
        ("step1.close.__class__", "no '__class__'"),
        ("(lambda: 1)()", "only paths"),
        ("2 ** 99999", "only paths"),
        ("'a' * 9", "only paths"),
        ("step1.close if 1 else 2", "only paths"),
        ("step1[step2]", "index"),
        ("+".join("1" * 400), "at most 300"),
        ("-" * 299 + "step1.from", "at most 300"),
        ("-" * 280 + "step1.from", "not a number"),
    ],
)
def test_anything_outside_the_grammar_is_refused_with_a_reason(expression: str, says: str) -> None:
    with pytest.raises(PlaceholderError, match="\\$\\{") as caught:
        resolve_references("${" + expression + "}", RESULTS)
    assert says in str(caught.value)


def test_references_are_the_step_numbers_in_use() -> None:
    value = {"a": "${step1.close - step12.close}", "b": ["x ${round(step3.y, 2)}", "no"], "c": 4}
    assert references(value) == {1, 3, 12}
    assert reference_texts(value) == ["${step1.close - step12.close}", "${round(step3.y, 2)}"]
    assert references("plain") == set()
    with pytest.raises(PlaceholderError, match="steq"):
        references("${steq1.close}")


def test_a_path_is_looked_up_in_any_json_value() -> None:
    assert lookup_path({"messages": [{"text": "hi"}]}, "messages[0].text") == "hi"
    assert lookup_path([1, 2], "[-1]") == 2
    with pytest.raises(PlaceholderError):
        lookup_path({"messages": []}, "messages[0].text")


def test_a_result_without_structure_is_read_from_its_text() -> None:
    assert text_value('{"close": 1}') == {"close": 1}
    assert text_value("[1, 2]") == {"result": [1, 2]}
    assert text_value("sunny, 21 degrees") == {"text": "sunny, 21 degrees"}
    # What a server in Python prints.
    assert text_value("[{'name': 'ships', 'pk': None, 'ok': True}]") == {
        "result": [{"name": "ships", "pk": None, "ok": True}]
    }
    assert text_value("{'at': (1, 2)}") == {"at": [1, 2]}
    for prose in ("[FILE] notes.txt", "{'a': open('x')}", "[nan]", "{1, 2}", "'quoted'", "[" * 5000):
        assert text_value(prose) == {"text": prose}


@given(st.text(alphabet="step12.close[]()+-*/,'\"${} abs", max_size=40))
def test_an_expression_resolves_or_raises_placeholder_error(text: str) -> None:
    with contextlib.suppress(PlaceholderError):
        resolve_references("${" + text + "}", RESULTS)
