"""Whose processes are whose: by what they inherit, also where they left their parent's group and session."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys

from mcpagent.tools.probes.processes import STARTED_BY_ENV, marked
from tests.tools.faults.chaos import command, send

# The one below says itself when it is there: it has no memory yet when it has only been started.
_BELOW = "import os; print(os.getpid(), flush=True); input()"
_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BELOW!r}], start_new_session=True)"


def test_a_process_that_left_its_group_and_session_is_still_known_by_its_mark() -> None:
    mark = secrets.token_hex(8)
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        env={**os.environ, STARTED_BY_ENV: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        processes = {process.pid: process for process in marked(mark)}
        assert processes.keys() == {parent.pid, grandchild}
        assert all(process.memory_info().rss > 1e6 for process in processes.values())
        assert processes[grandchild].ppid() == parent.pid
        assert command(processes[parent.pid]) == f"{sys.executable} -c {_CHILD}"
        send(signal.SIGKILL, processes.values())
        assert parent.stdout.read() == b""  # both had it open
    assert marked(mark) == []
