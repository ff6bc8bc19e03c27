"""Ctrl-C, SIGTERM (every preemption sends it) and SIGHUP (the terminal is gone) all ask a command to stop.

The first one is held back if something must be finished, else it is raised as KeyboardInterrupt; a second
one ends the process at once. What is on disk is whole at every moment, so that nothing is lost by that.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ECHO_S = 0.5  # `timeout` and shells send SIGTERM and SIGHUP to the process and to its group
_GRACE_S = 3.0  # in which a process that is to end at once may still stop its servers

_last_s: float | None = None  # when the last signal came
_asked = False  # a first one was seen
_is_command = False  # this process is one command, which may be ended
_has_said = False  # the command's last line is printed


class Interrupted(KeyboardInterrupt):
    """An interrupt of work of which something is kept: `kept` says what, and `command` goes on with it (None:
    the same command, with `option` if it has that; empty: there is nothing to go on with)."""

    def __init__(self, kept: str, *, command: str | None = None, option: str | None = None) -> None:
        super().__init__(kept)
        self.kept, self.command, self.option = kept, command, option


class Abandoned(KeyboardInterrupt):
    """A second interrupt: what was being finished was cut in its middle and is not to be kept."""


def listen() -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C from now on. A signal that is ignored (nohup) stays so.

    The handler of Ctrl-C itself stays Python's own, which `asyncio.run` replaces by one that cancels."""
    global _is_command
    _is_command = True
    for number in _SIGNALS[1:]:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def stopping() -> None:
    """Say that the first interrupt is being followed: from now on another one ends the process at once."""
    global _asked
    _asked = True
    is_main = threading.current_thread() is threading.main_thread()
    if _is_command and is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def uninterrupted(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Holds the first interrupt back until the block is done, then raises KeyboardInterrupt; a second one
    raises Abandoned at once. Outside of the main thread, if no signal arrives, it does nothing."""
    with held_back(on_interrupt) as is_asked:
        yield
    if is_asked():
        raise KeyboardInterrupt


@contextmanager
def held_back(
    on_interrupt: Callable[[], None], *, echo_s: float | None = None
) -> Iterator[Callable[[], bool]]:
    """Holds the first interrupt back and says afterwards, through what it gives, whether there was one; a
    second one raises Abandoned at once. One that follows another within `echo_s` seconds (None: as they come
    from one sender) is the same one. Outside of the main thread it does nothing."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: asked
        return

    def hold(number: int, _frame: Any) -> None:
        global _asked
        nonlocal asked
        if _is_echo(number, echo_s):
            return
        _asked = True
        if asked:
            abandon()
        asked = True
        try:
            on_interrupt()
        except RuntimeError:  # it came in the middle of a line, and what writes that cannot be entered twice
            threading.Thread(target=on_interrupt, name="note of the interrupt").start()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, hold)
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with(last_line: Callable[[], None]) -> None:
    """Call what prints the last line of an interrupted command. No signal cuts it short; after it, one ends
    the process at once, whatever is still being cleaned up."""
    global _has_said
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, signal.SIG_IGN)
    last_line()
    _has_said = True
    for number in heard:
        signal.signal(number, lambda *_: os._exit(130))


def abandon() -> None:
    """Raise Abandoned. Where the process is one command, what still runs after a few seconds is cut off."""
    if _is_command:
        timer = threading.Timer(_GRACE_S, _cut_off)
        timer.daemon = True
        timer.start()
    raise Abandoned


def _cut_off() -> None:
    # Written around the console, whose lock what hangs may hold. A bar has hidden the cursor.
    line = "interrupted again: ended without cleaning up; every file is whole, or not there\n"
    if not _has_said:
        with suppress(OSError):
            os.write(2, (f"\x1b[?25h\r\n{line}" if os.isatty(2) else line).encode())
    os._exit(130)


def _interrupt(number: int, frame: Any) -> None:
    global _asked
    if _is_echo(number):
        return
    if _asked:
        abandon()
    _asked = True
    of_ctrl_c = signal.getsignal(signal.SIGINT)
    if number != signal.SIGINT and callable(of_ctrl_c):
        of_ctrl_c(signal.SIGINT, frame)
    else:
        raise KeyboardInterrupt


def _is_echo(number: int, within_s: float | None = None) -> bool:
    global _last_s
    if within_s is None:  # only the person who pressed it repeats a Ctrl-C
        within_s = 0.0 if number == signal.SIGINT else _ECHO_S
    before, _last_s = _last_s, time.monotonic()
    return before is not None and _last_s - before < within_s
