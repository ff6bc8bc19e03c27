"""The tables of a report: before and after, other measures, controls, provenance. All text is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from mcpagent.core.records import JsonObject, Metric
from mcpagent.evaluate.breakdown import COUNTS, ERRORS, Breakdown
from mcpagent.evaluate.report.document import (
    SETTINGS,
    MeasureRow,
    RunsDocument,
    SuccessRow,
    TermRow,
    failures_side_by_side,
    final_success,
    side_by_side,
)
from mcpagent.evaluate.report.figures import TREND_STEPS
from mcpagent.evaluate.report.run_data import (
    ABSENT,
    Control,
    flatten,
    number,
    number_interval,
    percent,
    percent_interval,
    points,
    points_interval,
)
from mcpagent.tools.metrics import PoolMetrics, ToolMetrics

STRIP_PX = 140  # the drawn length of 0..1


def success_table(rows: Sequence[SuccessRow]) -> str:
    """Task success before and after, whole and by complexity; '' without rows."""
    columns = ("Task success", "0–100%", "*Before", "*After", "*Change", "*p", "*Tasks")
    return table_html(columns, [_success_row(row) for row in rows], css="success") if rows else ""


def measures_table(rows: Sequence[MeasureRow]) -> str:
    """The other numbers of the evaluations; '' without any."""
    cells = [
        f"<tr><th>{escape(row.label)}</th>{metric_cell(row.before, is_rate=row.is_rate)}"
        f"{metric_cell(row.after, is_rate=row.is_rate)}</tr>"
        for row in rows
    ]
    return table_html(("Measure", "*Before", "*After"), cells) if cells else ""


def breakdown_tables(breakdown: Breakdown | None) -> list[tuple[str, str]]:
    """Titles and tables of how an evaluation called, of its slices and of what went wrong; empty without a
    breakdown."""
    if breakdown is None:
        return []
    measures = [
        f"<tr><th>{escape(name.replace('_', ' '))}</th>{metric_cell(metric, is_rate=name not in COUNTS)}"
        f'<td class="num">{metric.n}</td></tr>'
        for name, metric in breakdown.measures.items()
        if metric.value is not None
    ]
    slices = [
        f"<tr><th>{escape(name)}</th><td>{escape(part)}</td>{metric_cell(s.task_success, is_rate=True)}"
        f'<td class="num">{s.n_tasks}</td></tr>'
        for name, parts in breakdown.slices.items()
        for part, s in parts.items()
        if len(parts) > 1
    ]
    errors = [
        f"<tr><th>{escape(kind.replace('_', ' '))}</th><td>{escape(ERRORS[kind])}</td>"
        f'<td class="num">{error.episodes:,}</td><td class="name">{escape(error.example)}</td></tr>'
        for kind, error in breakdown.errors.items()
    ]
    tables = (
        ("How it calls", ("Measure", "*Value", "*Tasks"), measures),
        ("Where it succeeds", ("By", "Part", "*Task success", "*Tasks"), slices),
        ("What went wrong", ("Kind", "What it is", "*Episodes", "Example"), errors),
    )
    return [(title, table_html(columns, rows)) for title, columns, rows in tables if rows]


def terms_table(rows: Sequence[TermRow]) -> str:
    """The reward terms while training; '' without any."""
    cells = [
        f"<tr><th>{escape(term.name)}</th>"
        f'<td class="num">{f"{term.weight:g}".replace("-", "−") if term.weight else ABSENT}</td>'
        f'<td class="num">{number(term.first)}</td><td class="num">{number(term.last)}</td>'
        f'<td class="num">{number(term.correlation_with_success, digits=2)}</td></tr>'
        for term in rows
    ]
    first, last = f"*First {TREND_STEPS} steps", f"*Last {TREND_STEPS} steps"
    columns = ("Term", "*Weight", first, last, "*Correlation with success")
    return table_html(columns, cells) if cells else ""


def controls_table(controls: Sequence[Control]) -> str:
    """The control experiments; '' without controls."""
    rows = [
        f"<tr><th>{escape(c.name)}</th><td>{escape(c.what)}</td>"
        f'<td class="num">{number(c.cpu_s, digits=0)}</td>'
        f"{metric_cell(c.greedy, is_rate=True)}{metric_cell(c.sampled, is_rate=True)}</tr>"
        for c in controls
    ]
    columns = ("Control", "What it does", "*CPU s", "*Greedy", "*Sampled")
    return table_html(columns, rows) if rows else ""


def wasteful_table(controls: Sequence[Control]) -> str:
    """What training does to a policy that succeeds and wastes calls; '' where that was not tried."""
    rows = [
        f"<tr><th>{escape(c.name)}</th><td>{escape(c.what)}</td>"
        f'<td class="num">{number(c.cpu_s, digits=0)}</td>'
        f"{metric_cell(c.success, is_rate=True)}{metric_cell(c.as_planned, is_rate=True)}"
        f"{metric_cell(c.reward, is_rate=False)}{metric_cell(c.calls, is_rate=False)}</tr>"
        for c in controls
    ]
    columns = ("Trained by", "What it does", "*CPU s", "*Success", "*Calls as planned", "*Reward", "*Calls")
    return table_html(columns, rows) if rows else ""


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
    return table_html(columns, rows) if rows else ""


def runs_table(document: RunsDocument) -> str:
    """A row for each of several runs: success, against the first run, and what training took."""
    rows: list[str] = []
    for name, run, against in zip(document.names, document.runs, document.against_first, strict=True):
        cells = "".join(
            metric_cell(final_success(run, setting), is_rate=True) + _change_cell(against[setting])
            for setting, _ in SETTINGS
        )
        cost = run.cost
        rows.append(
            f"<tr><th>{escape(name)}</th>{cells}"
            f'<td class="num">{cost.steps:,}</td><td class="num">{cost.episodes:,}</td>'
            f'<td class="num">{number(cost.cpu_s, digits=0)}</td></tr>'
        )
    against = ("*Greedy", "*To the first", "*Sampled", "*To the first")
    return table_html(("Run", *against, "*Steps", "*Episodes", "*CPU s"), rows)


def _change_cell(metric: Metric | None) -> str:
    if metric is None or metric.value is None:
        return f'<td class="num">{ABSENT}</td>'
    return f'<td class="num">{points(metric.value)} <span class="ci">{points_interval(metric)}</span></td>'


def side_by_side_tables(document: RunsDocument) -> list[tuple[str, str, str]]:
    """Titles, explanations and tables of what several runs have in common and where they differ."""
    names = [escape(name) for name in document.names]
    slices = [
        f"<tr><th>{escape(by)}</th><td>{escape(part)}</td>"
        f"{''.join(metric_cell(metric, is_rate=True) for metric in metrics)}</tr>"
        for by, part, metrics in side_by_side(document)
    ]
    failures = [
        f"<tr><th>{escape(kind.replace('_', ' '))}</th><td>{escape(ERRORS[kind])}</td>"
        + "".join(f'<td class="num">{ABSENT if n is None else f"{n:,}"}</td>' for n in counts)
        + "</tr>"
        for kind, counts in failures_side_by_side(document)
    ]
    keys = [
        f'<tr><th class="key">{escape(key)}</th>'
        + "".join(f"<td>{ABSENT if value is None else escape(value)}</td>" for value in values)
        + "</tr>"
        for key, values in document.configuration.items()
    ]
    numbers = [f"*{name}" for name in names]
    tables = (
        ("Where they succeed", "Of the last greedy evaluation.", ["By", "Part", *numbers], slices),
        (
            "What went wrong",
            "Episodes of the last greedy evaluation.",
            ["Kind", "What it is", *numbers],
            failures,
        ),
        ("Configuration", "The settings in which the runs differ.", ["Setting", *names], keys),
    )
    return [(title, about, table_html(columns, rows)) for title, about, columns, rows in tables if rows]


def facts_table(facts: JsonObject) -> str:
    """Nested values flattened to `a.b.c`; '' without facts."""
    rows = [f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in flatten(facts)]
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


def _success_row(row: SuccessRow) -> str:
    shown = row.after or row.before
    is_whole = row.part == "all"
    temperature = f", temperature {row.temperature:g}" if row.temperature else ""
    title = f"{_sentence(row.evaluation)}{temperature}" if is_whole else row.part
    change = ABSENT
    if row.difference is not None:
        change = f'{points(row.difference.value)} <span class="ci">{points_interval(row.difference)}</span>'
    return (
        f'<tr class="{"group" if is_whole else "part"}"><th>{escape(title)}</th>'
        f'<td class="strip">{dumbbell_svg(row.before, row.after)}</td>'
        f"{metric_cell(row.before, is_rate=True)}{metric_cell(row.after, is_rate=True)}"
        f'<td class="num">{change}</td>'
        f'<td class="num">{ABSENT if row.p_value is None else p_text(row.p_value)}</td>'
        f'<td class="num">{shown.n if shown else ABSENT}</td></tr>'
    )


def _sentence(name: str) -> str:
    """`greedy` as `Greedy`; the names of files stay as they are."""
    return name.capitalize() if name in dict(SETTINGS) else name


def p_text(p_value: float) -> str:
    """A p value with two significant figures; below 0.001 only that bound."""
    return "&lt; 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def metric_cell(metric: Metric | None, *, is_rate: bool) -> str:
    """A value with its interval."""
    if metric is None or metric.value is None:
        return f'<td class="num">{ABSENT}</td>'
    value = percent(metric.value) if is_rate else number(metric.value, digits=2)
    interval = percent_interval(metric) if is_rate else number_interval(metric)
    return f'<td class="num">{value} <span class="ci">{interval}</span></td>'


def table_html(columns: Sequence[str], rows: Sequence[str], *, css: str = "") -> str:
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
