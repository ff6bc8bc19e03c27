"""The isolation probe on real servers that keep state nowhere, in their process and on disk."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mcpagent.errors import UserError
from mcpagent.servers.provider import builtin_servers
from mcpagent.tools.probes.isolation import IsolationVerdict, State, probe_isolation
from mcpagent.tools.servers_config import ServerConfig, StdioServer
from tests.house import ROOT
from tests.tools.wild import script_server


def _notes(mode: str, *arguments: Path, **env: str) -> StdioServer:
    return StdioServer(
        name="notes",
        command=sys.executable,
        args=("-S", "-m", "tests.tools.servers.notes", mode, *map(str, arguments)),
        env=env,
        cwd=str(ROOT),
    )


def _probe(
    config: ServerConfig, *, allow: Sequence[str] | None = None, allow_writes: bool = False
) -> IsolationVerdict:
    return asyncio.run(probe_isolation(config, allow=allow, allow_writes=allow_writes))


def test_a_server_that_forgets_may_be_shared() -> None:
    verdict = _probe(_notes("nowhere"))
    assert (verdict.recommended, verdict.state) == ("shared", State.NONE)
    assert verdict.writes == ("add_note",)
    assert verdict.evidence == ("after add_note, 2 read-only tools answered the same to every session",)
    assert verdict.not_tried == {"tick": "the answers differ from call to call"}


def test_a_server_with_state_in_its_process_needs_an_instance_for_each_episode() -> None:
    verdict = _probe(_notes("kept"))
    assert (verdict.recommended, verdict.state) == ("episode", State.INSTANCE)
    seen = f"in another session of the same instance answers differently and holds '{verdict.probe_text}'"
    assert f"after add_note, list_notes {seen}" in verdict.evidence


def test_state_on_disk_is_seen_by_every_instance_so_isolation_does_not_help(tmp_path: Path) -> None:
    verdict = _probe(_notes("kept", tmp_path / "notes.txt"))
    assert (verdict.recommended, verdict.state) == ("shared", State.OUTSIDE)
    assert any(line.startswith("after add_note, list_notes in another instance") for line in verdict.evidence)
    assert (tmp_path / "notes.txt").read_text().split() == [verdict.probe_text]


def test_what_may_destroy_or_leave_the_server_is_called_only_on_demand(tmp_path: Path) -> None:
    wiped = tmp_path / "wiped"
    verdict = _probe(_notes("nowhere", WIPED=str(wiped)))
    assert not wiped.exists()
    assert (verdict.recommended, verdict.state) == ("episode", State.UNKNOWN)
    assert verdict.not_tried["wipe_notes"] == "it may destroy"
    assert verdict.not_tried["mail_notes"] == "it may act on the world outside the server"
    allowed = _probe(_notes("nowhere", WIPED=str(wiped)), allow_writes=True)
    assert wiped.exists()
    assert (allowed.recommended, allowed.state) == ("shared", State.NONE)
    assert set(allowed.writes) == {"add_note", "wipe_notes", "mail_notes"}


def test_a_tool_that_a_person_names_a_reader_is_one_for_the_probe(tmp_path: Path) -> None:
    server = _notes("nowhere", WIPED=str(tmp_path / "wiped"))
    named = ("notes.wipe_notes", "notes.mail_notes", "other.tool")
    verdict = asyncio.run(probe_isolation(server, read_only=named))
    assert (verdict.recommended, verdict.state) == ("shared", State.NONE)
    assert verdict.writes == ("add_note",) and not {"wipe_notes", "mail_notes"} & verdict.not_tried.keys()


def test_a_tool_that_writes_to_a_path_is_called_only_on_demand_and_what_it_leaves_is_named(
    tmp_path: Path,
) -> None:
    server = replace(_notes("filed", PYTHONPATH=str(ROOT)), cwd=str(tmp_path))
    verdict = _probe(server)
    assert list(tmp_path.iterdir()) == []
    assert (verdict.writes, verdict.left) == ((), ())
    assert verdict.not_tried == {"write_note": "it writes to a path"}
    allowed = _probe(server, allow_writes=True)
    assert allowed.writes == ("write_note",)
    (left,) = tmp_path.iterdir()
    assert allowed.left == (str(left),)
    assert left.name == allowed.probe_text


def test_what_no_episode_may_call_does_not_count() -> None:
    verdict = _probe(_notes("kept"), allow=["list_notes", "notes.find_note"])
    assert (verdict.recommended, verdict.state, verdict.writes) == ("shared", State.NONE, ())


def test_without_annotations_nothing_is_called_and_nothing_is_known() -> None:
    verdict = _probe(_notes("bare"))
    assert (verdict.recommended, verdict.state) == ("episode", State.UNKNOWN)
    assert verdict.evidence == ("it has tools that may write and were not tried, or not seen to write",)
    assert verdict.writes == ()
    assert set(verdict.not_tried) == {"add_note", "list_notes", "find_note", "tick"}


def test_the_built_in_servers_are_judged_by_what_they_do() -> None:
    verdicts = {config.name: _probe(config) for config in builtin_servers()}
    assert {name: verdict.recommended for name, verdict in verdicts.items()} == {
        name: "episode" if name == "slack" else "shared" for name in verdicts
    }
    assert State.UNKNOWN not in {verdict.state for verdict in verdicts.values()}


def test_a_server_that_does_not_start_is_a_user_error() -> None:
    broken = StdioServer(name="broken", command=sys.executable, args=("-c", "raise SystemExit('no key')"))
    with pytest.raises(UserError, match="no key"):
        _probe(broken)


@pytest.mark.parametrize("how", ["field", "id", "number", "sentence"])
def test_state_under_a_handle_needs_no_instance_of_its_own(how: str) -> None:
    verdict = _probe(script_server("carts.py", how))
    assert (verdict.recommended, verdict.state) == ("shared", State.HANDLE)
    (seen,) = verdict.evidence
    assert seen == (
        "open_cart gives a handle that add_item, list_items take, from another session of the same instance "
        "too, and what is written by one does not show by another"
    )
    assert verdict.not_tried == {}


def test_a_handle_that_every_instance_takes_is_said_to_reach_them_all(tmp_path: Path) -> None:
    verdict = _probe(script_server("carts.py", "field", str(tmp_path / "carts.json")))
    assert (verdict.recommended, verdict.state) == ("shared", State.HANDLE)
    assert "from another session of the same instance and from another instance too" in verdict.evidence[0]


def test_a_handle_by_which_the_writes_of_others_show_keeps_nothing_apart(tmp_path: Path) -> None:
    verdict = _probe(script_server("carts.py", "leaky"))
    assert (verdict.recommended, verdict.state) == ("episode", State.INSTANCE)
    shared = _probe(script_server("carts.py", "leaky", str(tmp_path / "carts.json")))
    assert (shared.recommended, shared.state) == ("shared", State.OUTSIDE)
    for seen in (verdict, shared):
        assert "what is written by one shows by another" in seen.evidence[0]
