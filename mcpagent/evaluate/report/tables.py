"""The tables of a report: before and after, other measures, controls, provenance. All text is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape

from mcpagent.core.records import JsonObject, Metric
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import COUNTS, ERRORS
from mcpagent.evaluate.compare import Comparison, compare
from mcpagent.evaluate.report.run_data import (
    ABSENT,
    AFTER,
    BEFORE,
    SAMPLED,
    Control,
    RunView,
    number,
    number_interval,
    percent,
    percent_interval,
    points,
    points_interval,
)
from mcpagent.evaluate.summary import RATE_METRICS, EvalResult, success_of_all
from mcpagent.tools.metrics import PoolMetrics, ToolMetrics

STRIP_PX = 140  # the drawn length of 0..1
SETTINGS = (("Greedy", ""), ("Sampled", SAMPLED))
SHOWN_METRICS: dict[str, str] = {
    "tool_sequence_accuracy": "Exact tool sequence",
    "answer_accuracy": "Right answer",
    "coverage": "Gold calls covered",
    "mean_reward": "Mean reward",
    "invalid_call_rate": "Invalid calls",
    "parse_failure_rate": "Calls that do not parse",
    "tool_error_rate": "Tool errors",
    "mean_tool_calls": "Tool calls per episode",
    "mean_searches": "Searches for tools per episode",
    "mean_turns": "Turns per episode",
}


def compare_or_none(
    before: EvalResult | None, after: EvalResult | None, *, complexity: str | None = None
) -> Comparison | None:
    """`compare`, or None where the two share no scored task."""
    if before is None or after is None:
        return None
    try:
        return compare(before, after, complexity=complexity)
    except UserError:
        return None


def success_table(run: RunView) -> str:
    """Task success before and after, greedy and sampled, whole and by complexity; '' without evaluations."""
    rows: list[str] = []
    for label, suffix in SETTINGS:
        before, after = run.evaluations.get(BEFORE + suffix), run.evaluations.get(AFTER + suffix)
        if before is None and after is None:
            continue
        both, comparison = (before, after), compare_or_none(before, after)
        title = f"{label}{_temperature(after or before)}"
        sides = tuple(e and success_of_all(e) for e in both)
        rows.append(
            _success_row(title, sides, comparison and comparison.difference_all, comparison, css="group")
        )
        sides = tuple(e and e.metrics.get("task_success") for e in both)
        rows.append(
            _success_row("scored only", sides, comparison and comparison.difference, comparison, css="part")
        )
        levels = dict.fromkeys(level for e in both if e for level in e.by_complexity)
        for level in levels if len(levels) > 1 else ():
            comparison = compare_or_none(before, after, complexity=level)
            sides = tuple(e and success_of_all(e, complexity=level) for e in both)
            rows.append(
                _success_row(level, sides, comparison and comparison.difference_all, comparison, css="part")
            )
    paired = {name + suffix for name in (BEFORE, AFTER) for _, suffix in SETTINGS}
    for name, evaluation in run.evaluations.items():
        if name not in paired:
            rows.append(_success_row(name, (None, success_of_all(evaluation)), None, None, css="group"))
            scored = evaluation.metrics.get("task_success")
            rows.append(_success_row("scored only", (None, scored), None, None, css="part"))
    if not rows:
        return ""
    columns = ("Task success", "0–100%", "*Before", "*After", "*Change", "*p", "*Tasks")
    return _table(columns, rows, css="success")


def measures_table(run: RunView) -> str:
    """The other numbers of the greedy evaluations; '' without any."""
    before, after = run.evaluations.get(BEFORE), run.evaluations.get(AFTER)
    passes = [(f"{n} (sampled)", n) for n in _pass_names(run.evaluations.get(AFTER + SAMPLED))]
    rows: list[str] = []
    for name, label in SHOWN_METRICS.items():
        is_rate = name in RATE_METRICS
        sides = [e.metrics.get(name) if e else None for e in (before, after)]
        if any(m is not None and m.value is not None for m in sides):
            cells = "".join(_metric_cell(m, is_rate=is_rate) for m in sides)
            rows.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    sampled = [run.evaluations.get(n + SAMPLED) for n in (BEFORE, AFTER)]
    for label, name in passes:
        cells = "".join(_metric_cell(e.metrics.get(name) if e else None, is_rate=True) for e in sampled)
        rows.append(f"<tr><th>{escape(label)}</th>{cells}</tr>")
    return _table(("Measure", "*Before", "*After"), rows) if rows else ""


def breakdown_tables(run: RunView) -> list[tuple[str, str]]:
    """Titles and tables of how the last greedy evaluation called, of its slices and of what went wrong;
    empty where no evaluation has them."""
    evaluations = [run.evaluations.get(AFTER), run.evaluations.get(BEFORE), *run.evaluations.values()]
    breakdown = next((e.breakdown for e in evaluations if e is not None and e.breakdown is not None), None)
    if breakdown is None:
        return []
    measures = [
        f"<tr><th>{escape(name.replace('_', ' '))}</th>{_metric_cell(metric, is_rate=name not in COUNTS)}"
        f'<td class="num">{metric.n}</td></tr>'
        for name, metric in breakdown.measures.items()
        if metric.value is not None
    ]
    slices = [
        f"<tr><th>{escape(name)}</th><td>{escape(part)}</td>{_metric_cell(s.task_success, is_rate=True)}"
        f'<td class="num">{s.n_tasks}</td></tr>'
        for name, parts in breakdown.slices.items()
        for part, s in parts.items()
        if len(parts) > 1
    ]
    errors = [
        f"<tr><th>{escape(kind.replace('_', ' '))}</th><td>{escape(ERRORS[kind])}</td>"
        f'<td class="num">{error.episodes:,}</td><td>{escape(error.example)}</td></tr>'
        for kind, error in breakdown.errors.items()
    ]
    tables = (
        ("How it calls", ("Measure", "*Value", "*Tasks"), measures),
        ("Where it succeeds", ("By", "Part", "*Task success", "*Tasks"), slices),
        ("What went wrong", ("Kind", "What it is", "*Episodes", "Example"), errors),
    )
    return [(title, _table(columns, rows)) for title, columns, rows in tables if rows]


def controls_table(controls: Sequence[Control]) -> str:
    """The control experiments; '' without controls."""
    rows = [
        f"<tr><th>{escape(c.name)}</th><td>{escape(c.what)}</td>"
        f'<td class="num">{number(c.cpu_s, digits=0)}</td>'
        f"{_metric_cell(c.greedy, is_rate=True)}{_metric_cell(c.sampled, is_rate=True)}</tr>"
        for c in controls
    ]
    columns = ("Control", "What it does", "*CPU s", "*Greedy", "*Sampled")
    return _table(columns, rows) if rows else ""


def tools_table(metrics: PoolMetrics) -> str:
    """Calls, errors and latencies of each tool, and how many of its texts held a secret; '' without calls."""
    rows = [
        f"<tr><th>{escape(f'{server.server}.{tool.tool}')}</th>"
        f'<td class="num">{tool.calls:,}</td>'
        f'<td class="num">{_milliseconds(tool.latency_p50_s)}</td>'
        f'<td class="num">{_milliseconds(tool.latency_p95_s)}</td>'
        f"<td>{_errors(tool)}</td>"
        f'<td class="num">{tool.truncated:,}</td>'
        f'<td class="num">{tool.repeats:,}</td>'
        f'<td class="num">{tool.secrets:,}</td>'
        f'<td class="num">{server.restarts:,}</td></tr>'
        for server in metrics.servers
        for tool in server.tools
    ]
    columns = ("Tool", "*Calls", "*p50 ms", "*p95 ms", "Errors", "*Cut", "*Repeats", "*Secrets", "*Restarts")
    return _table(columns, rows) if rows else ""


def facts_table(facts: JsonObject) -> str:
    """Nested values flattened to `a.b.c`; '' without facts."""
    rows = [f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in _flatten(facts)]
    return (
        f'<div class="card scroll"><table class="facts"><tbody>{"".join(rows)}</tbody></table></div>'
        if rows
        else ""
    )


def dumbbell_svg(before: Metric | None, after: Metric | None) -> str:
    """An SVG of both rates with their intervals on an axis from 0 to 1; the numbers stand beside it."""
    marks = "".join(
        _mark(metric, y, css) for metric, y, css in ((before, 9, "before"), (after, 19, "after")) if metric
    )
    return (
        '<svg width="148" height="28" viewBox="-4 0 148 28" aria-hidden="true">'
        f'<path class="track" d="M0 3V25M70 3V25M140 3V25" stroke-width="1"/>{marks}</svg>'
    )


def _milliseconds(seconds: float | None) -> str:
    return number(None if seconds is None else 1000 * seconds, digits=1)


def _errors(tool: ToolMetrics) -> str:
    """By kind, the most frequent first."""
    kinds = sorted(tool.failures.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {kind.value}" for kind, count in kinds) or ABSENT


def _mark(metric: Metric, y: int, css: str) -> str:
    if metric.value is None:
        return ""
    bar = ""
    if metric.ci_low is not None and metric.ci_high is not None:
        low, high = STRIP_PX * metric.ci_low, STRIP_PX * metric.ci_high
        bar = f'<path d="M{low:.1f} {y}H{high:.1f}" stroke-width="2" fill="none"/>'
    dot = f'<circle cx="{STRIP_PX * metric.value:.1f}" cy="{y}" r="3.5" stroke-width="1.6"/>'
    return f'<g class="{css}">{bar}{dot}</g>'


def _success_row(
    title: str,
    sides: Sequence[Metric | None],
    difference: Metric | None,
    comparison: Comparison | None,
    *,
    css: str,
) -> str:
    """`comparison` gives its p value where the counts of unscored episodes allow one."""
    before, after = sides
    shown = after or before
    change, p_value = ABSENT, ABSENT
    if difference is not None:
        change = f'{points(difference.value)} <span class="ci">{points_interval(difference)}</span>'
    if comparison is not None and comparison.why_no_verdict is None and comparison.p_value is not None:
        p_value = p_text(comparison.p_value)
    return (
        f'<tr class="{css}"><th>{escape(title)}</th><td class="strip">{dumbbell_svg(before, after)}</td>'
        f"{_metric_cell(before, is_rate=True)}{_metric_cell(after, is_rate=True)}"
        f'<td class="num">{change}</td><td class="num">{p_value}</td>'
        f'<td class="num">{shown.n if shown else ABSENT}</td></tr>'
    )


def p_text(p_value: float) -> str:
    """A p value with two significant figures; below 0.001 only that bound."""
    return "&lt; 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _metric_cell(metric: Metric | None, *, is_rate: bool) -> str:
    if metric is None or metric.value is None:
        return f'<td class="num">{ABSENT}</td>'
    value = percent(metric.value) if is_rate else number(metric.value, digits=2)
    interval = percent_interval(metric) if is_rate else number_interval(metric)
    return f'<td class="num">{value} <span class="ci">{interval}</span></td>'


def _temperature(evaluation: EvalResult | None) -> str:
    value = evaluation.provenance.get("temperature") if evaluation else None
    return f", temperature {value:g}" if isinstance(value, int | float) and value > 0 else ""


def _pass_names(evaluation: EvalResult | None) -> list[str]:
    names = [n for n in evaluation.metrics if n.startswith(("pass@", "pass^"))] if evaluation else []
    most = max((int(n[5:]) for n in names), default=0)
    return [n for n in (f"pass@{most}", f"pass^{most}") if n in names]


def _table(columns: Sequence[str], rows: Sequence[str], *, css: str = "") -> str:
    """A star marks a column of numbers. On a narrow screen a row is a card with named cells."""
    names = [column.removeprefix("*") for column in columns]
    head = "".join(
        f'<th class="num">{name}</th>' if column != name else f"<th>{name}</th>"
        for column, name in zip(columns, names, strict=True)
    )
    body = "".join(_labelled(row, names) for row in rows)
    return (
        f'<div class="card scroll"><table class="cards {css}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _labelled(row: str, names: Sequence[str]) -> str:
    """The cells of a row with the names of their columns; text in cells is escaped, so it holds no tag."""
    waiting = iter(names)
    return re.sub(r"<(t[dh])(?=[ >])", lambda cell: f'<{cell[1]} data-label="{next(waiting)}"', row)


def _flatten(value: object, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return [row for k, v in value.items() for row in _flatten(v, f"{prefix}.{k}" if prefix else str(k))]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [(prefix, text)] if prefix else []
