"""Two small servers that say which of their tools only read, and hand-written tasks on them.

The tasks come in the two ways in which datasets have them: with values that refer to the gold calls, as
templates make them, and with literal ones, as exploring does; all have evidence and an answer line.
"""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from mcpagent.core.answer_line import ASKS_FOR_LINE, stated
from mcpagent.core.tasks import Task
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer

SHIPS: dict[str, dict[str, Any]] = {
    "Aurora": {"captain": "Musa Keita", "crew": 31, "arrived": "2026-05-05", "cargo": ["timber", "salt"]},
    "Nordlys": {"captain": "Kari Berg", "crew": 27, "arrived": "2026-05-06", "cargo": ["fish", "oil"]},
    "Sea Lark": {"captain": "Ines Duarte", "crew": 19, "arrived": "2026-04-30", "cargo": ["tea"]},
    "Kestrel": {"captain": "Otto Lind", "crew": 44, "arrived": "2026-05-01", "cargo": ["grain"]},
    "Halcyon": {"captain": "Ada Moreau", "crew": 12, "arrived": "2026-05-02", "cargo": ["wool"]},
}


def fleet() -> ToolPool:
    """Servers that say which of their tools only read: one of ships, one of notes."""
    notes: list[dict[str, str]] = []

    def get_ship(name: str) -> dict[str, Any]:
        """A ship by its name"""
        if name not in SHIPS:
            raise ToolError(f"no ship {name}")
        return {"name": name, **SHIPS[name]}

    def list_ships() -> list[dict[str, Any]]:
        """All ships"""
        return [{"name": name, **ship} for name, ship in SHIPS.items()]

    def list_crews() -> dict[str, int]:
        """The crews of all ships, by name"""
        return {name: ship["crew"] for name, ship in SHIPS.items()}

    def paint_ship(name: str, colour: str) -> str:
        """Paint a ship"""
        return f"{name} is {colour}"

    def add_note(ship: str, text: str) -> dict[str, Any]:
        """Add a note to a ship"""
        notes.append({"ship": ship, "text": text})
        return {"notes": len(notes)}

    def list_notes(ship: str) -> dict[str, Any]:
        """The notes of a ship"""
        return {"notes": [note for note in notes if note["ship"] == ship]}

    def clear_notes() -> dict[str, Any]:
        """Remove all notes"""
        notes.clear()
        return {"notes": 0}

    reads = ToolAnnotations(read_only_hint=True)
    ships, desk = MCPServer("ships", log_level="ERROR"), MCPServer("desk", log_level="ERROR")
    for tool in (get_ship, list_ships, list_crews):
        ships.add_tool(tool, annotations=reads)
    ships.add_tool(paint_ship)
    desk.add_tool(list_notes, annotations=reads)
    desk.add_tool(add_note)
    desk.add_tool(clear_notes)
    return ToolPool([InProcessServer(name="ships", server=ships), InProcessServer(name="desk", server=desk)])


TOOLS = [f"ships.{n}" for n in ("get_ship", "list_ships", "list_crews", "paint_ship")]
TOOLS += [f"desk.{n}" for n in ("add_note", "list_notes", "clear_notes")]


def task(name: str, question: str, **truth: Any) -> Task:
    system = f"Answer with the help of these tools.\n{ASKS_FOR_LINE}"
    prompt = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    ground_truth = {"task_id": name, "max_turns": 30, "answer_line": True, **truth}
    record = {
        "prompt": prompt,
        "reward_spec": {"ground_truth": ground_truth},
        "extra_info": {"tools": TOOLS},
    }
    return stated(Task.model_validate(record))


def plan(*ships: str) -> list[dict[str, Any]]:
    steps = enumerate(ships, 1)
    return [{"step": n, "server": "ships", "tool": "get_ship", "params": {"name": ship}} for n, ship in steps]


def both_ways(
    name: str, question: str, ships: list[str], fields: list[str], check: dict[str, Any]
) -> list[Task]:
    """As a template has it, and as exploring does."""
    references = {
        f"{ship}.{field}": f"${{step{n}.{field}}}" for n, ship in enumerate(ships, 1) for field in fields
    }
    referring = dict(check)
    if check["type"] in ("number", "name", "date", "set"):
        referring["value"] = references[f"{ships[0]}.{fields[0]}"]
    facts = [
        {"value": value, "about": [ship]}
        for ship in ships
        for field in fields
        for value in (SHIPS[ship][field] if isinstance(SHIPS[ship][field], list) else [SHIPS[ship][field]])
    ]
    return [
        task(
            f"{name}-template", question, tool_sequence=plan(*ships), final_answer=referring, evidence=facts
        ),
        task(f"{name}-explored", question, tool_sequence=plan(*ships), final_answer=check, evidence=facts),
    ]


QUESTIONS: list[Task] = [
    *both_ways(
        "crew", "How many people are on the Aurora?", ["Aurora"], ["crew"], {"type": "number", "value": 31}
    ),
    *both_ways(
        "captain",
        "Who is the captain of the Aurora?",
        ["Aurora"],
        ["captain"],
        {"type": "name", "value": "Musa Keita"},
    ),
    *both_ways(
        "arrival",
        "When did the Aurora arrive?",
        ["Aurora"],
        ["arrived"],
        {"type": "date", "value": "2026-05-05"},
    ),
    *both_ways(
        "cargo",
        "What does the Aurora carry?",
        ["Aurora"],
        ["cargo"],
        {"type": "set", "value": ["timber", "salt"]},
    ),
    both_ways(
        "captains",
        "Who are the captains of the Aurora and the Nordlys?",
        ["Aurora", "Nordlys"],
        ["captain"],
        {"type": "pairs", "value": {"Aurora": "Musa Keita", "Nordlys": "Kari Berg"}},
    )[1],
    both_ways(
        "larger",
        "Which has the larger crew, the Aurora or the Nordlys?",
        ["Aurora", "Nordlys"],
        ["crew"],
        {"type": "choice", "value": "Aurora", "options": ["Aurora", "Nordlys"]},
    )[1],
]
REFUSED = [
    task(name, question, final_answer={"type": "none", "form": form})
    for name, question, form in (
        ("owner", "Who owns the Aurora?", "name"),
        ("price", "What did the Nordlys cost?", "number"),
        ("sell", "Sell the Kestrel.", None),
    )
]
WRITTEN = task(
    "note",
    "Add the note 'hull checked' to the Kestrel.",
    tool_sequence=[
        {
            "step": 1,
            "server": "desk",
            "tool": "add_note",
            "params": {"ship": "Kestrel", "text": "hull checked"},
        }
    ],
    setup={"desk": [{"tool": "clear_notes"}]},
    state={
        "desk": [
            {
                "call": {"tool": "list_notes", "arguments": {"ship": "Kestrel"}},
                "expect": {"notes[0].text": "hull checked"},
            }
        ]
    },
)
