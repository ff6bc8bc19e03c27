from __future__ import annotations

import json
from pathlib import Path

from mcpagent.storage.trajectories import read_trajectories
from tests.run.world import TRAIN, nonces
from tests.running import mcpagent


def test_one_json_document_is_on_stdout_and_the_file_where_it_says(tmp_path: Path) -> None:
    out = tmp_path / "gold.jsonl.zst"
    done = mcpagent(
        "rollout",
        "--policy",
        "gold",
        "--data",
        TRAIN,
        "--out",
        out,
        "--set",
        "data.max_tasks=4",
        "--seed",
        "5",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["path"], document["n_episodes"], document["provenance"]["seed"]) == (str(out), 4, 5)
    results = [result for trajectory in read_trajectories(out) for result in trajectory.tool_results]
    assert document["tool_calls"]["with_nonce"] == len(nonces(results)) == len(results)
    assert "Episodes: 4/4" in done.stderr


def test_people_see_a_table_the_calls_and_the_files(tmp_path: Path) -> None:
    out = tmp_path / "empty.jsonl"
    done = mcpagent("rollout", "--policy", "empty", "--data", TRAIN, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "task success" in done.stdout and "0.0 %" in done.stdout
    assert "ended by  answered 12" in done.stdout
    assert "calls     0 answered by servers" in done.stdout
    assert f"written   {out}" in done.stdout
