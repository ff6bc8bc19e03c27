"""The charts of a report as plotly figures in plain JSON.

Colours are names of CSS custom properties (`--series-1`); the page resolves them for light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml
from pydantic import Field

from mcpagent.core.records import JsonObject, Record
from mcpagent.evaluate.report.assets import asset
from mcpagent.evaluate.report.numbers import number, percent
from mcpagent.evaluate.report.run_data import RunView
from mcpagent.reward.rule import WEIGHTS

TREND_STEPS = 5  # trailing mean, drawn over the raw points
_ZERO = 1e-6  # of rates and nats: less is the noise of float32
COLOURS = tuple(f"--series-{i}" for i in range(1, 4))


@dataclass(frozen=True)
class ChartSpec:
    """The specification of a chart: the keys of its lines in metrics.jsonl and their names."""

    title: str
    note: str
    lines: Mapping[str, str]
    percent: bool = False
    trend: bool = False
    sparse: bool = False  # only some steps have a value
    without: str = ""  # the chart is for runs that do not have this metric


class Curve(Record):
    """One series of a chart: `values` has one entry a step, None if the step did not report one."""

    metric: str
    label: str
    values: tuple[float | None, ...]


class Chart(Record):
    """A chart of the page. `summary` says in words what it shows, for readers who cannot see it; `figure` is
    for plotly and no part of the JSON document."""

    id: str
    title: str
    note: str
    summary: str
    is_rate: bool
    curves: tuple[Curve, ...]
    is_zero: bool = False  # at every step, but for what rounding leaves
    figure: JsonObject = Field(exclude=True, default={})


CHARTS = {name: ChartSpec(**spec) for name, spec in yaml.safe_load(asset("charts.yaml")).items()}


def charts(run: RunView) -> list[Chart]:
    """Return the charts for which the run has numbers, in reading order."""
    steps = [int(row["step"]) for row in run.steps]
    drawn: list[Chart] = []
    for chart_id, spec in CHARTS.items():
        lines = _lines(run, spec)
        if chart_id == "success" and len(lines) == 2 and lines[0][0].values == lines[1][0].values:
            lines = lines[:1]  # nothing dropped out: both are the same curve
        if lines and not (spec.without and run.values(spec.without)):
            drawn.append(_chart(chart_id, spec, steps, lines))
    return drawn


def _lines(run: RunView, spec: ChartSpec) -> list[tuple[Curve, str]]:
    """Return the curves of which a step reported a value, each with its colour."""
    lines = [
        (Curve(metric=metric, label=label, values=tuple(run.series(metric))), colour)
        for (metric, label), colour in zip(spec.lines.items(), COLOURS, strict=False)
    ]
    return [line for line in lines if any(value is not None for value in line[0].values)]


def term_weights(run: RunView) -> dict[str, float]:
    """Return the weights of the reward terms that the run was trained with, without those of 0."""
    reward = run.config.get("reward")
    changed = reward.get("weights") if isinstance(reward, dict) else None
    weights = {**WEIGHTS, **(changed if isinstance(changed, dict) else {})}
    return {name: float(w) for name, w in weights.items() if isinstance(w, int | float) and w}


def _chart(chart_id: str, spec: ChartSpec, steps: list[int], lines: Sequence[tuple[Curve, str]]) -> Chart:
    curves = tuple(curve for curve, _ in lines)
    traces = [trace for line in lines for trace in _traces(spec, *line, steps, alone=len(lines) == 1)]
    shown = [value for curve in curves for value in curve.values if value is not None]
    layout = _layout(is_rate=spec.percent, legend=len(lines) > 1, shown=shown)
    layout["xaxis"]["range"] = [steps[0] - 0.7, steps[-1] + 0.7]  # the same on every chart
    return Chart(
        id=chart_id,
        title=spec.title,
        note=spec.note,
        summary=_summary(spec, steps, curves),
        is_rate=spec.percent,
        curves=curves,
        is_zero=max(map(abs, shown)) < _ZERO,
        figure={"data": traces, "layout": layout},
    )


def trailing_mean(values: Sequence[float | None], width: int = TREND_STEPS) -> list[float | None]:
    """Return the mean of the reported values among the last `width` steps; None if there are none."""
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        window = [v for v in values[max(0, end - width) : end] if v is not None]
        means.append(sum(window) / len(window) if window else None)
    return means


def fitting_axis(rates: Sequence[float]) -> list[float]:
    """Return an axis that the rates fill: a little beyond them, within 0 to 1, a point at least."""
    low, high = min(rates), max(rates)
    room = max(0.08 * (high - low), (0.01 - (high - low)) / 2)
    bottom, top = max(0.0, low - room), min(1.0, high + room)
    return [min(bottom, 0.99), max(top, 0.01)]


def _traces(spec: ChartSpec, curve: Curve, colour: str, steps: list[int], *, alone: bool) -> list[JsonObject]:
    hover = "%{y:.1%}" if spec.percent else "%{y:,.7~f}"
    common: JsonObject = {"type": "scatter", "x": steps, "name": curve.label, "hovertemplate": hover}
    line: JsonObject = {
        **common,
        "mode": "lines+markers",  # no line would show a point between gaps
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 4},
    }
    if not spec.trend:
        return [{**line, "y": list(curve.values), "connectgaps": spec.sparse}]
    trend: JsonObject = {**line, "y": trailing_mean(curve.values)}
    if not alone:
        return [trend]
    marker: JsonObject = {"color": colour, "size": 5, "opacity": 0.45}
    points: JsonObject = {**common, "mode": "markers", "y": list(curve.values), "marker": marker}
    return [points, {**trend, "name": f"mean of {TREND_STEPS}", "mode": "lines"}]


def _layout(*, is_rate: bool, legend: bool, shown: Sequence[float]) -> JsonObject:
    axis: JsonObject = {
        "gridcolor": "--grid",
        "linecolor": "--grid",
        "zeroline": False,
        "fixedrange": True,
        "automargin": True,
    }
    # Plain digits: a reader takes "6µ" for a name, and "0.5p" for a rate.
    y: JsonObject = {**axis, "rangemode": "tozero", "nticks": 6, "exponentformat": "none"}
    if is_rate:
        y |= {"tickformat": ".2~%", "range": fitting_axis(shown)}  # half a percent is not "0%"
    return {
        "height": 240,
        "margin": {"l": 8, "r": 12, "t": 26 if legend else 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "--font", "size": 12, "color": "--muted"},
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "--card", "bordercolor": "--grid", "font": {"color": "--ink"}},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        "xaxis": {**axis, "showgrid": False, "nticks": 8, "title": {"text": "step", "standoff": 6}},
        "yaxis": y,
    }


def _summary(spec: ChartSpec, steps: list[int], curves: Sequence[Curve]) -> str:
    parts: list[str] = []
    for curve in curves:
        reported = [(s, v) for s, v in zip(steps, curve.values, strict=True) if v is not None]
        (first, start), (last, end) = reported[0], reported[-1]
        show = percent if spec.percent else number
        parts.append(f"{curve.label} {show(start)} at step {first}, {show(end)} at step {last}")
    return f"{spec.title}: {'; '.join(parts)}"
