"""What a started and stopped server leaves behind: processes, tasks, open files."""

from __future__ import annotations

import asyncio

from mcpagent.core.records import Record
from mcpagent.tools.processes import marked, open_files

_GRACE_S = 3.0  # a process that was just killed, or a transport that was just closed, takes a moment
_POLL_S = 0.05


class Leaks(Record):
    """`processes` are command lines of what still runs, `tasks` names of unfinished asyncio tasks, `files`
    the number of descriptors more than before."""

    processes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    files: int = 0

    def problems(self) -> list[str]:
        """A sentence for each kind; empty where nothing leaked."""
        return [
            *(f"leaked the process {command!r}" for command in self.processes),
            *(f"leaked the task {name!r}" for name in self.tasks),
            *([f"leaked {self.files} open files"] if self.files else []),
        ]


class LeakWatch:
    """Compares what there is with what there was when it was made. `mark` is that of the server's processes
    (`processes.MARK_ENV`). Nothing else may start in this process meanwhile."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._tasks = asyncio.all_tasks()
        self._files = open_files()

    async def leaks(self) -> Leaks:
        """What is still there 3 s after the end; at once where nothing is."""
        end_s = asyncio.get_running_loop().time() + _GRACE_S
        while (found := self._now()).problems() and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(_POLL_S)
        return found

    def _now(self) -> Leaks:
        return Leaks(
            processes=tuple(process.command for process in marked(self._mark)),
            tasks=tuple(task.get_name() for task in asyncio.all_tasks() - self._tasks if not task.done()),
            files=max(0, open_files() - self._files),
        )
