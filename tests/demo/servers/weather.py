"""Weather stations on the SDK: lists and records are texts in Markdown, sensors and months are chosen from a
few, and no tool lists all stations."""

from __future__ import annotations

import random
from typing import Literal

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

RANDOM = random.Random(5)
READS = ToolAnnotations(read_only_hint=True)

Region = Literal["coast", "highlands", "plain", "forest"]
Sensor = Literal["thermometer", "barometer", "anemometer"]
Month = Literal["january", "april", "july", "october"]

FIRST = ["North", "South", "East", "West", "Upper", "Lower", "Old", "New", "Great", "Little"]
SECOND = [
    "Alder",
    "Birch",
    "Cedar",
    "Fir",
    "Hazel",
    "Juniper",
    "Larch",
    "Maple",
    "Oak",
    "Pine",
    "Rowan",
    "Willow",
]
THIRD = ["Peak", "Lake", "Bay", "Ridge"]


def _date() -> str:
    return f"{RANDOM.randint(2019, 2025)}-{RANDOM.randint(1, 12):02}-{RANDOM.randint(1, 28):02}"


NAMES = RANDOM.sample([f"{a} {b} {c}" for a in FIRST for b in SECOND for c in THIRD], 48)
STATIONS = {
    f"ws-{code}": {
        "name": name,
        "elevation_m": RANDOM.randint(3, 3900),
        "operator": RANDOM.choice(["Meteora", "SkyNet", "HydroLab", "AgroWatch"]),
        "commissioned": RANDOM.randint(1951, 2023),
        "region": RANDOM.choice(["coast", "highlands", "plain", "forest"]),
        "latitude": round(RANDOM.uniform(40, 60), 3),
    }
    for code, name in zip(RANDOM.sample(range(1000, 9999), len(NAMES)), NAMES, strict=True)
}
SENSORS = {
    station: {
        kind: {"serial": f"{kind[:2].upper()}{RANDOM.randint(10000, 99999)}", "last_calibration": _date()}
        for kind in ("thermometer", "barometer", "anemometer")
    }
    for station in STATIONS
}
CLIMATE = {
    station: {
        month: {
            "mean_temperature": round(RANDOM.uniform(-9, 31), 1),
            "rain_mm": RANDOM.randint(0, 240),
            "wind_max": RANDOM.randint(20, 140),
        }
        for month in ("january", "april", "july", "october")
    }
    for station in STATIONS
}

server = MCPServer("weather", log_level="ERROR")


@server.tool(annotations=READS)
def stations(region: Region) -> str:
    """Stations of a region."""
    listed = [f"- {code}: {row['name']}" for code, row in STATIONS.items() if row["region"] == region]
    return f"{len(listed)} stations\n\n" + "\n".join(listed)


@server.tool(annotations=READS)
def station_info(station_id: str) -> str:
    """Master data of a station."""
    row = STATIONS[station_id]
    return f"# {row['name']}\n" + "\n".join(f"**{k}**: {value}" for k, value in row.items() if k != "name")


@server.tool(annotations=READS)
def sensor(station_id: str, kind: Sensor) -> dict[str, object]:
    """A sensor of a station."""
    return {"station": station_id, "sensor": SENSORS[station_id][kind]}


@server.tool(annotations=READS)
def climate(station_id: str, month: Month) -> dict[str, object]:
    """Climate of a month at a station."""
    return CLIMATE[station_id][month]


if __name__ == "__main__":
    server.run()
