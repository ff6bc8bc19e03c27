"""Splits, prompts and schemas in words."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.config.environment import resource_path
from mcpagent.core.tasks import GroundTruth, Message, RewardSpec, Task
from mcpagent.core.tools import ToolAnnotations, ToolSpec
from mcpagent.errors import UserError
from mcpagent.llm.budget import price_of
from mcpagent.synth.llm.prompts import (
    Observation,
    PromptBuilder,
    TaskSettings,
    fill_in,
    load_prompts,
)
from mcpagent.synth.llm.sample import Executed, called_entities, split_tasks
from mcpagent.synth.templates.pools import SplitShares


def tool(dotted: str, **properties: object) -> ToolSpec:
    server, name = dotted.split(".")
    return ToolSpec(server=server, name=name, input_schema={"type": "object", "properties": properties})


def test_what_is_filled_into_a_prompt_is_not_read_as_a_blank() -> None:
    assert fill_in("{{a}} {{b}} ${step1.x}", a="{{b}}", b=1) == "{{b}} 1 ${step1.x}"


def test_a_blank_that_nothing_fills_is_refused_with_its_line(tmp_path: Path) -> None:
    text = resource_path("templates/prompts/tasks.yaml").read_text()
    path = tmp_path / "p.yaml"
    path.write_text(text.replace("{{answer}}", "{{anser}}"))
    with pytest.raises(UserError, match=r"p\.yaml:\d+: nothing fills \{\{anser\}\} in review\.user") as error:
        load_prompts(path)
    assert error.value.remedy == "there are: answer, calls, question, tools"


def test_a_dated_model_has_the_price_of_its_name_and_an_unknown_one_none() -> None:
    assert price_of("gpt-4o-mini-2024-07-18") == price_of("gpt-4o-mini") is not None
    assert price_of("some-local-model") is None


def executed(task_id: str, *symbols: str) -> Executed:
    calls = tuple(
        {"server": "fmp", "tool": "quote", "arguments": {"symbol": s, "period": "Q1"}} for s in symbols
    )
    task = Task(
        prompt=(Message(role="user", content="?"),),
        reward_spec=RewardSpec(ground_truth=GroundTruth(task_id=task_id)),
    )
    return Executed(task=task, calls=calls)


def test_every_class_has_its_share_of_the_samples_that_its_servers_allow() -> None:
    prompts = load_prompts(resource_path("templates/prompts/tasks.yaml"))
    settings = TaskSettings(max_tools=4, max_turns=8, domains=("all",))
    shares = {kind: each.share for kind, each in prompts.texts.classes.items()}
    reads = tool("fmp.quote").model_copy(update={"annotations": ToolAnnotations(read_only=True)})
    for usable, missing in (
        ((reads, tool("slack.send")), set[str]()),
        ((reads,), {"two servers", "change"}),
        ((tool("slack.send"),), {"two servers"}),
    ):
        wanted = {kind: share for kind, share in shares.items() if kind not in missing}
        asked = PromptBuilder(prompts=prompts, usable=usable, observations=(), settings=settings)
        kinds = [asked(number).kind for number in range(2 * sum(wanted.values()))]
        assert Counter(kinds) == {kind: 2 * share for kind, share in wanted.items()}


def test_a_prompt_shows_whole_results_with_their_root_and_what_fails() -> None:
    prompts = load_prompts(resource_path("templates/prompts/tasks.yaml"))
    seen = (
        Observation("fmp.quote", {"symbol": "ABCD"}, '{"result": [{"price": 12.5}]}'),
        Observation("fmp.quote", {"symbol": "none"}, "Unknown symbol.", is_error=True),
        Observation("fmp.quote", {}, "x" * 5000),
    )
    settings = TaskSettings(max_tools=4, max_turns=8, domains=("all",))
    usable = (tool("fmp.quote", symbol={"type": "string"}),)
    writes = tool("fmp.alert").model_copy(update={"description": "Send an alert\n  to a phone."})
    asked = PromptBuilder(
        prompts=prompts,
        usable=usable,
        others=(writes,),
        observations=seen,
        settings=settings,
        questions=["What is ABCD?"],
    )
    told = asked(0).messages[1]["content"]
    for part in (
        'fmp.quote({"symbol": "ABCD"})\nstep = {"result": [{"price": 12.5}]}',
        'fmp.quote({"symbol": "none"})\nfails = Unknown symbol.',
        f"step = {'x' * 3000} ... (cut here)",
        'arguments: {"type": "object", "properties": {"symbol": {"type": "string"}}}',
        "Questions that exist\n- What is ABCD?",
        "- fmp.alert: Send an alert to a phone.",
    ):
        assert part in told
    # Who judges or solves a wish knows every tool that the task offers, and no other.
    for offered, is_told in ((["fmp.quote", "fmp.alert"], True), (["fmp.quote"], False)):
        for messages in (asked.review("Warn me.", "none", "none", offered), asked.solve("Warn me.", offered)):
            assert ("fmp.alert: Send" in messages[1]["content"]) is is_told
            assert "fmp.quote" in messages[1]["content"] or "tool quote" in messages[1]["content"]


QUOTE = {"fmp.quote": tool("fmp.quote", symbol={"type": "string"}, period={"enum": ["Q1", "Q2"]})}


def test_names_are_told_from_constants_dates_numbers_and_plain_words() -> None:
    arguments = {"symbol": "target of ABCD since 2025-01-02 for 12.5 in C101", "period": "Q1"}
    assert called_entities([{"server": "fmp", "tool": "quote", "arguments": arguments}], QUOTE) == {
        "ABCD",
        "C101",
    }


@given(st.lists(st.lists(st.sampled_from([f"T{n:02}" for n in range(40)]), max_size=3), max_size=30))
def test_no_entity_is_in_two_splits_and_no_task_is_lost(plans: list[list[str]]) -> None:
    made = [executed(f"t{n}", *symbols) for n, symbols in enumerate(plans)]
    splits = split_tasks(made, tools=QUOTE, shares=SplitShares(heldout=0.3, validation=0.3), seed=1)
    place = {task.id: split for split, tasks in splits.items() for task in tasks}
    assert sorted(place) == sorted(item.task.id for item in made)
    seen: dict[str, str] = {}
    for item in made:
        for call in item.calls:
            symbol = call["arguments"]["symbol"]
            assert seen.setdefault(symbol, place[item.task.id]) == place[item.task.id]
