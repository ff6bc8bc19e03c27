"""Questions in a model's words: what is kept, what is not, what is asked and paid twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.answer_line import right_message, without_form
from mcpagent.core.tasks import Task
from mcpagent.llm.budget import ApiBudget, Price
from mcpagent.llm.endpoint import EndpointSettings
from mcpagent.synth.explore.rewrite import RewriteRun, rewrite_tasks
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.llm.service import API_KEY, Answer, Received, Service, says, service
from tests.running import mcpagent
from tests.synth.explore import port_server
from tests.synth.explore.port_server import build
from tests.synth.running import explored, write_config

Tasks = Mapping[str, tuple[Task, ...]]


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    pool = ToolPool([InProcessServer(name="port", server=build())])
    made = [
        t
        for t in explored(pool, {"train": 60}, seed=4).tasks["train"]
        if t.extra_info["shape"] in ("single", "missing_function") and not t.truth.user_turns
    ]
    plain = [t for t in made if all("${" not in str(s.params) for s in t.truth.tool_sequence)]
    assert len(plain) > 8 and any(t.truth.is_refusal for t in plain)
    return {"train": tuple(plain[:10] + [t for t in plain[10:] if t.truth.is_refusal][:2])}


class Model:
    """Rewrites, and solves as the gold plan does; each of which a test may change."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = {f"Hey, {t.prompt[-1].content}": t for t in tasks["train"]}
        self.answer: str | None = None
        self.write = "Hey, {}"

    def __call__(self, received: Received) -> Answer:
        told, *later = [message["content"] for message in received.messages]
        if told.startswith("You say a question"):
            return says(received, self.write.format(later[0]))
        task = self.tasks[later[0]]
        results = sum(message["role"] == "tool" for message in received.messages)
        plan = task.truth.tool_sequence
        if results < len(plan):
            function = {"name": plan[results].tool, "arguments": json.dumps(plan[results].params)}
            answer = says(received, "")
            call = {"id": f"c{results}", "type": "function", "function": function}
            answer.body["choices"][0]["message"]["tool_calls"] = [call]
            return answer
        return says(received, self.answer or right_message(task, {}) or "")


def rewritten(
    tasks: Tasks, at: Service, journal: Path, *, budget: ApiBudget | None = None, max_in_flight: int = 8
) -> tuple[Mapping[str, Sequence[Task]], Mapping[str, int]]:
    endpoint = EndpointSettings(model="m", base_url=at.url, api_key=API_KEY, max_in_flight=max_in_flight)
    run = RewriteRun(
        endpoint=endpoint,
        solver=replace(endpoint, model="other"),
        budget=budget or ApiBudget(price=Price(1.0, 1.0)),
        journal=journal,
    )

    async def go() -> tuple[Mapping[str, Sequence[Task]], Mapping[str, int]]:
        async with ToolPool([InProcessServer(name="port", server=build())]) as pool:
            return await rewrite_tasks(tasks, pool, run=run, catalog_hash="c")

    return asyncio.run(go())


def test_a_question_is_rewritten_where_the_answer_is_reached(tasks: Tasks, tmp_path: Path) -> None:
    with service(Model(tasks)) as at:
        done, kept = rewritten(tasks, at, tmp_path / "j.jsonl")
        assert not kept
        models = {r.body["model"] for r in at.received if r.messages[0]["content"].startswith("Answer with")}
        assert models == {"other"}
        again_from = len(at.received)
        again, _ = rewritten(tasks, at, tmp_path / "j.jsonl")
        assert len(at.received) == again_from  # every answer was in the journal
    assert list(again["train"]) == list(done["train"])
    for old, new in zip(tasks["train"], done["train"], strict=True):
        assert new.prompt[-1].content == f"Hey, {old.prompt[-1].content}"
        assert new.truth == old.truth
        assert new.extra_info["rewritten"] == {
            "from": without_form(old.prompt[-1].content),
            "model": "m",
            "solver": "other",
        }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": "Answer: 918.27"}, "not_solved"),
        ({"write": "Hey, what is it?"}, "entity_lost"),
        ({"write": ""}, "empty"),
    ],
)
def test_a_question_stays_as_it_was_for_a_reason_that_is_counted(
    tasks: Tasks, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    model = Model(tasks)
    vars(model).update(change)
    solvable = {"train": tuple(t for t in tasks["train"] if not t.truth.is_refusal)}
    with service(model) as at:
        done, kept = rewritten(solvable, at, tmp_path / "j.jsonl")
    assert {split: tuple(members) for split, members in done.items()} == solvable
    assert dict(kept) == {reason: len(solvable["train"])}


def test_a_cap_is_kept_and_what_is_left_stays_as_it_was(tasks: Tasks, tmp_path: Path) -> None:
    with service(Model(tasks)) as at:
        budget = ApiBudget(price=None, max_requests=9)
        done, kept = rewritten(tasks, at, tmp_path / "j.jsonl", budget=budget, max_in_flight=1)
        assert len(at.received) == 9
    changed = sum("rewritten" in task.extra_info for task in done["train"])
    assert changed >= 1 and kept["cap_reached"] >= 1
    assert changed + sum(kept.values()) == len(tasks["train"])


def test_the_command_rewrites_what_it_explored_and_says_so(tmp_path: Path) -> None:
    def model(received: Received) -> Answer:
        told, *later = [message["content"] for message in received.messages]
        if told.startswith("You say a question"):
            return says(received, f"Hey, {later[0]}")
        return says(received, "I do not know.")

    servers = write_config(tmp_path, "port", port_server.__file__)
    counts = ("--train", "6", "--validation", "0", "--heldout", "0", "--out", tmp_path / "tasks", "--json")
    with service(model) as at:
        done = mcpagent(
            "gen-data", "--explore", "--rewrite", "--servers", servers, "--set",
            f"api.base_url={at.url}", "--model", "m", "--set", "api.max_requests=200", *counts,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["rewrite"]
    assert told["rewritten"] + sum(told["kept_as_they_were"].values()) == 6
    assert told["kept_as_they_were"]["not_solved"] >= 3
    assert told["spend"]["requests"] == len(at.received)
    assert (tmp_path / "tasks" / "rewrite-journal.jsonl").is_file()
    refused = mcpagent("gen-data", "--rewrite", "--out", tmp_path / "none")
    assert refused.returncode == 2 and "add --explore" in refused.stderr
