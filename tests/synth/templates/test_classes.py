"""Every class of task from the built-in servers, and what must not become a task."""

import asyncio
import itertools
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from mcpagent.config.environment import resource_path
from mcpagent.core.answer_line import right_message
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.servers.provider import builtin_servers
from mcpagent.synth.tasks.run import CallCache, gold_record, replay, score
from mcpagent.synth.templates.rules import GeneratedData
from mcpagent.synth.templates.template import TemplateSet, load_templates
from mcpagent.tools.pool import ToolPool
from tests.synth.running import generated

DATA_SERVERS = ["polygon", "fmp", "tavily", "slack"]
COUNT = 100  # tasks of all classes


def of_templates(templates: TemplateSet, count: int) -> GeneratedData:
    pool = ToolPool(builtin_servers(DATA_SERVERS, limited=False))
    return generated(pool, templates, {"train": count}, seed=5)


@pytest.fixture(scope="module")
def full() -> GeneratedData:
    return of_templates(load_templates(resource_path("templates/full")).for_servers(DATA_SERVERS), COUNT)


def test_every_class_is_there_and_the_yield_accounts_for_every_candidate(full: GeneratedData) -> None:
    tasks = full.tasks["train"]
    assert set(Counter(task.extra_info["class"] for task in tasks)) == {
        "single", "sequential", "parallel", "missing_parameter", "missing_function", "irrelevance",
        "error_recovery", "multi_turn",
    }  # fmt: skip
    stages = full.stages
    assert stages[0]["in"] == full.candidates
    assert all(a["out"] == b["in"] for a, b in itertools.pairwise(stages))
    assert all(row["in"] - row["out"] == sum(row["rejects"].values()) for row in stages)
    assert stages[-1]["out"] == len(tasks) == COUNT


def test_what_is_posted_twice_or_beside_what_was_asked_is_no_success(full: GeneratedData) -> None:
    """A second post of the right message, and one of something else."""
    posting = [task for task in full.tasks["train"] if task.truth.state]
    assert len(posting) > 10

    async def successes(task: Task, *more: dict[str, str]) -> float | None:
        async with ToolPool(builtin_servers(DATA_SERVERS, limited=False)) as pool:
            cache = CallCache(pool)
            record = task.model_dump(exclude_unset=True)
            truth = record["reward_spec"]["ground_truth"]
            plan = list(truth["tool_sequence"])
            truth["tool_sequence"] = plan + [
                {**plan[-1], "step": len(plan) + n, "tool": "send_slack_message", "params": params}
                for n, params in enumerate(more, 1)
            ]
            done = await replay(cache, Task.model_validate(record))
        made = gold_record(
            task, done, answer=right_message(task, done.results), read_only=frozenset(_reading(cache))
        )
        return score(task, made)["success"]

    for task in posting[:6]:
        last = task.truth.tool_sequence[-1].params
        spam = {"channel": last.get("channel") or last["channel_id"], "message": "by the way"}
        again = last if "message" in last else spam
        assert asyncio.run(successes(task)) == 1.0
        assert asyncio.run(successes(task, again)) == 0.0
        assert asyncio.run(successes(task, spam)) == 0.0


def _reading(cache: CallCache) -> list[str]:
    return [spec.dotted for spec in cache.specs if spec.annotations.read_only]


def test_a_missing_function_is_not_offered_and_was_shown_to_be_what_it_takes(full: GeneratedData) -> None:
    missing = of_class(full, "missing_function")
    for task in missing:
        assert task.truth.is_refusal and not task.truth.abstain and task.offered_tools
        would = {f"{call['server']}.{call['tool']}" for call in task.extra_info["would_call"]}
        assert would & set(task.extra_info["withheld"])
        assert not set(task.offered_tools) & set(task.extra_info["withheld"])
        for tool in task.extra_info["withheld"]:
            assert tool.partition(".")[2] not in task.prompt[0].content
    assert missing


def test_an_error_that_is_to_be_recovered_from_really_happened(full: GeneratedData) -> None:
    recoveries = of_class(full, "error_recovery")
    assert recoveries
    for task in recoveries:
        guess = next(iter(task.extra_info["fails"]["params"].values()))
        assert guess in task.prompt[-1].content
        assert "Unknown" in task.extra_info["verdicts"]["first_error"]


CASES = {
    "not_minimal": """
        plan:
          - {server: fmp, tool: fmp_get_company_profile, params: {symbol: "{ticker}"}}
          - {server: fmp, tool: fmp_get_quote, params: {symbol: "{ticker}"}}
        answer: {type: number, value: "${step2.price}"}
        reference_answer: "${step2.price}"
    """,
    "answer_in_prompt": """
        plan: [{server: fmp, tool: fmp_get_quote, params: {symbol: "{ticker}"}}]
        answer: {type: name, value: "${step1.symbol}"}
        reference_answer: "${step1.symbol}"
    """,
    "no_error": """
        class: error_recovery
        fails: {server: fmp, tool: fmp_get_quote, params: {symbol: "{ticker}"}}
        plan: [{server: fmp, tool: fmp_get_quote, params: {symbol: "{ticker}"}}]
        answer: {type: number, value: "${step1.price}"}
        reference_answer: "${step1.price}"
    """,
    "still_answerable": """
        plan: [{server: fmp, tool: fmp_get_quote, params: {symbol: "{ticker}"}}]
        answer: {type: number, value: "${step1.price}"}
        reference_answer: "${step1.price}"
        withhold: [fmp.fmp_get_quote]
    """,
    "invalid_arguments": """
        plan: [{server: fmp, tool: fmp_get_quote, params: {symbol: 3}}]
        answer: {type: number, value: "${step1.price}"}
        reference_answer: "${step1.price}"
    """,
}


@pytest.mark.system
def test_what_is_not_fit_to_train_on_is_rejected_with_its_reason(tmp_path: Path) -> None:
    shared = "complexity: simple\nprompts: ['About {ticker}?']\nslots: {ticker: ticker}\n"
    (tmp_path / "pools.yaml").write_text(resource_path("templates/full/pools.yaml").read_text())
    for code, text in CASES.items():
        (tmp_path / f"{code}.yaml").write_text(f"name: {code}\n{shared}{textwrap.dedent(text)}")
    with pytest.raises(UserError, match="rejected: ") as refused:
        of_templates(load_templates(tmp_path), 1)
    for code in CASES:
        assert f"\n  {code}: {code}: " in refused.value.message, "of the template that is wrong in this way"


def of_class(data: GeneratedData, name: str) -> list[Task]:
    return [task for task in data.tasks["train"] if task.extra_info["class"] == name]
