"""The page of a report and that of the live view: what their templates are filled with."""

from __future__ import annotations

import json
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.evaluate.report.document import Cost, ReportDocument, document_of
from mcpagent.evaluate.report.episode_html import episode_html, pair_view, token_pieces
from mcpagent.evaluate.report.episodes import gold_tasks
from mcpagent.evaluate.report.run_data import AFTER, BEFORE, RunView, choose, read_run
from mcpagent.evaluate.report.tables import (
    breakdown_tables,
    control_tables,
    measures_table,
    terms_table,
    tools_table,
)
from mcpagent.evaluate.report.template import interactive, packed, page, render
from mcpagent.storage.atomic import write_text

EMBEDDED_EPISODES = 5000  # in the page; `mcpagent view` lists more
_CHUNK = 50  # episodes that are unpacked together when one of them is opened


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run folder and return its path. Raises UserError if the folder is missing or
    holds no step."""
    path = run_dir / "report.html"
    write_page(read_run(run_dir), path, as_json=False)
    return path


def write_page(run: RunView, path: Path, *, as_json: bool) -> ReportDocument:
    """Write the report of a run as a page or as its JSON document, which is returned. A reader of the old
    file never sees half a new one."""
    document = document_of(run)
    write_text(path, document.model_dump_json(indent=1) + "\n" if as_json else _html(run, document))
    return document


def _html(run: RunView, document: ReportDocument) -> str:
    summary, figures = summary_html(run, document)
    rows, details, left_out = _episodes(run)
    browser = render("browser.html", left_out=left_out) if rows else ""
    scripts = interactive(figures, rows, {"chunk": _CHUNK, "files": details})
    return page(document.title, summary + browser + _provenance(run), scripts=scripts)


def summary_html(run: RunView, document: ReportDocument) -> tuple[str, JsonObject]:
    """Return the sections above the list of episodes, and the figures of their charts by id."""
    before = run.evaluations.get(BEFORE) if AFTER in run.evaluations else None
    summary = render(
        "report.html",
        document=document,
        cost=cost_text(document.cost),
        tables_of_results=[
            *measures_table(document),
            *breakdown_tables(document.breakdown, before and before.breakdown),
        ],
        tables_of_training=[
            *terms_table(document),
            *control_tables(document),
            *tools_table(document),
        ],
        pairs=[pair_view(pair) for pair in choose(run.pairs)],
    )
    return summary, {chart.id: chart.figure for chart in document.charts if not chart.is_zero}


def live_html(title: str) -> str:
    """Return the page of `mcpagent view`, which asks its own server for everything and loads nothing else."""
    waiting = render("waiting.html", title=title, text="")
    body = f'<div id="summary">{waiting}</div>{render("browser.html", left_out=0)}'
    return page(title, body, scripts=interactive({}, {}, {}), is_live=True)


def cost_text(cost: Cost) -> str:
    """Return `2,304 episodes of 24 sampled tokens, 39 CPU seconds`."""
    length = f" of {cost.tokens / cost.episodes:,.0f} sampled tokens" if cost.episodes and cost.tokens else ""
    facts = [
        f"{cost.episodes:,} episodes{length}" if cost.episodes else "",
        f"{cost.cpu_s:,.0f} CPU seconds" if cost.cpu_s else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def _episodes(run: RunView) -> tuple[JsonObject, JsonObject, int]:
    """Return the rows of the list by file, their details in packed chunks by file, and how many are left out.
    One chunk of episodes is in memory at a time."""
    if run.episodes is None:
        return {}, {}, 0
    listed, left_out = run.episodes.listed(EMBEDDED_EPISODES)
    tasks = gold_tasks(run.config, {row["task"] for rows in listed.values() for row in rows})
    pieces = token_pieces(run.path)
    details: JsonObject = {}
    for stem, rows in listed.items():
        chunks: list[str] = []
        shown: list[str] = []
        for row, trajectory in zip(rows, run.episodes.read(stem), strict=False):
            task, relative = tasks.get(trajectory.task_id), row.get("relative")
            shown.append(episode_html(trajectory, label=stem, task=task, relative=relative, pieces=pieces))
            if len(shown) == _CHUNK:
                chunks.append(packed(json.dumps(shown)))
                shown.clear()
        details[stem] = [*chunks, *([packed(json.dumps(shown))] if shown else [])]
    return dict(listed), details, left_out


def _provenance(run: RunView) -> str:
    facts = {k: v for k, v in run.manifest.items() if k not in ("about", "title")}
    documents = {"Manifest": facts}
    documents |= {f"Evaluation {name}": e.provenance for name, e in run.evaluations.items()}
    texts = {name: json.dumps(d, indent=2, ensure_ascii=False) for name, d in documents.items() if d}
    return render("provenance.html", config_text=run.config_text, documents=texts)
