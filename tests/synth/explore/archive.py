"""An MCP server whose tools need a shelf that nothing gives. `python archive.py FOLDER`; every call is
noted in FOLDER/calls.log. Plain JSON-RPC over stdio, so that a start costs little."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stdio import serve, tool  # next to this script

FOLDER = Path(sys.argv[1])


TOOLS = [
    tool("list_records", "List the records of a shelf", reads=True, shelf="string"),
    tool("get_record", "Weight and keeper of a record", reads=True, record="string"),
    tool(
        "count_records",
        "Count the records that weigh so much",
        reads=True,
        grams={"type": "integer", "minimum": 300},
    ),
    tool("burn_record", "Burn a record", record="string"),
    tool("seal", "Seal a shelf", shelf="string"),
]
RECORDS = {f"record-{n:02}": {"grams": 300 + 17 * n, "keeper": f"Keeper {chr(65 + n)}"} for n in range(20)}


def _call(name: str, given: dict[str, Any]) -> Any:
    with (FOLDER / "calls.log").open("a") as log:
        log.write(json.dumps([name, given]) + "\n")
    match name:
        case "list_records" if given["shelf"] == "north/7":
            return {"records": [{"record": key} for key in RECORDS]}
        case "get_record":
            return RECORDS.get(given["record"])
        case "count_records":
            return {"lighter": 100 + sum(record["grams"] < given["grams"] for record in RECORDS.values())}
    return None


if __name__ == "__main__":
    serve("archive", TOOLS, _call, refusal="the archive has no such thing")
