"""The charts of a report as plotly figures in plain JSON.

Colours are names of CSS custom properties (`--series-1`); the page resolves them for light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.evaluate.report.run_data import RunView, number, percent
from mcpagent.evaluate.report.verdicts import kl_limit

TREND_STEPS = 5  # trailing mean, drawn over the raw points


@dataclass(frozen=True)
class Line:
    """One series of a chart: its key in metrics.jsonl, its name in the legend, its colour."""

    key: str
    label: str
    colour: str = "--series-1"


@dataclass(frozen=True)
class ChartSpec:
    """What a chart shows and how it is drawn."""

    title: str
    note: str
    lines: tuple[Line, ...]
    percent: bool = False
    trend: bool = False
    bars: bool = False
    sparse: bool = False  # only some steps have a value
    without: str = ""  # the chart is for runs that do not have this metric


@dataclass(frozen=True)
class Chart:
    """A chart of the page. `summary` says in words what it shows, for readers who cannot see it."""

    id: str
    title: str
    note: str
    summary: str
    figure: JsonObject


CHARTS: dict[str, ChartSpec] = {
    "loss": ChartSpec(
        "Loss",
        f"Nats per token of the demonstrations; the line is the mean of the last {TREND_STEPS} steps.",
        (Line("loss", "loss"),),
        trend=True,
        without="reward_mean",
    ),
    "reward": ChartSpec(
        "Reward",
        f"Mean over a step's scored episodes; the line is the mean of the last {TREND_STEPS} steps.",
        (Line("reward_mean", "reward"),),
        trend=True,
    ),
    "success": ChartSpec(
        "Success while training",
        "Share of sampled training episodes that succeed; exploration is on, so this is not the greedy rate.",
        (Line("success_rate", "scored episodes"), Line("success_rate_all", "all", "--series-2")),
        percent=True,
        trend=True,
    ),
    "validation": ChartSpec(
        "Success on validation tasks",
        "Greedy, while training; unscored episodes count as failed.",
        (Line("validation_success_all", "validation"),),
        percent=True,
        sparse=True,
    ),
    "complexity": ChartSpec(
        "Success by complexity",
        f"Sampled training episodes, mean of the last {TREND_STEPS} steps.",
        (
            Line("success_simple", "simple", "--series-1"),
            Line("success_moderate", "moderate", "--series-2"),
            Line("success_complex", "complex", "--series-3"),
        ),
        percent=True,
        trend=True,
    ),
    "kl": ChartSpec(
        "KL to the reference",
        "Nats per token; the dotted line is the limit of the verdict.",
        (Line("kl", "KL"),),
    ),
    "clip": ChartSpec(
        "Clip fraction",
        "Share of tokens whose probability ratio was clipped.",
        (Line("clip_fraction", "clipped"),),
        percent=True,
    ),
    "mismatch": ChartSpec(
        "Sampler and trainer",
        "How far their logprobs are apart at the same weights, nats per token.",
        (
            Line("logprob_drift_mean", "mean", "--series-1"),
            Line("logprob_drift_p99", "99th percentile", "--series-2"),
        ),
    ),
    "entropy": ChartSpec(
        "Entropy", "Nats per token of the sampling distribution.", (Line("entropy", "entropy"),)
    ),
    "gradient": ChartSpec("Gradient norm", "Before clipping.", (Line("grad_norm", "gradient norm"),)),
    "uniform": ChartSpec(
        "Uniform groups",
        "Groups whose attempts all earned the same reward: they carry no gradient.",
        (Line("uniform_groups", "uniform groups"),),
    ),
    "drift": ChartSpec(
        "Drift of tokens",
        "Share of one episode's context that a rendering of its messages would have written otherwise.",
        (Line("drift_share", "drift"),),
        percent=True,
    ),
    "cost": ChartSpec(
        "Cost per step",
        "CPU seconds.",
        (
            Line("rollout_cpu_s", "rollouts", "--series-1"),
            Line("update_cpu_s", "update", "--series-2"),
        ),
        bars=True,
    ),
    "memory": ChartSpec("Memory", "Resident memory of the process, MB.", (Line("rss_mb", "resident"),)),
}


def charts(run: RunView) -> list[Chart]:
    """The charts for which the run has numbers, in reading order."""
    steps = [int(row["step"]) for row in run.steps]
    drawn: list[Chart] = []
    for chart_id, spec in CHARTS.items():
        lines = [(line, run.series(line.key)) for line in spec.lines]
        lines = [(line, values) for line, values in lines if any(v is not None for v in values)]
        if chart_id == "success" and len(lines) == 2 and lines[0][1] == lines[1][1]:
            lines = lines[:1]  # nothing dropped out: both are the same curve
        if spec.without and run.values(spec.without):
            continue
        if lines:
            limit = kl_limit(run) if chart_id == "kl" else None
            drawn.append(_chart(chart_id, spec, steps, lines, limit=limit))
    return drawn


def trailing_mean(values: Sequence[float | None], width: int = TREND_STEPS) -> list[float | None]:
    """Mean of the reported values among the last `width` steps; None where there are none."""
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        window = [v for v in values[max(0, end - width) : end] if v is not None]
        means.append(sum(window) / len(window) if window else None)
    return means


def _chart(
    chart_id: str,
    spec: ChartSpec,
    steps: list[int],
    lines: list[tuple[Line, list[float | None]]],
    *,
    limit: float | None,
) -> Chart:
    traces: list[JsonObject] = []
    for line, values in lines:
        traces += _traces(spec, line, steps, values, alone=len(lines) == 1)
    layout = _layout(spec, legend=len(lines) > 1)
    layout["xaxis"]["range"] = [steps[0] - 0.7, steps[-1] + 0.7]  # the same on every chart
    if spec.percent:
        layout["yaxis"]["range"] = _fitting([v for _, values in lines for v in values if v is not None])
    # A limit far above the curve would flatten it; the note and the verdict still state it.
    peak = max((v for _, values in lines for v in values if v is not None), default=0.0)
    if limit is not None and peak >= limit / 4:
        layout["shapes"] = [_limit_line(limit)]
        layout["yaxis"]["range"] = [0, 1.1 * max(limit, peak)]
    note = spec.note
    if limit is not None and "shapes" not in layout:
        note = f"Nats per token; the limit of the verdict, {limit:g}, is above the drawing."
    return Chart(
        id=chart_id,
        title=spec.title,
        note=note,
        summary=_summary(spec, steps, lines),
        figure={"data": traces, "layout": layout},
    )


def _fitting(rates: Sequence[float]) -> list[float]:
    """An axis on which the rates fill the height: a little beyond them, within 0 to 1, a point at least."""
    low, high = min(rates), max(rates)
    room = max(0.08 * (high - low), (0.01 - (high - low)) / 2)
    bottom, top = max(0.0, low - room), min(1.0, high + room)
    return [min(bottom, 0.99), max(top, 0.01)]


def _traces(
    spec: ChartSpec, line: Line, steps: list[int], values: list[float | None], *, alone: bool
) -> list[JsonObject]:
    hover = "%{y:.1%}" if spec.percent else "%{y:.4~g}"
    common: JsonObject = {"x": steps, "name": line.label, "hovertemplate": hover}
    if spec.bars:
        return [{**common, "type": "bar", "y": values, "marker": {"color": line.colour}}]
    stroke: JsonObject = {"color": line.colour, "width": 2}
    if spec.sparse:
        reported = [(x, y) for x, y in zip(steps, values, strict=True) if y is not None]
        points = {"x": [x for x, _ in reported], "y": [y for _, y in reported], "mode": "lines+markers"}
        return [{**common, "type": "scatter", **points, "line": stroke, "marker": {"color": line.colour}}]
    if not spec.trend:
        return [{**common, "type": "scatter", "mode": "lines", "y": values, "line": stroke}]
    trend = {**common, "type": "scatter", "mode": "lines", "y": trailing_mean(values), "line": stroke}
    if not alone:
        return [trend]
    trend["name"] = f"mean of {TREND_STEPS}"
    marker: JsonObject = {"color": line.colour, "size": 5, "opacity": 0.45}
    return [{**common, "type": "scatter", "mode": "markers", "y": values, "marker": marker}, trend]


def _layout(spec: ChartSpec, *, legend: bool) -> JsonObject:
    axis: JsonObject = {
        "gridcolor": "--grid",
        "linecolor": "--grid",
        "zeroline": False,
        "fixedrange": True,
        "automargin": True,
    }
    y: JsonObject = {**axis, "rangemode": "tozero", "nticks": 6}
    if spec.percent:
        y["tickformat"] = ".2~%"  # half a percent is not "0%"
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
        "barmode": "stack",
        "xaxis": {**axis, "showgrid": False, "nticks": 8, "title": {"text": "step", "standoff": 6}},
        "yaxis": y,
    }


def _limit_line(limit: float) -> JsonObject:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": limit,
        "y1": limit,
        "line": {"color": "--fail", "width": 1.5, "dash": "dot"},
    }


def _summary(spec: ChartSpec, steps: list[int], lines: list[tuple[Line, list[float | None]]]) -> str:
    parts: list[str] = []
    for line, values in lines:
        reported = [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]
        (first, start), (last, end) = reported[0], reported[-1]
        show = percent if spec.percent else number
        parts.append(f"{line.label} {show(start)} at step {first}, {show(end)} at step {last}")
    return f"{spec.title}: {'; '.join(parts)}"
