"""A port with ships and berths that no code knows, over stdio: python -m tests.synth.explore.port_server"""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

_SHIPS = (
    "Aurora", "Borealis", "Caravel", "Dorado", "Esperance", "Fortuna", "Galatea", "Halcyon", "Isolde", "Juno",
    "Kestrel", "Leander", "Mistral", "Nereid", "Ondine", "Pelican", "Querida", "Rosa", "Sirocco", "Tamarin",
)  # fmt: skip
_CAPTAINS = (
    "Ada Berg", "Bo Lind", "Carla Voss", "Dirk Maas", "Elin Dahl", "Fritz Haas", "Gwen Price", "Hugo Blom",
    "Ines Prado", "Jan Kok", "Kira Holm", "Lars Moe", "Mina Sato", "Nils Falk", "Olga Petrov", "Per Strand",
    "Quinn Shaw", "Rosa Leal", "Sven Krog", "Tara Quist",
)  # fmt: skip
QUAYS = ("North", "South", "East", "West")
SHIPS: dict[str, dict[str, Any]] = {
    name: {
        "premium": 310.5 + 7 * n,
        "tons": 1200 + 31 * n,
        "captain": _CAPTAINS[n],
        "length_m": 80.5 + n,
        "built": f"{1971 + n}-0{1 + n % 9}-1{n % 9}",
    }
    for n, name in enumerate(_SHIPS)
}


def berth_details(berth: int) -> dict[str, Any]:
    """Retrieve the details of a berth by its number"""
    if not 11 <= berth < 11 + len(SHIPS):
        raise ToolError(f"no berth {berth}")
    return {"ship": _SHIPS[berth - 11], "depth": 9.25 + berth}


def list_berths() -> list[dict[str, Any]]:
    """List all berths of the port with their numbers and quays"""
    return [{"number": 11 + n, "quay": QUAYS[n % 4]} for n in range(len(SHIPS))]


def ship_details(ship: str) -> dict[str, Any]:
    """Get a detailed record of a ship by its name, including premium, tons and captain"""
    if ship not in SHIPS:
        raise ToolError(f"no ship {ship}")
    return SHIPS[ship]


def list_ships() -> list[dict[str, Any]]:
    """List all ships of the port"""
    return [{"name": name, "flag": f"flag {n % 5}"} for n, name in enumerate(SHIPS)]


def fleet_of(captain: str) -> dict[str, Any]:
    """The ships that have sailed under a captain"""
    if captain not in _CAPTAINS:
        raise ToolError(f"no captain {captain}")
    n = _CAPTAINS.index(captain)
    return {"fleet": [{"name": _SHIPS[n]}, {"name": _SHIPS[n - 1]}]}


def sink_ship(ship: str) -> str:
    """Sink a ship"""
    return f"{ship} is gone"


def build() -> MCPServer[Any]:
    server = MCPServer("port", log_level="ERROR")
    for tool in (berth_details, list_berths, ship_details, list_ships, fleet_of):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True))
    server.add_tool(sink_ship)
    return server


if __name__ == "__main__":
    build().run()
