"""Tools that are searched for: what an episode offers, loads and refuses, and what its reward makes of it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from mcp.server import MCPServer

from mcpagent.core.tasks import Task
from mcpagent.core.tools import FailureKind, ToolSpec, chat_schema
from mcpagent.core.trajectory import StopReason, total_reward
from mcpagent.env.episode import Episode, EpisodeLimits, StepOutput
from mcpagent.env.offer import Discovery, SearchableTools
from mcpagent.env.parsing import DIALECT_OF
from mcpagent.errors import UserError
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import GoldPolicy
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.env.world import (
    HISTORY,
    QUOTE,
    READ_ONLY,
    SEND,
    any_channel,
    ask,
    call,
    make_task,
    with_builtin_servers,
)

SEARCH = "search_tools"
FIND_QUOTE = call(SEARCH, query="current price of a stock", limit=3)
CANNOT = "None of the tools that I have can do that."


async def begun(pool: ToolPool, task: Task, *, discovery: Discovery | None = None, **more: Any) -> Episode:
    episode = Episode(task, pool, episode_id="t#0", discovery=discovery or Discovery(), **more)
    await episode.start()
    return episode


def names(output: StepOutput) -> list[str]:
    return [schema["function"]["name"] for schema in output.tool_schemas]


async def played(pool: ToolPool, task: Task, *actions: str, **more: Any) -> tuple[Episode, dict[str, Any]]:
    """The episode after as many of the actions as it takes, and its terms by name."""
    episode = await begun(pool, task, **more)
    for action in actions:
        if (await episode.step(action)).done:
            break
    if not episode.done:
        await episode.finish(StopReason.MAX_TURNS)
    terms = await episode.grade()
    await episode.close()
    return episode, {"reward": total_reward(terms), **{term.name: term.value for term in terms}}


async def quote_task(pool: ToolPool, **truth: Any) -> tuple[Task, str, float]:
    _, ticker = await any_channel(pool)
    price = (await ask(pool, QUOTE, symbol=ticker))["price"]
    plan = [{"step": 1, "server": "fmp", "tool": QUOTE, "params": {"symbol": ticker}}]
    answer = {"type": "number", "value": "${step1.price}"}
    return make_task(tool_sequence=plan, final_answer=answer, **truth), ticker, price


@with_builtin_servers
async def test_what_a_search_returns_can_be_called_and_nothing_else(pool: ToolPool) -> None:
    task, ticker, price = await quote_task(pool, max_turns=3)
    episode = Episode(task, pool, episode_id="t#0", discovery=Discovery())
    start = await episode.start()
    assert [schema["function"]["name"] for schema in start.tool_schemas] == [SEARCH]

    early = await episode.step(call(QUOTE, symbol=ticker))
    assert early.tool_results[0].failure is FailureKind.UNKNOWN_TOOL
    said = json.loads(early.observations[0]["content"])["error"]
    assert "is not loaded" in said and SEARCH in said
    unheard = await episode.step(FIND_QUOTE + "\n" + call(QUOTE, symbol=ticker))
    # It stands in the same step as the search: it cannot have been written with its schema in view.
    assert unheard.tool_results[1].failure is FailureKind.UNKNOWN_TOOL

    found = unheard.tool_results[0]
    shown = json.loads(found.content)["tools"]
    assert shown == list(unheard.tool_schemas)
    assert found.loaded is not None and f"fmp.{QUOTE}" in found.loaded and len(found.loaded) == 3
    assert shown[found.loaded.index(f"fmp.{QUOTE}")] == chat_schema(QUOTE, pool.tools[QUOTE])
    made = await episode.step(call(QUOTE, symbol=ticker))
    assert made.tool_results[0].structured is not None
    assert made.tool_results[0].structured["price"] == price
    await episode.close()


@with_builtin_servers
async def test_a_sensible_search_costs_nothing_and_earns_nothing(pool: ToolPool) -> None:
    # As many turns and calls as the plan itself takes: searching takes none of them.
    task, ticker, price = await quote_task(pool, max_turns=2, limits={"max_tools": 1, "max_servers": 1})
    quote, answer = call(QUOTE, symbol=ticker), f"The answer is {price}."
    _, with_search = await played(pool, task, FIND_QUOTE, quote, answer)
    offered = Episode(task, pool, episode_id="t#0")
    await offered.start()
    for action in (quote, answer):
        await offered.step(action)
    without = {term.name: term.value for term in await offered.grade()}
    await offered.close()
    assert with_search.pop("reward") == 1.0
    assert with_search == without

    abstain = make_task(abstain=True, final_answer={"type": "abstention", "value": "cannot"}, max_turns=1)
    _, searched = await played(pool, abstain, call(SEARCH, query="brew coffee"), CANNOT)
    assert searched["reward"] == 1.0


QUERIES = [f"{word} {other}" for word in ("stock", "price", "news", "chat") for other in "abcdefghij"]


@pytest.mark.parametrize(
    "actions",
    [
        pytest.param([call(SEARCH, query=query) for query in QUERIES], id="other-words-each-time"),
        pytest.param([FIND_QUOTE] * 40, id="the-same-words"),
        pytest.param(["\n".join(call(SEARCH, query=q) for q in QUERIES)] * 9, id="many-at-once"),
        pytest.param([call(SEARCH, limit=3)] * 40, id="broken"),
        pytest.param([*[call(SEARCH, query=q) for q in QUERIES[:9]], "The answer is 1."], id="then-a-guess"),
    ],
)
@with_builtin_servers
async def test_a_policy_that_searches_for_ever_gains_nothing(pool: ToolPool, actions: list[str]) -> None:
    acting, *_ = await quote_task(pool, max_turns=6)
    abstain = make_task(abstain=True, final_answer={"type": "abstention", "value": "cannot"}, max_turns=6)
    for task in (acting, abstain):
        episode, searching = await played(pool, task, *actions)
        _, silent = await played(pool, task, "")
        assert searching["reward"] < silent["reward"] or searching["reward"] < 0
        assert searching["success"] == 0.0 and searching["penalty"] >= 0.1
        assert len(episode.record.turns) <= 6 + 4 + 1


@with_builtin_servers
async def test_searching_too_much_costs_a_success_something_but_never_its_lead(pool: ToolPool) -> None:
    task, ticker, price = await quote_task(pool, max_turns=40)
    searches = [call(SEARCH, query=query) for query in QUERIES[:10]]
    _, terms = await played(
        pool, task, FIND_QUOTE, *searches, call(QUOTE, symbol=ticker), f"The answer is {price}."
    )
    assert terms["excess"] == 11 - 3  # one for the plan's call and two more are free
    assert 0.45 <= terms["reward"] == pytest.approx(1 - 0.15)


@with_builtin_servers
async def test_a_search_is_no_call_that_a_task_could_ask_for(pool: ToolPool) -> None:
    for name in (SEARCH, f"mcpagent.{SEARCH}", "mcpagent"):
        task = make_task(success={"must_call_tool": name}, final_answer={"type": "number", "value": 5})
        _, terms = await played(pool, task, FIND_QUOTE, "The answer is 5.")
        assert (terms["must_call"], terms["success"]) == (0.0, 0.0)


@with_builtin_servers
async def test_only_what_the_task_offers_is_found_and_what_a_user_turn_brings_from_then_on(
    pool: ToolPool,
) -> None:
    task = make_task(
        tools=[f"slack.{HISTORY}"],
        abstain=True,
        user_turns=["Now it is there.", "Go on."],
        tools_added={1: [f"fmp.{QUOTE}"]},
    )
    episode = await begun(pool, task)
    assert f"fmp.{QUOTE}" not in ((await episode.step(FIND_QUOTE)).tool_results[0].loaded or ())
    brought = await episode.step("There is nothing.")
    assert brought.tool_schemas == () and SEARCH in (brought.user_message or "")
    assert names(await episode.step(FIND_QUOTE)) == [QUOTE]
    assert (await episode.step("Done.")).user_message == "Go on."
    again = (await episode.step(FIND_QUOTE)).tool_results[0]
    assert again.loaded == () and json.loads(again.content)["already_loaded"] == [QUOTE]
    await episode.close()

    missing = make_task(tools=["fmp.no_such_tool"], abstain=True)
    with pytest.raises(UserError, match="no_such_tool"):
        await begun(pool, missing)


@with_builtin_servers
async def test_pinned_tools_are_offered_beside_the_search(pool: ToolPool) -> None:
    episode = Episode(
        make_task(tools=[f"fmp.{QUOTE}", f"slack.{SEND}", f"slack.{HISTORY}"], abstain=True),
        pool,
        episode_id="t#0",
        discovery=Discovery(pinned=("slack", "fmp.no_such_tool")),
    )
    start = await episode.start()
    assert [s["function"]["name"] for s in start.tool_schemas] == [SEARCH, SEND, HISTORY]
    assert names(await episode.step(FIND_QUOTE)) == [QUOTE]
    await episode.close()


@pytest.mark.parametrize("tool_format", sorted(DIALECT_OF))
@with_builtin_servers
async def test_every_dialect_reads_a_call_of_a_loaded_tool_with_the_types_of_its_schema(
    pool: ToolPool, tool_format: str
) -> None:
    task = make_task(tools=[f"slack.{HISTORY}"], abstain=True)
    episode = await begun(pool, task, tool_format=tool_format)
    write = DIALECT_OF[tool_format].write
    found = await episode.step(write([(SEARCH, {"query": "channel history", "limit": 5})]))
    assert names(found) == [HISTORY]
    channel, _ = await any_channel(pool)
    made = await episode.step(write([(HISTORY, {"channel_id": channel, "limit": 2})]))
    assert made.tool_calls[0].arguments == {"channel_id": channel, "limit": 2}
    assert made.tool_results[0].failure is None
    await episode.close()


def spec(name: str, description: str = "", server: str = "s", **properties: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties}
    return ToolSpec(server=server, name=name, description=description, input_schema=schema)


CATALOG = {
    tool.name: tool
    for tool in (
        spec("convertCurrency", "Change an amount of money into another currency."),
        spec("get_forecast", "Weather for the next days.", city={"type": "string"}),
        spec("book", "Reserve a table.", restaurant={"type": "string", "description": "where to eat"}),
        spec("list_issues", "Open tickets of a repository.", state={"enum": ["open", "closed"]}),
        spec("天気", "東京の天気予報を調べる"),
    )
}


def search(query: str, catalog: dict[str, ToolSpec] = CATALOG, **settings: Any) -> list[str]:
    tools = SearchableTools(catalog, None, Discovery(**settings), task_id="t")
    return list(tools.search({"query": query})[2])


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("currency conversion", "s.convertCurrency"),
        ("what will the weather be", "s.get_forecast"),
        ("somewhere to eat tonight", "s.book"),
        ("closed tickets", "s.list_issues"),
        ("東京の天気は?", "s.天気"),
        ("tickets, weather and money, by s.book", "s.book"),
        ("LIST_ISSUES", "s.list_issues"),
    ],
)
def test_tools_are_found_by_what_they_say_they_do(query: str, first: str) -> None:
    assert search(query)[0] == first


@pytest.mark.parametrize("query", ["", " ", "of the and", "zzz", "\ud800", "." * 100_000, "(" * 1000])
def test_a_query_that_says_nothing_finds_nothing_and_says_so(query: str) -> None:
    tools = SearchableTools(CATALOG, None, Discovery(), task_id="t")
    content, schemas, loaded = tools.search({"query": query})
    assert (schemas, loaded) == ((), ()) and "hint" in json.loads(content)


def test_the_order_of_the_catalog_does_not_matter() -> None:
    rng = random.Random(5)
    catalog = {f"t{n}": spec(f"t{n}", rng.choice(["a price", "price list", "prices"])) for n in range(60)}
    shuffled = dict(rng.sample(sorted(catalog.items()), k=len(catalog)))
    assert search("list of prices", catalog) == search("list of prices", shuffled)
    assert len(search("list of prices", catalog)) == 5


def test_a_schema_is_shown_whole_or_not_at_all() -> None:
    catalog = {f"t{n}": spec(f"t{n}", "price " + "x" * 3000) for n in range(5)}
    tools = SearchableTools(catalog, None, Discovery(result_chars=8000), task_id="t")
    content, schemas, loaded = tools.search({"query": "price"})
    assert json.loads(content)["tools"] == list(schemas)
    assert len(loaded) == 2
    assert len(search("price", catalog, result_chars=10)) == 1  # the best match is always shown


def test_the_search_keeps_out_of_the_way_of_a_tool_that_has_its_name() -> None:
    taken = {"search_tools": spec("search_tools", "Look for a hammer."), **CATALOG}
    tools = SearchableTools(taken, None, Discovery(pinned=("s.search_tools",)), task_id="t")
    assert tools.search_name == "mcpagent__search_tools"
    own, theirs = tools.offered.find("mcpagent__search_tools"), tools.offered.find("search_tools")
    assert own is not None and theirs is not None
    assert theirs.spec.description == "Look for a hammer." and own.spec.server == "mcpagent"


@with_builtin_servers
async def test_a_hard_limit_of_calls_counts_searches_too(pool: ToolPool) -> None:
    task = make_task(abstain=True, max_turns=50)
    episode = await begun(pool, task, limits=EpisodeLimits(max_tool_calls=3))
    last = await episode.step("\n".join(call(SEARCH, query=f"stock {n}") for n in range(4)))
    assert last.stop_reason is StopReason.MAX_TOOL_CALLS
    assert [result.loaded is not None for result in last.tool_results] == [True] * 4
    assert last.tool_results[3].failure is FailureKind.LIMIT
    await episode.close()


async def test_the_gold_plan_scores_whole_among_many_servers_alike() -> None:
    def keep(amount: int) -> dict[str, int]:
        """Keep an amount."""
        return {"kept": amount}

    servers: list[InProcessServer] = []
    for number in range(40):
        server = MCPServer(f"box{number}")
        server.add_tool(keep, annotations=READ_ONLY)
        servers.append(InProcessServer(name=f"box{number}", server=server))
    plan = [{"step": n, "server": f"box{n * 9}", "tool": "keep", "params": {"amount": n}} for n in (1, 2, 3)]
    task = make_task(tool_sequence=plan, final_answer={"type": "number", "value": "${step3.kept}"})
    async with ToolPool(servers) as pool:
        (trajectory,) = await collect(
            list(attempts([task], per_task=1, seed=0)),
            policy=GoldPolicy([task]),
            tools=pool,
            settings=AgentSettings(sampling=Sampling(), discovery=Discovery()),
        )
    assert trajectory.reward == 1.0 and trajectory.term("excess") == 0.0
    assert 3 <= len(trajectory.searches) <= 5
