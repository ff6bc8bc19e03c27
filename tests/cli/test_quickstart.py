"""What the quickstart says at its end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from mcpagent.cli.quickstart import result_blocks
from mcpagent.console import Facts, Table
from mcpagent.evaluate.compare import compare
from mcpagent.evaluate.summary import EvalSummary, summarise
from tests.env.world import make_task
from tests.evaluate.records import trajectory
from tests.run.world import with_id

METRICS = {
    name: {"value": 0.5, "ci_low": 0.4, "ci_high": 0.6, "n": 40}
    for name in (
        *("task_success", "task_success_scored", "task_success_sampled", "task_success_sampled_scored"),
        *("tool_sequence_accuracy", "invalid_call_rate"),
    )
}


def compared(simple: int, pairs: int) -> dict[str, Any]:
    """A comparison with a warm start that solves 38 of 40 single look-ups and 4 of 40 pairs."""
    tasks = [
        with_id(make_task(), f"{kind}{n}").model_copy(update={"extra_info": {"class": kind}})
        for kind in ("simple", "pairs")
        for n in range(40)
    ]

    def side(*right: int) -> EvalSummary:
        solved = [n < of_kind for of_kind in right for n in range(40)]
        played = [trajectory(t.id, success=float(right)) for t, right in zip(tasks, solved, strict=True)]
        return summarise(played, tasks=tasks)

    return compare(side(38, 4), side(simple, pairs)).model_dump(mode="json")


DOCUMENT: dict[str, Any] = {
    "run_dir": "outputs/own",
    "warm_start": {"metrics": METRICS},
    "trained": {"metrics": METRICS},
    "tool_calls": {"trajectories": 3, "servers": None},
    "checkpoint": "outputs/own/checkpoints/step-000060",
    "report": "outputs/own/report.html",
    "comparison": {"greedy": compared(38, 30), "sampled": compared(37, 30)},
}


@pytest.mark.parametrize("servers", [None, Path("my servers/mcp.json")])
def test_the_next_commands_use_the_servers_that_were_learned(servers: Path | None) -> None:
    *_, facts = result_blocks(DOCUMENT, servers)
    assert isinstance(facts, Facts)
    (tools,) = [shlex.split(text) for _, text in facts.rows if text and "tools list" in text]
    named = [] if servers is None else ["--servers", str(servers)]
    assert tools == ["mcpagent", "tools", "list", *named]


def test_a_loss_is_said_with_where_the_better_model_is() -> None:
    worse = {**METRICS, "task_success": {"value": 0.31, "ci_low": 0.2, "ci_high": 0.4, "n": 40}}
    assert not any("lost" in str(block) for block in result_blocks(DOCUMENT, None))
    blocks = [*result_blocks({**DOCUMENT, "trained": {"metrics": worse}}, None)]
    (said,) = [block for block in blocks if isinstance(block, str) and "lost" in block]
    assert "19.0 points" in said and "outputs/own/warm_start" in said
    compare = "mcpagent eval compare outputs/own/eval/warm_start.json outputs/own/eval/trained.json"
    assert any(isinstance(block, str) and compare in block for block in blocks)


def test_classes_before_and_after_are_shown_and_one_line_says_whether_one_got_worse() -> None:
    blocks = [*result_blocks(DOCUMENT, None)]
    assert any(isinstance(each, str) and "nothing got worse (greedy: none of 3" in each for each in blocks)
    (table,) = (each for each in blocks if isinstance(each, Table) and "by part, greedy" in each.title)
    (simple,) = (row for row in table.rows if row[0] == "class simple")
    assert str(simple[1]).startswith("95.0% [") and simple[-1] == "40"
    worse = {**DOCUMENT, "comparison": {"greedy": compared(38, 30), "sampled": compared(20, 36)}}
    told = "something got worse (greedy: none of 3 parts fell; sampled: class simple −45"
    assert any(isinstance(each, str) and told in each for each in result_blocks(worse, None))


def test_a_trained_model_that_is_the_warm_start_is_called_so() -> None:
    told = "the trained model is the warm start"
    assert not any(told in str(block) for block in result_blocks(DOCUMENT, None))
    unchanged = {**DOCUMENT, "checkpoint": "outputs/own/checkpoints/step-000000"}
    assert any(told in str(block) for block in result_blocks(unchanged, None))


def test_gains_of_a_pretrained_model_are_told_against_the_better_baseline() -> None:
    gained = {"over": "untrained_2_shots_sampled", "value": 0.125, "ci_low": 0.041, "ci_high": 0.209, "n": 30}
    form = {"answer_form_rate": METRICS["task_success"], "success_in_any_form": METRICS["task_success"]}
    side = {"metrics": {**METRICS, **form}}
    sides = dict.fromkeys(("untrained", "untrained_2_shots", "warm_start", "trained"), side)
    document = {**DOCUMENT, **sides, "gains": {"trained": {"sampled": gained}}}
    blocks = [*result_blocks(document, None)]
    assert (
        "trained, sampled: +12.5 points [+4.1, +20.9] over the better baseline (untrained 2 shots, 30 tasks)"
        in blocks
    )
    assert any("a list of guesses would pass" in block for block in blocks if isinstance(block, str))
    assert any(isinstance(block, Table) and "untrained 2 shots" in block.columns for block in blocks)
