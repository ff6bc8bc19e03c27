from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import Completion, StopReason, TokenUsage, Trajectory
from mcpagent.evaluate.report.inspect_log import sources, write_log
from mcpagent.storage.trajectories import write_trajectories
from tests.evaluate.records import call, result, trajectory, turn
from tests.evaluate.run_folder import write_run
from tests.running import mcpagent

# What inspect_ai itself makes of a log: messages with calls and results, scores, usage, errors.
READER = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
from inspect_ai.log import read_eval_log_sample_summaries as summaries_of

log = read_eval_log(sys.argv[1])
print(json.dumps({
    "status": log.status,
    "model": log.eval.model,
    "accuracy": log.results.scores[0].metrics["accuracy"].value,
    "usage": {name: usage.total_tokens for name, usage in log.stats.model_usage.items()},
    "listed": len(list_eval_logs(sys.argv[2])),
    "summaries": [[s.id, s.epoch, s.error, s.limit, s.completed] for s in summaries_of(sys.argv[1])],
    "samples": [{
        "id": s.id,
        "epoch": s.epoch,
        "roles": [m.role for m in s.messages],
        "texts": [m.text for m in s.messages],
        "calls": [[c.function, c.arguments, c.parse_error] for m in s.messages if m.role == "assistant"
                  for c in m.tool_calls or []],
        "results": [[m.function, m.tool_call_id, m.error.type if m.error else None] for m in s.messages
                    if m.role == "tool"],
        "scores": {name: score.value for name, score in (s.scores or {}).items()},
        "usage": [u.total_tokens for u in s.model_usage.values()],
        "error": s.error.message if s.error else None,
        "limit": s.limit.type if s.limit else None,
        "target": s.target,
    } for s in log.samples],
}))
"""


def episodes() -> list[Trajectory]:
    """A success, one that ran out of turns, one whose server died, and a second attempt at the first task."""
    text = "‮العربية <b>&amp;</b> \x07"
    right = [
        turn(
            0, "<think>…</think>", calls=[call(0, ticker="AAPL")], results=[result(0, text)], broken=["{oops"]
        ),
        turn(1, "179.66").model_copy(
            update={
                "completion": Completion(text="179.66", usage=TokenUsage(input_tokens=90, output_tokens=10))
            }
        ),
    ]
    failed = result(0, "gone", failure=FailureKind.TIMEOUT, nonce=None)
    lost = [turn(0, "call", calls=[call(0)], results=[failed])]
    return [
        trajectory("a", turns=right, coverage=None),
        trajectory("b/../c", success=0.0, stop_reason=StopReason.MAX_TURNS, final_answer=None),
        trajectory("lost", success=None, stop_reason=StopReason.FAILED, turns=lost).model_copy(
            update={"errors": ("the server is gone",)}
        ),
        trajectory("a", attempt=1, success=0.0),
        trajectory("a", attempt=1, success=1.0).model_copy(update={"id": "drawn twice"}),
    ]


def written(folder: Path) -> Path:
    return logged(write_trajectories(folder / "seen", episodes()), folder)


def logged(records: Path, folder: Path) -> Path:
    (source,) = sources(records)
    path = folder / "logs" / "seen.eval"
    assert write_log(source, path) == 5
    return path


def read_by_inspect(command: Sequence[str], path: Path) -> JsonObject:
    """What READER prints, run by a Python that has inspect_ai."""
    done = subprocess.run(
        [*command, "-c", READER, str(path), str(path.parent)],
        capture_output=True,
        text=True,
        cwd=path.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_what_inspect_read(found: JsonObject) -> None:
    """The episodes above, as inspect_ai sees them."""
    assert (found["status"], found["listed"], found["accuracy"]) == ("success", 1, 0.5)
    by_key = {(s["id"], s["epoch"]): s for s in found["samples"]}
    assert set(by_key) == {("a", 1), ("a", 2), ("a", 3), ("b/../c", 1), ("lost", 1)}
    first = by_key["a", 1]
    assert first["roles"] == ["system", "user", "assistant", "tool", "assistant"]
    assert first["texts"][3] == "‮العربية <b>&amp;</b> \x07" and first["texts"][4] == "179.66"
    assert first["calls"] == [
        ["polygon.get_aggs", {"ticker": "AAPL"}, None],
        ["unparsed", {"raw": "{oops"}, "not JSON: {oops"],
    ]
    assert first["results"] == [["polygon.get_aggs", "c0", None]] and first["usage"] == [100]
    assert by_key["b/../c", 1]["limit"] == "turn"
    assert by_key["b/../c", 1]["scores"]["success"] == "I"
    # 0.6 for a success, 0.4 of partial credit: nothing of it.
    assert by_key["b/../c", 1]["scores"]["reward"] == 0.0
    lost = by_key["lost", 1]
    assert "success" not in lost["scores"] and "reward" not in lost["scores"]
    assert lost["error"] == "the server is gone" and lost["results"] == [
        ["polygon.get_aggs", "c0", "timeout"]
    ]
    assert sum(found["usage"].values()) == 100
    assert ["lost", 1, "the server is gone", None, True] in found["summaries"]


def test_a_log_has_a_sample_for_each_attempt_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    records = write_trajectories(tmp_path / "seen", episodes())
    path = logged(records, tmp_path)
    first = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        documents: dict[str, Any] = {name: json.loads(archive.read(name)) for name in archive.namelist()}
    samples = [name for name in documents if name.startswith("samples/")]
    assert set(samples) == {f"samples/{n}.json" for n in (
        "a_epoch_1", "b/../c_epoch_1", "lost_epoch_1", "a_epoch_2", "a_epoch_3")}  # fmt: skip
    header = documents["header.json"]
    assert header["results"]["total_samples"] == 5 == len(documents["summaries.json"])
    (success,) = (s for s in header["results"]["scores"] if s["name"] == "success")
    # a: 1, b: 0, a again: 0 and 1; the lost one is not among them.
    assert (success["scored_samples"], success["unscored_samples"]) == (4, 1)
    assert success["metrics"]["accuracy"]["value"] == 0.5
    assert documents["samples/lost_epoch_1.json"]["scores"].keys() <= {"terms"}
    assert logged(records, tmp_path).read_bytes() == first  # its times are those of the records


@pytest.mark.system
def test_the_command_writes_a_log_for_each_file_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    document = json.loads(mcpagent("report", str(run), "--format", "inspect", "--json").stdout)
    assert document["report"] == str(run / "inspect")
    names = {"eval_trained", "eval_trained_sampled", "eval_warm_start", "eval_warm_start_sampled"}
    assert {Path(log).stem for log in document["logs"]} == names
    with zipfile.ZipFile(run / "inspect" / "eval_trained_sampled.eval") as archive:
        header = json.loads(archive.read("header.json"))
    assert header["results"]["total_samples"] == 24 and header["eval"]["config"]["epochs"] == 4
    measured = json.loads((run / "eval" / "trained_sampled.json").read_text())["metrics"]
    assert header["results"]["metadata"]["task_success"] == measured["task_success"]
    refused = mcpagent("report", str(run), "--format", "inspect", "--out", str(run / "inspect"))
    assert refused.returncode == 2 and "would be replaced" in refused.stderr
    lone = mcpagent("report", str(run / "trajectories" / "eval_trained.jsonl.zst"), "--format", "inspect")
    assert lone.returncode == 2 and "--out" in lone.stderr
    empty = mcpagent("report", str(tmp_path), "--format", "inspect")
    assert empty.returncode == 2 and "holds no trajectories" in empty.stderr
    assert not (tmp_path / "inspect").exists()


def test_a_broken_file_of_trajectories_leaves_no_log(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=3)
    (run / "trajectories" / "eval_trained.jsonl.zst").write_bytes(b"not compressed")
    done = mcpagent("report", str(run), "--format", "inspect")
    assert done.returncode == 2 and "eval_trained" in done.stderr and "Traceback" not in done.stderr
    assert list((run / "inspect").iterdir()) == []


def test_inspect_reads_the_log(tmp_path: Path) -> None:
    """INSPECT_PYTHON may name a Python that has inspect_ai; `make test-servers` installs it."""
    python = os.environ.get("INSPECT_PYTHON")
    if python is None and importlib.util.find_spec("inspect_ai") is None:
        pytest.skip("inspect_ai is not installed")
    check_what_inspect_read(read_by_inspect([python or sys.executable], written(tmp_path)))
