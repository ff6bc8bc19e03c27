"""Recording and replaying real servers; the ledger of the built-in ones says what reached them."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import NONCE_META_KEY, FailureKind, ToolCall, ToolResult
from mcpagent.errors import UserError
from mcpagent.servers.embedded import build
from mcpagent.servers.provider import builtin_servers
from mcpagent.tools.cassettes.cassette import Cassette
from mcpagent.tools.cassettes.tape import CALLS_NAME, CATALOG_NAME
from mcpagent.tools.contract import ToolSession
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer, ServerConfig
from tests.tools.support import call, memory_echo, stdio_echo

SEND, HISTORY = "send_slack_message", "get_slack_channel_history"
READS = ToolAnnotations(read_only_hint=True)
CHANNEL = build().channels[0].id


@asynccontextmanager
async def taped(
    tape: Path,
    *servers: ServerConfig,
    mode: Literal["record", "replay"] = "replay",
    ledger: Path | None = None,
    limit: int = 8000,
    timeout_s: float = 30.0,
    read_only: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[Cassette]:
    """A cassette around live servers, slack by default."""
    chosen = servers or (builtin_servers(["slack"])[0],)
    config = ToolsConfig(result_limit_chars=limit, timeout_s=timeout_s, read_only=tuple(read_only))
    async with ToolPool(chosen, config, ledger=ledger) as pool:
        yield Cassette.around(pool, tape, mode=mode, result_limit_chars=limit, **options)


def strict(tape: Path, **options: Any) -> Cassette:
    return Cassette.alone(tape, result_limit_chars=8000, **options)


async def slack(session: ToolSession, tool: str, /, **arguments: Any) -> ToolResult:
    return await call(session, tool, server="slack", **arguments)


async def say(session: ToolSession, text: str) -> ToolResult:
    sent = await slack(session, SEND, channel=CHANNEL, message=text)
    assert sent.failure is None, sent.content
    return sent


async def read(session: ToolSession) -> ToolResult:
    return await slack(session, HISTORY, channel_id=CHANNEL, limit=20)


def seen(result: ToolResult) -> tuple[Any, ...]:
    """What the model and the reward get."""
    return (result.content, result.structured, result.is_error, result.failure, result.truncated_chars)


def arrived(ledger: Path) -> Counter[str]:
    """Calls that reached a server, by purpose and tool."""
    files = [ledger, ledger.with_name(f"{ledger.name}.env")]
    lines = [json.loads(text) for path in files if path.exists() for text in path.read_text().splitlines()]
    return Counter(f"{line['purpose']} {line['tool']}" for line in lines)


def recorded(tape: Path) -> list[dict[str, Any]]:
    path = tape / CALLS_NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def scratch(*tools: tuple[Callable[..., Any], ToolAnnotations | None], name: str = "scratch") -> ServerConfig:
    server = MCPServer(name, log_level="ERROR")
    for function, hints in tools:
        server.add_tool(function, annotations=hints)
    return InProcessServer(name=name, server=server)


async def test_what_was_recorded_replays_without_any_server(tmp_path: Path) -> None:
    tape, ledger = tmp_path / "tape", tmp_path / "calls.jsonl"

    async def play(session: ToolSession) -> list[ToolResult]:
        results = [await read(session), await say(session, "hello"), await read(session)]
        return [*results, await slack(session, HISTORY, channel_id="C-none"), await slack(session, SEND)]

    async with taped(tape, mode="record", ledger=ledger) as cassette:
        live, counts = await play(cassette.session()), cassette.take_counts()
        catalog = (list(cassette.tools.items()), cassette.catalog_hash)  # in their order, as in a prompt
    assert counts["live"] == counts["recorded"] == 5
    assert (counts["hit_rate"], counts["misses"]) == (None, {})
    failures = [None, None, None, FailureKind.TOOL_ERROR, FailureKind.INVALID_ARGUMENTS]
    assert [result.failure for result in live] == failures
    before = arrived(ledger)

    cassette = strict(tape)
    replayed = await play(cassette.session())
    assert [seen(result) for result in replayed] == [seen(result) for result in live]
    assert (list(cassette.tools.items()), cassette.catalog_hash) == catalog
    assert arrived(ledger) == before
    assert b"nonce" not in (tape / CALLS_NAME).read_bytes()
    # A nonce says that a server was asked. A replayed result has none, and says what it is.
    assert all(NONCE_META_KEY in result.meta for result in live)
    assert {(result.from_cassette, len(result.meta)) for result in replayed} == {(True, 0)}
    counts = cassette.take_counts()
    assert (counts["hit_rate"], counts["replayed"], counts["live"]) == (1.0, 5, 0)
    assert cassette.take_counts()["replayed"] == 0


def test_replay_asks_a_server_once_for_each_question_and_tells_it_every_change(tmp_path: Path) -> None:
    tape, ledger = tmp_path / "tape", tmp_path / "calls.jsonl"

    async def run() -> tuple[list[ToolResult], dict[str, Any]]:
        async with taped(tape, ledger=ledger) as cassette:
            sessions = [cassette.session() for _ in range(8)]
            await asyncio.gather(*(read(session) for session in sessions))
            said = await asyncio.gather(*(say(session, "at once") for session in sessions))
            await asyncio.gather(*(read(session) for session in sessions))
            return said, cassette.take_counts()

    said, counts = asyncio.run(run())
    assert len({result.content for result in said}) == 1
    assert arrived(ledger) == {f"episode {HISTORY}": 2, f"episode {SEND}": 8}
    assert counts["hit_rate"] == 14 / 16 and counts["misses"] == {"never_made": 1, "other_state": 1}
    counts = asyncio.run(run())[1]
    assert arrived(ledger) == {f"episode {HISTORY}": 2, f"episode {SEND}": 16}
    assert (counts["hit_rate"], counts["live"], counts["recorded"]) == (1.0, 8, 0)


async def test_attempts_that_part_after_a_write_see_their_own_past(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    async with taped(tape, mode="record") as cassette:
        session = cassette.session()
        for text in ("first", "second"):
            await say(session, text)
            await read(session)
    async with taped(tape) as cassette, ToolPool([builtin_servers(["slack"])[0]]) as live:
        session, alone = cassette.session(), live.session()
        for text, is_known in (("first", True), ("other", False)):
            assert seen(await say(session, text)) == seen(await say(alone, text))
            shown = await read(session)
            assert seen(shown) == seen(await read(alone))
            assert shown.from_cassette is is_known
        assert cassette.take_counts()["misses"] == {"other_state": 1}


def test_any_interleaving_of_diverging_attempts_answers_as_a_live_server_does(tmp_path: Path) -> None:
    """Eight rounds of sixteen attempts that share beginnings; every answer is compared with that of a live
    instance which sees the same calls and no cassette."""
    rng = random.Random(5)

    async def attempt(session: ToolSession, plan: Sequence[str]) -> list[tuple[Any, ...]]:
        results = []
        for step in plan:
            if step == "read":
                result = await slack(session, HISTORY, channel_id=CHANNEL, limit=50)
            elif step == "react":
                history = await slack(session, HISTORY, channel_id=CHANNEL, limit=1)
                assert history.structured is not None, history.content
                ts = history.structured["messages"][0]["ts"]
                result = await slack(
                    session, "add_slack_reaction", channel=CHANNEL, timestamp=ts, reaction="eyes"
                )
            else:
                result = await slack(session, SEND, channel=CHANNEL, message=step)
            results.append(seen(result))
        await session.close()
        return results

    async def run() -> dict[str, Any]:
        server = builtin_servers(["slack"], limited=False)[0]
        totals: Counter[str] = Counter()
        async with ToolPool([server]) as live:
            for _ in range(8):
                plans = [rng.choices(["a", "b", "read", "react"], k=rng.randint(1, 6)) for _ in range(16)]
                async with taped(tmp_path, server) as cassette:
                    got = await asyncio.gather(*(attempt(cassette.session(), p) for p in plans))
                    counts = cassette.take_counts()
                for plan, results in zip(plans, got, strict=True):
                    assert results == await attempt(live.session(), plan), plan
                totals.update({name: counts[name] for name in ("replayed", "live")})
        return totals

    totals = asyncio.run(run())
    assert totals["replayed"] > 30 and totals["live"] > 50


async def test_answers_after_a_made_up_id_belong_to_that_id(tmp_path: Path) -> None:
    """Two recordings of the same writes differ: a reader of the second never gets an answer of the first."""
    numbers = itertools.count(1)
    booked: list[str] = []

    def book() -> str:
        booked.append(f"B{next(numbers)}")
        return booked[-1]

    def last() -> str:
        return f"the last is {booked[-1]}"

    server = scratch((book, None), (last, READS))
    async with taped(tmp_path, server, mode="record") as cassette:
        first = cassette.session()
        await call(first, "book", server="scratch")
        await call(first, "last", server="scratch")
        await call(cassette.session(), "book", server="scratch")  # and never asks for the last
        assert cassette.take_counts()["volatile"] == 1
    session = strict(tmp_path).session()
    book_again, last_again = [await call(session, tool, server="scratch") for tool in ("book", "last")]
    assert book_again.content == "B2"
    assert last_again.failure is FailureKind.CASSETTE, "B1 would be the answer to another booking"


def test_a_server_that_says_nothing_of_its_tools_can_be_named_read_only(tmp_path: Path) -> None:
    asked: list[str] = []

    def search(query: str) -> str:
        asked.append(query)
        return f"about {query}"

    server = scratch((search, None))

    async def run(*queries: str, read_only: tuple[str, ...], notes: list[str]) -> dict[str, Any]:
        tape = tmp_path / str(len(read_only))
        async with taped(tape, server, read_only=read_only, shared=["scratch"], on_note=notes.append) as c:
            session = c.session()
            for query in queries:
                assert (await call(session, "search", server="scratch", query=query)).failure is None
            return c.take_counts()

    notes: list[str] = []
    asyncio.run(run("a", "b", read_only=("scratch",), notes=notes))
    assert notes == []
    assert asyncio.run(run("b", "c", "a", read_only=("scratch",), notes=notes))["hit_rate"] == 2 / 3
    assert asked == ["a", "b", "c"]
    # The tape remembers, so that a strict run keys its calls in the same way.
    strict_result = asyncio.run(call(strict(tmp_path / "1").session(), "search", server="scratch", query="c"))
    assert strict_result.content == "about c"
    asyncio.run(run("a", "b", read_only=(), notes=notes))
    assert len(notes) == 1 and "tools.read_only" in notes[0] and "search" in notes[0]
    with pytest.raises(UserError, match="scratsh") as refused:
        asyncio.run(run(read_only=("scratsh",), notes=notes))
    assert refused.value.remedy == "Did you mean scratch?"


async def test_failures_of_the_infrastructure_are_never_recorded(tmp_path: Path) -> None:
    server = stdio_echo(isolation="episode")
    async with taped(tmp_path, server) as cassette:
        session = cassette.session()
        plan: list[tuple[str, dict[str, Any]]] = [
            ("echo", {"text": "hi"}),
            ("refuse", {}),
            ("die_after_writing", {"ledger": str(tmp_path / "effects")}),
            ("echo", {"text": "hi"}),
            ("write_down", {"note": "after the crash"}),
        ]
        live = [(await call(session, tool, **arguments)).failure for tool, arguments in plan]
        await session.close()
    async with taped(tmp_path, memory_echo(), timeout_s=0.1) as cassette:
        hung = (await call(cassette.session(), "hang")).failure
    assert live[:2] == [None, FailureKind.TOOL_ERROR]
    assert live[2] is not None and live[2].is_infrastructure
    assert hung is FailureKind.TIMEOUT
    # Nothing after the crash either: what the restarted server knows is not what the session did to it.
    assert [line["tool"] for line in recorded(tmp_path)] == ["echo", "refuse"]


async def test_a_write_that_timed_out_may_have_had_its_effect_so_nothing_after_it_is_recorded(
    tmp_path: Path,
) -> None:
    effects: list[str] = []

    async def put(key: str) -> str:
        effects.append(key)
        await asyncio.Event().wait()
        return "never"

    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    def get(key: str) -> bool:
        return key in effects

    server = scratch((put, None), (get, READS), (wait, READS))
    async with taped(tmp_path, server, timeout_s=0.2) as cassette:
        session = cassette.session()
        assert (await call(session, "wait", server="scratch")).failure is FailureKind.TIMEOUT
        assert (await call(session, "get", server="scratch", key="a")).structured == {"result": False}
        lost = await call(session, "put", server="scratch", key="a")
        assert lost.failure is not None and lost.failure.is_infrastructure
        # On the tape is that "a" is not there; what this session is told is the truth.
        assert (await call(session, "get", server="scratch", key="a")).structured == {"result": True}
    assert [(line["tool"], line["answer"]["structured"]) for line in recorded(tmp_path)] == [
        ("get", {"result": False})
    ]


async def test_writes_that_a_session_makes_at_once_are_made_one_after_another(tmp_path: Path) -> None:
    async with taped(tmp_path) as cassette:
        session = cassette.session()
        at_once = await asyncio.gather(say(session, "a"), say(session, "b"), read(session))
    again = strict(tmp_path).session()
    in_order = [await say(again, "a"), await say(again, "b"), await read(again)]
    assert [seen(result) for result in in_order] == [seen(result) for result in at_once]


def test_a_strict_miss_names_what_is_missing_and_why(tmp_path: Path) -> None:
    description = "a"

    def server(*, schema: str = "str") -> ServerConfig:
        def old(text: str) -> str:
            return text

        def new(text: str, times: int = 1) -> str:
            return text * times

        made = MCPServer("scratch", log_level="ERROR")
        made.add_tool(old if schema == "str" else new, name="say", description=description, annotations=READS)
        made.add_tool(lambda: "done", name="write")
        return InProcessServer(name="scratch", server=made)

    async def record(config: ServerConfig, version: str, *, write: bool = False) -> None:
        async with taped(tmp_path, config, mode="record", versions={"scratch": version}) as cassette:
            session = cassette.session()
            if write:
                await call(session, "write", server="scratch")
                await call(session, "say", server="scratch", text="later")
            await call(session, "say", server="scratch", text="hi")

    def ask(**arguments: Any) -> tuple[ToolResult, dict[str, Any]]:
        cassette = strict(tmp_path)
        result = asyncio.run(call(cassette.session(), "say", server="scratch", **arguments))
        return result, cassette.take_counts()

    asyncio.run(record(server(), "1.0", write=True))
    asyncio.run(record(server(), "1.0"))
    description = "b"  # another description gives no other answer
    asyncio.run(record(server(), "1.0"))
    assert len(recorded(tmp_path)) == 4
    assert ask(text="hi")[0].content == "hi"
    result, counts = ask(text="never")
    assert result.failure is FailureKind.CASSETTE
    assert 'scratch.say \'{"text": "never"}\'' in result.content and "never recorded" in result.content
    assert (counts["misses"], counts["live"]) == ({"never_made": 1}, 0)
    assert ask(text="later")[1]["misses"] == {"other_state": 1}
    tape = json.loads((tmp_path / CATALOG_NAME).read_text())
    (tmp_path / CATALOG_NAME).write_text(json.dumps({**tape, "versions": {"scratch": "3.0"}}))
    assert ask(text="hi")[1]["misses"] == {"changed": 1}

    async def changed() -> dict[str, Any]:
        async with taped(tmp_path, server(schema="new"), versions={"scratch": "1.0"}) as cassette:
            await call(cassette.session(), "say", server="scratch", text="hi")
            return cassette.take_counts()

    counts = asyncio.run(changed())
    assert counts["misses"] == {"changed": 1} and counts["recorded"] == 1


async def test_strict_refuses_what_a_live_pool_refuses(tmp_path: Path) -> None:
    async with taped(tmp_path, mode="record") as recording:
        await slack(recording.session(), "list_slack_channels", limit=1)
    cassette = strict(tmp_path, allow=["list_slack_channels"])
    assert set(cassette.tools) == {"list_slack_channels"}
    session = cassette.session()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("list_slack_channels", {"limit": 1}),
        ("list_slack_channels", {"limit": float("nan")}),
        (SEND, {"channel": "general", "message": "x"}),
        ("no_such_tool", {}),
    ]
    kinds = [(await slack(session, tool, **arguments)).failure for tool, arguments in asked]
    refusals = [FailureKind.INVALID_ARGUMENTS, FailureKind.DENIED, FailureKind.UNKNOWN_TOOL]
    assert kinds == [None, *refusals]
    with pytest.raises(UserError, match="there is no cassette"):
        strict(tmp_path / "other")


async def test_a_call_by_the_models_name_alone_is_the_same_call(tmp_path: Path) -> None:
    async with taped(tmp_path, memory_echo()) as cassette:
        session = cassette.session()
        full = ToolCall(id="1", server="echo", tool="echo", arguments={"text": "x"})
        short = ToolCall(id="2", tool="echo", arguments={"text": "x"})
        results = [await session.call(full), await session.call(short)]
        assert [result.call_id for result in results] == ["1", "2"]
        assert {(result.server, result.tool) for result in results} == {("echo", "echo")}
        assert [result.from_cassette for result in results] == [False, True]


async def test_no_secret_reaches_the_tape(tmp_path: Path) -> None:
    SECRETS.learn({"POLYGON_API_KEY": "pk_live_123456", "Authorization": "Bearer tok-abcdefgh"})
    results = []
    for _ in range(2):
        async with taped(tmp_path, memory_echo()) as cassette:
            text = "in production-mode with pk_live_123456 and tok-abcdefgh"
            results.append(await call(cassette.session(), "echo", text=text))
    _, replayed = results
    assert replayed.content == "in production-mode with [POLYGON_API_KEY] and [Authorization]"
    assert replayed.from_cassette
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"pk_live" not in everything and b"tok-abc" not in everything


def test_a_result_fits_the_limit_of_the_run_that_replays_it_or_is_asked_for_again(tmp_path: Path) -> None:
    async def big(limit: int) -> tuple[ToolResult, dict[str, Any]]:
        async with taped(tmp_path, memory_echo(), limit=limit) as cassette:
            return await call(cassette.session(), "big", size=1000), cassette.take_counts()

    async def directly(limit: int) -> ToolResult:
        async with ToolPool([memory_echo()], ToolsConfig(result_limit_chars=limit)) as pool:
            return await call(pool.session(), "big", size=1000)

    whole, _ = asyncio.run(big(2000))
    assert (whole.truncated_chars, len(whole.content)) == (0, 1000)
    shorter, counts = asyncio.run(big(300))  # cut on this side: the tape has all of it
    assert (counts["replayed"], shorter.from_cassette) == (1, True)
    assert seen(shorter) == seen(asyncio.run(directly(300)))
    (tmp_path / CALLS_NAME).unlink()
    assert asyncio.run(big(300))[0].truncated_chars > 0  # what was cut is asked for again
    whole, counts = asyncio.run(big(2000))
    assert (len(whole.content), counts["misses"]) == (1000, {"changed": 1})
    assert asyncio.run(big(2000))[0].from_cassette


@pytest.mark.parametrize("reads", [True, False])
async def test_a_call_that_is_cut_off_leaves_nothing_and_the_next_is_not_held_up(
    reads: bool, tmp_path: Path
) -> None:
    named = ["echo.hang"] if reads else []
    async with taped(tmp_path, memory_echo(isolation="episode"), read_only=named) as cassette:
        session, other = cassette.session(), cassette.session()
        hanging = asyncio.create_task(call(session, "hang"))
        while cassette.metrics().servers[0].in_flight == 0:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(call(other, "hang"))  # the same question, asked while it hangs
        await asyncio.sleep(0)
        hanging.cancel()
        waiting.cancel()
        await asyncio.gather(hanging, waiting, return_exceptions=True)
        assert (await call(session, "echo", text="still here")).content == "still here"
        assert (await call(cassette.session(), "echo", text="hi")).failure is None
    # What a cut-off write did to the first session's instance is unknown; a new session is not affected.
    kept = [{"text": "still here"}, {"text": "hi"}] if reads else [{"text": "hi"}]
    assert [line["arguments"] for line in recorded(tmp_path)] == kept
