from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mcpagent.core.tasks import Message
from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import FinishReason, StopReason, total_reward
from mcpagent.env.episode import Episode, EpisodeLimits
from mcpagent.errors import EpisodeError, UserError
from mcpagent.tools.pool import ToolPool
from tests.env.world import (
    HISTORY,
    QUOTE,
    READ_ONLY,
    SEND,
    any_channel,
    ask,
    call,
    make_task,
    scratch_pool,
    with_builtin_servers,
)


async def begun(pool: ToolPool, *, limits: EpisodeLimits | None = None, **task: Any) -> Episode:
    episode = Episode(make_task(**task), pool, limits=limits, episode_id="t#0")
    await episode.start()
    return episode


@with_builtin_servers
async def test_a_task_is_solved_over_real_servers_and_its_end_state_is_read(pool: ToolPool) -> None:
    channel, ticker = await any_channel(pool)
    price = (await ask(pool, QUOTE, symbol=ticker))["price"]
    task = make_task(
        tool_sequence=[
            {"step": 1, "server": "fmp", "tool": QUOTE, "params": {"symbol": ticker}},
            {
                "step": 2,
                "server": "slack",
                "tool": SEND,
                "params": {"channel": channel, "message": "${text(step1.price)}"},
            },
        ],
        setup={"slack": [{"tool": SEND, "arguments": {"channel": channel, "message": "before"}}]},
        state={
            "slack": [
                {
                    "call": {"tool": HISTORY, "arguments": {"channel_id": channel}},
                    "expect": {"messages[0].text": "${text(step1.price)}", "messages[1].text": "before"},
                }
            ]
        },
        final_answer={"type": "number", "value": "${step1.price}"},
    )
    episode = Episode(task, pool, episode_id="t#0")
    start = await episode.start()
    assert [message["role"] for message in start.messages] == ["system", "user"]
    assert {schema["function"]["name"] for schema in start.tool_schemas} == set(pool.tools)

    quoted = await episode.step(f"<think>quote first</think>{call(QUOTE, symbol=ticker)}")
    assert (quoted.done, quoted.stop_reason, quoted.user_turn) == (False, None, 0)
    assert json.loads(quoted.observations[0]["content"])["price"] == price
    assert quoted.tool_results[0].meta["mcpagent/nonce"]
    await episode.step(call(SEND, channel=channel, message=str(price)))
    final = await episode.step(f"The answer is {price}.")
    assert (final.done, final.stop_reason, final.observations) == (True, StopReason.ANSWERED, [])

    terms = await episode.grade()
    await episode.close()
    assert total_reward(terms) == pytest.approx(1.0)
    assert episode.final_answer == f"The answer is {price}."
    assert [result.tool for result in episode.state_results] == [SEND, HISTORY]
    assert len(episode.turn_terms) == 3
    assert await episode.grade() == terms


@pytest.mark.parametrize(
    ("sent", "wanted", "state"),
    [
        ([["one"], ["two"]], ["one", "two"], 1.0),
        ([["one", "late"], ["two"]], ["one", "two"], 0.0),  # the first user turn ends in another state
        ([["one"], []], ["one", "one"], 0.0),  # it holds, but nothing was done for it
        ([["one"]], ["one", "one"], 0.0),  # the second one is never reached
    ],
    ids=["in time", "late", "idle", "cut short"],
)
@with_builtin_servers
async def test_a_state_that_must_hold_after_a_user_turn_is_read_when_that_turn_ends(
    pool: ToolPool, sent: list[list[str]], wanted: list[str], state: float
) -> None:
    channel, _ = await any_channel(pool)
    read = {"tool": HISTORY, "arguments": {"channel_id": channel, "limit": 1}}
    # Stated last to first: they are read in the order of the user turns.
    checks = [
        {"call": read, "expect": {"messages[0].text": text}, "user_turn": user_turn}
        for user_turn, text in reversed(list(enumerate(wanted)))
    ]
    plan = [
        {"step": n + 1, "server": "slack", "tool": SEND, "user_turn": n, "params": {"channel": channel}}
        for n in range(2)
    ]
    episode = await begun(pool, user_turns=["And again."], tool_sequence=plan, state={"slack": checks})
    for texts in sent:
        for text in texts:
            await episode.step(call(SEND, channel=channel, message=text))
        await episode.step("Done.")
        assert len(episode.state_results) == 1  # the second one waits for the grade
    if not episode.done:
        await episode.finish(StopReason.MAX_TURNS)
    terms = {term.name: term.value for term in await episode.grade()}
    await episode.close()
    assert len(episode.state_results) == 2
    assert (terms["state"], terms["success"]) == (state, state)


@with_builtin_servers
async def test_a_tool_that_a_later_user_turn_brings_is_offered_from_then_on(pool: ToolPool) -> None:
    channel, ticker = await any_channel(pool)
    plan = {"step": 1, "server": "fmp", "tool": QUOTE, "user_turn": 1, "params": {"symbol": ticker}}
    episode = Episode(
        make_task(
            tools=[f"slack.{HISTORY}"],
            user_turns=["And now?"],
            tools_added={"1": [f"fmp.{QUOTE}"]},
            tool_sequence=[plan],
        ),
        pool,
        episode_id="t#0",
    )
    start = await episode.start()
    assert [schema["function"]["name"] for schema in start.tool_schemas] == [HISTORY]
    refused = await episode.step(call(QUOTE, symbol=ticker))
    assert refused.tool_results[0].failure is FailureKind.UNKNOWN_TOOL
    told = await episode.step("I have no tool for that.")
    (schema,) = told.tool_schemas
    message = told.observations[-1]["content"]
    assert message == told.user_message
    assert message.endswith("\n\nAnd now?")
    assert json.loads(message.splitlines()[1]) == schema
    assert schema["function"]["name"] == QUOTE
    for tool, arguments in ((QUOTE, {"symbol": ticker}), (HISTORY, {"channel_id": channel})):
        made = await episode.step(call(tool, **arguments))
        assert made.tool_results[0].failure is None
        assert made.tool_schemas == ()
    await episode.step("Done.")
    terms = {term.name: term.value for term in await episode.grade()}
    await episode.close()
    assert terms["coverage"] == 1.0


@with_builtin_servers
async def test_a_tool_now_or_to_come_that_no_server_has_is_the_users_to_fix_before_anything_is_played(
    pool: ToolPool,
) -> None:
    to_come = {
        "tools": [f"fmp.{QUOTE}"],
        "user_turns": ["And now?"],
        "tools_added": {"1": ["fmp.fmp_get_moon"]},
    }
    for offered in ({"tools": ["fmp.fmp_get_moon"]}, to_come):
        episode = Episode(make_task(abstain=True, **offered), pool, episode_id="t#0")
        with pytest.raises(UserError, match=r"fmp\.fmp_get_moon"):
            await episode.start()
        await episode.close()


@with_builtin_servers
async def test_bad_calls_are_answered_with_an_error_and_reach_no_server(pool: ToolPool) -> None:
    episode = await begun(pool, tools=[f"fmp.{QUOTE}"])
    out = await episode.step(
        call("get_weather", city="x")
        + call(SEND, channel="C1", message="x")
        + call(QUOTE, symbol=5)
        + call(QUOTE, ticker="AAPL")
        + "<tool_call>oops</tool_call>"
    )
    await episode.close()
    kinds = [result.failure for result in out.tool_results]
    unknown, invalid = FailureKind.UNKNOWN_TOOL, FailureKind.INVALID_ARGUMENTS
    assert kinds == [unknown, unknown, invalid, invalid]
    assert not any(result.meta for result in out.tool_results)  # a server would have stamped a nonce
    errors = [json.loads(observation["content"])["error"] for observation in out.observations]
    assert "get_weather" in errors[0]
    assert "symbol: 5 is not of type 'string'" in errors[2]
    assert "'symbol' is a required property" in errors[3]
    assert "not a tool call: invalid JSON" in errors[4]
    assert [observation["role"] for observation in out.observations] == ["tool"] * 5
    assert len(out.parse_failures) == 1
    assert not out.done


@with_builtin_servers
async def test_a_tool_may_be_named_with_its_server(pool: ToolPool) -> None:
    _, ticker = await any_channel(pool)
    episode = await begun(pool)
    out = await episode.step(call(f"fmp.{QUOTE}", symbol=ticker) + call(f"fmp__{QUOTE}", symbol=ticker))
    assert [(c.server, c.tool, c.id) for c in out.tool_calls] == [
        ("fmp", QUOTE, "c0"),
        ("fmp", QUOTE, "c1"),
    ]
    assert not any(result.is_error for result in out.tool_results)
    again = await episode.step(call(QUOTE, symbol=ticker))
    assert again.tool_calls[0].id == "c2"
    await episode.close()


@with_builtin_servers
async def test_a_set_up_that_fails_is_no_fault_of_the_model(pool: ToolPool) -> None:
    setup = {"slack": [{"tool": SEND, "arguments": {"channel": "C000000", "message": "x"}}]}
    episode = Episode(make_task(abstain=True, setup=setup), pool, episode_id="t#0")
    with pytest.raises(EpisodeError, match=SEND):
        await episode.start()
    assert episode.stop_reason is StopReason.FAILED
    assert total_reward(await episode.grade()) is None
    await episode.close()


@with_builtin_servers
async def test_later_user_messages_are_delivered_one_by_one(pool: ToolPool) -> None:
    episode = await begun(pool, abstain=True, user_turns=["And then?", "And last?"])
    first = await episode.step("One.")
    assert first.observations == [{"role": "user", "content": "And then?"}]
    assert (first.user_message, first.user_turn, first.done) == ("And then?", 0, False)
    second = await episode.step("Two.")
    assert (second.user_message, second.user_turn) == ("And last?", 1)
    third = await episode.step("Three.")
    assert (third.user_turn, third.stop_reason) == (2, StopReason.ANSWERED)
    assert episode.final_answer == "Three."
    await episode.close()


@with_builtin_servers
async def test_a_long_message_of_a_record_is_cut_with_a_mark_that_says_how_much(pool: ToolPool) -> None:
    text = "".join(f"{number:04d}" for number in range(500))  # 2000 characters, no two places alike
    task = make_task(abstain=True, user_turns=[f"{text}!", "Short."])
    long = task.model_copy(update={"prompt": (Message(role="user", content=f"{text}?"),)})
    episode = Episode(long, pool, limits=EpisodeLimits(message_limit_chars=300), episode_id="t#0")
    (first,) = (await episode.start()).messages
    second, third = [await episode.step("No.") for _ in range(2)]
    await episode.close()
    assert first["role"] == "user"
    assert second.observations[0]["content"] == second.user_message
    assert third.user_message == "Short."
    for cut, whole in ((first["content"], f"{text}?"), (second.user_message or "", f"{text}!")):
        head, mark, tail = cut.split("\n")
        assert len(cut) <= 300
        assert whole.startswith(head) and whole.endswith(tail) and min(len(head), len(tail)) > 100
        assert mark == f"[... {2001 - len(head) - len(tail)} characters cut ...]"


@with_builtin_servers
async def test_every_limit_stops_the_episode_by_its_name(pool: ToolPool) -> None:
    channel, ticker = await any_channel(pool)
    quote, send = call(QUOTE, symbol=ticker), call(SEND, channel=channel, message="x")

    turns = await begun(pool, abstain=True, max_turns=2)
    assert not (await turns.step(quote)).done
    assert (await turns.step(quote)).stop_reason is StopReason.MAX_TURNS

    ours = await begun(pool, limits=EpisodeLimits(max_turns=1))
    assert (await ours.step(quote)).stop_reason is StopReason.MAX_TURNS

    tools = Episode(make_task(abstain=True, limits={"max_tools": 1}), pool, episode_id="t#0")
    await tools.start()
    out = await tools.step(quote + send)
    assert out.stop_reason is StopReason.LIMIT
    assert [result.failure for result in out.tool_results] == [None, FailureKind.LIMIT]

    servers = Episode(make_task(abstain=True, limits={"max_servers": 1}), pool, episode_id="t#0")
    await servers.start()
    assert not (await servers.step(quote + quote)).done
    assert (await servers.step(send)).stop_reason is StopReason.LIMIT

    hard = await begun(pool, limits=EpisodeLimits(max_tool_calls=1))
    assert (await hard.step(quote + quote)).stop_reason is StopReason.MAX_TOOL_CALLS

    cut = await begun(pool)
    out = await cut.step(quote + "<tool_call>{", finish=FinishReason.LENGTH)
    assert (out.stop_reason, out.tool_calls, len(out.parse_failures)) == (StopReason.MAX_TOKENS, (), 1)
    assert cut.final_answer is None

    full = await begun(pool)
    assert (await full.step("", finish=FinishReason.OVERFLOW)).stop_reason is StopReason.CONTEXT_OVERFLOW

    outside = await begun(pool)
    await outside.finish(StopReason.CONTEXT_OVERFLOW, error="full")
    await outside.finish(StopReason.MAX_TURNS)
    assert (outside.stop_reason, outside.errors) == (StopReason.CONTEXT_OVERFLOW, ["full"])
    for episode in (turns, ours, tools, servers, hard, cut, full, outside):
        await episode.close()


async def test_read_only_calls_of_a_step_run_at_once() -> None:
    meeting = asyncio.Barrier(3)

    async def meet(name: str) -> str:
        """Answers only when two others are being called at the same time."""
        await meeting.wait()
        return name

    async with scratch_pool((meet, READ_ONLY), timeout_s=20) as pool:
        episode = await begun(pool)
        out = await episode.step(call("meet", name="a") + call("meet", name="b") + call("meet", name="c"))
        assert [o["content"].strip('"') for o in out.observations] == ["a", "b", "c"]
        await episode.close()


async def test_writes_run_alone_and_in_order() -> None:
    log: list[str] = []

    async def write(name: str) -> str:
        log.append(f"+{name}")
        await asyncio.sleep(0)
        log.append(f"-{name}")
        return name

    async def read(name: str) -> str:
        log.append(name)
        return name

    async with scratch_pool((write, None), (read, READ_ONLY)) as pool:
        episode = await begun(pool)
        names = [("read", "r"), ("write", "a"), ("write", "b"), ("read", "s")]
        await episode.step("".join(call(tool, name=name) for tool, name in names))
        await episode.close()
    assert log == ["r", "+a", "-a", "+b", "-b", "s"]


async def test_a_server_that_hangs_ends_the_episode_unscored() -> None:
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    async with scratch_pool((hang, READ_ONLY), timeout_s=0.05) as pool:
        episode = await begun(pool, success={"must_call_tool": "hang"})
        out = await episode.step(call("hang"))
        assert out.stop_reason is StopReason.FAILED
        assert out.tool_results[0].failure is FailureKind.TIMEOUT
        assert "scratch.hang: timeout" in episode.errors[0]
        assert total_reward(await episode.grade()) is None
        await episode.close()


async def test_the_deadline_of_an_episode_ends_a_call_in_flight() -> None:
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    async with scratch_pool((hang, READ_ONLY)) as pool:
        episode = await begun(pool, limits=EpisodeLimits(timeout_s=0.05))
        out = await episode.step(call("hang"))
        assert out.stop_reason is StopReason.TIMEOUT
        assert total_reward(await episode.grade()) is None
        await episode.close()

        late = await begun(pool, limits=EpisodeLimits(timeout_s=0.0))
        assert (await late.step("The answer is 5.")).stop_reason is StopReason.TIMEOUT
        assert late.final_answer is None
        await late.close()


@with_builtin_servers
async def test_an_episode_is_single_use(pool: ToolPool) -> None:
    fresh = Episode(make_task(), pool, episode_id="t#0")
    with pytest.raises(RuntimeError, match="started"):
        await fresh.step("hi")
    await fresh.start()
    with pytest.raises(RuntimeError, match="finished"):
        await fresh.grade()
    await fresh.step("hi")
    with pytest.raises(RuntimeError, match="not done"):
        await fresh.step("again")
    await fresh.close()
    await fresh.close()


@pytest.mark.parametrize(
    ("expect", "posts", "success"),
    [
        ({"messages": {"increased_by": 1}}, 1, 1.0),
        ({"messages": {"increased_by": 1}}, 2, 0.0),
        ({"messages[0].text": "hi"}, 1, 1.0),
        ({"messages[0].text": "hi"}, 2, 0.0),  # something else was posted, too
    ],
)
@with_builtin_servers
async def test_a_state_check_compares_with_the_state_before_the_episode(
    pool: ToolPool, expect: dict[str, Any], posts: int, success: float
) -> None:
    channel, _ = await any_channel(pool)
    check = {"call": {"tool": HISTORY, "arguments": {"channel_id": channel, "limit": 50}}, "expect": expect}
    step = {"step": 1, "server": "slack", "tool": SEND, "params": {"channel": channel, "message": "hi"}}
    state = {"slack": [{**check, "nothing_else_changed": "messages" not in expect}]}
    episode = await begun(pool, tool_sequence=[step], state=state)
    for text in ("bye", "hi")[2 - posts :]:
        await episode.step(call(SEND, channel=channel, message=text))
    await episode.step("Done.")
    terms = {term.name: term.value for term in await episode.grade()}
    await episode.close()
    assert len(episode.state_results) == 2
    assert terms["success"] == success
