"""The quickstart on a server that nothing in mcpagent knows: one command from an mcp.json to a model that got
better at what it never saw, and not by random rewards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpagent.storage.datasets import read_tasks
from tests.house import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SERVERS = ROOT / "tests" / "demo" / "servers"


def _quickstart(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """The document of the quickstart on one of `SERVERS`."""
    server = {"command": sys.executable, "args": [str(SERVERS / f"{name}.py")]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {name: server}}))
    command = [sys.executable, "-m", "mcpagent.cli.main", "quickstart", "--servers", "mcp.json", "--json"]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("server", "seed", "options"),
    [
        ("railway", 1, ()),
        ("railway", 2, ()),
        ("railway", 3, ()),
        ("museum", 1, ()),
        ("weather", 1, ()),
        ("shop", 1, ()),
        ("clinic", 1, ("--read-only", "clinic")),
        ("recipes", 1, ()),
    ],
)
def test_it_gets_better_on_a_server_of_ones_own_and_not_by_random_rewards(
    server: str, seed: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    document = _quickstart(tmp_path, server, "--seed", str(seed), "--controls", *options)
    success = "task_success_sampled"  # at temperature 1; episodes without a score count as failed
    before, after = (document[side]["metrics"][success] for side in ("warm_start", "trained"))
    heldout = list(read_tasks(tmp_path / document["run_dir"] / "data" / "heldout.jsonl"))
    assert before["n"] == after["n"] == len(heldout) >= 150
    assert after["value"] - before["value"] >= 0.25
    assert before["ci_high"] < after["ci_low"]
    (random,) = [row for row in document["controls"] if row["name"] == "random rewards"]
    assert random["sampled"]["value"] - before["value"] < 0.05
    report = (tmp_path / document["report"]).read_text(encoding="utf-8")
    assert "random rewards" in report
