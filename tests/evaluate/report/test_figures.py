from __future__ import annotations

import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest

from mcpagent.core.records import JsonObject
from mcpagent.evaluate.report.figures import Chart, charts, trailing_mean
from mcpagent.evaluate.report.run_data import RunView
from tests.evaluate.run_folder import step_row


def _charts(rows: list[JsonObject]) -> dict[str, Chart]:
    return {chart.id: chart for chart in charts(RunView(path=Path("run"), steps=rows))}


def _resolved(figure: dict[str, object]) -> dict[str, object]:
    """As the page resolves it: every custom property is some colour or font."""
    text = json.dumps(figure).replace('"--font"', '"sans-serif"')
    for name in ("series-1", "series-2", "series-3", "grid", "muted", "ink", "card", "fail"):
        text = text.replace(f'"--{name}"', '"#123456"')
    assert '"--' not in text
    return json.loads(text)


def test_every_figure_is_valid_for_plotly() -> None:
    drawn = _charts([step_row(i) for i in range(1, 31)])
    assert list(drawn) == [
        "reward", "success", "complexity", "kl", "clip", "entropy", "gradient", "uniform_share", "drift",
        "cost", "memory",
    ]  # fmt: skip
    for chart in drawn.values():
        go.Figure(_resolved(chart.figure))  # raises on an unknown or misplaced property


def test_every_colour_of_a_figure_is_defined_by_the_page_for_both_schemes() -> None:
    css = (Path("mcpagent/evaluate/assets/report.css")).read_text()
    light, dark = css.split("@media (prefers-color-scheme: dark)")[:2]
    drawn = _charts([step_row(i) for i in range(1, 31)])
    used = {name for c in drawn.values() for name in re.findall(r'"(--[a-z0-9-]+)"', json.dumps(c.figure))}
    assert len(used) >= 6
    for name in used:
        assert f"{name}:" in light
        assert name == "--font" or f"{name}:" in dark


def test_a_metric_that_no_step_reports_has_no_chart() -> None:
    assert list(_charts([{"step": 1, "kl": 0.1}, {"step": 2}])) == ["kl"]


def test_a_missing_or_infinite_value_is_a_gap_and_not_a_zero() -> None:
    rows: list[JsonObject] = [
        {"step": 1, "entropy": 0.5},
        {"step": 2},
        {"step": 3, "entropy": float("nan")},
        {"step": 4, "entropy": 0.2},
    ]
    chart = _charts(rows)["entropy"]
    assert chart.figure["data"][0]["y"] == [0.5, None, None, 0.2]
    assert chart.summary == "Entropy: entropy 0.500 at step 1, 0.200 at step 4"


def test_a_point_between_gaps_is_a_mark() -> None:
    rows: list[JsonObject] = [{"step": 1, "entropy": 0.5}, {"step": 2}, {"step": 3, "entropy": 0.5}]
    (trace,) = _charts(rows)["entropy"].figure["data"]
    assert trace["mode"] == "lines+markers" and not trace["connectgaps"]


def test_trailing_mean_looks_back_only_and_skips_gaps() -> None:
    # width 3: [1], [1, 2], [1, 2], [2, 6], [6, 10] without the gap at the third place
    assert trailing_mean([1.0, 2.0, None, 6.0, 10.0], 3) == pytest.approx([1.0, 1.5, 1.5, 4.0, 8.0])
    assert trailing_mean([None, None], 3) == [None, None]


def test_a_supervised_run_has_its_loss_and_grpo_does_not() -> None:
    rows: list[JsonObject] = [{"step": i, "loss": 2.0 / i, "grad_norm": 1.0} for i in range(1, 9)]
    chart = _charts(rows)["loss"]
    assert chart.figure["data"][0]["y"] == [2.0 / i for i in range(1, 9)]
    assert "loss 2.000 at step 1, 0.250 at step 8" in chart.summary
    assert "loss" not in _charts([{**row, "reward_mean": 0.1} for row in rows])


def test_an_axis_of_rates_fits_the_rates() -> None:
    for rates, within in (([0.0, 0.0], 0.02), ([0.002, 0.004], 0.02), ([0.4, 0.44], 0.1), ([1.0, 1.0], 0.02)):
        rows: list[JsonObject] = [{"step": i, "drift_share": rate} for i, rate in enumerate(rates, 1)]
        low, high = _charts(rows)["drift"].figure["layout"]["yaxis"]["range"]
        assert 0.0 <= low <= min(rates) and max(rates) <= high <= 1.0 and high - low <= within


def test_success_has_a_second_curve_only_where_episodes_dropped_out() -> None:
    same: list[JsonObject] = [{"step": i, "success_rate": 0.5, "success_rate_all": 0.5} for i in (1, 2)]
    assert len({trace["name"] for trace in _charts(same)["success"].figure["data"]} - {"mean of 5"}) == 1
    lost: list[JsonObject] = [*same, {"step": 3, "success_rate": 0.9, "success_rate_all": 0.3}]
    assert [trace["name"] for trace in _charts(lost)["success"].figure["data"]] == ["scored episodes", "all"]


def test_validations_are_points_at_the_steps_that_had_one() -> None:
    rows: list[JsonObject] = [{"step": i} for i in range(1, 5)]
    rows[1]["validation_success_all"], rows[3]["validation_success_all"] = 0.25, 0.5
    (trace,) = _charts(rows)["validation"].figure["data"]
    assert (trace["y"], trace["connectgaps"]) == ([None, 0.25, None, 0.5], True)
