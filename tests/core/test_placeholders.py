from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.placeholders import (
    PlaceholderError,
    leaves_read,
    lookup_path,
    reference_texts,
    references,
    resolve_references,
)
from mcpagent.core.shown_values import text_value

RESULTS: dict[str, Any] = {
    "step4": {
        "calls": [
            {"ship": "Aurora", "day": "2026-02-01", "boxes": 3},
            {"ship": "Caravel", "day": "2026-01-31", "boxes": 2},
            {"ship": "Aurora", "day": "2026-03-04", "boxes": 4},
            {"ship": "Dhow", "day": "2026-02-28", "boxes": 9},
        ],
        "stats": "Min: 12\nAverage: 123.57 CHF\nMedian: 99",
    },
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
        ("${sum([step1.close, step2.close])}", 187.3),
        ('${count(where(step3.rows, "name", "in", ["Aurora", "Caravel", "no such"]))}', 2),
        ('${count(where([step1], "ok", "=", true))}', 1),
        ('${count(where([step1], "ok", "=", false))}', 0),
        ('${count(where([step1], "none", "=", null))}', 1),
        ("${step1.ok == true and step1.none == null}", True),
        ('${has([step1.close, "x"], 187.2)}', True),
        ("at ${step1.close}, ${step1.ok}, ${step1.none}, ${step1.tags}", 'at 187.2, true, null, ["a", "b"]'),
        ("${0.1 + 0.2} and ${1 / 3}", "0.3 and 0.3333333333"),
        ({"a": ["${step1.close}", 7]}, {"a": [187.2, 7]}),
        ('${pluck(where(step3.rows, "tons", "<", 20), "name")}', ["Aurora", "Caravel"]),
        ('${count(where(step3.rows, "port", "=", "Oslo"))}', 2),
        ('${pluck(where(step3.rows, "name", "in", pluck(step4.calls, "ship")), "tons")}', [5, 12]),
        ('${count(where(step4.calls, "day", "between", "2026-02-01", "2026-02-28"))}', 2),
        ('${days(min(pluck(step4.calls, "day")), max(pluck(step4.calls, "day")))}', 32),
        ('${most_common(pluck(step4.calls, "ship"))}', "Aurora"),
        ('${group_count(pluck(step3.rows, "port"))}', {"Oslo": 2, "Cadiz": 1}),
        ('${max_by(step3.rows, "tons").name}', "Borealis"),
        ('${min_by(step4.calls, "day").ship}', "Caravel"),
        ('${mean(pluck(step3.rows, "tons"))}', 15.6666666667),
        # 5*3 + 5*4 + 12*2: each call with the tons of its ship
        (
            '${sum_products(pluck(join(step4.calls, "ship", step3.rows, "name"), "boxes"), '
            'pluck(join(step4.calls, "ship", step3.rows, "name"), "tons"))}',
            59,
        ),
        ('${pluck(join(step3.rows, "name", step4.calls, "ship"), "boxes")}', [3, 4, 2]),
        ("${step1.close >= 100 and not step1.close == 187}", True),
        ('${has(step1.tags, "c")}', False),
        ("id in (${quoted(step1.tags)})", "id in ('a', 'b')"),
        ('${in_one_text(step1.tags, ", ")}', "a, b"),
        ('${number(after(step4.stats, "Average:"), 0)}', 123.57),
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
        ("step5.close", "step5 has no result"),
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
        ('max(pluck(step3.rows, "name"))', "are not numbers, nor dates of one form"),
        ('max_by(step3.rows, "port")', "are not numbers"),
        ('most_common(pluck(step3.rows, "name"))', "no one value is the most common"),
        ('where(step3.rows, "tons", "~", 3)', "'~' is not one of"),
        ('where(step3.rows, "tons", "between", 3)', "between"),
        ('join(step3.rows, "port", step1.tags, "port")', "no 'port'"),
        ('after(step2.results[0].title, "o")', "occurs 3 times"),
        ("days(step1.from, step1.from)", "two dates"),
        ("step1.close and step1.ok", "not true or false"),
        ("1 < step1.close < 3", "only paths"),
        ("open('/etc/passwd')", "only paths"),
        ("[x for x in step1.tags]", "only paths"),
        ("[step1.close]", "only paths"),
        ("sum([*step1.tags])", "only paths"),
        ("true + 1", "only paths"),
        ("null", "only paths"),
        ('count(where([step1], "ok", "=", nil))', "'nil' is not a step"),
        ("where(step3.rows, lambda: 1, '<', 3)", "only paths"),
        ("*".join(["9" * 40] * 7) + " * " + "9" * 12 + "1e308", "at most 300"),
        ("*".join(["9" * 70] * 4) + " * 1.5 * 1e200", "not finite"),
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


@given(st.text(alphabet="step12.close[]()+-*/<=,'\"${} where join abs", max_size=40))
def test_an_expression_resolves_or_raises_placeholder_error(text: str) -> None:
    with contextlib.suppress(PlaceholderError):
        resolve_references("${" + text + "}", RESULTS)


ROWS = st.lists(
    st.fixed_dictionaries({"k": st.integers(0, 4), "n": st.integers(-9, 9), "d": st.dates().map(str)}),
    max_size=8,
)


@given(ROWS, ROWS, st.integers(-9, 9))
def test_filters_joins_and_sums_give_what_plain_python_gives(left: Any, right: Any, least: int) -> None:
    results = {"step1": {"a": left}, "step2": {"b": right}}

    def value(expression: str) -> Any:
        return resolve_references("${" + expression + "}", results)

    assert value(f'where(step1.a, "n", ">=", {least})') == [row for row in left if row["n"] >= least]
    pairs = [(one, other) for one in left for other in right if one["k"] == other["k"]]
    joined = 'join(step1.a, "k", step2.b, "k")'
    assert value(f'pluck({joined}, "n_2")') == [other["n"] for _, other in pairs]
    total = value(f'sum_products(pluck({joined}, "n"), pluck({joined}, "n_2"))')
    assert total == sum(one["n"] * other["n"] for one, other in pairs)
    between = value('where(step1.a, "d", "between", "1900-01-01", "2100-01-01")')
    assert between == [row for row in left if "1900-01-01" <= row["d"] <= "2100-01-01"]


def test_a_join_that_would_grow_without_bound_is_refused() -> None:
    rows = [{"k": 1}] * 101  # 101 * 101 pairs
    with pytest.raises(PlaceholderError, match="over 10000 items"):
        resolve_references('${join(step1.a, "k", step1.a, "k")}', {"step1": {"a": rows}})


@pytest.mark.parametrize(
    ("expression", "leaves"),
    [
        ("step1.close - step2.close", [187.2, 0.1]),
        ('sum(pluck(where(step3.rows, "tons", "<", 20), "tons"))', [5, 12]),
        ('count(where(step3.rows, "port", "=", "Oslo"))', ["Aurora", "Borealis"]),
        ('max_by(step3.rows, "tons").name', ["Borealis"]),
        ("step1.close >= 100", [187.2]),
        ("round(2.5)", []),
    ],
)
def test_the_leaves_of_an_expression_are_what_its_value_is_of(expression: str, leaves: list[Any]) -> None:
    assert [read.value for read in leaves_read("${" + expression + "}", RESULTS)] == leaves
