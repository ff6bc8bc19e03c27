"""A server to injure: `python -m tests.tools.servers.frail MODE FILE`.

FILE gets the id of its process and every method that it is asked. MODE: `sound`; `once` does not start again;
`litter` starts a process that outlives it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tools.servers.plain import PlainTool, serve

LITTER = "import time; time.sleep(600)"


def main(mode: str, file: Path) -> None:
    if mode == "once" and file.exists():
        sys.exit("no second start: the licence is spent")
    if mode == "litter":
        subprocess.Popen(
            [sys.executable, "-c", LITTER],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    with file.open("a") as log:
        print("pid", os.getpid(), file=log, flush=True)
        serve(
            [PlainTool("wipe_everything", lambda: "wiped")],
            on_request=lambda method: print("method", method, file=log, flush=True),
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
