"""A server that does one thing after the other: while it works it reads nothing."""

from __future__ import annotations

import time

from plain import PlainTool, serve


def work() -> str:
    """Take 50 ms."""
    time.sleep(0.05)  # it blocks, as many servers do
    return "done"


if __name__ == "__main__":
    serve([PlainTool("work", work)])
