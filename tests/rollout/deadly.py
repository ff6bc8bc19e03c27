"""`python -m tests.rollout.deadly`: a server that says things again, and dies when it is asked to."""

import os

from tests.tools.servers.plain import READS, PlainTool, serve

if __name__ == "__main__":
    serve(
        [
            PlainTool("echo", lambda text: text, ("text",), READS),
            PlainTool("die", lambda: os._exit(3)),
        ]
    )
