from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.run.world import TRAIN
from tests.running import mcpagent, refused


def said(*arguments: str | Path) -> dict[str, Any]:
    done = mcpagent(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_dataset_is_checked_from_the_tape_that_made_it(tmp_path: Path) -> None:
    tape = ["--set", f"tools.cassette={tmp_path / 'tape'}"]
    counts = ["--train", "3", "--validation", "1", "--heldout", "1", "--seed", "2"]
    first = said("gen-data", *counts, "--out", tmp_path / "a", *tape)
    made = first["cassette"]
    assert made["live"] >= made["recorded"] > 0
    assert made["live"] + made["replayed"] == first["executed_calls"]
    again = said("gen-data", *counts, "--out", tmp_path / "b", *tape, "--set", "tools.cassette_mode=strict")
    assert (again["cassette"]["hit_rate"], again["cassette"]["live"]) == (1.0, 0)
    assert (tmp_path / "a/train.jsonl").read_bytes() == (tmp_path / "b/train.jsonl").read_bytes()


def test_people_see_what_the_cassette_did(tmp_path: Path) -> None:
    arguments = ["rollout", "--policy", "gold", "--data", TRAIN, "--set", "data.max_tasks=2"]
    tape = ["--set", f"tools.cassette={tmp_path / 'tape'}"]
    first = mcpagent(*arguments, "--out", tmp_path / "a.jsonl", *tape, "--set", "tools.cassette_mode=record")
    again = mcpagent(*arguments, "--out", tmp_path / "b.jsonl", *tape)
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    lines = [line for done in (first, again) for line in done.stdout.splitlines() if "cassette  " in line]
    assert lines[0].startswith("cassette  record: 0 replayed") and lines[0].endswith("recorded")
    assert lines[1].startswith("cassette  replay: ") and lines[1].endswith(" replayed, 1 live, 0 recorded")


def test_a_mode_that_there_is_not_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    done = mcpagent(
        "rollout", "--policy", "gold", "--out", tmp_path / "x.jsonl", "--set", "tools.cassette_mode=rewind"
    )
    message = refused(done)
    assert "tools.cassette_mode" in message and "rewind" in message and "'strict'" in message
