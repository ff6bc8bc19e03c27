"""Write the report of a run: one HTML file that a person opens anywhere, offline."""

from __future__ import annotations

from pathlib import Path

from mcpagent.evaluate.report_html import page_html
from mcpagent.evaluate.report_run import RunView, read_run
from mcpagent.storage.atomic import write_text

REPORT_NAME = "report.html"


def write_report(run_dir: Path) -> Path:
    """Read the run folder, write `report.html` into it, return its path.

    Raises UserError when the folder is missing, holds no step, or plotly is not installed.
    """
    return write_page(read_run(run_dir))


def write_page(run: RunView, out: Path | None = None) -> Path:
    """The same for a run that has been read, into the file `out` where there is one; a reader of the old file
    never sees half a new one."""
    path = out or run.path / REPORT_NAME
    write_text(path, page_html(run))
    return path
