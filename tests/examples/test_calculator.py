"""A public task of arithmetic as tasks: what is right is told by exact fractions, on the real server."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.calculator.__main__ import is_right, judged
from examples.calculator.tasks import write_dataset
from mcpagent.cli.main import load_app
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.errors import UserError
from mcpagent.storage.datasets import read_tasks


def _expressions(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)

    def term(depth: int) -> str:
        if depth == 0 or rng.random() < 0.3:
            return str(rng.choice([rng.randint(2, 900), round(rng.uniform(1, 99), 1)]))
        inner = f"{term(depth - 1)} {rng.choice('+-*/')} {term(depth - 1)}"
        return f"({inner})" if rng.random() < 0.6 else inner

    return [f"{term(2)} {rng.choice('+-*/')} {term(2)}" for _ in range(count)]


def _exact(expression: str) -> float:
    return float(eval(re.sub(r"[\d.]+", r"Fraction('\g<0>')", expression), {"Fraction": Fraction}))


def _file(path: Path, rows: Sequence[tuple[str, str, object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines).writerows([("question", "expression", "answer"), *rows])
    return path


def _validated(file: Path) -> dict[str, object]:
    servers = str(file.with_name("mcp.json"))
    arguments = ["validate", str(file), "--execute", "--servers", servers, "--json"]
    return json.loads(CliRunner().invoke(load_app("data"), arguments).stdout)


def test_the_calculator_gives_every_expression_its_exact_value(tmp_path: Path) -> None:
    """Every gold plan is played on the server, twice, and scores 1.0; an answer that is further off than the
    tolerance is refused."""
    rows = [(f"How much is it, number {n}?", e, _exact(e)) for n, e in enumerate(_expressions(3, 40))]
    rows = [row for row in rows if abs(float(str(row[2]))) < 1e9]
    heldout = _file(tmp_path / "heldout.csv", rows)
    counts = write_dataset(_file(tmp_path / "train.csv", []), heldout, tmp_path / "data")
    assert counts == {"train.jsonl": 0, "heldout.jsonl": len(rows)}
    assert _validated(tmp_path / "data" / "heldout.jsonl")["valid"] == len(rows)
    for question, expression, value in rows:
        wrong = _file(tmp_path / "wrong.csv", [(question, expression, float(str(value)) + 0.2)])
        with pytest.raises(UserError, match="is not"):
            write_dataset(tmp_path / "train.csv", wrong, tmp_path / "wrong")


def test_what_is_held_out_or_has_no_answer_is_not_trained_on(tmp_path: Path) -> None:
    train = [("What is 2 + 3?", "2+3", 5.0), ("Add 7 and 8", "7 + 8", 15.0), ("And 9*9?", "9*9", "9 * 9")]
    heldout = [("What is the sum of 2 and 3?", "2 + 3", 5.0)]
    files = _file(tmp_path / "train.csv", train), _file(tmp_path / "heldout.csv", heldout)
    assert write_dataset(*files, tmp_path / "data") == {"train.jsonl": 1, "heldout.jsonl": 1}
    [task] = read_tasks(tmp_path / "data" / "train.jsonl")
    assert task.prompt[-1].content.startswith("Add 7 and 8")


@pytest.mark.parametrize(
    "row",
    [("Two words", "2+2", "many"), ("Who?", "open('x')", 4.0), ("?", "2 +", 4.0), ("?", "4 / (2 - 2)", 4.0)],
)
def test_a_row_that_is_no_calculation_is_named(tmp_path: Path, row: tuple[str, str, object]) -> None:
    good = _file(tmp_path / "train.csv", [])
    with pytest.raises(UserError):
        write_dataset(good, _file(tmp_path / "bad.csv", [row]), tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("message", "answer", "right"),
    [
        ("It is 42", 42.0, True),
        ("First 43, then 42", 43.0, False),
        ("The total is 1,234,567.", 1234567.0, True),
        ("About .5", 0.5, True),
        ("-42", -42.0, True),
        ("4.2E1", 42.0, True),
        ("Answer: 42.05", 42.0, True),
        ("Answer: 42.2", 42.0, False),
        ("I do not know", 42.0, False),
        ("", 0.0, False),
    ],
)
def test_the_authors_verdict_reads_the_last_number(message: str, answer: float, right: bool) -> None:
    assert is_right(message, answer) is right


def test_the_verdict_does_not_ask_for_a_call_but_for_the_tasks_that_were_played(tmp_path: Path) -> None:
    heldout = _file(tmp_path / "heldout.csv", [("What is 2 + 3?", "2+3", 5.0)])
    write_dataset(_file(tmp_path / "train.csv", []), heldout, tmp_path / "data")
    [task] = read_tasks(tmp_path / "data" / "heldout.jsonl")
    name = task.truth.task_id
    episodes = [
        Trajectory(
            id=f"{at}", task_id=name, group_id=name, final_answer=said, stop_reason=StopReason.ANSWERED
        )
        for at, said in enumerate(["It is 5", "It is 6", None])
    ]
    assert judged(episodes, [task]).metrics["task_success"].value == pytest.approx(1 / 3)
    with pytest.raises(UserError, match=name):
        judged(episodes, [])
