from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpagent.tools.probes.chaos import faults_of
from mcpagent.tools.servers_config import StdioServer
from tests.env.world import make_task
from tests.run.world import TRAIN, dataset, samples, with_id
from tests.running import mcpagent, refused
from tests.tools.servers.files import servers_file
from tests.tools.wild import http_poison

OVER_STDIO = faults_of(StdioServer(name="any", command="any"))


def test_a_sound_environment_exits_0_with_its_checks() -> None:
    done = mcpagent("env", "check", "--data", TRAIN, "--max-tasks", "4", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is True and document["failing_tasks"] == {}
    assert (document["n_tasks"], document["tasks_from"]) == (4, str(TRAIN))
    statuses = {check["name"]: check["status"] for check in document["checks"]}
    assert statuses["MCPToolEnv has SkyRL's init and step"] == "pass"
    assert statuses["the gold plan scores 1.0"] == "pass"


def test_a_failing_task_exits_1_and_is_named(tmp_path: Path) -> None:
    silent = with_id(make_task(final_answer={"type": "regex", "value": "^"}), "silence-will-do")
    data = dataset(tmp_path / "tasks.jsonl", [*samples(count=1), silent])
    done = mcpagent("env", "check", "--data", data)
    assert done.returncode == 1
    assert "fail  an empty policy fails: 1 of 2 do not" in done.stdout
    assert "mcpagent rollout --policy empty --data FILE --out FILE" in done.stdout
    assert "  silence-will-do: an empty policy fails" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_missing_dataset_or_server_file_is_one_message(tmp_path: Path) -> None:
    assert "nothing.jsonl: there is no such file" in refused(
        mcpagent("env", "check", "--data", "nothing.jsonl", cwd=tmp_path)
    )
    assert "nowhere.json: cannot read it" in refused(
        mcpagent("env", "check", "--servers", "nowhere.json", cwd=tmp_path)
    )


def test_servers_that_share_what_episodes_write_are_named_with_what_to_set(tmp_path: Path) -> None:
    servers = servers_file(tmp_path, notes=("notes", "kept"))
    done = mcpagent("env", "check", "--servers", servers)
    assert done.returncode == 0, done.stderr
    assert (
        "warn  isolation of notes: shared is configured, episode is recommended: after add_note"
        in done.stdout
    )
    assert "      --set tools.isolation.notes=episode" in done.stdout
    assert "      not judged: tick: the answers differ from call to call" in done.stdout
    assert "skip  the environment tells right from wrong" in done.stdout


def test_a_tool_that_may_do_harm_is_called_only_when_writes_are_allowed(tmp_path: Path) -> None:
    servers, wiped = servers_file(tmp_path, notes=("notes", "nowhere")), tmp_path / "wiped"
    document = json.loads(servers.read_text())
    document["mcpServers"]["notes"]["env"] = {"WIPED": str(wiped)}
    servers.write_text(json.dumps(document))
    assert mcpagent("env", "check", "--servers", servers).returncode == 0
    assert not wiped.exists()
    done = mcpagent("env", "check", "--servers", servers, "--allow-writes", "--json")
    assert done.returncode == 0, done.stderr
    assert wiped.exists()
    (notes,) = json.loads(done.stdout)["isolation"]
    assert (notes["recommended"], notes["state"], notes["basis"]) == ("shared", "none", "observed")


def test_chaos_exits_1_and_names_the_server_that_does_not_start_again(tmp_path: Path) -> None:
    servers = servers_file(tmp_path, frail=("frail", "once", str(tmp_path / "log")))
    done = mcpagent("env", "check", "--chaos", "--servers", servers, "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is False
    assert [(result["server"], result["fault"]) for result in document["chaos"]] == [
        ("frail", fault.value) for fault in OVER_STDIO
    ]
    sound, *others = document["chaos"]
    assert sound["status"] == "pass" and sound["leaks"] == {"processes": [], "tasks": [], "files": 0}
    assert all(other["status"] == "fail" for other in others)
    assert all("the licence is spent" in other["detail"] for other in others)


def test_chaos_says_which_faults_a_server_over_http_cannot_be_given(tmp_path: Path) -> None:
    servers = tmp_path / "mcp.json"
    with http_poison("once") as server:
        servers.write_text(json.dumps({"mcpServers": {"web": {"url": server.url}}}))
        done = mcpagent("env", "check", "--chaos", "--servers", servers)
    assert done.returncode == 1, done.stderr
    assert "skip  kill, stop: the process of a server over HTTP is not ours" in done.stdout
    assert "refuses us (HTTP 401)" in done.stdout


@pytest.mark.slow
def test_chaos_shows_each_fault_and_what_an_episode_saw_of_it(tmp_path: Path) -> None:
    servers = servers_file(tmp_path, frail=("frail", "sound", str(tmp_path / "log")))
    done = mcpagent("env", "check", "--chaos", "--servers", servers)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "│" in line]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert [row[0] for row in rows if row[0]] == [fault.value for fault in OVER_STDIO]
    assert {row[1] for row in rows if row[0]} == {"pass"}
