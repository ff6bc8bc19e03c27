import asyncio
import json
import re
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcpagent.config.environment import resource_path
from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.servers.provider import builtin_servers
from mcpagent.synth.templates.pools import SplitShares
from mcpagent.synth.templates.rules import GeneratedData, fill_split
from mcpagent.synth.templates.template import TemplateSet, load_templates
from mcpagent.tools.pool import ToolPool
from tests.synth.running import generated

COUNTS = {"train": 60, "validation": 30, "heldout": 40}
TICKER = re.compile(r"\b[A-Z]{4}\b")
CHANNEL = re.compile(r"\bC[0-9]{3}\b")
QUOTE_TEMPLATE = """\
name: {name}
complexity: simple
prompts: ["{name} of {{ticker}}?"]
slots: {{ticker: ticker}}
plan:
  - {{server: fmp, tool: {tool}, params: {{symbol: "{symbol}"}}}}
answer: {{type: {check}, value: "{value}"}}
reference_answer: "{answer}"
"""


def generate(
    *, seed: int, counts: Mapping[str, int] = COUNTS, templates: TemplateSet | None = None, **options: Any
) -> GeneratedData:
    chosen = templates or load_templates(resource_path("templates/tasks"))
    return generated(ToolPool(builtin_servers()), chosen, counts, seed=seed, **options)


@pytest.fixture(scope="module")
def data() -> GeneratedData:
    return generate(seed=3)


def write_templates(folder: Path, **texts: str) -> TemplateSet:
    pools = resource_path("templates/tasks/pools.yaml").read_text()
    (folder / "pools.yaml").write_text(pools)
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return load_templates(folder)


def quote(name: str, **changes: str) -> str:
    values = {"tool": "fmp_get_quote", "symbol": "{ticker}", "check": "number", "value": "${step1.price}"}
    return QUOTE_TEMPLATE.format(
        **{"name": name, **values, "answer": "The answer is ${step1.price}.", **changes}
    )


def test_every_split_has_the_number_of_distinct_tasks_that_was_asked_for(data: GeneratedData) -> None:
    assert {split: len(tasks) for split, tasks in data.tasks.items()} == COUNTS
    tasks = [task for split in data.tasks.values() for task in split]
    assert len({task.id for task in tasks}) == len(tasks)
    assert len({asked(task) for task in tasks}) == len(tasks)
    assert {task.truth.complexity for task in tasks} == {"simple", "moderate", "complex"}


def test_no_entity_of_one_split_is_seen_in_another(data: GeneratedData) -> None:
    # Independent of the generator's own slots: whatever ticker or channel the text of a task, its plan, its
    # checks or the results of its calls mention.
    mentioned = {split: set().union(*map(entities_of, tasks)) for split, tasks in data.tasks.items()}
    assert all(len(entities) > 20 for entities in mentioned.values())
    assert not mentioned["train"] & mentioned["heldout"]
    assert not mentioned["train"] & mentioned["validation"]
    assert not mentioned["validation"] & mentioned["heldout"]


@pytest.mark.system
def test_splits_keep_their_shares_and_depend_on_the_seed(data: GeneratedData) -> None:
    # 400 hashed entities, share 0.25: standard deviation sqrt(400 * .25 * .75) = 8.7; 100 +- 35 is 4 of them.
    assert 65 <= data.entities["heldout"]["ticker"] <= 135
    assert sum(pools["channel"] for pools in data.entities.values()) == 400
    other = generate(seed=4, counts={"train": 40, "heldout": 40})
    assert not heldout_tickers(other) <= heldout_tickers(data)
    assert {task.id for task in other.tasks["train"]} != {task.id for task in data.tasks["train"][:40]}


@pytest.mark.system
def test_asking_for_more_train_tasks_keeps_those_that_were_there(data: GeneratedData) -> None:
    more = generate(seed=3, counts={"train": 80})
    assert more.tasks["train"][:60] == data.tasks["train"]


def test_the_system_message_is_the_same_for_every_task_and_lists_the_whole_catalog(
    data: GeneratedData,
) -> None:
    tasks = [task for split in data.tasks.values() for task in split]
    systems = {task.prompt[0].content for task in tasks}
    assert len(systems) == 1
    # One line before the limited catalog of 20 tools, and one that asks for the answer line.
    assert len(systems.pop().splitlines()) == 1 + 20 + 1
    assert {task.offered_tools for task in tasks} == {tasks[0].offered_tools}
    assert {task.extra_info["catalog_hash"] for task in tasks} == {data.catalog_hash}


def test_stored_answers_are_values_and_not_references(data: GeneratedData) -> None:
    for task in (task for split in data.tasks.values() for task in split):
        truth = task.truth
        settled = [
            truth.reference_answer,
            truth.final_answer,
            truth.state,
            [s.match for s in truth.tool_sequence],
        ]
        assert "${" not in repr(settled)
        if truth.final_answer is not None and truth.final_answer.type == "number":
            assert isinstance(truth.final_answer.value, int | float)


ALREADY_HOLDS = """\
name: read
complexity: simple
prompts: ["Read {channel}."]
slots: {channel: channel}
plan:
  - {server: slack, tool: get_slack_channel_history, params: {channel_id: "{channel}"}}
reference_answer: Read.
state:
  slack:
    - call: {tool: get_slack_channel_history, arguments: {channel_id: "{channel}"}}
      expect: {"messages[0].text": "${step1.messages[0].text}"}
"""


def test_templates_that_cannot_work_are_rejected_and_counted(tmp_path: Path) -> None:
    templates = write_templates(
        tmp_path,
        good=quote("good"),
        unknown_tool=quote("unknown", tool="fmp_get_weather"),
        failing=quote("failing", symbol="no-{ticker}"),
        unresolved=quote("unresolved", tool="fmp_get_previous_close"),
        no_number=quote(
            "wrong", tool="fmp_get_company_profile", value="${step1.name}", answer="${step1.name}"
        ),
        changes_nothing=ALREADY_HOLDS,
    )
    data = generate(seed=0, counts={"train": 30}, templates=templates)
    assert {task.extra_info["template"] for task in data.tasks["train"]} == {"good"}
    codes = {"unknown_tool", "step_failed", "reference_unresolved", "answer_invalid"}
    assert codes | {"state_already_holds"} <= set(data.rejects)
    assert all(data.rejects[code] > 0 for code in data.rejects)
    assert any("fmp_get_weather" in text for texts in data.examples.values() for text in texts)


def test_posts_to_a_server_that_all_sessions_share_do_not_disturb_each_other(tmp_path: Path) -> None:
    # Not those that read a channel first: what others posted there would be in the way of every later task.
    shipped = yaml.safe_load((resource_path("templates/tasks") / "moderate.yaml").read_text())
    posting = [template for template in shipped if template["name"] in ("price-post", "close-post")]
    templates = write_templates(tmp_path, posts=yaml.safe_dump(posting))

    shared = ToolsConfig(per_server={"slack": ServerSection(isolation="shared")})
    data = generated(ToolPool(builtin_servers(), shared), templates, {"heldout": 60}, seed=0)
    assert set(data.rejects) <= {"duplicate"}


@pytest.mark.system
def test_asking_for_more_tasks_than_there_are_gives_those_and_says_which_split_is_short(
    tmp_path: Path,
) -> None:
    templates = write_templates(tmp_path, good=quote("good"))
    data = generate(seed=0, counts={"train": 5, "heldout": 500}, templates=templates)
    made = len(data.tasks["heldout"])
    assert 5 < made < 500 and len(data.tasks["train"]) == 5
    assert data.short_of({"train": 5, "heldout": 500}) == {"heldout": (made, 500)}
    assert made == data.entities["heldout"]["ticker"], "one task for each"


@pytest.mark.parametrize("counts", [{"test": 3}, {"train": -1}, {"train": 0}, {}])
def test_impossible_counts_are_user_errors(counts: dict[str, int]) -> None:
    with pytest.raises(UserError):
        generate(seed=0, counts=counts)


def test_shares_of_more_than_there_is_are_a_user_error() -> None:
    with pytest.raises(UserError, match="add up to more than 1"):
        SplitShares(heldout=0.9, validation=0.2)


def asked(task: Task) -> str:
    """The calls of a task, or what it says where there are none."""
    plan = [[step.server, step.tool, step.params] for step in task.truth.tool_sequence]
    return json.dumps(plan or task.prompt[-1].content, sort_keys=True)


def entities_of(task: Task) -> set[str]:
    """Every ticker and channel in the record, apart from the list of tools."""
    record = json.dumps([task.prompt[-1].content, task.reward_spec.model_dump(mode="json")])
    return set(TICKER.findall(record)) | set(CHANNEL.findall(record)) | watched_by(record)


def watched_by(record: str) -> set[str]:
    """Tickers that a chain passes through without naming them."""
    from mcpagent.servers.embedded import build

    channels = build().channel_by_key
    return {channels[name.casefold()].watches for name in CHANNEL.findall(record)}


@dataclass(frozen=True)
class Numbered:
    key: str


class Endless:
    """Candidates without end, each of which is a task of some kilobytes at once."""

    split = "train"

    def __init__(self, like: Task) -> None:
        self._like, self._drawn = like, 0

    def next(self) -> Numbered:
        self._drawn += 1
        return Numbered(f"{self._drawn:0300}")

    async def make(self, candidate: Numbered) -> Task:
        info = {**self._like.extra_info, "number": candidate.key, "padding": "x" * 2000 + candidate.key}
        return self._like.model_copy(update={"extra_info": info})


def test_a_task_more_is_few_bytes_more_in_memory(data: GeneratedData) -> None:
    peaks: list[int] = []
    for count in (1500, 3000):
        tracemalloc.start()
        try:
            account = GeneratedData(entities={}, catalog_hash="")
            kept = asyncio.run(fill_split(Endless(data.tasks["train"][0]), count, account, None))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert len(kept) >= count and kept[-1].extra_info["number"] == f"{len(kept):0300}"
    assert (peaks[1] - peaks[0]) / 1500 < 300


def heldout_tickers(data: GeneratedData) -> set[str]:
    return {e for task in data.tasks["heldout"] for e in entities_of(task) if TICKER.fullmatch(e)}
