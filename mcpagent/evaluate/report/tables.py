"""The tables of a report: columns, and rows of cells that one macro draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from mcpagent.evaluate.breakdown import COUNTS, ERRORS, Breakdown
from mcpagent.evaluate.report.assets import asset
from mcpagent.evaluate.report.document import ReportDocument
from mcpagent.evaluate.report.figures import TREND_STEPS
from mcpagent.evaluate.report.numbers import ABSENT, mean, number, points, rate
from mcpagent.evaluate.summary import ABOUT_ANY_FORM, IN_ANY_FORM
from mcpagent.tools.metrics import ToolMetrics

_Row = Sequence[object]


@dataclass(frozen=True)
class Table:
    """A table of texts. A star marks a column of numbers, which stand to the right; `hint` says what a reader
    needs to know first; `zero` are the names of the rows that held nothing but zeros, and are left out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    hint: str
    zero: Sequence[str] = ()


def _table(
    title: str, columns: Sequence[str], rows: Iterable[_Row], *, hint: str = "", values: slice = slice(0)
) -> list[Table]:
    """Return a table, or nothing without rows. None is shown as a dash. `values` are the cells of a row of
    which at least one must not be zero."""
    cells = [[_text(value) for value in row] for row in rows]
    zeros = f"{ABSENT}−+0.,%"  # what a zero is written with
    shown = [r for r in cells if not r[values] or any(c.partition(" [")[0].strip(zeros) for c in r[values])]
    zero = [row[0] for row in cells if row not in shown]
    return [Table(title, columns, shown, hint, zero)] if cells else []


def _text(value: object) -> str:
    return ABSENT if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def measures_table(document: ReportDocument) -> list[Table]:
    """Return the measures of the evaluations other than task success."""
    rows = [
        (r.label, *((rate if r.is_rate else mean)(m) for m in (r.before, r.after))) for r in document.measures
    ]
    hint = "Greedy unless marked. pass@k: at least one of k attempts succeeds; pass^k: all of them do."
    if any(row.name == IN_ANY_FORM for row in document.measures):
        hint += f" {ABOUT_ANY_FORM}"
    columns = ("Measure", "*Before", "*After")
    return _table("Other measures", columns, rows, hint=hint, values=slice(1, 3))


def breakdown_tables(breakdown: Breakdown | None, before: Breakdown | None = None) -> list[Table]:
    """Return how an evaluation called, its slices, next to those `before` if there are any, the worst first,
    and what went wrong."""
    if breakdown is None:
        return []
    calls = [
        (_words(name), (mean if name in COUNTS else rate)(metric), metric.n)
        for name, metric in breakdown.measures.items()
        if metric.value is not None
    ]
    parts = [(by, *one) for by, of in breakdown.slices.items() for one in of.items() if len(of) > 1]
    slices: list[_Row] = []
    for by, part, one in sorted(parts, key=lambda each: each[2].task_success.value or 0.0):
        earlier = before and before.slices.get(by, {}).get(part)
        was, now = earlier and earlier.task_success, one.task_success
        ends = [m.value for m in (was, now) if m is not None and m.value is not None]
        change = points(ends[1] - ends[0]) if len(ends) == 2 else None
        ends_shown = (rate(was), rate(now), change) if before else (rate(now),)
        slices.append((by, part, *ends_shown, one.n_tasks))
    titles = ("*Before", "*After", "*Change") if before else ("*Success",)
    errors = [
        (_words(kind), ERRORS[kind], error.episodes, error.example)
        for kind, error in breakdown.errors.items()
    ]
    return [
        *_table("How it calls", ("Measure", "*Value", "*Tasks"), calls, values=slice(1, 2)),
        *_table("Where it succeeds", ("By", "Part", *titles, "*Tasks"), slices),
        *_table("What went wrong", ("Kind", "What it is", "*Episodes", "Example"), errors),
    ]


TERMS: dict[str, str] = yaml.safe_load(asset("terms.yaml"))


def terms_table(document: ReportDocument) -> list[Table]:
    """Return the reward terms while training."""
    rows = [
        (
            term.name,
            TERMS.get(term.name, "of this run's own"),
            f"{term.weight:g}".replace("-", "−") if term.weight else None,
            *(number(term.first), number(term.last), number(term.correlation_with_success, digits=2)),
        )
        for term in document.reward_terms
    ]
    first, last = f"*First {TREND_STEPS} steps", f"*Last {TREND_STEPS} steps"
    hint = (
        "Means over the episodes of training steps. Terms without a weight are measured, and earn nothing. A "
        "term that goes against success has a negative correlation."
    )
    columns = ("Term", "What it is", "*Weight", first, last, "*Correlation with success")
    return _table("Reward terms", columns, rows, hint=hint, values=slice(3, 5))


def control_tables(document: ReportDocument) -> list[Table]:
    """Return the control experiments."""
    controls = [
        (c.name, c.what, number(c.cpu_s, digits=0), rate(c.greedy), rate(c.sampled))
        for c in document.controls
    ]
    return _table(
        "Controls",
        ("Control", "What it does", "*CPU s", "*Greedy", "*Sampled"),
        controls,
        hint="What else was tried with the same budget, evaluated on the same tasks: task success.",
    )


def tools_table(document: ReportDocument) -> list[Table]:
    """Return calls, errors and latencies of each tool."""
    rows = [
        (
            *(f"{server.server}.{tool.tool}", tool.calls),
            *(_milliseconds(tool.latency_p50_s), _milliseconds(tool.latency_p95_s)),
            *(_errors(tool), tool.truncated, tool.repeats, tool.secrets, server.restarts),
        )
        for server in (document.tools.servers if document.tools is not None else ())
        for tool in server.tools
    ]
    hint = (
        "The calls of servers since these were last started. Of the errors, tool_error and invalid_arguments "
        "are the model's own; the others leave an episode unscored. Cut: results longer than the limit. "
        "Repeats: sendings after a call's first, if that is safe. Secrets: results in which one was hidden. "
        "Restarts are those of the whole server."
    )
    columns = ("Tool", "*Calls", "*p50 ms", "*p95 ms", "Errors", "*Cut", "*Repeats", "*Secrets", "*Restarts")
    return _table("Tools", columns, rows, hint=hint)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _milliseconds(seconds: float | None) -> str:
    return number(None if seconds is None else 1000 * seconds, digits=1)


def _errors(tool: ToolMetrics) -> str | None:
    """Return the errors by kind, the most frequent first."""
    kinds = sorted(tool.failures.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {kind.value}" for kind, count in kinds) or None
