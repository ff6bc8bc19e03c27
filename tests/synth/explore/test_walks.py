"""Tasks from servers that nobody wrote a template for: what is called, and what is said."""

from __future__ import annotations

from collections import Counter

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.servers.provider import builtin_servers
from mcpagent.synth.explore.tasks import Asked
from mcpagent.synth.templates.rules import GeneratedData
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.synth.explore.port_server import SHIPS, build
from tests.synth.explore.worlds import World
from tests.synth.running import explored

_TABLES = {
    "ships": {"Aurora": 520.5, "Bella": 123.7, "Cara": 593.25, "Dora": 449.1, "Elsa": 554.9, "Fox": 221.75},
    "ports": {"Lisbon": 28.5, "Genoa": 11.75, "Bergen": 17.3, "Cadiz": 9.5, "Varna": 12.25, "Split": 21.5},
    "crews": {"Ada": 812.5, "Grace": 641.25, "Edsger": 377.5, "Kit": 529.75, "Alan": 455.5, "Kurt": 702.25},
}


def list_tables() -> str:
    """List all tables of the ledger"""
    return str([{"name": name} for name in _TABLES])


def read_query(query: str) -> str:
    """Execute a SELECT query on the ledger"""
    table = query.removeprefix("SELECT * FROM ")
    if table not in _TABLES:
        raise ToolError(f"no such table: {table}")
    return str([{"label": label, "weight": weight} for label, weight in _TABLES[table].items()])


def drop_table(table: str) -> str:
    """Delete a table"""
    return "gone"


def ledger() -> World:
    """A server that says nothing of its tools, and prints Python."""
    return World("ledger", list_tables, read_query, drop_table, is_silent=True)


def test_a_server_that_says_nothing_of_its_tools_is_explored_as_far_as_they_are_named() -> None:
    world = ledger()
    pool = world.pool(read_only=["ledger.list_tables", "ledger.read_query"])
    assert len(explored(pool, {"train": 60}, seed=4).tasks["train"]) >= 20
    assert set(world.calls) == {"list_tables", "read_query"}


def test_without_a_name_nothing_is_called_and_the_error_says_how_to_give_one() -> None:
    world = ledger()
    with pytest.raises(UserError, match="read_query: does not say that it only reads") as refused:
        explored(world.pool(), {"train": 60}, seed=4)
    assert not world.calls
    assert "--read-only SERVER.TOOL" in (refused.value.remedy or "")


@pytest.mark.system
def test_a_question_says_what_is_wanted_and_never_what_the_tools_are_called() -> None:
    pool = ToolPool(builtin_servers(["polygon", "fmp", "tavily", "slack"], limited=False))
    tasks = explored(pool, {"train": 60}, seed=2).tasks["train"]
    names = {spec.name for spec in pool.tools.values()}
    classes = {task.extra_info["class"] for task in tasks}
    assert {"single", "sequential", "parallel", "missing_parameter", "missing_function"} <= classes
    said = [" ".join([task.prompt[-1].content, *task.truth.user_turns]) for task in tasks]
    assert not [text for text in said if any(name in text for name in names)]
    assert len({task.extra_info["shape"] for task in tasks}) >= 6
    openings = Counter(text.split()[0] for text in said)
    assert openings.most_common(1)[0][1] < len(tasks) / 2
    assert len(set(said)) == len(said)


@pytest.fixture(scope="module")
def port() -> GeneratedData:
    pool = ToolPool([InProcessServer(name="port", server=build())])
    return explored(pool, {"train": 100}, seed=5)


def of_shape(port: GeneratedData, shape: str) -> list[Task]:
    return [task for task in port.tasks["train"] if task.extra_info["shape"] == shape]


def question(task: Task) -> str:
    return task.prompt[-1].content


def test_a_chain_names_only_where_it_begins_and_what_is_wanted(port: GeneratedData) -> None:
    chains = of_shape(port, "chain")
    assert len(chains) > 5
    for task in chains:
        *found, last = [step.params for step in task.truth.tool_sequence]
        assert any("${" in str(value) for value in last.values()) and found
        asked_about = [ship for ship in SHIPS if ship in question(task)]
        assert not asked_about or "list_ships" not in task.truth.tool_sequence[-1].tool


def test_what_cannot_be_done_reads_like_what_can(port: GeneratedData) -> None:
    tasks = port.tasks["train"]
    refusing = [task for task in tasks if task.truth.is_refusal]
    assert {task.extra_info["shape"] for task in refusing} == {"forbidden"}, "another tool of it may tell"
    assert len(refusing) <= len(tasks) / 3
    forbidden = of_shape(port, "forbidden")
    assert all("port.sink_ship" not in (task.offered_tools or ()) for task in forbidden)
    told = of_shape(port, "told")
    assert told and all(task.truth.quiet_turns == (0,) and task.truth.user_turns for task in told)


SAILORS = {
    "Ada Berg": "Aurora", "Bo Lund": "Pride of Riga", "Edsger van Dam": "Iris", "Grace Hopper": "Juno",
    "Kit Moe": "Caravel Rose", "Lea Roe": "Dawn", "Mona Ek": "Dorado", "Nils Quist": "Wind",
    "Olga Dahl": "Bell", "Per Voss": "Maid",
}  # fmt: skip
CREW = {
    f"C-{310 + 37 * place}": {"full name": name, "ship": ship, "badge": str(50_231 + 611 * place)}
    for place, (name, ship) in enumerate(SAILORS.items())
}
HULLS = {
    sailor["ship"]: {"laid down": f"{1950 + place} in {sailor['ship'][:2]}x", "tons": str(1100 + 37 * place)}
    for place, sailor in enumerate(CREW.values())
}


@pytest.mark.system
def test_what_lines_say_after_a_name_is_compared_chained_and_not_to_be_pasted() -> None:
    def lines(records: dict[str, dict[str, str]], key: str) -> str:
        if key not in records:
            raise ToolError(f"there is no {key}")
        return "\n".join(f"{name}: {value}" for name, value in records[key].items())

    def list_sailors() -> str:
        """The codes of all sailors."""
        return str([{"code": code} for code in CREW])

    def sailor(code: str) -> str:
        """What is known of a sailor."""
        return lines(CREW, code)

    def hull(ship: str) -> str:
        """What is known of a ship."""
        return lines(HULLS, ship)

    pool = World("harbour", list_sailors, sailor, hull, is_silent=True).pool(read_only=["harbour"])
    asked = Asked(weights={"both": 2, "chain": 1})
    by_shape: dict[str, list[Task]] = {}
    for task in explored(pool, {"train": 80}, seed=3, asked=asked).tasks["train"]:
        by_shape.setdefault(task.extra_info["shape"], []).append(task)
    records = {**CREW, **HULLS}
    widths: set[int] = set()  # words before the badges that are asked for in pairs
    for task in by_shape["both"]:
        named = [step.params[name] for step in task.truth.tool_sequence for name in step.params]
        check = task.truth.final_answer
        assert check is not None and check.type == "pairs" and len(named) == 2
        fields = [
            {name for name, value in records[e].items() if value == str(v)}
            for e, v in zip(named, check.value.values(), strict=True)
        ]
        assert fields[0] & fields[1], "the same field of two things"
        if fields[0] == fields[1] == {"badge"}:
            before = [
                len(CREW[code]["full name"].split()) + len(CREW[code]["ship"].split()) for code in named
            ]
            widths.add(abs(before[0] - before[1]))
    assert widths - {0}, "also where other values are longer"
    chains = [task for task in by_shape["chain"] if task.truth.tool_sequence[-1].tool == "hull"]
    for task in chains:
        code = task.truth.tool_sequence[-2].params["code"]
        if code in CREW:  # else the first of a list
            assert CREW[code]["ship"] not in task.prompt[-1].content
            check = task.truth.final_answer
            assert check is not None and str(check.value) in HULLS[CREW[code]["ship"]].values()
    assert len(chains) >= 3
