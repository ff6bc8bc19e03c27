"""Servers that ask in the middle of a call, and servers whose results come later: real processes of both."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.errors import UserError
from mcpagent.tools.cassettes.cassette import Cassette, ServerFacts
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.questions import ASKED_META_KEY, load_rules
from mcpagent.tools.servers_config import StdioServer
from tests.tools.support import call
from tests.tools.wild import SCRIPTS

CURIOUS = StdioServer(name="curious", command=sys.executable, args=(str(SCRIPTS / "curious.py"),))
SCRIPT = """
- {asks: elicitation, message: "Delete (Emma|Persuasion)", content: {sure: true}}
- {asks: elicitation, message: Ivanhoe, action: cancel}
- {server: curi*, asks: sampling, message: cat, text: hat}
"""


def _tardy(log: Path) -> StdioServer:
    return StdioServer(name="tardy", command=sys.executable, args=("-S", str(SCRIPTS / "tardy.py"), str(log)))


def _pool(server: StdioServer, answers: Path | None, *, timeout_s: float = 20.0) -> ToolPool:
    return ToolPool([server], ToolsConfig(timeout_s=timeout_s, answers=answers and str(answers)))


def _rules(folder: Path, script: str = SCRIPT) -> Path:
    file = folder / "answers.yaml"
    file.write_text(script)
    return file


def test_a_script_answers_by_pattern_refuses_the_rest_and_the_record_says_both(tmp_path: Path) -> None:
    titles = ["Emma", "Ivanhoe", "Waverley"]

    async def run() -> list[ToolResult]:
        async with _pool(CURIOUS, _rules(tmp_path)) as pool, pool.session() as session:
            return await asyncio.gather(
                *(call(session, "delete", server="curious", title=title) for title in titles)
            )

    results = asyncio.run(run())
    assert [r.content for r in results] == ["deleted Emma", "kept Ivanhoe: cancel", "kept Waverley: decline"]
    # Calls that are made at once do not get each other's questions.
    assert [r.meta[ASKED_META_KEY][0]["message"] for r in results] == [f"Delete {title}?" for title in titles]
    assert results[0].meta[ASKED_META_KEY][0]["answer"] == {"action": "accept", "content": {"sure": True}}


def test_requests_of_an_older_server_are_answered_too_and_belong_to_their_calls(tmp_path: Path) -> None:
    script = str(SCRIPTS / "older_curious.py")
    server = StdioServer(name="curious", command=sys.executable, args=("-S", script))
    asked = [("delete", "Emma"), ("rhyme", "cat"), ("rhyme", "dog"), ("delete", "Waverley")]

    async def run() -> list[ToolResult]:
        async with _pool(server, _rules(tmp_path)) as pool, pool.session() as session:
            return await asyncio.gather(
                *(call(session, tool, server="curious", title=title) for tool, title in asked)
            )

    deleted, cat, dog, kept = asyncio.run(run())
    assert json.loads(deleted.content) == {"action": "accept", "content": {"sure": True}}
    assert json.loads(cat.content)["content"]["text"] == "hat"
    assert "refused" in json.loads(dog.content)
    assert json.loads(kept.content) == {"action": "decline"}
    messages = [[entry["message"] for entry in r.meta[ASKED_META_KEY]] for r in (deleted, cat, dog, kept)]
    assert messages == [
        ["Delete Emma?"],
        ["What rhymes with cat?"],
        ["What rhymes with dog?"],
        ["Delete Waverley?"],
    ]


def test_without_answers_what_a_server_asks_is_refused_in_words_for_the_model() -> None:
    async def run() -> ToolResult:
        async with _pool(CURIOUS, None) as pool, pool.session() as session:
            return await call(session, "delete", server="curious", title="Emma")

    result = asyncio.run(run())
    assert result.is_error and ASKED_META_KEY not in result.meta


def test_a_replayed_call_has_the_answers_of_the_recorded_one(tmp_path: Path) -> None:
    async def run(mode: str) -> ToolResult:
        async with _pool(CURIOUS, _rules(tmp_path)) as pool:
            cassette = Cassette.around(
                pool,
                tmp_path / "tape",
                mode="record" if mode == "record" else "replay",
                servers=ServerFacts(isolation={"curious": "episode"}),
                result_limit_chars=8000,
            )
            session = cassette.session()
            result = await call(session, "delete", server="curious", title="Emma")
            await session.close()
            return result

    recorded, replayed = asyncio.run(run("record")), asyncio.run(run("replay"))
    assert replayed.from_cassette and replayed.content == recorded.content == "deleted Emma"
    assert replayed.meta[ASKED_META_KEY] == recorded.meta[ASKED_META_KEY]


def test_a_file_of_answers_that_is_none_is_a_user_error(tmp_path: Path) -> None:
    file = tmp_path / "answers.yaml"
    for text in ("a: 1", "- {message: '('}", "- {asks: money}", "- {nothing: 1}"):
        file.write_text(text)
        with pytest.raises(UserError, match="not a list of answers"):
            load_rules(file)
    with pytest.raises(UserError, match="cannot read"):
        load_rules(tmp_path / "none.yaml")


def _methods(log: Path) -> list[str]:
    return [json.loads(line)["method"] for line in log.read_text().splitlines()]


def test_a_task_is_polled_to_its_end_and_its_failure_is_that_of_the_call(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run() -> tuple[ToolResult, ToolResult]:
        async with _pool(_tardy(log), None) as pool, pool.session() as session:
            return (await call(session, "count", server="tardy"), await call(session, "fail", server="tardy"))

    done, failed = asyncio.run(run())
    assert done.content == "count is done" and not done.is_error
    assert failed.failure is FailureKind.INVALID_ARGUMENTS and "cannot count that" in failed.content
    assert _methods(log).count("tools/call") == 2 and _methods(log).count("tasks/get") == 6


def test_a_task_that_does_not_end_is_cancelled_at_the_deadline_of_its_call(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run() -> ToolResult:
        async with _pool(_tardy(log), None, timeout_s=0.5) as pool, pool.session() as session:
            result = await call(session, "never", server="tardy")
            give_up_s = time.monotonic() + 30
            while "tasks/cancel" not in _methods(log) and time.monotonic() < give_up_s:
                await asyncio.sleep(0.01)
            return result

    assert asyncio.run(run()).failure is FailureKind.TIMEOUT
    assert _methods(log).count("tasks/cancel") == 1


@pytest.mark.parametrize("answered", [True, False])
def test_a_task_that_needs_input_gets_it_or_is_cancelled(tmp_path: Path, *, answered: bool) -> None:
    log = tmp_path / "log"
    rules = _rules(tmp_path, '- {message: "Go on"}') if answered else None

    async def run() -> ToolResult:
        async with _pool(_tardy(log), rules) as pool, pool.session() as session:
            return await call(session, "confirm", server="tardy")

    result = asyncio.run(run())
    assert result.is_error is not answered
    assert ("confirm is done" if answered else "'Go on?'") in result.content
    assert ("tasks/update" if answered else "tasks/cancel") in _methods(log)
