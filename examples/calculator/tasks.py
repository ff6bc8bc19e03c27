"""The author's questions as records: the gold plan is one nested calculation, that of the expression."""

from __future__ import annotations

import ast
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.calculator.server import SERVER, Calculation, calculate
from mcpagent import Task, UserError

TOLERANCE = 0.1  # the author's, absolute
_ROOT = Path(__file__).resolve().parents[2]  # where `examples` can be imported
_SYSTEM = 'End your last message with one line "Answer: ...", or "Answer: none" if the tools cannot tell.'
_FORM = 'End with "Answer: " and a number.'
_NAMES: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}


def write_dataset(train: Path, heldout: Path, out: Path) -> dict[str, int]:
    """Write `train.jsonl`, `heldout.jsonl` and `mcp.json` to `out`, and return how many tasks each file has.
    A question of training whose expression is held out too is left out. Raises UserError before it writes."""
    asked = [*rows(heldout)]
    shared = {_plain(expression) for _, expression, _ in asked}
    sides = {"train": [row for row in rows(train) if _plain(row[1]) not in shared], "heldout": asked}
    made = {
        side: [task(f"{side}-{number}", *row) for number, row in enumerate(chosen, start=1)]
        for side, chosen in sides.items()
    }
    entry = {"command": sys.executable, "args": ["-m", "examples.calculator.server"], "cwd": str(_ROOT)}
    files = {
        f"{side}.jsonl": [each.model_dump_json(exclude_unset=True) for each in of]
        for side, of in made.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in {**files, "mcp.json": [json.dumps({"mcpServers": {SERVER: entry}}, indent=2)]}.items():
        (out / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return {name: len(lines) for name, lines in files.items()}


def rows(file: Path) -> Iterator[tuple[str, str, float]]:
    """Yield question, expression and answer of each row of a CSV file whose first row names the columns. Five
    rows of the author's repeat the expression as their answer and are left out. Raises UserError."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            for number, row in enumerate(csv.reader(lines, skipinitialspace=True)):
                question, expression, answer = row
                if number and _plain(expression) != _plain(answer):
                    yield question, expression, float(answer)
    except (OSError, ValueError) as error:
        remedy = "give the author's file: question, expression, answer"
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError(said, where=str(file), remedy=remedy) from error


def task(task_id: str, question: str, expression: str, answer: float) -> Task:
    """Return a question as a record, right within the author's tolerance. Raises UserError if the calculator
    gives something else."""
    parsed = _parsed(expression)
    operations = sum(isinstance(node, ast.BinOp) for node in ast.walk(parsed))
    plan = nested(parsed)
    gold = Calculation.model_validate(plan)
    try:
        is_right = abs(calculate(gold.operation, gold.operands) - answer) <= TOLERANCE
    except ZeroDivisionError:
        is_right = False
    if not is_right:
        raise UserError(f"{expression} is not {answer}", where=question)
    step = {"step": 1, "server": SERVER, "tool": "calculate", "params": plan}
    truth = {
        "task_id": task_id,
        "complexity": "simple" if operations == 1 else "moderate" if operations <= 3 else "complex",
        "max_turns": 4,
        "success": {"must_call_tool": f"{SERVER}.calculate"},
        "tool_sequence": [step],
        "final_answer": {"type": "number", "value": answer, "tolerance": TOLERANCE},
        "answer_line": True,
    }
    return Task.model_validate(
        {
            "data_source": "calculator",
            "prompt": [
                {"role": "system", "content": f"Answer with the help of this tool.\n{_SYSTEM}"},
                {"role": "user", "content": f"{question}\n{_FORM}"},
            ],
            "reward_spec": {"ground_truth": truth},
            "extra_info": {
                "tools": [f"{SERVER}.calculate"],
                "generator": "examples/calculator",
                "class": f"{operations} operation{'s' if operations > 1 else ''}",
            },
        }
    )


def nested(node: ast.expr) -> Any:
    """Return an expression as the tool takes it; a chain of one operation, from the left, is one."""
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in _NAMES:
            name = _NAMES[type(operator)]
            first = nested(left)
            is_same = isinstance(first, dict) and first["operation"] == name
            return {
                "operation": name,
                "operands": [*(first["operands"] if is_same else [first]), nested(right)],
            }
        case ast.Constant(int() | float() as value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case _:
            raise UserError(f"is no calculation of numbers: {ast.unparse(node)}", where="expression")


def _parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise UserError(f"is no calculation: {expression!r}", where="expression") from error


def _plain(expression: str) -> str:
    return expression.replace(" ", "")
