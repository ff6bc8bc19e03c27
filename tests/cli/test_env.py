from __future__ import annotations

import json
from pathlib import Path

from tests.env.world import make_task
from tests.run.world import TRAIN, dataset, samples, with_id
from tests.running import mcpagent
from tests.tools.servers.files import servers_file


def test_a_sound_environment_exits_0_with_its_checks() -> None:
    done = mcpagent("env", "check", "--data", TRAIN, "--set", "data.max_tasks=4", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is True and document["failing_tasks"] == {}
    assert (document["n_tasks"], document["tasks_from"]) == (4, str(TRAIN))
    statuses = {check["name"]: check["status"] for check in document["checks"]}
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
    assert (notes["recommended"], notes["state"]) == ("shared", "none")
