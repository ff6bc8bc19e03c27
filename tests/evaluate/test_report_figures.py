from __future__ import annotations

import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest

from mcpagent.evaluate.report_figures import charts, trailing_mean
from mcpagent.evaluate.report_run import RunView
from tests.evaluate.run_folder import step_row


def _run(rows: list[dict[str, object]], **parts: object) -> RunView:
    return RunView(path=Path("run"), steps=rows, **parts)  # pyright: ignore[reportArgumentType]


def _resolved(figure: dict[str, object]) -> dict[str, object]:
    """As the page resolves it: every custom property is some colour or font."""
    text = json.dumps(figure).replace('"--font"', '"sans-serif"')
    for name in ("series-1", "series-2", "series-3", "grid", "muted", "ink", "card", "fail"):
        text = text.replace(f'"--{name}"', '"#123456"')
    assert '"--' not in text
    return json.loads(text)


def test_every_figure_is_valid_for_plotly() -> None:
    drawn = charts(_run([step_row(i) for i in range(1, 31)]))
    assert [c.id for c in drawn] == [
        "reward", "success", "complexity", "kl", "clip", "entropy", "gradient", "uniform", "drift", "cost",
        "memory",
    ]  # fmt: skip
    for chart in drawn:
        go.Figure(_resolved(chart.figure))  # raises on an unknown or misplaced property


def test_every_colour_of_a_figure_is_defined_by_the_page_for_both_schemes() -> None:
    css = (Path("mcpagent/evaluate/assets/report.css")).read_text()
    light, dark = css.split("@media (prefers-color-scheme: dark)")[:2]
    drawn = charts(_run([step_row(i) for i in range(1, 31)]))
    used = {name for c in drawn for name in re.findall(r'"(--[a-z0-9-]+)"', json.dumps(c.figure))}
    assert len(used) >= 6
    for name in used:
        assert f"{name}:" in light
        assert name == "--font" or f"{name}:" in dark


def test_a_metric_that_no_step_reports_has_no_chart() -> None:
    assert [c.id for c in charts(_run([{"step": 1, "kl": 0.1}, {"step": 2}]))] == ["kl"]


def test_a_missing_or_infinite_value_is_a_gap_and_not_a_zero() -> None:
    rows = [
        {"step": 1, "entropy": 0.5},
        {"step": 2},
        {"step": 3, "entropy": float("nan")},
        {"step": 4, "entropy": 0.2},
    ]
    (chart,) = charts(_run(rows))
    assert chart.figure["data"][0]["y"] == [0.5, None, None, 0.2]
    assert chart.summary == "Entropy: entropy 0.500 at step 1, 0.200 at step 4"


def test_the_kl_limit_is_drawn_where_the_curve_comes_near_it() -> None:
    (near,) = charts(_run([{"step": 1, "kl": 0.2}]))
    (far,) = charts(_run([{"step": 1, "kl": 0.01}]))
    assert near.figure["layout"]["shapes"][0]["y0"] == 0.5
    assert "shapes" not in far.figure["layout"]
    assert "0.5" in far.note


def test_trailing_mean_looks_back_only_and_skips_gaps() -> None:
    # width 3: [1], [1, 2], [1, 2], [2, 6], [6, 10] without the gap at the third place
    assert trailing_mean([1.0, 2.0, None, 6.0, 10.0], 3) == pytest.approx([1.0, 1.5, 1.5, 4.0, 8.0])
    assert trailing_mean([None, None], 3) == [None, None]
