"""What a person sees: documents on stdout, everything else (progress, tables, notes, errors) on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import rich.console
import rich.progress
import rich.table
from pydantic import BaseModel
from rich.markup import escape

from mcpagent.errors import MCPAgentError

_QUIET_INTERVAL_S = 30.0


class Advance(Protocol):
    """Count work as done; `note` replaces what stands beside the bar."""

    def __call__(self, amount: int = 1, *, note: str = "") -> None: ...


class Console:
    """The terminal. `is_json` keeps stdout for one JSON document and sends tables to stderr."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json
        self._err = rich.console.Console(stderr=True, highlight=False)
        self._out = self._err if is_json else rich.console.Console(highlight=False)

    def print_json(self, value: Any) -> None:
        """The one document of a `--json` command."""
        document = json.dumps(_plain(value), indent=2, allow_nan=False)
        sys.stdout.write(document + "\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """A line of the result."""
        self._out.print(text, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """A line about the work, never part of the result."""
        self._err.print(text, markup=False, soft_wrap=True, style="dim")

    def fail(self, error: MCPAgentError) -> None:
        """An error with its place and remedy; with `is_json`, its document too."""
        if self.is_json:
            self.print_json(error.as_json())
        self._err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, is_text: bool = False
    ) -> None:
        """A table of the result; the first column is text, the others align right unless `is_text`."""
        table = rich.table.Table(title=escape(title), title_justify="left")
        for index, column in enumerate(columns):
            table.add_column(escape(column), justify="left" if is_text or index == 0 else "right")
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        self._out.print(table)

    @contextmanager
    def progress(self, title: str, *, total: int | None = None) -> Iterator[Advance]:
        """A progress bar; where stderr is no terminal, a line at most every 30 s and one at the end."""
        if not self._err.is_terminal:
            yield from self._progress_lines(title, total)
            return
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("{task.fields[note]}", markup=False),
        )
        with rich.progress.Progress(*columns, console=self._err) as bar:
            task = bar.add_task(escape(title), total=total, note="")

            def advance(amount: int = 1, *, note: str = "") -> None:
                bar.update(task, advance=amount, note=note)

            yield advance

    def _progress_lines(self, title: str, total: int | None) -> Iterator[Advance]:
        started = printed = time.monotonic()
        done = 0

        def line(note: str) -> None:
            of = f"/{total}" if total is not None else ""
            self.note(f"{title}: {done}{of} after {time.monotonic() - started:.0f} s {note}".rstrip())

        def advance(amount: int = 1, *, note: str = "") -> None:
            nonlocal done, printed
            done += amount
            if time.monotonic() - printed >= _QUIET_INTERVAL_S:
                printed = time.monotonic()
                line(note)

        yield advance
        line("")


def _plain(value: Any) -> Any:
    """Records inside dicts and lists as what JSON knows."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
