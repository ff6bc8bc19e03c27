"""Three servers that no code knows, and what reached them: `calls` and `refused` count by tool."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from mcpagent.config.schema import ToolsConfig
from mcpagent.synth.explore.graph import ToolGraph
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.tasks.run import CallCache
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_PORTS = ("Lisbon", "Genoa", "Bergen", "Cadiz", "Split", "Ghent", "Varna", "Riga")
_FIRST = (
    "Aurora",
    "Borealis",
    "Caravel",
    "Dorado",
    "Esperanza",
    "Fortuna",
    "Galatea",
    "Halcyon",
    "Iris",
    "Juno",
)
_LAST = (
    "Star",
    "Rose",
    "Queen",
    "Pearl",
    "Wind",
    "Spirit",
    "Dawn",
    "Grace",
    "Maid",
    "Crown",
    "Pride",
    "Bell",
)
SHIPS = {
    f"{first} {last}": {
        "id": 4000 + 13 * (12 * a + b),
        "name": f"{first} {last}",
        "tons": 1100 + 37 * a + 411 * b,
        "port": _PORTS[(3 * a + b) % 8],
        "note": f"Painted in {1950 + 5 * a + b}, repaired twice since then.",
    }
    for a, first in enumerate(_FIRST)
    for b, last in enumerate(_LAST)
}
BOOKS = [
    {
        "isbn": f"978-{100 + 7 * n}-{n:02}",
        "title": f"The {_LAST[n % 12]} of {_PORTS[n % 8]} {n}",
        "pages": 90 + 11 * n,
    }
    for n in range(45)
]
NOTES = {
    f"/srv/notes/{_PORTS[n % 8].lower()}-{n}.md": f"Memo {n}: the {_LAST[n % 12]} sails at {n + 7} bells."
    for n in range(16)
}


class World:
    """A server of the given tools, which say that they only read and have a schema of what they return,
    unless it `is_silent`."""

    def __init__(self, name: str, *tools: Callable[..., Any], is_silent: bool = False) -> None:
        self.name = name
        self.tools = tools
        self.is_silent = is_silent
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def _served(self, tool: Callable[..., Any], delays: Sequence[float]) -> Callable[..., Any]:
        @functools.wraps(tool)
        async def counted(**arguments: Any) -> Any:
            with self._lock:
                number = sum(self.calls.values())
                self.calls[tool.__name__] += 1
                self.asked.append((tool.__name__, arguments))
                self.at_once += 1
                self.most_at_once = max(self.at_once, self.most_at_once)
            try:
                await asyncio.sleep(delays[number % len(delays)] if delays else 0)
                return tool(**arguments)
            except ToolError:
                self.refused[tool.__name__] += 1
                raise
            finally:
                self.at_once -= 1

        return counted

    def pool(self, delays: Sequence[float] = (), *, read_only: Sequence[str] = ()) -> ToolPool:
        """With `delays`, each call waits so long for its answer, in turn."""
        return ToolPool([self.served(delays)], ToolsConfig(read_only=tuple(read_only)))

    def served(self, delays: Sequence[float] = ()) -> InProcessServer:
        """The server, for a pool of several."""
        server = MCPServer(self.name, log_level="ERROR")
        for tool in self.tools:
            if self.is_silent:
                server.add_tool(self._served(tool, delays), structured_output=False)
            else:
                server.add_tool(self._served(tool, delays), annotations=READS)
        return InProcessServer(name=self.name, server=server)

    def learned(self, *, seed: int = 0, delays: Sequence[float] = (), **options: Any) -> ToolGraph:
        async def run() -> ToolGraph:
            async with self.pool(delays) as pool:
                return await learn(CallCache(pool), seed=seed, **options)

        return asyncio.run(run())


def _of(table: Mapping[Any, Any], key: Any) -> Any:
    if key not in table:
        raise ToolError(f"there is no {key!r}")
    return table[key]


def harbour() -> World:
    by_id = {ship["id"]: ship for ship in SHIPS.values()}

    def list_ships() -> dict[str, Any]:
        """List the ships of the harbour."""
        return {"ships": [{"id": ship["id"], "name": ship["name"]} for ship in SHIPS.values()]}

    def get_ship(name: str) -> dict[str, Any]:
        """Where a ship is and what it weighs."""
        return {key: value for key, value in _of(SHIPS, name).items() if key != "name"}

    def ship_captain(ship_id: int) -> dict[str, Any]:
        """Who commands a ship."""
        return {"captain": f"{_of(by_id, ship_id)['name'][::-1].title()}son", "since": 1990 + ship_id % 30}

    def list_ports() -> list[str]:
        """List the ports that ships leave for."""
        return list(_PORTS)

    def distance(origin_port: str, target_port: str) -> dict[str, Any]:
        """How far it is from one port to another."""
        one, other = (_of({port: n for n, port in enumerate(_PORTS)}, p) for p in (origin_port, target_port))
        return {"miles": 100 + 37 * abs(one - other) + one * other}

    def tide(port: str, date: str) -> dict[str, Any]:
        """The tide at a port on a day. The date is written YYYY-MM-DD."""
        _of({p: p for p in _PORTS}, port)
        if len(date) != 10:
            raise ToolError(f"{date!r} is not a date")
        return {"high_water_cm": 210 + sum(map(ord, port + date)) % 97}

    return World("harbour", list_ships, get_ship, ship_captain, list_ports, distance, tide)


STATIONS = {
    f"ws-{700 + 13 * n}": {"name": f"{_FIRST[n % 10]} {_PORTS[n % 8]}", "height_m": 11 + 37 * n}
    for n in range(20)
}


def stations(written: Callable[[str, str], str], head: str = "") -> World:
    """A server that answers in texts; `written` is the line of a station in their list, below `head`."""

    def list_stations() -> str:
        """List the weather stations."""
        return head + "\n".join(written(code, str(row["name"])) for code, row in STATIONS.items())

    def station(station_id: str) -> str:
        """Where a weather station is."""
        row = _of(STATIONS, station_id)
        return f"# {row['name']}\n**Height**: {row['height_m']} m\n**Shelf**: shelf {station_id[-2:]}"

    def sensor(station_id: str, kind: Literal["rain", "wind"]) -> dict[str, Any]:
        """What a weather station measures with."""
        return {"serial": f"{kind[:1].upper()}{_of(STATIONS, station_id)['height_m']}x"}

    return World("weather", sensor, list_stations, station)


def library() -> World:
    by_isbn = {book["isbn"]: book for book in BOOKS}

    def list_books(cursor: str | None = None) -> dict[str, Any]:
        """List the books of the library."""
        start = _of({f"c{n}": n for n in range(10, 45, 10)}, cursor) if cursor else 0
        page = {"books": [{"isbn": b["isbn"], "title": b["title"]} for b in BOOKS[start : start + 10]]}
        return page | ({"nextCursor": f"c{start + 10}"} if start + 10 < len(BOOKS) else {})

    def get_book(isbn: str) -> dict[str, Any]:
        """How many pages a book has."""
        return {"pages": _of(by_isbn, isbn)["pages"], "shelf": f"shelf {isbn[-2:]}"}

    def list_loans(page: int = 1) -> dict[str, Any]:
        """List the loans of the month."""
        loans = [
            {"loan": f"L{n:03}", "reader": f"{_FIRST[n % 10]} {_PORTS[n % 8]}", "days": 10 + n}
            for n in range(34)
        ]
        return {"loans": loans[(page - 1) * 8 : page * 8], "has_more": page * 8 < len(loans)}

    def list_rooms(offset: int = 0, limit: int = 5) -> dict[str, Any]:
        """List the rooms of the library."""
        rooms = [{"room": f"{_LAST[n % 12]} room {n}", "seats": 20 + 3 * n} for n in range(17)]
        return {"rooms": rooms[offset : offset + limit], "total": len(rooms)}

    def renew(loan: str) -> dict[str, Any]:
        """Until when a loan may be renewed."""
        _of({f"L{n:03}": n for n in range(34)}, loan)
        return {"days_left": 3 + int(loan[1:])}

    return World("library", list_books, get_book, list_loans, list_rooms, renew)


def notes() -> World:
    def list_notes(folder: str) -> list[str]:
        """List the notes in a folder."""
        if folder != "/srv/notes":
            raise ToolError(f"{folder!r} is outside of the folders that are shared")
        return [path.rpartition("/")[2] for path in NOTES]

    def read_note(path: str) -> str:
        """Read a note."""
        return _of(NOTES, path)

    def note_size(path: str) -> dict[str, int]:
        """The size of a note."""
        return {"characters": len(_of(NOTES, path))}

    def status() -> dict[str, Any]:
        """How the server is."""
        return {
            "state": "serving",
            "build": "blue heron 77",
            "comment": "All five disks are healthy and warm.",
        }

    def find_owner(badge: str) -> str:
        """Who has a badge."""
        raise ToolError("badges have nine digits")

    return World("notes", list_notes, read_note, note_size, status, find_owner)


def tool_edges(graph: ToolGraph) -> dict[str, dict[str, int]]:
    """`server.tool` -> `server.tool.parameter` -> number of facts that show it."""
    table: dict[str, dict[str, int]] = {}
    for fact in graph.facts:
        for edge in graph.edges_into(fact):
            row = table.setdefault(edge.source.spec.dotted, {})
            target = f"{fact.spec.dotted}.{edge.parameter}"
            row[target] = row.get(target, 0) + 1
    return table
