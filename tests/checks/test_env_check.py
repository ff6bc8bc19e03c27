"""The verdicts on sound and on broken datasets, and where the tasks come from when none are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.checks.environment import env_check
from mcpagent.core.records import CheckStatus
from mcpagent.errors import UserError
from tests.env.world import make_task
from tests.run.world import TRAIN, config, dataset, samples, with_id
from tests.tools.servers.files import servers_file

pytestmark = pytest.mark.system

GOLD, EMPTY, ABSTAIN = (
    "the gold plan scores 1.0",
    "an empty policy fails",
    "an over-eager policy fails if no call is right",
)


def test_the_samples_of_the_repository_pass_every_check() -> None:
    outcome = env_check(config())
    assert outcome.passed
    assert (outcome.n_tasks, outcome.source, outcome.failing) == (24, "data/samples", {})
    assert {check.status for check in outcome.checks} == {CheckStatus.PASS}
    # The built-in servers are isolated as is recommended.
    assert {server.check.status for server in outcome.isolation} == {CheckStatus.PASS}


def test_the_samples_pass_every_check_where_tools_are_searched_for() -> None:
    outcome = env_check(config("tools.discovery=search"))
    assert outcome.passed
    assert (outcome.n_tasks, outcome.failing) == (24, {})
    assert {check.status for check in outcome.checks} == {CheckStatus.PASS}


def test_each_broken_task_is_named_with_the_claims_that_it_breaks(tmp_path: Path) -> None:
    sound = samples(count=2)
    quote = {"step": 1, "server": "fmp", "tool": "fmp_get_quote", "params": {"symbol": "NO-SUCH"}}
    price = {"type": "number", "value": "${step1.price}"}
    tasks = [
        *sound,
        with_id(make_task(tool_sequence=[quote], final_answer=price), "the-gold-call-fails"),
        with_id(make_task(final_answer={"type": "regex", "value": "^"}), "silence-will-do"),
    ]
    outcome = env_check(config(), data=dataset(tmp_path / "tasks.jsonl", tasks))
    assert not outcome.passed
    assert outcome.failing == {"silence-will-do": (EMPTY,), "the-gold-call-fails": (GOLD,)}
    failed = {check.name for check in outcome.checks if check.status is CheckStatus.FAIL}
    assert failed == {GOLD, EMPTY}
    assert outcome.as_json()["failing_tasks"]["silence-will-do"] == [EMPTY]


def test_the_number_of_tasks_can_be_limited() -> None:
    assert env_check(config("data.max_tasks=3")).n_tasks == 3
    assert env_check(config("data.max_tasks=2"), data=TRAIN).n_tasks == 2


def test_of_a_folder_every_split_is_read(tmp_path: Path) -> None:
    lines = TRAIN.read_text().splitlines(keepends=True)
    (tmp_path / "train.jsonl").write_text("".join(lines[:2]))
    (tmp_path / "heldout.jsonl").write_text(lines[2])
    assert env_check(config(), data=tmp_path).n_tasks == 3
    assert env_check(config("data.max_tasks=1"), data=tmp_path).n_tasks == 1


def test_tasks_for_servers_that_do_not_run_are_refused(tmp_path: Path) -> None:
    servers = servers_file(tmp_path, notes=("notes", "nowhere"))
    with pytest.raises(UserError, match="which no running server has"):
        env_check(config(f"tools.servers={servers}"), data=TRAIN)


def test_servers_without_tasks_are_checked_for_isolation_alone(tmp_path: Path) -> None:
    servers = servers_file(
        tmp_path,
        forgetful=("notes", "nowhere"),
        private=("notes", "kept"),
        common=("notes", "kept", str(tmp_path / "notes.txt")),
        broken=("no_such_module",),
    )
    outcome = env_check(config(f"tools.servers={servers}", "rollout.num_envs=10"))
    assert (outcome.n_tasks, outcome.source, outcome.passed) == (0, None, False)
    assert outcome.checks[-1].status is CheckStatus.SKIP
    checks = {server.check.name.removeprefix("isolation of "): server.check for server in outcome.isolation}
    assert {name: check.status for name, check in checks.items()} == {
        "forgetful": CheckStatus.PASS,
        "private": CheckStatus.WARN,
        "common": CheckStatus.WARN,
        "broken": CheckStatus.FAIL,
    }
    assert checks["private"].remedy == "--set tools.isolation.private=episode"
    assert checks["common"].detail.startswith(
        "no isolation helps: after add_note, list_notes in another inst"
    )
    assert "No module named" in checks["broken"].detail


def test_the_recommended_isolation_is_what_the_remedy_sets(tmp_path: Path) -> None:
    servers = servers_file(tmp_path, private=("notes", "kept"))
    outcome = env_check(config(f"tools.servers={servers}", "tools.isolation.private=episode"))
    (server,) = outcome.isolation
    assert (server.configured, server.check.status, outcome.passed) == ("episode", CheckStatus.PASS, True)
