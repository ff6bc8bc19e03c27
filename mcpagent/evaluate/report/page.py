"""The page of a report: sections in reading order, then one self-contained document."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from mcpagent.core.hidden_text import printable
from mcpagent.core.records import JsonObject
from mcpagent.evaluate.report.document import (
    CurveChart,
    ReportDocument,
    RunsDocument,
    compare_or_none,
    cost_text,
    document_of,
    title_of,
)
from mcpagent.evaluate.report.episode_html import episode_html, pair_html, token_pieces
from mcpagent.evaluate.report.episodes import gold_tasks
from mcpagent.evaluate.report.figures import (
    CHARTS,
    COLOURS,
    Chart,
    ChartSpec,
    Curve,
    charts,
    fitting_axis,
    layout_of,
    trailing_mean,
)
from mcpagent.evaluate.report.run_data import (
    AFTER,
    BEFORE,
    SAMPLED,
    RunView,
    choose,
    percent,
    points,
    points_interval,
    read_run,
)
from mcpagent.evaluate.report.tables import (
    breakdown_tables,
    controls_table,
    facts_table,
    measures_table,
    runs_table,
    side_by_side_tables,
    success_table,
    terms_table,
    tools_table,
    wasteful_table,
)
from mcpagent.evaluate.summary import success_of_all
from mcpagent.storage.atomic import write_text
from mcpagent.storage.packages import require

_DASHES = ("solid", "dash", "dot")  # of more runs than there are colours
EMBEDDED_EPISODES = 5000  # in the page; `mcpagent view` lists more
_CHUNK = 50  # episodes that are unpacked together when one of them is opened


_BADGES = {"pass": ("pass", "✓ pass"), "fail": ("fail", "✗ fail"), "not measured": ("open", "– not measured")}


def page_html(run: RunView, *, has_episodes: bool = True) -> str:
    """The report as one HTML document, with the list of all episodes or without. Raises UserError where
    plotly is not installed."""
    summary, figures = summary_html(run)
    rows, details, left_out = _episodes(run) if has_episodes else ({}, {}, 0)
    body = f"{summary}\n{browser_html(left_out=left_out) if rows else ''}\n{_provenance(run)}"
    return _document(title_of(run), body, figures=figures, rows=rows, details=details)


def summary_html(run: RunView) -> tuple[str, JsonObject]:
    """The sections above the list of episodes, and the figures of their charts by id."""
    drawn, document = charts(run), document_of(run)
    sections = [
        _header(run, document),
        _verdicts(document),
        _results(document),
        _curves(drawn),
        _terms(document),
        _controls(run),
        _tools(run),
        _trajectories(run),
    ]
    # A direction mark or a control character of a server would rewrite what a person reads.
    return printable("\n".join(s for s in sections if s)), {c.id: c.figure for c in drawn}


def live_html(title: str) -> str:
    """The page of `mcpagent view`, which asks its own server for everything and loads nothing else."""
    waiting = f'<div id="summary"><header><h1>{escape(title)}</h1></header></div>'
    return _document(title, waiting + browser_html(left_out=0), figures={}, rows={}, details={}, is_live=True)


def browser_html(*, left_out: int) -> str:
    """The list of episodes with its filters; the page's script fills it."""
    more = f" {left_out:,} more are not in this page: mcpagent view lists them." if left_out else ""
    selects = "".join(
        f'<label>{label}<select data-filter="{key}"><option value="">all</option></select></label>'
        for key, label in (
            ("source", "Episodes of"),
            ("outcome", "Outcome"),
            ("stop", "Stopped"),
            ("complexity", "Complexity"),
            ("tool", "Tool"),
        )
    )
    return (
        '<section id="episodes" hidden><h2>Episodes</h2><p class="hint">Each stored attempt: what was asked, '
        "called, answered and earned, against the gold calls where the dataset is at hand. The darker a word "
        f"is shaded, the less likely the model held it.{more}</p>"
        f'<div class="filters card">{selects}<label>Task<input type="search" data-filter="task" '
        'placeholder="part of its id"></label><label class="wide">Text'
        '<input type="search" data-filter="text" placeholder="in questions, calls and answers"></label></div>'
        '<p class="hint" id="episode-count" role="status"></p><div id="episode-list"></div>'
        '<button id="episode-more" hidden>Show more</button></section>'
    )


def runs_page_html(document: RunsDocument) -> str:
    """Several runs on one page: their curves over each other, their figures side by side."""
    charts_, figures = _overlaid(document)
    title = f"{len(document.runs)} runs side by side"
    different = "" if document.has_same_tasks else " These runs were evaluated on different tasks."
    hint = (
        "Task success after training, unscored episodes counted as failed, with 95% intervals; the "
        f"difference to the first run is in percentage points, paired by task.{different}"
    )
    sections = [
        f"<header><h1>{title}</h1></header>",
        f'<section><h2>Task success</h2><p class="hint">{hint}</p>{runs_table(document)}</section>',
        f'<section><h2>Training curves</h2><div class="charts">{charts_}</div></section>' if charts_ else "",
        *(
            f'<section><h2>{name}</h2><p class="hint">{about}</p>{table}</section>'
            for name, about, table in side_by_side_tables(document)
        ),
        "<footer>Written by mcpagent. Charts by plotly.js (MIT), packed into this file.</footer>",
    ]
    return _document(title, "\n".join(s for s in sections if s), figures=figures, rows={}, details={})


def _overlaid(document: RunsDocument) -> tuple[str, JsonObject]:
    """The charts of all runs, a chart for each curve and a line for each run, and their figures by id."""
    curves: dict[tuple[str, str], list[tuple[int, Curve]]] = {}
    titles: dict[str, CurveChart] = {}
    for place, run in enumerate(document.runs):
        for chart in run.charts:
            titles.setdefault(chart.id, chart)
            for curve in chart.curves:
                curves.setdefault((chart.id, curve.metric), []).append((place, curve))
    html, figures = "", {}
    for (chart_id, metric), lines in sorted(curves.items(), key=lambda item: [*titles].index(item[0][0])):
        chart = titles[chart_id]
        is_one_of_many = len(chart.curves) > 1
        title = f"{chart.title}: {lines[0][1].label}" if is_one_of_many else chart.title
        drawn = [
            (document.names[place], document.runs[place].steps, curve.values, place) for place, curve in lines
        ]
        figures[f"{chart_id}-{metric}"] = _overlaid_figure(chart_id, drawn, is_rate=chart.is_rate)
        html += (
            f'<figure class="chart card"><h3>{escape(title)}</h3>'
            f'<div class="plot" id="chart-{chart_id}-{escape(metric)}" role="img" '
            f'aria-label="{escape(title)} of {len(lines)} runs"></div></figure>'
        )
    return html, figures


def _overlaid_figure(
    chart_id: str, lines: Sequence[tuple[str, Sequence[int], Sequence[float | None], int]], *, is_rate: bool
) -> JsonObject:
    """`lines` are the name of a run, its steps and values, and its place, which decides the colour."""
    spec = CHARTS.get(chart_id, ChartSpec("", "", (), percent=is_rate))
    shown = [value for _, _, values, _ in lines for value in values if value is not None]
    layout = layout_of(spec, legend=True)
    if is_rate:
        layout["yaxis"]["range"] = fitting_axis(shown)
    data: list[JsonObject] = [
        {
            "type": "scatter",
            "mode": "lines",
            "connectgaps": spec.sparse,
            "name": escape(printable(name)),
            "x": list(steps),
            "y": trailing_mean(values) if spec.trend else list(values),
            "hovertemplate": "%{y:.1%}" if is_rate else "%{y:.4~g}",
            "line": {
                "color": COLOURS[place % len(COLOURS)],
                "dash": _DASHES[place // len(COLOURS) % len(_DASHES)],
                "width": 2,
            },
        }
        for name, steps, values, place in lines
    ]
    return {"data": data, "layout": layout}


def _document(
    title: str,
    body: str,
    *,
    figures: JsonObject,
    rows: JsonObject,
    details: JsonObject,
    is_live: bool = False,
) -> str:
    body = printable(body)
    # Text of a trajectory cannot know the hash of the page that holds it, so it cannot forge a script.
    script_nonce = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    return Template(_asset("page.html")).substitute(
        title=escape(printable(title)),
        css=_asset("report.css"),
        js=_asset("report.js"),
        body=body,
        figures=script_json(figures),
        episodes=_packed(json.dumps(rows, separators=(",", ":"))) if rows else "",
        details=script_json({"chunk": _CHUNK, "files": details}),
        live="true" if is_live else "false",
        connect=" connect-src 'self';" if is_live else "",
        plotly=_packed_plotly(),
        script_nonce=script_nonce,
    )


def _episodes(run: RunView) -> tuple[JsonObject, JsonObject, int]:
    """Rows of the list by file, their details in packed chunks by file, and how many are left out."""
    if run.episodes is None:
        return {}, {}, 0
    listed, left_out = run.episodes.listed(EMBEDDED_EPISODES)
    tasks = gold_tasks(run.config, {row["task"] for rows in listed.values() for row in rows})
    pieces = token_pieces(run.path)
    details: JsonObject = {}
    for stem, rows in listed.items():
        shown = [
            printable(
                episode_html(
                    trajectory,
                    label=stem,
                    task=tasks.get(trajectory.task_id),
                    relative=row.get("relative"),
                    pieces=pieces,
                )
            )
            for row, trajectory in zip(rows, run.episodes.read(stem), strict=False)
        ]
        chunks = [shown[at : at + _CHUNK] for at in range(0, len(shown), _CHUNK)]
        details[stem] = [_packed(json.dumps(chunk)) for chunk in chunks]
    return dict(listed), details, left_out


def _header(run: RunView, document: ReportDocument) -> str:
    paragraphs = document.about.split("\n\n") if document.about else ()
    lead = "".join(f'<p class="lead">{escape(paragraph)}</p>' for paragraph in paragraphs)
    return f"<header><h1>{escape(document.title)}</h1>{lead}</header>{_headline(run, document)}"


def _headline(run: RunView, document: ReportDocument) -> str:
    tiles = [
        _tile(f"{run.split.capitalize()} task success, greedy", run, ""),
        _tile(f"{run.split.capitalize()} task success, sampled", run, SAMPLED),
        _stat("Training steps", f"{len(run.steps):,}", cost_text(document.cost)),
    ]
    return f'<div class="headline card">{"".join(t for t in tiles if t)}</div>'


def _tile(label: str, run: RunView, suffix: str) -> str:
    before, after = run.evaluations.get(BEFORE + suffix), run.evaluations.get(AFTER + suffix)
    if after is None:
        return ""
    metric = success_of_all(after)
    value = percent(metric.value)
    comparison = compare_or_none(before, after)
    detail = f"{metric.n} tasks"
    if before is not None and comparison is not None:
        start = percent(success_of_all(before).value)
        value = f'<span class="from">{start} →</span> {value}'
        change = comparison.difference_all
        detail = f"{points(change.value)} points {points_interval(change)}, {metric.n} tasks"
    if after.unscored:
        detail += f", {after.unscored} of {after.n_episodes} episodes unscored and counted as failed"
    return _stat(label, value, detail)


def _stat(label: str, value: str, detail: str) -> str:
    return (
        f'<div><div class="label">{label}</div><div class="value">{value}</div>'
        f'<div class="detail">{detail}</div></div>'
    )


def _verdicts(document: ReportDocument) -> str:
    rows = "".join(
        f'<tr><td><span class="badge {_BADGES[v.outcome][0]}">{_BADGES[v.outcome][1]}</span></td>'
        f"<th>{escape(v.name)}</th>"
        f'<td>{escape(v.evidence)}<span class="rule">{escape(v.rule)}</span></td></tr>'
        for v in document.verdicts
    )
    return (
        '<section><h2>Verdicts</h2><p class="hint">One row for each success criterion: what was found, and '
        "below it the rule it was held to.</p>"
        f'<div class="card scroll"><table class="verdicts"><tbody>{rows}</tbody></table></div></section>'
    )


def _results(document: ReportDocument) -> str:
    success, others = success_table(document.success), measures_table(document.measures)
    if not success:
        return ""
    hint = (
        "Brackets are 95% intervals with the task as the independent unit. The change is in percentage "
        "points, paired by task; p is a sign-flip test. Hollow marks are before training, filled ones after. "
        "The first line counts episodes that could not be scored as failed; by complexity too."
    )
    legend = "Greedy unless marked. pass@k: at least one of k attempts succeeds; pass^k: all of them do."
    more = f'<h2>Other measures</h2><p class="hint">{legend}</p>{others}' if others else ""
    more += "".join(f"<h2>{title}</h2>{table}" for title, table in breakdown_tables(document.breakdown))
    return f'<section><h2>Before and after</h2><p class="hint">{hint}</p>{success}{more}</section>'


def _curves(drawn: list[Chart]) -> str:
    figures = "".join(
        f'<figure class="chart card"><h3>{escape(c.title)}</h3><p>{escape(c.note)}</p>'
        f'<div class="plot" id="chart-{c.id}" role="img" aria-label="{escape(c.summary)}"></div></figure>'
        for c in drawn
    )
    if not figures:
        return ""
    return (
        "<section><h2>Training curves</h2>"
        '<p class="hint">A gap is a step that had nothing to measure: for an update, no group whose attempts '
        "earned different rewards.</p>"
        '<noscript><p class="hint">Only the curves need JavaScript.</p></noscript>'
        f'<div class="charts">{figures}</div></section>'
    )


def _terms(document: ReportDocument) -> str:
    table = terms_table(document.reward_terms)
    if not table:
        return ""
    hint = (
        "Means over the episodes of training steps. Terms without a weight are measured, and earn nothing. A "
        "term that goes against success has a negative correlation."
    )
    return f'<section><h2>Reward terms</h2><p class="hint">{hint}</p>{table}</section>'


def _controls(run: RunView) -> str:
    parts = (
        (
            "Controls",
            "What else was tried with the same budget, evaluated on the same tasks: task success.",
            controls_table(run.controls),
        ),
        (
            "Right, but wasteful",
            "What comparing attempts is for: from a start that succeeds and makes most lookups twice, with "
            "the CPU seconds that GRPO took there; held-out tasks that take one call, at temperature 1.",
            wasteful_table(run.wasteful),
        ),
    )
    return "".join(
        f'<section><h2>{title}</h2><p class="hint">{hint}</p>{table}</section>'
        for title, hint, table in parts
        if table
    )


def _tools(run: RunView) -> str:
    table = tools_table(run.tool_metrics) if run.tool_metrics is not None else ""
    if not table:
        return ""
    hint = (
        "The calls of servers since these were last started. Of the errors, tool_error and invalid_arguments "
        "are the model's own; the others leave an episode unscored. Cut: results longer than the limit. "
        "Repeats: sendings after a call's first, where that is safe. Secrets: results in which one was "
        "hidden. Restarts are those of the whole server."
    )
    return f'<section><h2>Tools</h2><p class="hint">{hint}</p>{table}</section>'


def _trajectories(run: RunView) -> str:
    pairs = choose(run.pairs)
    if not pairs:
        return ""
    hint = (
        f"The same {run.split} task before and after training: what was learned, what still fails, what got "
        "worse. A result is shown as the model saw it."
    )
    if run.episodes_from == "demonstrations":
        hint = "No evaluation is stored with the run; these are demonstrations that it learned from."
    elif run.episodes_from:
        hint = f"No evaluation is stored with the run; these are episodes of {run.episodes_from}, its last."
    labels = ("Before training", "While training" if run.episodes_from else "After training")
    cards = "".join(pair_html(pair, labels=labels, opened=i == 0) for i, pair in enumerate(pairs))
    return f'<section><h2>Trajectories</h2><p class="hint">{hint}</p>{cards}</section>'


def _provenance(run: RunView) -> str:
    facts = {k: v for k, v in run.manifest.items() if k not in ("about", "title")}
    parts = [facts_table(facts)]
    if run.config_text:
        parts.append(_more("Resolved configuration", f"<pre>{escape(run.config_text)}</pre>"))
    for name, evaluation in run.evaluations.items():
        if evaluation.provenance:
            document = json.dumps(evaluation.provenance, indent=2, ensure_ascii=False)
            parts.append(_more(f"Evaluation {escape(name)}", f"<pre>{escape(document)}</pre>"))
    content = "".join(parts)
    footer = "<footer>Written by mcpagent. Charts by plotly.js (MIT), packed into this file.</footer>"
    return f"<section><h2>Provenance</h2>{content}</section>{footer}" if content else footer


def _more(title: str, content: str) -> str:
    return f'<details class="card more"><summary>{title}</summary>{content}</details>'


def _asset(name: str) -> str:
    return resources.files("mcpagent.evaluate").joinpath("assets", name).read_text(encoding="utf-8").strip()


def script_json(document: JsonObject) -> str:
    """JSON for a script element, which it cannot close."""
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def _packed_plotly() -> str:
    """plotly.js, gzipped and in base64: 2 MB instead of 4.8, and no foreign address in the page."""
    require("report", use="the report")
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs())


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


REPORT_NAME = "report.html"


def write_report(run_dir: Path) -> Path:
    """Read the run folder, write `report.html` into it, return its path.

    Raises UserError when the folder is missing, holds no step, or plotly is not installed.
    """
    return write_page(read_run(run_dir))


def write_page(run: RunView, out: Path | None = None) -> Path:
    """Write the report of a run that has been read, into `out` where it is given; a reader of the old file
    never sees half a new one."""
    path = out or run.path / REPORT_NAME
    write_text(path, page_html(run))
    return path
