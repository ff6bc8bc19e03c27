"""The poison server with a difficult character: `python stubborn.py PID_FILE [TRAIT ...]`.

`deaf` to the end of its input and to SIGTERM; with a `child` that is deaf too, one with a session of its own
(a `daemon`), or one that was forked twice, so that its parent has ended (an `orphan`). The ids of all go to
PID_FILE.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from poison import serve_stdio

DEAF_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"

if __name__ == "__main__":
    pid_file, traits = Path(sys.argv[1]), sys.argv[2:]
    pids = [os.getpid()]
    for trait in {"child", "daemon"} & set(traits):
        # It inherits stdin and stdout, as children do whose author did not think of it.
        child = subprocess.Popen([sys.executable, "-c", DEAF_CHILD], start_new_session=trait == "daemon")
        pids.append(child.pid)
    if "orphan" in traits:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(writer, b"%d" % os.getpid())
                os.execv(sys.executable, [sys.executable, "-c", DEAF_CHILD])
            os._exit(0)
        os.wait()
        pids.append(int(os.read(reader, 20)))
    if "deaf" in traits:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pid_file.write_text(" ".join(map(str, pids)))
    serve_stdio()
    if "deaf" in traits:
        time.sleep(1000)
    os._exit(0)
