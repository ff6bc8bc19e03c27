"""Questions about things that there are not: what they are called, and what the server said of them."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.core.trajectory import StopReason
from mcpagent.reward.record import EpisodeRecord, RecordedTurn
from mcpagent.synth.explore.invented import invented_like
from mcpagent.synth.explore.tasks import Asked
from mcpagent.synth.tasks.prove import examine
from mcpagent.synth.tasks.run import CallCache, score
from mcpagent.synth.tasks.stages import Rejection
from mcpagent.synth.templates.rules import GeneratedData
from mcpagent.tools.pool import ToolPool
from tests.synth.explore.worlds import World
from tests.synth.running import explored

LAMPS = {
    f"{first}{last}": {"height_m": 31 + 7 * a + b, "keeper": f"{last.title()} {first}son"}
    for a, first in enumerate(("Alder", "Birch", "Crane", "Dove", "Falcon", "Heron", "Kite", "Otter"))
    for b, last in enumerate(("bury", "gate", "minster", "worth"))
}


def list_lamps() -> dict[str, Any]:
    """The lighthouses of the coast."""
    return {"lamps": list(LAMPS)}


def lamp_refuses(lamp: str) -> dict[str, Any]:
    """Height and keeper of a lighthouse."""
    if lamp not in LAMPS:
        raise ToolError(f"unknown: {lamp}")
    return LAMPS[lamp]


def lamp_answers_politely(lamp: str) -> dict[str, Any]:
    """Height and keeper of a lighthouse."""
    return LAMPS.get(lamp) or {"remark": f"{lamp} stands nowhere on this coast"}


def lamp_answers_with_nothing(lamp: str) -> dict[str, Any]:
    """Height and keeper of a lighthouse."""
    return LAMPS.get(lamp) or {"height_m": None, "keeper": ""}


def lamp_knows_every_name(lamp: str) -> dict[str, Any]:
    """Height and keeper of a lighthouse."""
    return LAMPS.get(lamp) or {"height_m": 20 + len(lamp) % 7, "keeper": lamp[::-1]}


def lamp_keeps_all_books(lamp: str) -> dict[str, Any]:
    """The log of a lighthouse."""
    return {"entries": 40 + 7919 * sum(map(ord, lamp)) % 5003}


def coast(*tools: Callable[..., Any]) -> ToolPool:
    return World("coast", list_lamps, *tools).pool()


@functools.cache
def of_coast(*tools: Callable[..., Any]) -> GeneratedData:
    asked = Asked(weights={"single": 1.0, "unknown_entity": 1.0})
    return explored(coast(*tools), {"train": 60, "heldout": 20}, seed=6, asked=asked)


def unknown(data: GeneratedData, split: str = "train") -> list[Task]:
    return [task for task in data.tasks[split] if task.extra_info["class"] == "unknown_entity"]


@pytest.mark.parametrize("tool", [lamp_refuses, lamp_answers_politely, lamp_answers_with_nothing])
def test_a_name_that_nothing_has_is_asked_about_like_one_that_something_has(
    tool: Callable[..., Any],
) -> None:
    data = of_coast(tool)
    tasks = unknown(data)
    assert 8 <= len(tasks) <= len(data.tasks["train"]) / 3
    for task in tasks:
        name, text = task.extra_info["invented"], task.prompt[-1].content
        assert name in text and name not in LAMPS
        (step,) = task.truth.tool_sequence
        assert step.params == {"lamp": name} and step.finds_nothing
        assert not task.truth.abstain, "only looking it up shows that it does not exist"
        assert task.extra_info["verdicts"]["gold_reward"] == 1.0
    # The words around the names are those of the questions that can be answered.
    frames = {t.prompt[-1].content.replace(n, "@") for t in data.tasks["train"] for n in LAMPS}
    assert {t.prompt[-1].content.replace(t.extra_info["invented"], "@") for t in tasks} & frames


def lamp_lists_its_logs(lamp: str) -> dict[str, Any]:
    """The logs of a lighthouse."""
    number = 2 + len(lamp) % 5 if lamp in LAMPS else 0
    return {
        "keeper": LAMPS.get(lamp, {}).get("keeper"),
        "total": number,
        "logs": [lamp[n:] for n in range(number)],
    }


def test_that_a_list_of_what_there_is_not_has_no_items_is_an_answer() -> None:
    asked = [task.prompt[-1].content for task in unknown(of_coast(lamp_lists_its_logs))]
    assert asked and not [text for text in asked if "total" in text.lower()]


def test_no_name_of_one_split_is_in_another() -> None:
    data = of_coast(lamp_refuses)
    names = [{task.extra_info["invented"] for task in unknown(data, split)} for split in ("train", "heldout")]
    assert names[0] and names[1] and not names[0] & names[1]


@pytest.mark.parametrize("tools", [(lamp_refuses, lamp_keeps_all_books)])
def test_what_any_tool_tells_something_of_is_not_asked(tools: tuple[Callable[..., Any], ...]) -> None:
    data = of_coast(*tools)
    assert not unknown(data)
    assert any(code.value == "exists" for code in data.rejects)


def episode(task: Task, answer: str, *, calls: bool = True) -> float | None:
    """The success of looking the name up and saying `answer`."""
    (step,) = task.truth.tool_sequence
    call = ToolCall(id="1", server=step.server, tool=step.tool, arguments=step.params)
    text = f"unknown: {step.params['lamp']}"
    result = ToolResult(call_id="1", server=step.server, tool=step.tool, content=text, is_error=True)
    looked_up = [RecordedTurn(user_turn=0, calls=(call,), results=(result,))] if calls else []
    return score(
        task,
        EpisodeRecord(
            turns=(*looked_up, RecordedTurn(user_turn=0)),
            final_answer=answer,
            stop_reason=StopReason.ANSWERED,
            read_only=frozenset({f"{step.server}.{step.tool}"}),
        ),
    )["success"]


def test_looking_it_up_and_saying_so_succeeds_and_nothing_else_does() -> None:
    for task in unknown(of_coast(lamp_refuses)):
        name = task.extra_info["invented"]
        none = f"There is no lighthouse called {name}.\nAnswer: none"
        assert episode(task, none) == 1.0
        assert episode(task, none, calls=False) == 0.0
        for answer in ("Answer: Tom Bowline", "Answer: 27", f"There is no {name}.", "Answer: none or 27", ""):
            assert episode(task, answer) == 0.0, answer


def test_a_task_of_a_dataset_is_proven_again() -> None:
    (task, *_) = unknown(of_coast(lamp_refuses))

    async def run() -> tuple[Any, Any]:
        async with coast(lamp_refuses) as pool:
            again = await examine(task, CallCache(pool))
        LAMPS[task.extra_info["invented"]] = {"height_m": 77, "keeper": "Nobody"}
        try:
            async with coast(lamp_refuses) as pool:
                return again, await examine(task, CallCache(pool))
        finally:
            del LAMPS[task.extra_info["invented"]]

    again, built_since = asyncio.run(run())
    assert not isinstance(again, Rejection) and again["gold_reward"] == 1.0
    assert isinstance(built_since, Rejection) and built_since.code.value == "exists"


@pytest.mark.parametrize(
    ("known", "pattern"),
    [
        (["Aurora Star", "Borealis Rose", "Caravel Queen"], r"(Aurora|Borealis|Caravel) (Star|Rose|Queen)"),
        (["DRV-117", "DRV-254", "DRV-908"], r"DRV-\d{3}"),
        (["978-101-11", "978-225-23", "978-348-36"], r"978-\d{3}-\d{2}"),
        (["Alderbury", "Birchgate", "Cranedale"], r"[A-Z][a-z]{3,11}"),
        ([4038, 4511, 5120], r"\d{4}"),
        ([11, 12, 13], r"1[4-9]|2\d"),
        (["/srv/aurora.md", "/srv/borealis.md", "/srv/caravel.md"], r"/srv/[a-z]{4,12}\.md"),
        (["AVX", "BRM", "QTZ"], r"[A-Z]{3,4}"),
        (["adaline@example.org", "gracie@example.org", "edsger@example.org"], r"[a-z]{4,12}@example\.org"),
    ],
)
def test_an_invented_name_looks_like_the_others_and_is_none_of_them(
    known: list[str | int], pattern: str
) -> None:
    taken = {str(each).casefold() for each in known}
    made = {invented_like(known, taken, Random(seed)) for seed in range(40)} - {None}
    assert len(made) > 3
    assert not made & set(known)
    assert all(re.fullmatch(pattern, str(each)) for each in made), made


@pytest.mark.parametrize(
    "known",
    [
        ["Aurora", "Borealis"],
        [4038, 4511],
    ],
)
def test_nothing_is_invented_where_two_names_are_known(known: list[str | int]) -> None:
    assert {invented_like(known, set(), Random(seed)) for seed in range(20)} == {None}
