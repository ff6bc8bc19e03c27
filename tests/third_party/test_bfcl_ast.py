"""BFCL's AST checker and our matching of arguments, on every row whose functions are Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.third_party.bfcl import fetch_package
from tests.third_party.bfcl_ast import (
    CATEGORIES,
    Verdicts,
    compare,
    damages,
    explained,
    rows,
    valid_in_another_order,
)

pytestmark = pytest.mark.bfcl
_ITS_OWN = "theirs: its own right answer is not valid"
_ORDER = "theirs: matched greedily, the calls are right in another order only"
# What docs/evaluation.md says of 76,882 cases.
EXPECTED = {
    "both: right": 11955,
    "both: wrong": 51406,
    "ours: case, spaces, quotes and punctuation of a text count": 7695,
    "ours: the text is not one that the schema lists": 2792,
    "theirs: 5.0 is no integer, and in a list 5 is no float (they are in JSON Schema)": 1938,
    "theirs: numbers are equal to the last digit": 507,
    "ours: null is acceptable in the row, and no type of the schema": 369,
    "ours: the right call of the row breaks the schema of its own function": 175,
    _ITS_OWN: 19,
    "ours: the mark of an optional argument is no value that it may have": 13,
    "theirs: in an object without types a number as text is a text": 9,
    "theirs: a space around a text in a list inside an object counts": 2,
    "theirs: null has to be written": 1,
    _ORDER: 1,
}


@pytest.fixture(scope="module")
def package(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return fetch_package(pytestconfig.cache.mkdir("third_party") / "bfcl")


def test_every_difference_from_bfcls_ast_checker_is_of_a_known_kind(package: Path) -> None:
    every = list(rows(package))
    assert Counter(row.category for row in every).keys() == set(CATEGORIES)
    assert len(every) == 2351
    cases = compare(package, [(row, damaged) for row in every for damaged in damages(row)])
    its_own = {case.row.id for case in cases if case.damaged.kind == "right" and not case.theirs}
    counted: Counter[str] = Counter()
    for case in cases:
        why = _why(package, case, its_own)
        counted[why] += 1
    _show(cases, counted)
    assert counted == EXPECTED


def _why(package: Path, case: Verdicts, its_own: set[str]) -> str:
    if case.ours == case.theirs:
        return f"both: {'right' if case.ours else 'wrong'}"
    if case.ours and case.row.id in its_own:
        return _ITS_OWN
    if why := explained(case):
        return why
    is_greedy = case.ours and len(case.damaged.calls) <= 5 and valid_in_another_order(package, case)
    return _ORDER if is_greedy else f"not explained: {case.row.id}, {case.damaged}, {case.error}"


def _show(cases: list[Verdicts], counted: Counter[str]) -> None:
    """The table of docs/evaluation.md, with -s."""
    kinds: dict[str, Counter[tuple[bool, bool]]] = {}
    for case in cases:
        kinds.setdefault(case.damaged.kind.rpartition(": ")[2], Counter())[case.ours, case.theirs] += 1
    print(f"\n{'':42} both right, both wrong, ours only, theirs only")
    for kind, n in sorted(kinds.items()):
        cells = (n[True, True], n[False, False], n[True, False], n[False, True])
        print(f"{kind:42} " + " ".join(f"{cell:8}" for cell in cells))
    for why, count in counted.most_common():
        print(f"{count:8} {why}")
