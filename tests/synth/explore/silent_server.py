"""Lighthouses over stdio that say nothing of what their tools do: python -S silent_server.py LOG [--grows].

With --grows every start after the first tells other heights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stdio import serve, tool  # next to this script

LOG = Path(sys.argv[1])
STARTS = LOG.with_suffix(".starts")
with STARTS.open("a") as starts:
    starts.write("x")
MORE = len(STARTS.read_text()) - 1 if "--grows" in sys.argv else 0
NAMES = ("Alder", "Birch", "Crane", "Dove", "Falcon", "Heron", "Kite", "Otter", "Plover", "Raven")
LAMPS = {
    f"{name} Point": {"height": 31 + 7 * n + MORE, "keeper": f"{name}son"} for n, name in enumerate(NAMES)
}


TOOLS = [
    tool("list_lamps", "List the lighthouses"),
    tool("get_lamp", "Height and keeper of a lighthouse", lamp="string"),
    tool("break_lamp", "Break the lamp of a lighthouse", lamp="string"),
]


def _call(name: str, given: dict[str, Any]) -> Any:
    with LOG.open("a") as lines:
        lines.write(f"{name} {json.dumps(given)}\n")
    return {"lamps": list(LAMPS)} if name == "list_lamps" else LAMPS.get(str(given.get("lamp")))


if __name__ == "__main__":
    serve("silent", TOOLS, _call, refusal="there is no such lighthouse")
