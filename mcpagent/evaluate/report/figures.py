"""The charts of a report as plotly figures in plain JSON.

Colours are names of CSS custom properties (`--series-1`); the page resolves them for light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcpagent.core.records import JsonObject, Record
from mcpagent.evaluate.report.run_data import RunView, number, percent
from mcpagent.evaluate.report.verdicts import kl_limit
from mcpagent.reward.rule import WEIGHTS

TREND_STEPS = 5  # trailing mean, drawn over the raw points
_LEVEL_STEPS = 3  # a level that a limit is a multiple of: the mean of so many steps
COLOURS = tuple(f"--series-{i}" for i in range(1, 7))


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
    limits: tuple[str, ...] = ()  # of `health` in the configuration, for the first line


class Curve(Record):
    """One series of a chart: `values` has one entry a step, None where the step did not report one."""

    metric: str
    label: str
    values: tuple[float | None, ...]


class Band(Record):
    """Where a curve is no longer healthy: above or below `edges`, one a step (None: no limit yet). Past a
    `warn` limit the run says so, past a `stop` limit it ends after some steps."""

    limit: str  # the name in `health.warn` or `health.stop`
    severity: str  # warn or stop
    side: str  # above or below
    edges: tuple[float | None, ...]


@dataclass(frozen=True)
class Chart:
    """A chart of the page. `summary` says in words what it shows, for readers who cannot see it."""

    id: str
    title: str
    note: str
    summary: str
    figure: JsonObject
    curves: tuple[Curve, ...] = ()
    bands: tuple[Band, ...] = ()
    is_rate: bool = False


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
        limits=("success_fall",),
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
        limits=("kl",),
    ),
    "update": ChartSpec(
        "KL of one update",
        "Nats per token, from the policy that sampled to the updated one.",
        (Line("approx_kl", "KL of the update"),),
        limits=("approx_kl",),
    ),
    "clip": ChartSpec(
        "Clip fraction",
        "Share of tokens whose probability ratio was clipped.",
        (Line("clip_fraction", "clipped"),),
        percent=True,
        limits=("clip_fraction",),
    ),
    "mismatch": ChartSpec(
        "Sampler and trainer",
        "How far their logprobs are apart at the same weights, nats per token.",
        (
            Line("logprob_drift_mean", "mean", "--series-1"),
            Line("logprob_drift_p99", "99th percentile", "--series-2"),
        ),
    ),
    "disagreement": ChartSpec(
        "Sampler and trainer at their worst",
        "The largest difference of their logprobs on one token, nats.",
        (Line("logprob_drift_max", "largest difference"),),
        limits=("logprob_drift",),
    ),
    "sampler_kl": ChartSpec(
        "KL of sampler and trainer",
        "Nats per token, at the same weights.",
        (Line("sampler_kl", "KL"),),
        limits=("sampler_kl",),
    ),
    "entropy": ChartSpec(
        "Entropy",
        "Nats per token of the sampling distribution.",
        (Line("entropy", "entropy"),),
        limits=("entropy_rise", "entropy_fall"),
    ),
    "gradient": ChartSpec(
        "Gradient norm",
        "Before clipping.",
        (Line("grad_norm", "gradient norm"),),
        limits=("grad_norm_rise",),
    ),
    "uniform": ChartSpec(
        "Uniform groups",
        "Groups whose attempts all earned the same reward: they carry no gradient.",
        (Line("uniform_groups", "uniform groups"),),
        without="uniform_share",
    ),
    "uniform_share": ChartSpec(
        "Uniform groups",
        "Share of the groups whose attempts all earned the same reward: they carry no gradient.",
        (Line("uniform_share", "uniform groups"),),
        percent=True,
        limits=("uniform_share",),
    ),
    "calls": ChartSpec(
        "Calls per episode",
        "Mean over a step's scored episodes.",
        (Line("calls_mean", "calls"),),
        limits=("calls_rise", "calls_fall"),
    ),
    "loops": ChartSpec(
        "Loops",
        "Share of episodes that make the same call three times or more.",
        (Line("loop_share", "loops"),),
        percent=True,
        limits=("loop_share",),
    ),
    "length": ChartSpec(
        "Length of episodes",
        "Sampled tokens per episode, mean of a step.",
        (Line("tokens_mean", "tokens"),),
        limits=("tokens_rise", "tokens_fall"),
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
    "memory": ChartSpec("Memory", "Resident memory of the process, MiB.", (Line("rss_mb", "resident"),)),
}


def charts(run: RunView) -> list[Chart]:
    """The charts for which the run has numbers, in reading order."""
    steps = [int(row["step"]) for row in run.steps]
    drawn: list[Chart] = []
    for chart_id, spec in {**CHARTS, **_of_terms(run)}.items():
        lines = [(line, run.series(line.key)) for line in spec.lines]
        lines = [(line, values) for line, values in lines if any(v is not None for v in values)]
        if chart_id == "success" and len(lines) == 2 and lines[0][1] == lines[1][1]:
            lines = lines[:1]  # nothing dropped out: both are the same curve
        if spec.without and run.values(spec.without):
            continue
        if lines:
            limit = kl_limit(run) if chart_id == "kl" else None
            bands = [band for name in spec.limits for band in _bands(run.config, name, lines[0][1])]
            drawn.append(_chart(chart_id, spec, steps, lines, limit=limit, bands=bands))
    return drawn


def term_weights(run: RunView) -> dict[str, float]:
    """The weights of the reward terms that the run was trained with, those without a weight left out."""
    reward = run.config.get("reward")
    changed = reward.get("weights") if isinstance(reward, dict) else None
    weights = {**WEIGHTS, **(changed if isinstance(changed, dict) else {})}
    return {name: float(w) for name, w in weights.items() if isinstance(w, int | float) and w}


def _of_terms(run: RunView) -> dict[str, ChartSpec]:
    """The charts of the weighted reward terms, as many as there are colours; empty for runs without them."""
    reported = {key for row in run.steps for key in row if key.startswith("reward_")}
    names = [name for name in term_weights(run) if f"reward_{name}" in reported][: len(COLOURS)]
    coloured = list(zip(names, COLOURS, strict=False))
    return {
        "terms": ChartSpec(
            "Reward terms",
            "Mean over a step's scored episodes, before their weights.",
            tuple(Line(f"reward_{name}", name, colour) for name, colour in coloured),
        ),
        "term_correlations": ChartSpec(
            "Reward terms against success",
            "Correlation of each term with success over a step's episodes; a gap where one is constant.",
            tuple(Line(f"corr_{name}", name, colour) for name, colour in coloured if name != "success"),
        ),
    }


def _bands(config: JsonObject, name: str, values: Sequence[float | None]) -> list[Band]:
    """The warning and the stopping limit `name` of the configuration's `health`, where they are set."""
    health = config.get("health")
    if not isinstance(health, dict) or health.get("enabled") is False:
        return []
    bands: list[Band] = []
    for severity in ("warn", "stop"):
        limit = (health.get(severity) or {}).get(name)
        if isinstance(limit, int | float):
            side = "below" if name.endswith("_fall") else "above"
            edges = _edges(values, float(limit), name)
            bands.append(Band(limit=name, severity=severity, side=side, edges=tuple(edges)))
    return bands


def _edges(values: Sequence[float | None], limit: float, name: str) -> list[float | None]:
    """The limit at each step: for `_rise` and `_fall` a multiple of the lowest or highest level of the steps
    before it, for the others the limit itself."""
    extreme = {"rise": min, "fall": max}.get(name.rpartition("_")[2])
    if extreme is None:
        return [limit] * len(values)
    edges: list[float | None] = []
    reported: list[float] = []
    level: float | None = None
    for value in values:
        edges.append(limit * level if level else None)  # health compares with no level of 0 either
        if value is not None:
            reported.append(value)
        if len(reported) >= _LEVEL_STEPS:
            now = sum(reported[-_LEVEL_STEPS:]) / _LEVEL_STEPS
            level = now if level is None else extreme(level, now)
    return edges


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
    bands: Sequence[Band],
) -> Chart:
    traces: list[JsonObject] = []
    for line, values in lines:
        traces += _traces(spec, line, steps, values, alone=len(lines) == 1)
    layout = layout_of(spec, legend=len(lines) > 1)
    layout["xaxis"]["range"] = [steps[0] - 0.7, steps[-1] + 0.7]  # the same on every chart
    shown = [v for _, values in lines for v in values if v is not None]
    if spec.percent:
        layout["yaxis"]["range"] = fitting_axis(shown)
    # A limit far above the curve would flatten it; the note and the verdict still state it.
    peak = max(shown, default=0.0)
    if limit is not None and peak >= limit / 4:
        layout["shapes"] = [_limit_line(limit)]
        layout["yaxis"]["range"] = [0, 1.1 * max(limit, peak)]
    note = spec.note
    if limit is not None and "shapes" not in layout:
        note = f"Nats per token; the limit of the verdict, {limit:g}, is above the drawing."
    note += _draw_bands(layout, bands, steps, shown, percent=spec.percent)
    return Chart(
        id=chart_id,
        title=spec.title,
        note=note,
        summary=_summary(spec, steps, lines),
        figure={"data": traces, "layout": layout},
        curves=tuple(
            Curve(metric=line.key, label=line.label, values=tuple(values)) for line, values in lines
        ),
        bands=tuple(bands),
        is_rate=spec.percent,
    )


def _draw_bands(
    layout: JsonObject,
    bands: Sequence[Band],
    steps: Sequence[int],
    shown: Sequence[float],
    *,
    percent: bool,
) -> str:
    """Add the bands that the curve comes near as shaded areas; return what the note of the chart says of
    them. A limit of four times the highest value, or a quarter of the lowest, would flatten the curve."""
    peak, least = max(shown), min(shown)
    near = [
        band
        for band in bands
        if (edges := [edge for edge in band.edges if edge is not None])
        and (peak >= min(edges) / 4 if band.side == "above" else least <= 4 * max(edges))
    ]
    if not bands:
        return ""
    if not near:
        return " No health limit is near."
    sides = {side: [e for b in near if b.side == side for e in b.edges if e is not None] for side in _SIDES}
    low, high = layout["yaxis"].get("range", [0.0, 1.08 * peak])
    if sides["below"]:
        low = min(low, 0.0)
    # As much of an upper band as shows that it is one; a limit that the curve stays far below is not drawn.
    reach = [edge for edge in sides["above"] if edge <= 4 * peak]
    high = max(high, 1.1 * max(reach, default=0.0), 1.1 * max(sides["below"], default=0.0))
    high = min(high, 1.0) if percent else high
    shapes = layout.setdefault("shapes", [])
    for band in near:
        shapes += _rectangles(band, steps, low, high)
    layout["yaxis"]["range"] = [low, high]
    severities = [severity for severity in ("warn", "stop") if any(b.severity == severity for b in near)]
    verbs = {"warn": "warns", "stop": "stops"}
    return f" Shaded: where health {' and '.join(verbs[severity] for severity in severities)}."


_SIDES = ("above", "below")


def _rectangles(band: Band, steps: Sequence[int], low: float, high: float) -> list[JsonObject]:
    """The band's area, a rectangle for each stretch of steps with the same edge."""
    rectangles: list[JsonObject] = []
    start = 0
    for i in range(1, len(steps) + 1):
        if i < len(steps) and band.edges[i] == band.edges[start]:
            continue
        edge = band.edges[start]
        if edge is not None and (edge < high if band.side == "above" else edge > low):
            rectangles.append(
                {
                    "type": "rect",
                    "layer": "below",
                    "x0": steps[start] - (0.7 if start == 0 else 0.5),
                    "x1": steps[i - 1] + (0.7 if i == len(steps) else 0.5),
                    "y0": edge,
                    "y1": high if band.side == "above" else low,
                    "line": {"width": 0},
                    "fillcolor": f"--band-{band.severity}",
                }
            )
        start = i
    return rectangles


def fitting_axis(rates: Sequence[float]) -> list[float]:
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
        return [{**common, **_line(values), "line": stroke}]
    trend: JsonObject = {**common, **_line(trailing_mean(values)), "line": stroke}
    if not alone:
        return [trend]
    trend["name"] = f"mean of {TREND_STEPS}"
    marker: JsonObject = {"color": line.colour, "size": 5, "opacity": 0.45}
    return [{**common, "type": "scatter", "mode": "markers", "y": values, "marker": marker}, trend]


def _line(values: Sequence[float | None]) -> JsonObject:
    """A curve with gaps, where a point without neighbours is a mark: no line would show it."""
    line: JsonObject = {"type": "scatter", "mode": "lines", "y": values}
    triples = zip([None, *values], values, [*values[1:], None], strict=False)
    sizes = [5 if (a, c) == (None, None) and b is not None else 0 for a, b, c in triples]
    return {**line, "mode": "lines+markers", "marker": {"size": sizes}} if any(sizes) else line


def layout_of(spec: ChartSpec, *, legend: bool) -> JsonObject:
    """The layout of a chart before its data are known."""
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
