"""The verdicts on sound and on broken datasets, and where the tasks come from when none are named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mcpagent
from mcpagent.core.metrics import CheckStatus
from mcpagent.errors import UserError
from mcpagent.workflows.env_check import env_check
from tests.env.world import make_task
from tests.workflows.world import TRAIN, config, dataset, samples, with_id

GOLD, EMPTY, ABSTAIN = (
    "the gold plan scores 1.0",
    "an empty policy fails",
    "an over-eager policy fails where no call is right",
)


def test_the_samples_of_the_repository_pass_every_check() -> None:
    outcome = env_check(config())
    assert outcome.passed
    assert (outcome.n_tasks, outcome.source, outcome.failing) == (24, "data/samples", {})
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


def test_a_dataset_without_tasks_for_a_check_skips_it(tmp_path: Path) -> None:
    acting = [task for task in samples(count=12) if not task.truth.abstain][:1]
    outcome = env_check(config(), data=dataset(tmp_path / "tasks.jsonl", acting))
    assert outcome.passed
    skipped = {check.name for check in outcome.checks if check.status is CheckStatus.SKIP}
    assert ABSTAIN in skipped and GOLD not in skipped


def test_the_number_of_tasks_can_be_limited() -> None:
    assert env_check(config("data.max_tasks=3")).n_tasks == 3
    assert env_check(config("data.max_tasks=2"), data=TRAIN).n_tasks == 2


def test_tasks_for_servers_that_do_not_run_are_refused(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "tools" / "servers" / "echo.py"
    servers = tmp_path / "mcp.json"
    servers.write_text(
        json.dumps({"mcpServers": {"echo": {"command": sys.executable, "args": [str(script)]}}})
    )
    with pytest.raises(UserError, match="which no running server has"):
        env_check(config(f"tools.servers={servers}"))


def test_an_installation_without_the_repository_generates_its_tasks(tmp_path: Path) -> None:
    package = Path(mcpagent.__file__).parent
    installed = tmp_path / "site" / "mcpagent"
    shutil.copytree(package, installed, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("configs", "templates"):
        shutil.copytree(package.parent / name, installed / "_resources" / name)
    done = subprocess.run(
        [sys.executable, "-m", "mcpagent.cli.main", "env", "check", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed.parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["passed"], document["n_tasks"], document["tasks_from"]) == (True, 24, "generated")
