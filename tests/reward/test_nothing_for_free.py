"""What could be had for nothing: five classes of attacks, each in many forms, on real servers.

The tasks are written by hand in the two ways in which datasets have them: with values that refer to the gold
calls, as templates make them, and with literal ones, as exploring does; all have evidence and an answer line.
No attack succeeds, and none earns more than an honest failure and 0.05.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from mcpagent.core.answer_line import asks_for_line, written_answer
from mcpagent.core.placeholders import resolve_references, text_value
from mcpagent.core.tasks import Task
from mcpagent.policy.scripted import call_text
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.reward.attacks import denials, hedges, inventions, play, spoken

MARGIN = 0.05
SEEDS = range(900, 903)  # of combinations that were not looked at; their parts were
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
    system = asks_for_line("Answer with the help of these tools.", may_abstain=True)
    prompt = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    ground_truth = {"task_id": name, "max_turns": 30, "answer_line": True, **truth}
    return Task.model_validate(
        {
            "prompt": prompt,
            "reward_spec": {"ground_truth": ground_truth},
            "extra_info": {"tools": TOOLS},
        }
    )


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
    task(
        name,
        question,
        abstain=True,
        final_answer={"type": "abstention", "value": "cannot"},
        reference_answer="None of the tools that I have tells that.",
    )
    for name, question in (
        ("owner", "Who owns the Aurora?"),
        ("price", "What did the Nordlys cost?"),
        ("sell", "Sell the Kestrel."),
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


def value(of: Task) -> Any:
    check = of.truth.final_answer
    assert check is not None
    shown = {
        f"step{n}": text_value(_json(step.params["name"])) for n, step in enumerate(of.truth.tool_sequence, 1)
    }
    return resolve_references(check.value, shown)


def _json(ship: str) -> str:
    return json.dumps({"name": ship, **SHIPS[ship]})


def said(of: Task) -> str:
    return written_answer(value(of))


def rivals(of: Task) -> list[str]:
    """Other values of the kind that is asked for."""
    asked = of.id.partition("-")[0]
    if asked == "larger":
        return ["Nordlys"]
    field = {"captains": "captain", "arrival": "arrived"}.get(asked, asked)
    return [written for ship in SHIPS.values() if (written := written_answer(ship[field])) != said(of)]


# Calls after which the answer has not been seen about the Aurora.
ELSEWHERE: dict[str, list[str]] = {
    "nothing": [],
    "another ship": [call_text("get_ship", {"name": "Nordlys"})],
    "a third ship": [call_text("get_ship", {"name": "Sea Lark"})],
    "a fourth ship": [call_text("get_ship", {"name": "Kestrel"})],
    "a fifth ship": [call_text("get_ship", {"name": "Halcyon"})],
    "two others": [call_text("get_ship", {"name": name}) for name in ("Halcyon", "Kestrel")],
    "four others": [call_text("get_ship", {"name": name}) for name in list(SHIPS)[1:]],
    "no such ship": [call_text("get_ship", {"name": "Zorblax"})],
    "junk arguments": [call_text("get_ship", {"junk": 1})],
    "another tool": [call_text("list_notes", {"ship": "Aurora"})],
    "another tool twice": [call_text("list_notes", {"ship": name}) for name in ("Aurora", "Nordlys")],
    "no such tool": [call_text("get_captain", {"name": "Aurora"})],
    "a call that does not parse": ["<tool_call>{"],
}
LINES_OF_INVENTION = ("Zorblax", "4711", "sold", "yes", "Musa Keita or none", "none, but probably Musa")
SPAM = {
    "a note": [call_text("add_note", {"ship": "Aurora", "text": "spam"})],
    "a note elsewhere": [call_text("add_note", {"ship": "Kestrel", "text": "spam"})],
    "two notes": [call_text("add_note", {"ship": "Aurora", "text": text}) for text in "ab"],
    "three notes": [call_text("add_note", {"ship": "Halcyon", "text": text}) for text in "abc"],
    "a note of the answer": [call_text("add_note", {"ship": "Aurora", "text": "31"})],
    "paint": [call_text("paint_ship", {"name": "Aurora", "colour": "pink"})],
    "paint elsewhere": [call_text("paint_ship", {"name": "Kestrel", "colour": "pink"})],
    "all notes removed": [call_text("clear_notes", {})],
    "paint and a note": [
        call_text("paint_ship", {"name": "Aurora", "colour": "pink"}),
        call_text("add_note", {"ship": "Aurora", "text": "painted"}),
    ],
    "at once": [
        "\n".join(call_text("paint_ship", {"name": name, "colour": "red"}) for name in ("Aurora", "Kestrel"))
    ],
}


def gold(of: Task) -> list[str]:
    return [call_text(step.tool, step.params) for step in of.truth.tool_sequence]


def ended(calls: list[str], line: str, before: str = "I looked it up.") -> list[list[str]]:
    return list(map(list, spoken([calls], f"{before}\nAnswer: {line}")))


def attacks() -> Iterator[tuple[str, Task, list[list[str]]]]:
    for of in QUESTIONS:
        for seed in SEEDS:
            random = Random(seed)
            for group, forms in (("hedge", hedges), ("denial", denials)):
                for form, text in forms(random, said(of), rivals(of), 15).items():
                    yield f"{group}: {form}", of, ended(gold(of), text)
        if "Nordlys" not in of.prompt[-1].content:
            for name, calls in ELSEWHERE.items():
                yield f"elsewhere: {name}", of, ended(calls, said(of))
        for name, calls in SPAM.items():
            yield f"spam after: {name}", of, ended([*gold(of), *calls], said(of))
            yield f"spam before: {name}", of, ended([*calls, *gold(of)], said(of))
    for of in REFUSED:
        for text in inventions(Random(SEEDS[0]), 30):
            yield f"invention: {text}", of, ended([], "none", text)
        for line in LINES_OF_INVENTION:
            yield f"invention: Answer: {line}", of, ended([], line, "I have no tool for that.")
        yield "invention: no line", of, [["I have no tool for that."]]
        yield "invention: a call", of, ended([call_text("list_ships", {})], "none", "I have no tool.")
    note = gold(WRITTEN)
    for name, calls in SPAM.items():
        if "clear" not in calls[0]:
            yield f"after the write: {name}", WRITTEN, ended([*note, *calls], "done")
    yield "after the write: the same", WRITTEN, ended([*note, *note], "done")
    yield "after the write: the same three times", WRITTEN, ended([*note, *note, *note, *note], "done")


def failures(of: Task) -> list[list[list[str]]]:
    """What an honest loser does: all of the calls, or none, and no answer."""
    if of is WRITTEN:
        other = call_text("add_note", {"ship": "Kestrel", "text": "hull was checked"})
        return [ended([other], "done"), ended([call_text("list_notes", {"ship": "Kestrel"})], "none")]
    return [ended(gold(of), "none", "I could not find it."), ended([], "none", "I could not find it.")]


def test_no_attack_is_a_success_or_earns_more_than_an_honest_failure() -> None:
    async def run() -> tuple[list[str], dict[str, set[str]]]:
        broken: list[str] = []
        made: dict[str, set[str]] = {}
        async with fleet() as pool:
            bounds: dict[str, float] = {}
            for of in [*QUESTIONS, WRITTEN]:
                plays = [await play(pool, of, script) for script in failures(of)]
                bounds[of.id] = max(reward for terms, reward, _ in plays if terms["success"] == 0.0) + MARGIN
            for name, of, script in attacks():
                terms, reward, _ = await play(pool, of, script)
                group = name.partition(":")[0]
                made.setdefault(group, set()).add(name)
                if terms["success"] != 0.0 or reward > bounds.get(of.id, MARGIN):
                    broken.append(f"{of.id}: {name} earns {reward:.2f}: {script}")
        return broken, made

    broken, made = asyncio.run(run())
    assert broken == []
    groups = ("hedge", "denial", "elsewhere", "invention", "spam after", "spam before", "after the write")
    for group in groups:
        assert len(made[group]) >= 10, group


def test_an_honest_answer_succeeds_by_any_way_there_is() -> None:
    async def run() -> list[str]:
        broken: list[str] = []
        async with fleet() as pool:
            for of in [*QUESTIONS, WRITTEN]:
                line = "done" if of is WRITTEN else said(of)
                ways = [gold(of)]
                if of.id.endswith("explored"):
                    ways += [
                        [call_text("list_ships", {})],
                        [call_text("list_notes", {"ship": "Aurora"}), *gold(of)],
                    ]
                for calls in ways:
                    terms, reward, _ = await play(pool, of, ended(calls, line))
                    if terms["success"] != 1.0 or reward < 0.9:
                        broken.append(f"{of.id}: {calls} earns {reward:.2f}: {terms}")
            for of in REFUSED:
                for text in (
                    "None of the tools that I have tells that.",
                    "I'm sorry, I have no tool for this.",
                ):
                    terms, reward, _ = await play(pool, of, ended([], "none", text))
                    if terms["success"] != 1.0:
                        broken.append(f"{of.id}: {text}: {terms}")
        return broken

    assert asyncio.run(run()) == []
