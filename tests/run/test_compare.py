"""Two models played side by side: one cassette, the same seeds, one folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mcpagent.cli.evaluate import app
from mcpagent.config.loader import dump_config
from mcpagent.errors import UserError
from mcpagent.run.compare import PlayedComparison, play_both
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from tests.env.world import make_task
from tests.run.world import SHORT, TRAIN, config, dataset, with_id
from tests.running import mcpagent


def played(a: Path | str, b: Path | str, *settings: str, **options: Any) -> PlayedComparison:
    chosen = config(SHORT, "data.max_tasks=6", *settings)
    return play_both((str(a), str(b)), (chosen, chosen), data=TRAIN, **options)


def _read(path: Path) -> list[Any]:
    return list(read_trajectories(path))


def test_both_results_and_what_they_say_are_in_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "both"
    outcome = played("empty", "gold", out=out)
    assert sorted(path.name for path in out.iterdir()) == [
        *("a.json", "a.jsonl.zst", "b.json", "b.jsonl.zst", "cassette", "comparison.json"),
    ]
    document = json.loads((out / "comparison.json").read_text())
    assert document == outcome.as_json()
    assert (document["verdict"], document["wins"], document["models"]) == (
        "b is better",
        6,
        {"a": "empty", "b": "gold"},
    )
    assert document["calibration"]["gold"]["task_success"]["value"] == 1.0
    assert document["slices"]["class"], "the samples are of several classes"
    files = CliRunner().invoke(app, ["compare", str(out / "a.json"), str(out / "b.json"), "--json"])
    theirs = json.loads(files.stdout)
    assert {key: theirs[key] for key in theirs if key != "slices"} == {
        key: document[key] for key in theirs if key != "slices"
    }


# A server that never gives the same answer twice.
DICE = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    tool = {"name": "roll", "description": "Roll.", "annotations": {"readOnlyHint": True},
            "inputSchema": {"type": "object", "properties": {}}}
    result = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "dice", "version": "1"}},
        "tools/list": {"tools": [tool]},
        "tools/call": {"content": [{"type": "text", "text": os.urandom(8).hex()}]},
    }.get(message["method"], {})
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def test_a_call_that_both_make_has_one_answer(tmp_path: Path) -> None:
    (tmp_path / "dice.py").write_text(DICE)
    servers = tmp_path / "mcp.json"
    dice = {"command": sys.executable, "args": [str(tmp_path / "dice.py")]}
    servers.write_text(json.dumps({"mcpServers": {"dice": dice}}))
    step = {"step": 1, "server": "dice", "tool": "roll", "params": {}}
    task = with_id(make_task(tool_sequence=[step], tools=["dice.roll"]), "roll")
    data, out = dataset(tmp_path / "t.jsonl", [task]), tmp_path / "both"
    chosen = config(SHORT, f"tools.servers={servers}")
    played_anew = [play_both(("gold", "gold"), (chosen, chosen), data=data, out=out / n) for n in "12"]
    rolls = [[_texts(out / n / f"{side}.jsonl.zst") for side in "ab"] for n in "12"]
    assert rolls[0][0] == rolls[0][1] != rolls[1][0] == rolls[1][1]
    assert all(len(texts) == 1 for pair in rolls for texts in pair)
    for outcome in played_anew:
        counts = outcome.as_json()["cassette"]
        assert (counts["a"]["live"], counts["b"]["live"], counts["b"]["replayed"]) == (1, 0, 1)


def _texts(path: Path) -> list[str]:
    return [result.content for trajectory in _read(path) for result in trajectory.tool_results]


def test_what_is_recorded_anew_is_recorded_once(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    recorded = (f"tools.cassette={tape}", "tools.cassette_mode=record")
    counts = played("gold", "gold", *recorded).as_json()["cassette"]
    assert (counts["a"]["mode"], counts["b"]["mode"], counts["b"]["live"]) == ("record", "replay", 0)
    assert tape.is_dir()
    with pytest.raises(UserError, match="one cassette"):
        played("gold", "gold", "tools.cassette_mode=off")


def test_the_same_weights_sample_the_same_attempts_on_both_sides(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(tiny_checkpoint, twin)
    options: dict[str, Any] = {"samples": 2, "out": tmp_path / "both"}
    played(tiny_checkpoint, twin, "rollout.temperature=1", "data.max_tasks=2", **options)
    one, other = (
        [
            [turn.completion.token_ids for turn in t.turns]
            for t in _read(tmp_path / "both" / f"{side}.jsonl.zst")
        ]
        for side in "ab"
    )
    assert one == other and one[0] != one[1]


def test_both_play_with_the_limits_of_the_first_run(tiny_checkpoint: Path, tmp_path: Path) -> None:
    runs: list[str] = []
    for name, tokens in (("one", 3), ("two", 5)):
        trained = config(f"rollout.max_new_tokens={tokens}", "seed=9")
        made = RunFolder.create(tmp_path / name, config_yaml=dump_config(trained), manifest={})
        shutil.copytree(tiny_checkpoint, made.checkpoint_dir(1))
        runs.append(str(made.path))
    arguments = ["--on", str(TRAIN), "--max-tasks", "2", "--json"]
    both = CliRunner().invoke(app, ["compare", *runs, *arguments])
    assert both.exit_code == 0, both.output
    assert json.loads(both.stdout)["conditions"]["max_new_tokens"] == 3
    assert "the limit of tokens a turn differ between the two runs" in both.stderr.replace("\n", " ")
    beside_gold = CliRunner().invoke(app, ["compare", "gold", runs[1], *arguments])
    assert json.loads(beside_gold.stdout)["conditions"]["max_new_tokens"] == 5
    assert not list((tmp_path / "one" / "eval").iterdir()), (
        "a run keeps no result of other limits than its own"
    )


def test_nothing_is_played_where_the_second_model_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "both"
    with pytest.raises(UserError, match="no such checkpoint"):
        played("gold", tmp_path / "absent", out=out)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_comparison_is_not_written_over_unasked(tmp_path: Path) -> None:
    out = tmp_path / "both"
    played("empty", "gold", out=out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(UserError, match="holds a comparison already"):
        played("gold", "empty", out=out)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    with pytest.raises(UserError, match="was begun otherwise: the model"):
        played("gold", "empty", out=out, resume=True)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert played("gold", "empty", out=out, overwrite=True).comparison.verdict == "a is better"
    with pytest.raises(UserError, match="no comparison to go on with"):
        played("gold", "empty", out=tmp_path / "other", resume=True)


@pytest.mark.system
def test_a_comparison_that_is_killed_and_resumed_is_that_without_a_kill(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(tiny_checkpoint, twin)
    command = [
        *("eval", "compare", str(tiny_checkpoint), str(twin), "--on", str(TRAIN), "--samples", "4"),
        *("--max-tasks", "12", "--set", SHORT, "--set", "rollout.num_envs=1", "--out"),
    ]
    whole, out = tmp_path / "whole", tmp_path / "both"
    done = mcpagent(*command, whole)
    assert done.returncode == 0, done.stderr
    partial = out / "b.partial.jsonl"
    words = [sys.executable, "-m", "mcpagent.cli.main", *command, str(out)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not partial.exists() or partial.read_bytes().count(b"\n") < 4:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    refused = mcpagent(*command, out)
    assert (refused.returncode, "--resume" in refused.stderr) == (2, True), refused.stderr
    done = mcpagent(*command, out, "--resume")
    assert done.returncode == 0, done.stderr
    assert not partial.exists()
    documents = [json.loads((folder / "comparison.json").read_text()) for folder in (whole, out)]
    for document in documents:
        del document["folder"], document["cassette"]
    assert documents[0] == documents[1]
    for side in "ab":
        one, other = (_read(folder / f"{side}.jsonl.zst") for folder in (whole, out))
        assert [[turn.completion for turn in t.turns] for t in one] == [
            [turn.completion for turn in t.turns] for t in other
        ]
