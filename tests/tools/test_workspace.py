"""State that comes back: real servers that write to folders, files and databases, and what the next episode
finds."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from mcpagent.config.schema import ResetCall, ResetSection, ServerSection, ToolsConfig
from mcpagent.core.tools import FailureKind
from mcpagent.errors import UserError
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.isolation import probe_start
from mcpagent.tools.servers_config import StdioServer, load_servers
from mcpagent.tools.workspace import Workspace, copy_tree, tree_digest
from tests.house import ROOT
from tests.running import mcpagent
from tests.tools.support import call


def _desk(*arguments: str, **env: str) -> StdioServer:
    return StdioServer(
        name="desk",
        command=sys.executable,
        args=("-S", "-m", "tests.tools.servers.desk", *arguments),
        env={"PYTHONPATH": str(ROOT), **env},
    )


def _file(folder: Path, server: StdioServer) -> Path:
    path = folder / "mcp.json"
    entry = {"command": server.command, "args": list(server.args), "env": dict(server.env)}
    path.write_text(json.dumps({"mcpServers": {"desk": entry}}))
    return path


def _pool(server: StdioServer, **limits: object) -> ToolPool:
    return ToolPool([server], ToolsConfig(per_server={"desk": ServerSection(**limits)}))  # type: ignore[arg-type]


def _folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    (data / "a.txt").write_text("one")
    (data / "sub" / "b.txt").write_text("two")
    (data / "link").symlink_to("sub/b.txt")
    os.link(data / "a.txt", data / "hard.txt")
    return data


async def test_each_episode_finds_the_folder_as_it_was_and_the_folder_is_never_written(
    tmp_path: Path,
) -> None:
    data = _folder(tmp_path)
    before = tree_digest(data)

    async def episode(pool: ToolPool, number: int) -> tuple[str, str]:
        async with pool.session() as session:
            seen = (await call(session, "names", server="desk")).content
            text = (await call(session, "show", server="desk", path=f"{data}/a.txt")).content
            for name in ("a.txt", "hard.txt", "link", f"new-{number}"):
                assert not (
                    await call(session, "put", server="desk", path=f"{data}/{name}", text="x")
                ).is_error
            assert (await call(session, "show", server="desk", path=f"{data}/sub/b.txt")).content == "x"
            await call(session, "clear", server="desk")
            return seen, text

    async with _pool(_desk(str(data)), workspace=str(data)) as pool:
        found = await asyncio.gather(*(episode(pool, number) for number in range(8)))
    # The path that a model sees and writes is that of the folder, whichever copy stands behind it.
    names = "\n".join(sorted(str(path) for path in data.rglob("*")))
    assert found == [(names, "one")] * 8
    assert tree_digest(data) == before


async def test_the_variable_the_arguments_the_environment_and_the_folder_name_the_copy(
    tmp_path: Path,
) -> None:
    data = _folder(tmp_path)
    file = _file(tmp_path, _desk("${WORKSPACE:-/nowhere}", PLACE=f"{data}/sub"))
    (server,) = load_servers(file).servers
    assert isinstance(server, StdioServer)
    async with _pool(server, workspace=str(data)) as pool, pool.session() as session:
        copy = await session.workspace("desk")
        assert copy is not None and not copy.is_relative_to(tmp_path)
        await call(session, "jot", server="desk", text="hello")
        assert (copy / "jot.txt").read_text() == "hello"
        assert [(await call(session, tool, server="desk")).content for tool in ("here", "variable")] == [
            str(data),
            f"{data}/sub",
        ]
    assert not (data / "jot.txt").exists()


async def test_a_database_in_use_is_snapshotted_as_of_its_last_transaction(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    base = data / "shop.db"
    with closing(sqlite3.connect(base)) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table rows (n)")
        database.execute("insert into rows values (1)")
        database.commit()
        assert base.with_name("shop.db-wal").stat().st_size  # what was committed is not in the file yet
        database.execute("insert into rows values (2)")  # and this is not committed

        async with _pool(_desk(str(data), str(base)), workspace=str(data)) as pool:
            counts = []
            for _ in range(3):
                async with pool.session() as session:
                    counts.append((await call(session, "count", server="desk")).content)
                    await call(session, "insert", server="desk")
                    counts.append((await call(session, "count", server="desk")).content)
        assert counts == ["1", "2"] * 3


async def test_a_workspace_may_be_one_file(tmp_path: Path) -> None:
    base = tmp_path / "shop.db"
    with closing(sqlite3.connect(base)) as database, database:
        database.execute("create table rows (n)")
    async with _pool(_desk(".", "${WORKSPACE}"), workspace=str(base)) as pool:
        counts = []
        for _ in range(2):
            async with pool.session() as session:
                await call(session, "insert", server="desk")
                counts.append((await call(session, "count", server="desk")).content)
        assert counts == ["1", "1"]


async def test_what_changes_in_the_folder_reaches_no_episode_and_no_copy_is_left(tmp_path: Path) -> None:
    data = _folder(tmp_path)
    copies: list[Path] = []
    async with _pool(_desk(str(data)), workspace=str(data)) as pool:
        texts = []
        for number in range(2):
            async with pool.session() as session:
                texts.append((await call(session, "show", server="desk", path=f"{data}/a.txt")).content)
                copies.append(await session.workspace("desk") or Path())
            (data / "a.txt").write_text(f"changed {number}")
        assert texts == ["one", "one"]
    assert len(set(copies)) == 2 and not any(copy.exists() for copy in copies)
    assert not any(copy.parent.parent.exists() for copy in copies)


def test_what_cannot_be_copied_or_would_be_shared_is_refused(tmp_path: Path) -> None:
    data = _folder(tmp_path)
    (data / "out").symlink_to("../elsewhere")
    with pytest.raises(UserError, match="leads out of it"):
        Workspace("desk", data, tmp_path / "w1")
    (data / "out").unlink()
    os.mkfifo(data / "pipe")
    with pytest.raises(UserError, match="cannot be copied"):
        Workspace("desk", data, tmp_path / "w2")
    with pytest.raises(UserError, match="is not there"):
        Workspace("desk", tmp_path / "nothing", tmp_path / "w3")
    pool = ToolPool(
        [_desk(str(data))],
        ToolsConfig(per_server={"desk": ServerSection(workspace=str(data), isolation="shared")}),
    )
    with pytest.raises(UserError, match="shared by all"):
        pool.isolation("desk")


def test_a_copy_has_times_permissions_and_links_and_shares_nothing(tmp_path: Path) -> None:
    data = _folder(tmp_path)
    (data / "a.txt").chmod(0o640)
    os.utime(data / "a.txt", (1, 1))
    copy_tree(data, tmp_path / "copy")
    copied = tmp_path / "copy" / "a.txt"
    assert copied.stat().st_mtime == 1 and copied.stat().st_mode & 0o777 == 0o640
    assert copied.stat().st_ino != (data / "a.txt").stat().st_ino and copied.stat().st_nlink == 1
    assert (tmp_path / "copy" / "link").readlink() == Path("sub/b.txt")
    assert tree_digest(tmp_path / "copy") == tree_digest(data)
    copied.write_text("other")
    assert (data / "a.txt").read_text() == "one" and tree_digest(tmp_path / "copy") != tree_digest(data)


@pytest.mark.parametrize("by", ["calls", "command"])
async def test_a_reset_brings_the_state_back_before_each_episode_which_run_one_after_another(
    tmp_path: Path, by: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    command = ("sh", "-c", f"rm -rf {data}/*; touch {data}/first")
    put = {"path": f"{data}/first", "text": ""}
    calls = (ResetCall(tool="clear"), ResetCall(tool="put", arguments=put))
    reset = ResetSection(command=command) if by == "command" else ResetSection(calls=calls)

    async def episode(pool: ToolPool, number: int) -> str:
        async with pool.session() as session:
            seen = (await call(session, "names", server="desk")).content
            await call(session, "put", server="desk", path=f"{data}/{number}", text="x")
            assert str(number) in (await call(session, "names", server="desk")).content
            return seen

    async with _pool(_desk(str(data)), reset=reset) as pool:
        assert (await asyncio.gather(*(episode(pool, number) for number in range(6)))) == [
            f"{data}/first"
        ] * 6


async def test_a_reset_that_fails_leaves_the_episode_unscored(tmp_path: Path) -> None:
    reset = ResetSection(command=("sh", "-c", "echo no such database >&2; exit 3"))
    async with _pool(_desk(str(tmp_path)), reset=reset) as pool, pool.session() as session:
        result = await call(session, "names", server="desk")
        failure, text = result.failure, result.content
    assert failure is FailureKind.UPSTREAM and "no such database" in text


async def test_the_probe_tells_a_state_that_comes_back_from_one_that_does_not(tmp_path: Path) -> None:
    data = _folder(tmp_path)
    limits = ServerSection(workspace=str(data))
    good = await probe_start(_desk(str(data)), limits, on_note=lambda _: None)
    assert good.differs is None and good.digest == tree_digest(data) and "names" in good.reads
    # A reset that forgets what `jot` writes.
    put = ResetCall(tool="put", arguments={"path": f"{data}/other", "text": ""})
    bad_reset = ServerSection(reset=ResetSection(calls=(put,)))
    bad = await probe_start(_desk(str(data)), bad_reset, on_note=lambda _: None)
    assert bad.differs is not None and "names" in bad.differs


def test_env_check_says_that_the_state_comes_back_and_how_long_it_takes(tmp_path: Path) -> None:
    data = _folder(tmp_path)
    file = _file(tmp_path, _desk(str(data)))
    done = mcpagent(
        "env", "check", "--servers", file, "--set", f"tools.per_server.desk.workspace={data}", cwd=tmp_path
    )
    assert "state of desk" in done.stdout and "the same bytes (sha256 " in done.stdout, done.stderr
    assert " ms for each" in " ".join(done.stdout.split())


async def test_calls_of_one_turn_wait_for_the_reset_and_one_that_failed_is_tried_again(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    # Fails until the marker is there, which its first try makes.
    script = f"rm -f {data}/*; test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 1; }}"
    async with _pool(_desk(str(data)), reset=ResetSection(command=("sh", "-c", script))) as pool:
        async with pool.session() as session:
            both = await asyncio.gather(*(call(session, "names", server="desk") for _ in range(2)))
        async with pool.session() as session:
            both += [await call(session, "names", server="desk")]
        assert [result.failure for result in both] == [FailureKind.UPSTREAM, None, None]
