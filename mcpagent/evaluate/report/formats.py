"""A report in each of its formats: the page, Markdown for a pull request, JSON, and a picture of the page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from mcpagent.core.hidden_text import printable
from mcpagent.core.records import Metric
from mcpagent.errors import RunError, UserError
from mcpagent.evaluate.breakdown import COUNTS, ERRORS, Breakdown
from mcpagent.evaluate.report.document import (
    SETTINGS,
    ReportDocument,
    RunsDocument,
    cost_text,
    document_of,
    documents_of,
    failures_side_by_side,
    final_success,
    side_by_side,
)
from mcpagent.evaluate.report.figures import TREND_STEPS
from mcpagent.evaluate.report.page import page_html, runs_page_html, write_page
from mcpagent.evaluate.report.run_data import (
    ABSENT,
    RunView,
    number,
    number_interval,
    percent,
    percent_interval,
    points,
    points_interval,
)
from mcpagent.storage.atomic import atomic_file, write_text

_TABLE_STEPS = 5  # columns of a curve
_BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("microsoft-edge", "msedge"),
    *(
        f"/Applications/{name}.app/Contents/MacOS/{name}"
        for name in ("Google Chrome", "Chromium", "Microsoft Edge")
    ),
)
_WIDTH_PX = 1280
_LARGEST_PX = 16_000  # of a picture's height: browsers draw no higher
_BROWSER_TIMEOUT_S = 300
_DRAWN = re.compile(r'<body[^>]* data-drawn-px="(\d+)"')


def write_report_as(kind: str, run: RunView, path: Path) -> Path:
    """Write the report of a run that has been read as `html`, `md`, `json` or `png`; a reader of the old file
    never sees half a new one. Raises UserError and RunError."""
    match kind:
        case "html":
            write_page(run, path)
        case "md":
            write_text(path, markdown(document_of(run)))
        case "json":
            write_text(path, document_of(run).model_dump_json(indent=1) + "\n")
        case "png":
            write_picture(page_html(run, has_episodes=False), path)
        case _:
            raise ValueError(f"there is no report format {kind}")
    return path


def write_comparison_as(kind: str, runs: Sequence[RunView], path: Path) -> Path:
    """Write several runs side by side, like `write_report_as` one."""
    document = documents_of(runs)
    match kind:
        case "html":
            write_text(path, runs_page_html(document))
        case "md":
            write_text(path, runs_markdown(document))
        case "json":
            write_text(path, document.model_dump_json(indent=1) + "\n")
        case "png":
            write_picture(runs_page_html(document), path)
        case _:
            raise ValueError(f"there is no format {kind} of several runs")
    return path


def runs_markdown(document: RunsDocument) -> str:
    """The success of several runs with intervals, slices and failures, and where their settings differ."""
    names = [_md(name) for name in document.names]
    runs = [
        (
            name,
            *(
                cell
                for setting, _ in SETTINGS
                for cell in (md_metric(final_success(run, setting)), _change(against[setting]))
            ),
            f"{run.cost.steps:,}",
            f"{run.cost.episodes:,}",
        )
        for name, run, against in zip(names, document.runs, document.against_first, strict=True)
    ]
    settings = ("*Greedy", "*To the first", "*Sampled", "*To the first")
    slices = [
        (_md(by), _md(part), *(md_metric(metric) for metric in metrics))
        for by, part, metrics in side_by_side(document)
    ]
    failures = [
        (_md(kind.replace("_", " ")), *(ABSENT if n is None else f"{n:,}" for n in counts))
        for kind, counts in failures_side_by_side(document)
    ]
    keys = [
        (_md(key), *(ABSENT if value is None else _md(value) for value in values))
        for key, values in document.configuration.items()
    ]
    numbers = [f"*{name}" for name in names]
    parts = [
        f"## {len(names)} runs side by side",
        "" if document.has_same_tasks else "These runs were evaluated on different tasks.",
        _section("Task success", md_table(("Run", *settings, "*Steps", "*Episodes"), runs)),
        _section("Where they succeed", md_table(("By", "Part", *numbers), slices)),
        _section("What went wrong", md_table(("Kind", *numbers), failures)),
        _section("Settings that differ", md_table(("Setting", *names), keys)),
    ]
    return printable("\n\n".join(part for part in parts if part) + "\n")


def _change(metric: Metric | None) -> str:
    if metric is None or metric.value is None:
        return ABSENT
    return f"{points(metric.value)} {points_interval(metric)}"


def markdown(document: ReportDocument) -> str:
    """A summary that reads well in a pull request: headline, verdicts, tables."""
    parts = [
        f"## {_md(document.title)}",
        headline_markdown(document),
        _section("Verdicts", _verdict_table(document)),
        _section("Task success", _success_table(document)),
        _section("Other measures", _measure_table(document)),
        _section("Training curves", _curve_table(document)),
        _section("Reward terms", _term_table(document)),
        *_breakdown_sections(document.breakdown),
        _section("Controls", _control_table(document)),
        _section("Right, but wasteful", _wasteful_table(document)),
        _section("Tools", _tool_table(document)),
        _settings(document),
    ]
    return printable("\n\n".join(part for part in parts if part) + "\n")


def headline_markdown(document: ReportDocument) -> str:
    """The main numbers with their intervals, a line each."""
    lines: list[str] = []
    for row in document.success:
        if row.part != "all" or row.after is None or row.evaluation not in dict(SETTINGS):
            continue
        start = f"{percent(row.before.value)} → " if row.before is not None else ""
        figures = f"**{start}{percent(row.after.value)}** {percent_interval(row.after)}"
        if row.difference is not None:
            figures += f", {points(row.difference.value)} points {points_interval(row.difference)}"
        lines.append(
            f"- {_md(document.split.capitalize())} task success, {row.evaluation}: {figures}, "
            f"{row.after.n} tasks"
        )
    cost = cost_text(document.cost)
    lines.append(f"- {document.cost.steps:,} training steps{f', {cost}' if cost else ''}")
    return "\n".join(lines)


def md_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of GitHub's Markdown; a star marks a column of numbers. '' without rows. Cells are escaped by
    the caller."""
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return ""
    names = [column.removeprefix("*") for column in columns]
    rule = ["---:" if column != name else "---" for column, name in zip(columns, names, strict=True)]
    return "\n".join([f"| {' | '.join(names)} |", f"| {' | '.join(rule)} |", *body])


def md_metric(metric: Metric | None, *, is_rate: bool = True) -> str:
    """`87.5% [82.0, 91.3]`."""
    if metric is None or metric.value is None:
        return ABSENT
    if is_rate:
        return f"{percent(metric.value)} {percent_interval(metric)}"
    return f"{number(metric.value, digits=2)} {number_interval(metric)}"


def _md(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", " ".join(str(text).split()))


def _section(title: str, content: str) -> str:
    return f"### {title}\n\n{content}" if content else ""


def _verdict_table(document: ReportDocument) -> str:
    marks = {"pass": "✓ pass", "fail": "✗ fail", "not measured": "– not measured"}
    rows = [(marks[v.outcome], _md(v.name), _md(v.evidence)) for v in document.verdicts]
    return md_table(("Verdict", "Criterion", "Evidence"), rows)


def _success_table(document: ReportDocument) -> str:
    rows = [
        (
            f"**{_md(row.evaluation)}**" if row.part == "all" else f"{_md(row.evaluation)}, {_md(row.part)}",
            md_metric(row.before),
            md_metric(row.after),
            _change(row.difference),
            ABSENT if row.p_value is None else "< 0.001" if row.p_value < 0.001 else f"{row.p_value:.3f}",
            str((row.after or row.before or Metric(value=None, ci_low=None, ci_high=None, n=0)).n),
        )
        for row in document.success
    ]
    return md_table(("Tasks", "*Before", "*After", "*Change, points", "*p", "*n"), rows)


def _measure_table(document: ReportDocument) -> str:
    rows = [
        (_md(r.label), md_metric(r.before, is_rate=r.is_rate), md_metric(r.after, is_rate=r.is_rate))
        for r in document.measures
    ]
    return md_table(("Measure", "*Before", "*After"), rows)


def table_steps(count: int) -> list[int]:
    """Which of `count` steps a small table shows: the first, the last, and evenly between."""
    if count <= _TABLE_STEPS:
        return list(range(count))
    return [round(i * (count - 1) / (_TABLE_STEPS - 1)) for i in range(_TABLE_STEPS)]


def _curve_table(document: ReportDocument) -> str:
    places = table_steps(len(document.steps))
    rows = [
        (
            _md(chart.title if len(chart.curves) == 1 else f"{chart.title}: {curve.label}"),
            *(md_value(curve.values[i], is_rate=chart.is_rate) for i in places),
        )
        for chart in document.charts
        for curve in chart.curves
    ]
    return md_table(("Curve", *(f"*step {document.steps[i]}" for i in places)), rows)


def md_value(value: float | None, *, is_rate: bool) -> str:
    """A point of a curve with three significant figures."""
    if value is None:
        return ABSENT
    text = percent(value) if is_rate else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")


def _term_table(document: ReportDocument) -> str:
    rows = [
        (
            _md(term.name),
            f"{term.weight:g}" if term.weight else ABSENT,
            number(term.first),
            number(term.last),
            number(term.correlation_with_success, digits=2),
        )
        for term in document.reward_terms
    ]
    first, last = f"*first {TREND_STEPS} steps", f"*last {TREND_STEPS} steps"
    return md_table(("Term", "*Weight", first, last, "*Correlation with success"), rows)


def _breakdown_sections(breakdown: Breakdown | None) -> list[str]:
    if breakdown is None:
        return []
    calling = [
        (_md(name.replace("_", " ")), md_metric(metric, is_rate=name not in COUNTS), str(metric.n))
        for name, metric in breakdown.measures.items()
        if metric.value is not None
    ]
    slices = [
        (_md(name), _md(part), md_metric(one.task_success), str(one.n_tasks))
        for name, parts in breakdown.slices.items()
        for part, one in parts.items()
        if len(parts) > 1
    ]
    errors = [
        (_md(kind.replace("_", " ")), _md(ERRORS[kind]), f"{error.episodes:,}", _md(error.example))
        for kind, error in breakdown.errors.items()
    ]
    return [
        _section("How it calls", md_table(("Measure", "*Value", "*Tasks"), calling)),
        _section("Where it succeeds", md_table(("By", "Part", "*Task success", "*Tasks"), slices)),
        _section("What went wrong", md_table(("Kind", "What it is", "*Episodes", "Example"), errors)),
    ]


def _control_table(document: ReportDocument) -> str:
    rows = [
        (_md(c.name), _md(c.what), number(c.cpu_s, digits=0), md_metric(c.greedy), md_metric(c.sampled))
        for c in document.controls
    ]
    return md_table(("Control", "What it does", "*CPU s", "*Greedy", "*Sampled"), rows)


def _wasteful_table(document: ReportDocument) -> str:
    rows = [
        (
            *(_md(c.name), _md(c.what), number(c.cpu_s, digits=0)),
            *(md_metric(c.success), md_metric(c.as_planned)),
            *(md_metric(c.reward, is_rate=False), md_metric(c.calls, is_rate=False)),
        )
        for c in document.wasteful
    ]
    columns = ("Trained by", "What it does", "*CPU s", "*Success", "*Calls as planned", "*Reward", "*Calls")
    return md_table(columns, rows)


def _tool_table(document: ReportDocument) -> str:
    rows = [
        (
            _md(f"{server.server}.{tool.tool}"),
            f"{tool.calls:,}",
            _milliseconds(tool.latency_p50_s),
            _milliseconds(tool.latency_p95_s),
            _md(", ".join(f"{n:,} {kind.value}" for kind, n in sorted(tool.failures.items())) or ABSENT),
        )
        for server in (document.tools.servers if document.tools is not None else ())
        for tool in server.tools
    ]
    return md_table(("Tool", "*Calls", "*p50 ms", "*p95 ms", "Errors"), rows)


def _milliseconds(seconds: float | None) -> str:
    return number(None if seconds is None else 1000 * seconds, digits=1)


def _settings(document: ReportDocument) -> str:
    facts = [
        f"{name} {_md(document.manifest[name])}"
        for name in ("command", "seed")
        if isinstance(document.manifest.get(name), str | int)
    ]
    return f"<sub>{_md(Path(document.run).resolve().name)}{''.join(f' · {fact}' for fact in facts)}</sub>"


# The picture


def find_browser() -> str:
    """The path of an installed Chromium or one of its kin. Raises UserError."""
    path = next((place for name in _BROWSERS if (place := shutil.which(name))), None)
    if path is None:
        raise UserError(
            "no Chromium, Chrome or Edge is on this machine's PATH, and a picture of the page needs one",
            where="--format png",
            remedy="install one, or take --format html, md or json",
        )
    return path


def write_picture(html: str, path: Path) -> None:
    """Write the page as a PNG, as a headless browser draws it; what is past 16,000 pixels is cut. Raises
    UserError without a browser and RunError where that fails."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="mcpagent-", ignore_cleanup_errors=True) as folder:
        page, picture = Path(folder, "report.html"), Path(folder, "report.png")
        page.write_text(html, encoding="utf-8")
        command = [
            browser,
            *("--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
            f"--user-data-dir={folder}/profile",
            "--virtual-time-budget=30000",  # the page's own time; what it draws takes as long as it takes
        ]
        drawn = _browse([*command, f"--window-size={_WIDTH_PX},1000", "--dump-dom", page.as_uri()])
        height = _DRAWN.search(drawn)
        if height is None:
            raise RunError(f"{browser} did not draw the page")
        size = f"--window-size={_WIDTH_PX},{min(int(height[1]), _LARGEST_PX)}"
        _browse([*command, size, f"--screenshot={picture}", page.as_uri()])
        if not picture.is_file():
            raise RunError(f"{browser} wrote no picture")
        with atomic_file(path) as temporary:
            shutil.copyfile(picture, temporary)


def _browse(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_BROWSER_TIMEOUT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} drew nothing in {_BROWSER_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = printable(" ".join(done.stderr.split())[-300:])
        raise RunError(f"{command[0]} ended with {done.returncode}: {said}")
    return done.stdout
