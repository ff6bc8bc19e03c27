"""A museum on the SDK: rooms answer in lines of text, paintings come in pages and have nested sizes."""

from __future__ import annotations

import random

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

RANDOM = random.Random(7)
READS = ToolAnnotations(read_only_hint=True)


def _words(text: str) -> list[str]:
    return text.split()


FIRST = _words("Quiet Amber Broken Distant Silver Hollow Burning Winter Blind Crimson Early Frozen")
SECOND = _words("Harbour Orchard Mirror Staircase Meadow Bridge Violin Window Furnace Lantern Ferry Chapel")
GIVEN = _words("Matteo Ingrid Pavel Yusuf Clara Henrik Odile Ramon Sigrid Tomas Vera Wanda")
FAMILY = _words("Ferrante Halvorsen Kovacs Delacour Brandt Moreau Iglesias Nyberg Zelenka Rossi")
TECHNIQUES = ["oil on canvas", "tempera", "watercolour", "etching", "pastel"]

ROOMS = {
    f"{wing}{number}": {
        "floor": f"level {RANDOM.randint(1, 5)}",
        "guard": f"{RANDOM.choice(GIVEN)} {RANDOM.choice(FAMILY)}",
        "humidity": f"{RANDOM.randint(310, 620)}",
    }
    for wing, number in RANDOM.sample([(wing, number) for wing in "ABCDEF" for number in range(11, 40)], 30)
}
PAINTERS = {
    f"{given} {family}": {
        "born": RANDOM.randint(1480, 1950),
        "town": RANDOM.choice(SECOND) + "ville",
        "archive": f"{RANDOM.choice('KLM')}{RANDOM.randint(1000, 9999)}",
    }
    for given, family in RANDOM.sample([(given, family) for given in GIVEN for family in FAMILY], 34)
}
PAINTINGS = {
    f"{first} {second}": {
        "painter": RANDOM.choice(list(PAINTERS)),
        "technique": RANDOM.choice(TECHNIQUES),
        "size": {"height_cm": RANDOM.randint(20, 390), "width_cm": RANDOM.randint(20, 390)},
        "room": RANDOM.choice(list(ROOMS)),
    }
    for first, second in RANDOM.sample([(first, second) for first in FIRST for second in SECOND], 70)
}

server = MCPServer("museum", log_level="ERROR")


@server.tool(annotations=READS)
def search_paintings(offset: int = 0) -> dict[str, object]:
    """The titles of the paintings, twenty at a time."""
    return {"titles": list(PAINTINGS)[offset : offset + 20], "total": len(PAINTINGS)}


@server.tool(annotations=READS)
def painting(title: str) -> dict[str, object]:
    """Who painted a picture, how, how large it is and where it hangs."""
    return {"title": title, **PAINTINGS[title]}


@server.tool(annotations=READS)
def painter(name: str) -> dict[str, object]:
    """Life and archive number of a painter."""
    return PAINTERS[name]


@server.tool(annotations=READS)
def room(room: str) -> str:
    """Floor, guard and humidity of a room."""
    return "\n".join(f"{name}: {value}" for name, value in ROOMS[room].items())


if __name__ == "__main__":
    server.run()
