"""Whose processes are whose: by what they inherit, and where there is no /proc, by descent."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

from mcpagent.tools.transports.processes import MARK_ENV, descendants, kill, marked

# The one below says itself when it is there: it has no memory yet when it has only been started.
_BELOW = "import os; print(os.getpid(), flush=True); input()"
_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BELOW!r}], start_new_session=True)"


def test_a_process_that_left_its_group_and_session_is_still_known_by_its_mark() -> None:
    mark = secrets.token_hex(8)
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        env={**os.environ, MARK_ENV: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        found = marked(mark)
        assert {process.pid for process in found} == {parent.pid, grandchild}
        assert all(process.rss_bytes > 1e6 for process in found)
        by_descent = {process.pid: process for process in descendants(os.getpid())}
        assert by_descent.keys() >= {parent.pid, grandchild}
        assert by_descent[grandchild].parent == parent.pid
        commands = {process.pid: process.command for process in found}
        assert by_descent[parent.pid].command == commands[parent.pid]
        kill(found)
        assert parent.stdout.read() == b""  # both had it open
    assert marked(mark) == []
