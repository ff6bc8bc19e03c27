"""Real calls of servers that others wrote; what they did is checked from outside."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from zoneinfo import ZoneInfo

import pytest

from mcpagent.core.tools import FailureKind
from tests.third_party.servers import Desk, call, readme_entry

pytestmark = pytest.mark.registry


async def test_time_converts_as_zoneinfo_does(desk: Desk) -> None:
    async with desk.session("time") as session:
        cities = {"source_timezone": "Asia/Tokyo", "target_timezone": "America/Lima", "time": "14:30"}
        result = await call(session, "time.convert_time", **cities)
        assert result.failure is None and result.structured is not None, result.content
        # Neither place has summer time: Tokyo is UTC+9, Lima UTC-5, 14 hours behind.
        assert result.structured["time_difference"] == "-14.0h"
        there = datetime.fromisoformat(result.structured["target"]["datetime"])
        today = datetime.now(ZoneInfo("Asia/Tokyo")).date()
        at_source = datetime(today.year, today.month, today.day, 14, 30, tzinfo=ZoneInfo("Asia/Tokyo"))
        assert (there - at_source).total_seconds() % 86_400 == 0, "midnight may pass during the test"
        nowhere = await call(session, "time.get_current_time", timezone="Nowhere/Town")
        assert nowhere.failure is FailureKind.TOOL_ERROR and "Nowhere/Town" in nowhere.content
        lacking = await call(session, "time.get_current_time")
        assert lacking.failure is FailureKind.INVALID_ARGUMENTS
        unknown = await call(session, "time.get_curent_time", timezone="UTC")
        assert unknown.failure is FailureKind.UNKNOWN_TOOL
        assert "Did you mean get_current_time?" in unknown.content


async def test_git_commits_what_git_itself_then_shows(desk: Desk) -> None:
    (desk.repo / "notes.txt").write_text("first line\n")
    repo = str(desk.repo)
    async with desk.session("git") as session:
        assert (await call(session, "git.git_add", repo_path=repo, files=["notes.txt"])).failure is None
        done = await call(session, "git.git_commit", repo_path=repo, message="A note — größer")
        assert done.failure is None, done.content
        assert "A note — größer" in (await call(session, "git.git_log", repo_path=repo)).content
        outside = await call(session, "git.git_status", repo_path=str(desk.files))
        assert outside.failure is FailureKind.TOOL_ERROR, outside.content
        wrong = await call(session, "git.git_add", repo_path=repo, files="notes.txt")
        assert wrong.failure is FailureKind.INVALID_ARGUMENTS
    assert desk.git("log", "--format=%s|%an", "--name-only").split("\n\n") == [
        "A note — größer|A Person",
        "notes.txt\n",
    ]
    assert desk.git("show", "HEAD:notes.txt") == "first line\n"


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path == "/page"
        body = b"<html><body><h1>Harbour</h1><p>Ships &amp; cranes</p></body></html>" if known else b""
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no output of the tests."""


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_fetch_reads_a_page_and_says_why_it_cannot_read_another(desk: Desk, site: str) -> None:
    inside = readme_entry("fetch", desk.folder)
    inside["args"].append("--allow-private-ips")
    async with desk.session("fetch", inside=inside) as session:
        # raw: to simplify a page, its first call would run `npm install` in the server's own folder.
        page = await call(session, "inside.fetch", url=f"{site}/page", raw=True)
        assert page.failure is None, page.content
        assert "Harbour" in page.content and "Ships &amp; cranes" in page.content
        missing = await call(session, "inside.fetch", url=f"{site}/missing")
        assert missing.failure is FailureKind.TOOL_ERROR and "404" in missing.content
        refused = await call(session, "fetch.fetch", url=f"{site}/page")
        assert refused.failure is FailureKind.TOOL_ERROR, "it refuses loopback addresses by default"


async def test_sqlite_of_the_older_protocol_writes_a_file_that_sqlite_reads(desk: Desk) -> None:
    async with desk.session("sqlite") as session:
        table = "CREATE TABLE ships (name TEXT, tons INTEGER)"
        assert (await call(session, "sqlite.create_table", query=table)).failure is None
        insert = "INSERT INTO ships VALUES ('Aurora', 1200), ('Ødegård', 80)"
        assert (await call(session, "sqlite.write_query", query=insert)).failure is None
        read = await call(session, "sqlite.read_query", query="SELECT sum(tons) AS total FROM ships")
        assert "1280" in read.content
        wrong = await call(session, "sqlite.read_query", query="SELECT missing FROM ships")
        assert "no such column" in wrong.content and wrong.failure is None, "it calls no error one"
        lacking = await call(session, "sqlite.read_query")
        assert lacking.failure is FailureKind.INVALID_ARGUMENTS
    database = sqlite3.connect(desk.folder / "test.db")
    assert database.execute("SELECT * FROM ships").fetchall() == [("Aurora", 1200), ("Ødegård", 80)]
    database.close()


async def test_everything_there_is_in_a_result_arrives(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY_OF_THE_USER", "planted-secret")
    async with desk.session("everything") as session:
        assert (await call(session, "everything.get-sum", a=40, b=2)).content.count("42") == 1
        image = (await call(session, "everything.get-tiny-image")).content
        assert "[image image/png, " in image and "iVBOR" not in image
        weather = await call(session, "everything.get-structured-content", location="Chicago")
        assert weather.structured is not None
        assert weather.structured.keys() == {"temperature", "conditions", "humidity"}
        assert "[resource link " in (await call(session, "everything.get-resource-links")).content
        assert (
            "[resource "
            in (
                await call(
                    session, "everything.gzip-file-as-resource", data="data:,hi", outputType="resource"
                )
            ).content
        )
        slow = await call(session, "everything.trigger-long-running-operation", duration=0.2, steps=4)
        assert slow.failure is None, "progress on the way is no answer"
        environment = (await call(session, "everything.get-env")).content
        assert "TEST_MARK" in environment and "planted-secret" not in environment
        wrong = await call(session, "everything.get-sum", a="forty", b=2)
        assert wrong.failure is FailureKind.INVALID_ARGUMENTS


async def test_filesystem_changes_files_on_disk_and_stays_in_its_folder(desk: Desk) -> None:
    (desk.files / "long.txt").write_text("head" + "x" * 100_000 + "tail")
    async with desk.session("filesystem") as session:
        path = str(desk.files / "größe.txt")
        text = 'one "quoted" line\nand 漢字\n'
        assert (await call(session, "filesystem.write_file", path=path, content=text)).failure is None
        assert (await call(session, "filesystem.read_text_file", path=path)).content == text
        edits = [{"oldText": "and 漢字", "newText": "and more"}]
        assert (await call(session, "filesystem.edit_file", path=path, edits=edits)).failure is None
        long = await call(session, "filesystem.read_text_file", path=str(desk.files / "long.txt"))
        assert long.content.startswith("headx") and long.content.endswith("xtail")
        assert len(long.content) <= 8000 and long.truncated_chars > 92_000
        outside = str(desk.folder / "outside.txt")
        denied = await call(session, "filesystem.write_file", path=outside, content="no")
        assert denied.failure is FailureKind.TOOL_ERROR and "Access denied" in denied.content
        lacking = await call(session, "filesystem.write_file", path=path)
        assert lacking.failure is FailureKind.INVALID_ARGUMENTS
    assert (desk.files / "größe.txt").read_text(encoding="utf-8") == 'one "quoted" line\nand more\n'
    assert not (desk.folder / "outside.txt").exists()


def test_memory_is_kept_in_its_file_and_read_by_the_next_server(desk: Desk) -> None:
    entity = {"name": "Aurora", "entityType": "ship", "observations": ["carries grain"]}

    async def write() -> None:
        async with desk.session("memory") as session:
            made = await call(session, "memory.create_entities", entities=[entity])
            assert made.failure is None and made.structured == {"entities": [entity]}
            wrong = await call(session, "memory.create_entities", entities=[{"name": "Nameless"}])
            assert wrong.failure is FailureKind.INVALID_ARGUMENTS

    async def read() -> None:
        async with desk.session("memory") as session:
            graph = await call(session, "memory.read_graph")
            assert graph.structured == {"entities": [entity], "relations": []}

    asyncio.run(write())
    lines = (desk.folder / "memory.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"type": "entity", **entity}]
    asyncio.run(read())
