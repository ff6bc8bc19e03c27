"""What a person sees: documents on stdout, everything else (progress, tables, notes, errors) on stderr.

Nothing prints around this file: what servers, datasets and models say passes one filter here, which shows a
control character as its escape and a secret as its name.
"""

from __future__ import annotations

import atexit
import errno
import json
import logging
import os
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import rich.console
import rich.control
import rich.progress
import rich.segment
import rich.table
from rich.markup import escape

from mcpagent.core.hidden_text import printable
from mcpagent.core.redact import SECRETS
from mcpagent.errors import MCPAgentError, RunError

if TYPE_CHECKING:
    from mcpagent.core.records import Metric

_QUIET_INTERVAL_S = 30.0


class Advance(Protocol):
    """Count work as done; `note` replaces the text next to the bar."""

    def __call__(self, amount: int = 1, *, note: str = "") -> None:
        """Add `amount` to what is done."""
        ...


@dataclass(frozen=True)
class Table:
    """A table of a result. The first column is text, the others align right unless `is_text`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    is_text: bool = False


@dataclass(frozen=True)
class Facts:
    """Lines with a name in front, such as `written   out.json`; rows without a text are left out."""

    rows: Sequence[tuple[str, str | None]]


Block = str | Table | Facts  # what the result of a command is shown as; a str is a line


class Console:
    """Writes to the terminal. `is_json` keeps stdout for one JSON document and sends tables to stderr."""

    def __init__(self, *, is_json: bool = False, line_interval_s: float = _QUIET_INTERVAL_S) -> None:
        self.is_json = is_json
        self._line_interval_s = line_interval_s
        self._err = rich.console.Console(file=cast(IO[str], _Stderr()), highlight=False, emoji=False)
        self._out = self._err if is_json else _Stdout(highlight=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        """Return True if a person reads the result, rather than a program or a file."""
        return self._out.is_terminal

    def print_json(self, value: Any) -> None:
        """Print the one document of a `--json` command."""
        document = json.dumps(SECRETS.value(_plain(value)), indent=2, allow_nan=False)
        with _writing_result():
            # JSON escapes every control character but one, and whatever is not ASCII.
            sys.stdout.write(document.replace("\x7f", "\\u007f") + "\n")
            sys.stdout.flush()

    def print_blocks(self, document: Any, blocks: Iterable[Block]) -> None:
        """Print the result of a command: the document with `is_json`, else the blocks, which may be made as
        they are printed."""
        if self.is_json:
            self.print_json(document)
        else:
            self.show_blocks(blocks)

    def show_blocks(self, blocks: Iterable[Block]) -> None:
        """Print blocks as a person reads them; with `is_json` to stderr."""
        for block in blocks:
            if isinstance(block, Table):
                self._out.print(_drawn(block))
            elif isinstance(block, Facts):
                rows = [(name, text) for name, text in block.rows if text is not None]
                width = max([8, *(len(name) for name, _ in rows)])
                for name, text in rows:
                    self.say(f"{name:<{width}}  {text}", indent=width + 2)
            else:
                self.say(block)

    def flush(self) -> None:
        """Write out what is buffered, before this process becomes another."""
        sys.stdout.flush()
        sys.stderr.flush()

    def say(self, text: str, *, indent: int | None = None) -> None:
        """Print a line of the result. `indent` is where it goes on if it is too long for the terminal."""
        self._out.print(_wrapped(safe_text(text), self._out, indent), markup=False, soft_wrap=True)

    def show(self, text: str, *, is_error: bool = False) -> None:
        """Print text from elsewhere, such as the result of a tool; an error goes to stderr."""
        (self._err if is_error else self._out).print(safe_text(text), markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line about the work to stderr; it is never part of the result."""
        self._err.print(_wrapped(safe_text(text), self._err), markup=False, soft_wrap=True, style="dim")

    def last_note(self, text: str) -> None:
        """Print the line that an interrupted command ends with, over the `^C` of the terminal."""
        if self._err.is_terminal:
            self._err.control(rich.control.Control(rich.segment.ControlType.CARRIAGE_RETURN))
        self.note(text)

    def fail(self, error: MCPAgentError) -> None:
        """Print an error with its place and remedy; with `is_json`, its document too."""
        if self.is_json:
            with suppress(RunError):  # there may be no standard output to print it to
                self.print_json(error.as_json())
        self.complain(str(error))

    def complain(self, text: str) -> None:
        """Print an error without a JSON document."""
        text = _wrapped(f"error: {safe_text(text)}", self._err).removeprefix("error:")
        self._err.print(f"[bold red]error:[/]{escape(text)}", soft_wrap=True)

    @contextmanager
    def progress(self, title: str, *, total: int | None = None) -> Iterator[Advance]:
        """Show a progress bar with the time left; if stderr is not a terminal, a line each 30 s and one at
        the end."""
        if not self._err.is_terminal:
            yield from self._progress_lines(title, total)
            return
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=20),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[left]}"),
            rich.progress.TextColumn("{task.fields[note]}", markup=False),
        )
        with rich.progress.Progress(*columns, console=self._err) as bar:
            left = "left" if total is not None else ""
            task = bar.add_task(escape(safe_text(title)), total=total, note="", left=left)

            def advance(amount: int = 1, *, note: str = "") -> None:
                bar.update(task, advance=amount, note=safe_text(note))

            try:
                yield advance
            finally:
                bar.update(task, note="")  # what it was doing last says nothing of an end

    def _progress_lines(self, title: str, total: int | None) -> Iterator[Advance]:
        pace, latest = ProgressRate(total), [""]
        ended = threading.Event()

        def line() -> None:
            self.note(f"{title}: {pace} {latest[0]}".rstrip())

        def advance(amount: int = 1, *, note: str = "") -> None:
            latest[0] = note
            pace.add(amount)

        def lines() -> None:
            while not ended.wait(self._line_interval_s):
                line()

        thread = threading.Thread(target=lines, name="mcpagent-progress", daemon=True)
        thread.start()
        try:
            yield advance
        finally:
            ended.set()
            thread.join()
        latest[0] = ""
        line()


def _drawn(table: Table) -> rich.table.Table:
    drawn = rich.table.Table(title=escape(safe_text(table.title)), title_justify="left")
    for index, column in enumerate(table.columns):
        drawn.add_column(
            escape(safe_text(column)), justify="left" if table.is_text or index == 0 else "right"
        )
    for row in table.rows:
        drawn.add_row(*(escape(safe_text(str(cell))) for cell in row))
    return drawn


class ProgressRate:
    """The share of the work that is done, and the time that the rest takes. What the first report counts was
    done before, by an earlier process for example, and says nothing about the pace."""

    def __init__(self, total: int | None) -> None:
        self._total, self._done = total, 0
        self._started_s = time.monotonic()
        self._first: tuple[float, int] | None = None

    def add(self, amount: int) -> None:
        """Count work as done."""
        self._done += amount
        if self._first is None:
            self._first = (time.monotonic(), self._done)

    def left_s(self, now_s: float) -> float | None:
        """Return seconds that remain at the pace so far; None if that cannot be said."""
        if self._first is None or self._total is None or self._done <= self._first[1]:
            return None
        since_s, before = self._first
        return (self._total - self._done) * (now_s - since_s) / (self._done - before)

    def __str__(self) -> str:
        now = time.monotonic()
        of = f"/{self._total}" if self._total is not None else ""
        left = self.left_s(now)
        more = f", {duration(left)} left" if left else ""
        return f"{self._done}{of} after {duration(now - self._started_s)}{more}"


def duration(seconds: float) -> str:
    """Return `45 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class _Stderr:
    """Standard error of the moment. Where it cannot be written to any more (a closed terminal, a full disk),
    notes are lost and the work goes on."""

    def write(self, text: str) -> int:
        with _losing_notes():
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with _losing_notes():
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


@contextmanager
def _losing_notes() -> Iterator[None]:
    try:
        yield
    except OSError:
        atexit.unregister(_drop_notes)
        atexit.register(_drop_notes)
    except (ValueError, AttributeError):  # it is closed, or there is none
        pass


def _drop_notes() -> None:
    """Give up what the buffer of standard error still holds. The interpreter would try once more to write it,
    and make the failure of that the exit code (120)."""
    with suppress(OSError, ValueError, AttributeError):
        try:
            sys.stderr.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class _Stdout(rich.console.Console):
    """Standard output; if it cannot be written to, that is one error."""

    def _write_buffer(self) -> None:
        with _writing_result():
            super()._write_buffer()

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@contextmanager
def _writing_result() -> Iterator[None]:
    """Raise RunError if the result cannot be written."""
    if sys.stdout is None:
        raise RunError("the result cannot be printed: standard output is closed", where="stdout")
    try:
        yield
    except OSError as error:
        with suppress(OSError, ValueError):  # what is left in its buffer would fail once more at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise RunError(
            f"the result cannot be printed: {error.strerror or error}",
            where="stdout",
            remedy="what the command wrote to files is complete; print it to something that takes all of it",
        ) from None


def safe_text(text: str) -> str:
    """Return `text` as it may stand on a terminal or in a log."""
    return printable(SECRETS.text(text))


def guard_process() -> None:
    """Hold to the same filter what reaches the terminal without a `Console`: records of every logger, and the
    traceback of a bug."""
    make = logging.getLogRecordFactory()

    def record_of(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        message = record.getMessage()
        if (clean := safe_text(message)) != message:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = safe_text("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
        return record

    logging.setLogRecordFactory(record_of)
    logging.getLogger("huggingface_hub.utils._http").addFilter(_HubRetries())
    sys.excepthook = _print_bug


class _HubRetries(logging.Filter):
    """Say once that the hub does not answer, instead of at each attempt of its client."""

    _has_said = False

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if "thrown while requesting" not in message and not message.startswith("Retrying in"):
            return True
        if self._has_said:
            return False
        self._has_said = True
        record.msg = (
            "the model hub does not answer; it is asked a few times more, for up to a minute "
            "(HF_HUB_OFFLINE=1: not at all)"
        )
        record.args = ()
        return True


def _print_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(safe_text("".join(traceback.format_exception(kind, error, trace))))


def _wrapped(text: str, console: rich.console.Console, hanging: int | None = None) -> str:
    """Break lines that are too long for a terminal between words, and keep their indent. One with a command
    stays whole, so that it can be copied."""
    if not console.is_terminal:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= console.width or "mcpagent " in line or "pip install" in line:
            lines.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 2 if hanging is None else hanging)
        lines += textwrap.wrap(
            line,
            console.width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
    return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """Return `1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _plain(value: Any) -> Any:
    """Return a result as what JSON knows: what it says of itself, else its fields."""
    from pydantic import BaseModel  # here, so that an error can be said if pydantic is missing

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if hasattr(value, "as_json"):
        return _plain(value.as_json())
    if is_dataclass(value):
        return _plain(vars(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


METRIC_COLUMNS = ("", "value", "95 % interval", "tasks")


def metric_row(name: str, metric: Metric, *, is_rate: bool, signed: bool = False) -> tuple[str, ...]:
    """Return cells for `METRIC_COLUMNS`: rates in percent; a dash for what there is not."""
    scale, digits, unit = (100.0, 1, " %") if is_rate else (1.0, 3, "")

    def number(value: float) -> str:
        return f"{value * scale:{'+' if signed else ''}.{digits}f}"

    value = "-" if metric.value is None else number(metric.value) + unit
    interval = "-"
    if metric.ci_low is not None and metric.ci_high is not None:
        interval = f"{number(metric.ci_low)} to {number(metric.ci_high)}"
    return name, value, interval, str(metric.n)
