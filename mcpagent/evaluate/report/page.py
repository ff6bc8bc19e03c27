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
from mcpagent.core.tools import NONCE_META_KEY, ToolCall, ToolResult
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.evaluate.report.figures import Chart, charts
from mcpagent.evaluate.report.run_data import (
    ABSENT,
    AFTER,
    BEFORE,
    SAMPLED,
    RunView,
    TaskPair,
    number,
    percent,
    points,
    points_interval,
    read_run,
)
from mcpagent.evaluate.report.tables import (
    compare_or_none,
    controls_table,
    facts_table,
    measures_table,
    success_table,
    tools_table,
)
from mcpagent.evaluate.report.verdicts import Verdict, judge
from mcpagent.evaluate.summary import COMPLEXITIES, success_of_all
from mcpagent.storage.atomic import write_text
from mcpagent.storage.packages import require

SHOWN_CHARS = 4000  # of any one text; the stored trajectory has the rest
# (succeeded before, succeeded after, how many are shown): learned, still failing, got worse, always right.
FATES = ((False, True, 3), (False, False, 2), (True, False, 2), (True, True, 1))


def choose(pairs: Sequence[TaskPair]) -> list[TaskPair]:
    """A handful of tasks, failures and regressions included, the hardest first within each outcome.

    Without tasks that have both sides: up to three successes and three failures of the side that is there.
    """
    ranked = sorted(pairs, key=lambda p: (-_difficulty(p), p.task_id))
    both = [p for p in ranked if p.before is not None and p.after is not None]
    shown: list[TaskPair] = []
    if both:
        for before, after, count in FATES:
            fate = [p for p in both if (_succeeded(p.before), _succeeded(p.after)) == (before, after)]
            shown += fate[:count]
    else:
        for success in (True, False):
            shown += [p for p in ranked if _succeeded(p.after or p.before) is success][:3]
    return shown


def pair_html(pair: TaskPair, *, labels: tuple[str, str], opened: bool) -> str:
    """One task as a collapsible card with its attempts side by side, below `labels`."""
    trajectory = pair.after or pair.before
    if trajectory is None:
        raise ValueError(f"task {pair.task_id} has no trajectory")
    sides = [(labels[0], pair.before), (labels[1], pair.after)]
    badges = " → ".join(_badge(t) for _, t in sides if t is not None)
    question = _message(trajectory, "user") or trajectory.task_id
    system = _message(trajectory, "system")
    prompt = "" if system is None else _folded("System prompt", f"<pre>{_text(system)}</pre>")
    columns = "".join(_side_html(label, t) for label, t in sides if t is not None)
    return (
        f'<details class="pair card"{" open" if opened else ""}>'
        f'<summary><span class="question">{_text(question)}</span><span>{badges}</span></summary>'
        f'<div class="task"><span class="muted">task</span> <span class="mono">{escape(pair.task_id)}</span>'
        f' <span class="muted">· {escape(trajectory.complexity)}</span>{prompt}</div>'
        f'<div class="sides">{columns}</div></details>'
    )


def _difficulty(pair: TaskPair) -> int:
    trajectory = pair.after or pair.before
    return (
        COMPLEXITIES.index(trajectory.complexity)
        if trajectory and trajectory.complexity in COMPLEXITIES
        else -1
    )


def _message(trajectory: Trajectory, role: str) -> str | None:
    return next((str(m.get("content", "")) for m in trajectory.prompt if m.get("role") == role), None)


def _succeeded(trajectory: Trajectory | None) -> bool | None:
    return None if trajectory is None else trajectory.is_success


def _badge(trajectory: Trajectory) -> str:
    match trajectory.is_success:
        case True:
            return '<span class="badge pass">✓ success</span>'
        case False:
            return '<span class="badge fail">✗ failure</span>'
        case None:
            return '<span class="badge open">unscored</span>'


def _side_html(label: str, trajectory: Trajectory) -> str:
    turns = "".join(_turn_html(t) for t in trajectory.turns)
    errors = "".join(f'<pre class="error">{_text(e)}</pre>' for e in trajectory.errors)
    return (
        f'<section class="side"><header><h4>{label}</h4>{_badge(trajectory)}'
        f'<span class="muted">reward {number(trajectory.reward, digits=2)} · '
        f"stopped: {escape(trajectory.stop_reason.value.replace('_', ' '))}</span></header>"
        f"{turns}{errors}{_terms_html(trajectory)}</section>"
    )


def _turn_html(turn: Turn) -> str:
    results = {r.call_id: r for r in turn.tool_results}
    parts = [_call_html(call, results.get(call.id)) for call in turn.tool_calls]
    parts += [
        f'<pre class="error">{_text(f.raw)}</pre><p class="note">did not parse: {escape(f.reason)}</p>'
        for f in turn.parse_failures
    ]
    if parts:
        parts.append(_folded("as the model wrote it", f"<pre>{_text(turn.completion.text)}</pre>"))
    else:
        parts.append(f'<p class="text">{_text(turn.completion.text) or "<i>(nothing)</i>"}</p>')
    if turn.user_message is not None:
        parts.append(f'<p class="who">user</p><p class="text">{_text(turn.user_message)}</p>')
    who = f"turn {turn.index + 1} · model" + (" calls" if turn.tool_calls else "")
    return f'<div class="turn"><p class="who">{who}</p>{"".join(parts)}</div>'


def _call_html(call: ToolCall, result: ToolResult | None) -> str:
    name = f"{call.server}.{call.tool}" if call.server else call.tool
    arguments = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in call.arguments.items())
    head = f'<pre class="call">{_text(f"{name}({arguments})")}</pre>'
    if result is None:
        return head + '<p class="note">not executed</p>'
    facts = [f"{1000 * result.latency_s:.1f} ms"]
    if result.failure is not None:
        facts.insert(0, result.failure.value.replace("_", " "))
    if result.truncated_chars:
        facts.append(f"{result.truncated_chars:,} characters cut for the model")
    nonce = result.meta.get(NONCE_META_KEY)
    if result.loaded is not None:
        facts.append(f"search, {len(result.loaded)} tools loaded")
    elif result.from_cassette:
        facts.append("from cassette")  # no server was asked, so that there is no nonce
    else:
        facts.append("no nonce" if nonce is None else f"nonce {nonce}")
    style = ' class="error"' if result.is_error else ""
    return f'{head}<pre{style}>{_text(result.content)}</pre><p class="note">{escape(" · ".join(facts))}</p>'


def _terms_html(trajectory: Trajectory) -> str:
    if not trajectory.reward_terms:
        return ""
    rows = "".join(
        f'<tr><th>{escape(t.name)}</th><td class="num">{number(t.value)}</td>'
        f'<td class="num">{number(t.weight, digits=2) if t.weight else ABSENT}</td></tr>'
        for t in trajectory.reward_terms
    )
    table = (
        '<table class="terms"><thead><tr><th>term</th><th class="num">value</th><th class="num">weight</th>'
        f"</tr></thead><tbody>{rows}</tbody></table>"
    )
    return _folded("Reward terms", table)


def _folded(title: str, content: str) -> str:
    return f'<details class="small"><summary>{title}</summary>{content}</details>'


def _text(text: str) -> str:
    """Escaped, and cut where it is very long."""
    if len(text) <= SHOWN_CHARS:
        return escape(text)
    cut = len(text) - SHOWN_CHARS
    return f"{escape(text[:SHOWN_CHARS])}\n[{cut:,} more characters in the stored trajectory]"


_BADGES = {"pass": ("pass", "✓ pass"), "fail": ("fail", "✗ fail"), "not measured": ("open", "– not measured")}


def page_html(run: RunView) -> str:
    """The report as one HTML document. Raises UserError where plotly is not installed."""
    drawn = charts(run)
    sections = [
        _header(run),
        _verdicts(judge(run)),
        _results(run),
        _curves(drawn),
        _controls(run),
        _tools(run),
        _trajectories(run),
        _provenance(run),
    ]
    # A direction mark or a control character of a server would rewrite what a person reads.
    body = printable("\n".join(s for s in sections if s))
    # Text of a trajectory cannot know the hash of the page that holds it, so it cannot forge a script.
    script_nonce = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    return Template(_asset("page.html")).substitute(
        title=escape(printable(_title(run))),
        css=_asset("report.css"),
        js=_asset("report.js"),
        body=body,
        figures=script_json({c.id: c.figure for c in drawn}),
        plotly=_packed_plotly(),
        script_nonce=script_nonce,
    )


def _title(run: RunView) -> str:
    return str(run.manifest.get("title") or run.path.resolve().name)


def _header(run: RunView) -> str:
    about = run.manifest.get("about")
    lead = "".join(f'<p class="lead">{escape(p)}</p>' for p in str(about).split("\n\n")) if about else ""
    return f"<header><h1>{escape(_title(run))}</h1>{lead}</header>{_headline(run)}"


def _headline(run: RunView) -> str:
    tiles = [
        _tile(f"{run.split.capitalize()} task success, greedy", run, ""),
        _tile(f"{run.split.capitalize()} task success, sampled", run, SAMPLED),
        _training_tile(run),
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


def _training_tile(run: RunView) -> str:
    cpu_s = sum(run.values("cpu_s")) or sum(run.values("rollout_cpu_s")) + sum(run.values("update_cpu_s"))
    episodes = sum(run.values("episodes"))
    facts = [f"{episodes:,.0f} episodes" if episodes else "", f"{cpu_s:,.0f} CPU seconds" if cpu_s else ""]
    return _stat("Training steps", f"{len(run.steps):,}", ", ".join(f for f in facts if f))


def _stat(label: str, value: str, detail: str) -> str:
    return (
        f'<div><div class="label">{label}</div><div class="value">{value}</div>'
        f'<div class="detail">{detail}</div></div>'
    )


def _verdicts(verdicts: list[Verdict]) -> str:
    rows = "".join(
        f'<tr><td><span class="badge {_BADGES[v.outcome][0]}">{_BADGES[v.outcome][1]}</span></td>'
        f"<th>{escape(v.name)}</th>"
        f'<td>{escape(v.evidence)}<span class="rule">{escape(v.rule)}</span></td></tr>'
        for v in verdicts
    )
    return (
        '<section><h2>Verdicts</h2><p class="hint">One row for each success criterion: what was found, and '
        "below it the rule it was held to.</p>"
        f'<div class="card scroll"><table class="verdicts"><tbody>{rows}</tbody></table></div></section>'
    )


def _results(run: RunView) -> str:
    success, others = success_table(run), measures_table(run)
    if not success:
        return ""
    hint = (
        "Brackets are 95% intervals with the task as the independent unit. The change is in percentage "
        "points, paired by task; p is a sign-flip test. Hollow marks are before training, filled ones after. "
        "The first line counts episodes that could not be scored as failed; by complexity too."
    )
    legend = "Greedy unless marked. pass@k: at least one of k attempts succeeds; pass^k: all of them do."
    more = f'<h2>Other measures</h2><p class="hint">{legend}</p>{others}' if others else ""
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
        '<noscript><p class="hint">Only the curves need JavaScript.</p></noscript>'
        f'<div class="charts">{figures}</div></section>'
    )


def _controls(run: RunView) -> str:
    table = controls_table(run.controls)
    if not table:
        return ""
    hint = "What else was tried with the same budget, evaluated on the same tasks: task success."
    return f'<section><h2>Controls</h2><p class="hint">{hint}</p>{table}</section>'


def _tools(run: RunView) -> str:
    table = tools_table(run.tool_metrics) if run.tool_metrics is not None else ""
    if not table:
        return ""
    hint = (
        "The calls of servers since these were last started. Of the errors, tool_error and invalid_arguments "
        "are the model's own; the others leave an episode unscored. Cut: results longer than the limit. "
        "Repeats: sendings after a call's first, where that is safe. Restarts are those of the whole server."
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

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)).decode()


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
