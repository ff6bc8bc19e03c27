"""Servers that ask in the middle of a call: real processes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import ToolResult
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


def _pool(server: StdioServer, answers: Path | None) -> ToolPool:
    return ToolPool([server], ToolsConfig(answers=answers and str(answers)))


def _rules(folder: Path) -> Path:
    file = folder / "answers.yaml"
    file.write_text(SCRIPT)
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
