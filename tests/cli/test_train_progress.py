"""What a person sees while a run trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.cli.train_progress import TrainProgress, step_row
from mcpagent.config.loader import load_train_config
from mcpagent.console import Console
from mcpagent.run.lifecycle import TrainOutcome


def test_the_columns_of_a_long_fast_run_stay_apart() -> None:
    record = {"step": 12, "loss": 0.25, "tokens": 70_441, "episodes": 0}
    row = step_row(record, seconds=1.0)
    assert row.split() == ["12", "0.2500", "70441"]
    slow = step_row({**record, "tokens": 9}, seconds=1.0)
    assert len(slow) == len(row)


def shown(capsys: pytest.CaptureFixture[str], *, done: int, total: int, steps: int) -> str:
    config = load_train_config([], ["algorithm=sft"]).config
    with TrainProgress(config, Console()) as progress:
        progress.watch.on_start(done, total)
        for step in range(done + 1, done + steps + 1):
            progress.watch.on_step({"step": step, "loss": 1.0})
    return capsys.readouterr().err


def test_a_resumed_run_counts_from_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert "4/6" in shown(capsys, done=3, total=6, steps=1)


def test_a_run_that_has_taken_more_steps_than_it_has_shows_no_such_fraction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = shown(capsys, done=10, total=8, steps=0)
    assert "10/8" not in said
    assert "has taken 10 of its 8 steps; raise training.max_steps to continue" in said


def test_long_parts_show_how_far_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_train_config([], ["training.batch_size=1", "rollout.group_size=2"]).config
    with TrainProgress(config, Console(line_interval_s=0.01)) as progress:
        watch = progress.watch

        def told(what: str, total: int, expected: str) -> None:
            for done in range(total):
                watch.on_part(what, done, total)
            said = ""
            while expected not in said:  # the next line comes by itself
                said += capsys.readouterr().err

        told("evaluating", 3, "evaluating: 2/3 after ")
        watch.on_start(0, 2)
        told("updating", 8, "GRPO: 0/2 after 0 s updating 7/8")
        watch.on_step({"step": 1, "reward_mean": 0.5, "success_rate_all": 0.25, "unscored": 0})
        told("updating", 8, "reward 0.50  success 25%  updating 7/8")


def outcome(*, steps: int, success: float | None) -> TrainOutcome:
    folder = Path("outputs/run")
    return TrainOutcome(
        run_dir=folder,
        steps=steps,
        best_checkpoint=folder,
        last_checkpoint=folder,
        metrics={},
        stop_reason="completed",
        success=success,
    )


def test_a_short_run_that_succeeds_at_nothing_says_that_so_few_steps_teach_nothing() -> None:
    advice = outcome(steps=6, success=0.0).advice
    assert advice is not None and "6 steps" in advice and "training.max_steps" in advice
    assert outcome(steps=6, success=0.1).advice is None
    assert outcome(steps=6, success=None).advice is None
    assert outcome(steps=600, success=0.0).advice is None
