"""A railway as a plain JSON-RPC program over stdio, without an SDK, whose answers are nested.

Stations are known by their names, trains by a number, drivers by a code; the timetable takes two arguments.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

RANDOM = random.Random(97)


def _words(text: str) -> list[str]:
    return text.split()


START = _words("Alder Birch Crane Dove Elm Falcon Gorse Heron Ivy Jay Kite Larch Moss Newt Otter Pine")
END = _words("bridge bury cester combe dale field gate hurst leigh minster wick worth")
FIRST = _words("Aled Bronwen Callum Deirdre Ewan Fiona Gareth Heather Iain Jenna Kerr Lowri")
LAST = _words("Aitken Buchan Carrick Drummond Erskine Forbes Gillies Haddow Innes Jardine")
DAYS = ["monday", "wednesday", "saturday"]


def _pick(table: dict[str, Any]) -> str:
    return RANDOM.choice(list(table))


STATIONS = {
    f"{start}{end}": {
        "address": {
            "county": f"{RANDOM.choice(START)}shire",
            "postcode": f"{RANDOM.choice('BCDG')}{RANDOM.randint(10, 99)}",
        },
        "platforms": {"count": RANDOM.randint(3, 24), "longest_m": RANDOM.randint(90, 480)},
        "manager": {"phone": f"0{RANDOM.randint(2000, 9999)}"},
    }
    for start, end in RANDOM.sample([(s, e) for s in START for e in END], 40)
}
DRIVERS = {
    f"DRV-{number}": {
        "person": {"name": f"{RANDOM.choice(FIRST)} {RANDOM.choice(LAST)}", "age": RANDOM.randint(23, 64)},
        "licence": {"number": f"L{RANDOM.randint(10_000, 99_999)}", "expires": f"20{RANDOM.randint(27, 39)}"},
    }
    for number in RANDOM.sample(range(100, 1000), 24)
}
TRAINS = {
    str(number): {
        "route": {"origin": _pick(STATIONS), "destination": _pick(STATIONS)},
        "crew": {"driver": _pick(DRIVERS)},
        "wagons": RANDOM.randint(3, 18),
    }
    for number in RANDOM.sample(range(3000, 9999), 60)
}
DEPARTURES = {
    (number, day): f"{RANDOM.randint(4, 23):02d}:{RANDOM.randint(10, 59)}"
    for number in TRAINS
    for day in DAYS
}


def _get(table: dict[Any, Any], key: Any) -> Any:
    if key not in table:
        raise KeyError(f"unknown: {key}")
    return table[key]


def _tool(name: str, text: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": value} for key, value in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"name": name, "description": text, "annotations": {"readOnlyHint": True}, "inputSchema": schema}


TOOLS: dict[str, Any] = {
    "stations": (_tool("stations", "Names of all stations."), lambda: {"stations": list(STATIONS)}),
    "trains": (_tool("trains", "Numbers of all trains."), lambda: {"trains": list(TRAINS)}),
    "station_info": (
        _tool("station_info", "Address, platforms and manager of a station.", station="its name"),
        lambda station: _get(STATIONS, station),
    ),
    "train_info": (
        _tool("train_info", "Route, crew and wagons of a train.", train="train number"),
        lambda train: _get(TRAINS, train),
    ),
    "driver_info": (
        _tool("driver_info", "Who a driver is, and the licence.", driver="driver code"),
        lambda driver: _get(DRIVERS, driver),
    ),
    "departure": (
        _tool(
            "departure",
            "When a train leaves on a day.",
            train="train number",
            day="monday, wednesday or saturday",
        ),
        lambda train, day: {"departs": _get(DEPARTURES, (train, day))},
    ),
}


def _answer(message: dict[str, Any]) -> Any:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        info = {"name": "railway", "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
    if method == "tools/list":
        return {"tools": [described for described, _ in TOOLS.values()]}
    if method == "tools/call":
        try:
            text, is_error = json.dumps(TOOLS[params["name"]][1](**params.get("arguments", {}))), False
        except (KeyError, TypeError) as error:
            text, is_error = str(error), True
        return {"content": [{"type": "text", "text": text}], "isError": is_error}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        if message["method"] in ("initialize", "tools/list", "tools/call", "ping"):
            body = {"result": _answer(message)}
        else:
            body = {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
