"""What a person sees while a run trains: a bar, and a row for each step."""

from __future__ import annotations

import shlex
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Advance, Console
from mcpagent.core.records import JsonObject
from mcpagent.interrupts import Interrupted
from mcpagent.storage.run_folder import RunFolder, step_of

if TYPE_CHECKING:
    from mcpagent.run.lifecycle import Watch

_WIDTHS = (7, 8, 8, 8, 8, 8)  # of the columns, with a space between them


class TrainProgress:
    """Shows a run as `watch` reports it. At the end of its block an interrupt says what is kept."""

    def __init__(self, config: TrainConfig, console: Console) -> None:
        self._config, self._console, self._stack = config, console, ExitStack()
        self._is_grpo = config.algorithm == "grpo"
        self._advance: Advance = lambda amount=1, *, note="": None
        self._folder: Path | None = None
        self._last, self._last_s = "", 0.0
        self._part = "", 0  # the one whose bar is shown before the steps begin, and how much of it is done
        self._has_started = False

    @property
    def watch(self) -> Watch:
        """Return the watch that the run reports to."""
        from mcpagent.run.lifecycle import Watch

        return Watch(
            on_folder=self._on_folder,
            on_start=self._on_start,
            on_step=self._on_step,
            on_part=self._on_part,
            note=self._console.note,
        )

    def __enter__(self) -> TrainProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if not isinstance(error, KeyboardInterrupt) or self._folder is None:
            return
        run = RunFolder(self._folder)
        if not run.config_path.is_file():
            return
        latest = run.latest_checkpoint()
        where = "before its first checkpoint"
        if latest is not None:
            where = f"after step {step_of(latest)}, which is kept"
        command = f"mcpagent train --config {shlex.quote(str(run.config_path))} --resume"
        raise Interrupted(f"stopped {where}", command=command) from error

    def _on_folder(self, path: Path) -> None:
        self._folder = path
        self._console.note(f"run folder: {path}")

    def _on_start(self, done: int, total: int) -> None:
        if done >= total:
            self._stack.close()
            self._console.note(
                f"the run has taken {done} of its {total} steps; raise training.max_steps to continue"
            )
            return
        self._show_bar(self._config.method.upper() if self._is_grpo else "supervised", total)
        self._has_started = True
        self._advance(done)
        names = ("reward", "success", "KL", "length") if self._is_grpo else ("loss", "", "", "")
        self._console.note(_row("step", *names, "tokens/s"))
        self._last_s = time.monotonic()

    def _on_part(self, what: str, done: int, total: int) -> None:
        """Show how far a part is: next to the bar of the steps or, before there is one, in a bar of its
        own."""
        if self._has_started:
            self._advance(0, note=f"{self._last}  {what} {done}/{total}".lstrip())
            return
        name, before = self._part
        if what != name or done <= before:
            before = 0
            self._show_bar(what, total)
        self._advance(done - before)
        self._part = what, done

    def _show_bar(self, title: str, total: int) -> None:
        self._stack.close()
        self._advance = self._stack.enter_context(self._console.progress(title, total=total))

    def _on_step(self, record: JsonObject) -> None:
        self._last = step_note(record)
        now = time.monotonic()
        passed, self._last_s = now - self._last_s, now
        self._console.note(step_row(record, seconds=passed))
        self._advance(note=self._last)


def step_row(record: JsonObject, *, seconds: float) -> str:
    """Return the row of a step that took `seconds`. `length` is tokens an episode; tokens/s counts what the
    step trained on."""
    tokens, episodes = record.get("tokens", 0), record.get("episodes", 0)
    cells = [_cell(record.get("loss"), ".4f"), "", "", ""]
    if "reward_mean" in record:
        cells = [
            _cell(record.get("reward_mean"), ".3f"),
            _cell(record.get("success_rate_all", record.get("success_rate")), ".0%"),
            _cell(record.get("kl", record.get("approx_kl")), ".4f"),
            _cell(tokens / episodes if episodes else None, ".0f"),
        ]
    pace = _cell(tokens / seconds if seconds else None, ".0f")
    return _row(str(record["step"]), *cells, pace)


def step_note(record: JsonObject) -> str:
    """Return the one line next to the bar."""
    if "reward_mean" in record:
        shown = f"reward {record['reward_mean']:.2f}  success {record['success_rate_all']:.0%}"
        if unscored := record["unscored"]:
            shown += f" ({record['success_rate']:.0%} of the scored, {unscored} unscored)"
        validated = record.get("validation_success_all")
        return shown if validated is None else f"{shown}  validation {validated:.0%}"
    return f"loss {record['loss']:.3f}" if "loss" in record else ""


def _row(*cells: str) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
