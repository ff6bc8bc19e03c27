"""Questions in a model's words: what is kept, what is not, what is asked and paid twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.llm.budget import ApiBudget, Price
from mcpagent.llm.endpoint import EndpointSettings
from mcpagent.synth.explore.rewrite import RewriteRun, RewriteSettings, Rewritten, rewrite_tasks
from mcpagent.synth.explore.walks import explore_dataset
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.llm.service import API_KEY, Answer, Received, Service, says, service
from tests.running import mcpagent
from tests.synth.explore import port_server
from tests.synth.explore.port_server import build

Tasks = Mapping[str, tuple[Task, ...]]


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    async def run() -> tuple[Task, ...]:
        async with ToolPool([InProcessServer(name="port", server=build())]) as pool:
            return (await explore_dataset(pool, counts={"train": 120}, seed=4)).tasks["train"]

    made = [
        t
        for t in asyncio.run(run())
        if t.extra_info["shape"] in ("single", "asked") and not t.truth.user_turns
    ]
    plain = [t for t in made if all("${" not in str(s.params) for s in t.truth.tool_sequence)]
    assert len(plain) > 8 and any(t.truth.abstain for t in plain)
    return {"train": tuple(plain[:10] + [t for t in plain[10:] if t.truth.abstain][:2])}


class Model:
    """Rewrites, solves as the gold plan does, and cannot tell; each of which a test may change."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = {f"Hey, {t.prompt[-1].content}": t for t in tasks["train"]}
        self.answer: str | None = None
        self.tells = False
        self.write = "Hey, {}"

    def __call__(self, received: Received) -> Answer:
        told, *later = [message["content"] for message in received.messages]
        if told.startswith("You say a question"):
            return says(received, json.dumps({"question": self.write.format(later[0])}))
        if told.startswith("One of two questions"):
            place = 1 if later[0].startswith("1: Hey") else 2
            return says(received, json.dumps({"generated": place if self.tells else None}))
        task = self.tasks[later[0]]
        results = sum(text.startswith("Result: ") for text in later)
        plan = task.truth.tool_sequence
        if results < len(plan):
            call = {"tool": plan[results].tool, "arguments": plan[results].params}
            return says(received, json.dumps(call))
        return says(received, json.dumps({"answer": self.answer or task.truth.reference_answer}))


def rewritten(
    tasks: Tasks, at: Service, journal: Path, *, budget: ApiBudget | None = None, **settings: Any
) -> Rewritten:
    endpoint = EndpointSettings(model="m", backend="chat", base_url=at.url, api_key=API_KEY)
    run = RewriteRun(
        settings=RewriteSettings(endpoint=endpoint, solver=replace(endpoint, model="other"), **settings),
        budget=budget or ApiBudget(price=Price(1.0, 1.0)),
        journal=journal,
    )

    async def go() -> Rewritten:
        async with ToolPool([InProcessServer(name="port", server=build())]) as pool:
            return await rewrite_tasks(tasks, pool, run=run, catalog_hash="c")

    return asyncio.run(go())


def test_a_question_is_rewritten_where_the_answer_is_reached_and_nobody_can_tell(
    tasks: Tasks, tmp_path: Path
) -> None:
    with service(Model(tasks)) as at:
        done = rewritten(tasks, at, tmp_path / "j.jsonl")
        assert (done.rewritten, dict(done.kept)) == (len(tasks["train"]), {})
        models = {r.body["model"] for r in at.received if r.messages[0]["content"].startswith("You are")}
        assert models == {"other"}
        again_from = len(at.received)
        again = rewritten(tasks, at, tmp_path / "j.jsonl")
        assert len(at.received) == again_from  # every answer was in the journal
    assert again.tasks == done.tasks
    for old, new in zip(tasks["train"], done.tasks["train"], strict=True):
        assert new.prompt[-1].content == f"Hey, {old.prompt[-1].content}"
        assert new.truth == old.truth
        assert new.extra_info["rewritten"] == {
            "from": old.prompt[-1].content,
            "model": "m",
            "solver": "other",
        }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": "It is 1."}, "not_solved"),
        ({"tells": True}, "told_apart"),
        ({"write": "Hey, {} Then use the tools."}, "spells_plan"),
        ({"write": "Hey, what is it?"}, "entity_lost"),
        ({"write": ""}, "unreadable"),
    ],
)
def test_a_question_stays_as_it_was_for_a_reason_that_is_counted(
    tasks: Tasks, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    model = Model(tasks)
    vars(model).update(change)
    solvable = {
        "train": tuple(
            t for t in tasks["train"] if not t.truth.abstain and "port.list" not in str(t.truth.success)
        )
    }
    with service(model) as at:
        done = rewritten(solvable, at, tmp_path / "j.jsonl")
    assert done.tasks == solvable
    assert dict(done.kept) == {reason: len(solvable["train"])}


def test_a_cap_is_kept_and_what_is_left_stays_as_it_was(tasks: Tasks, tmp_path: Path) -> None:
    with service(Model(tasks)) as at:
        budget = ApiBudget(price=None, max_requests=9)
        done = rewritten(tasks, at, tmp_path / "j.jsonl", budget=budget, concurrency=1)
        assert len(at.received) == 9
    assert done.kept["cap_reached"] >= 1 and done.rewritten >= 1
    assert done.rewritten + done.kept["cap_reached"] == len(tasks["train"])


def test_the_command_rewrites_what_it_explored_and_says_so(tmp_path: Path) -> None:
    def model(received: Received) -> Answer:
        told, *later = [message["content"] for message in received.messages]
        if told.startswith("You say a question"):
            return says(received, json.dumps({"question": f"Hey, {later[0]}"}))
        return says(received, json.dumps({"answer": "I do not know."}))

    script = Path(port_server.__file__)
    servers = {"mcpServers": {"port": {"command": sys.executable, "args": [str(script)]}}}
    (tmp_path / "mcp.json").write_text(json.dumps(servers))
    counts = ("--train", "6", "--validation", "0", "--heldout", "0", "--out", tmp_path / "tasks", "--json")
    with service(model) as at:
        done = mcpagent(
            "gen-data", "--explore", "--rewrite", "--servers", tmp_path / "mcp.json", "--base-url", at.url,
            "--model", "m", "--max-requests", "200", *counts,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["rewrite"]
    assert told["rewritten"] + sum(told["kept_as_they_were"].values()) == 6
    assert told["kept_as_they_were"]["not_solved"] >= 3
    assert told["spend"]["requests"] == len(at.received)
    assert (tmp_path / "tasks" / "rewrite-journal.jsonl").is_file()
    refused = mcpagent("gen-data", "--rewrite", "--out", tmp_path / "none")
    assert refused.returncode == 2 and "add --explore" in refused.stderr
