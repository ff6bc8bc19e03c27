"""Logs of our episodes, written and read with inspect_ai, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import Completion, StopReason, TokenUsage, Trajectory
from mcpagent.storage.trajectories import write_trajectories
from tests.bridges.test_inspect import PYTHON, ROOT
from tests.bridges.test_inspect import pytestmark as pytestmark
from tests.evaluate.records import call, result, trajectory, turn
from tests.evaluate.run_folder import write_run

# What inspect_ai itself makes of a log: messages with calls and results, scores, usage, errors.
READER = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
from inspect_ai.log import read_eval_log_sample_summaries as summaries_of

log = read_eval_log(sys.argv[1])
print(json.dumps({
    "status": log.status,
    "model": log.eval.model,
    "scores": [[s.name, s.metrics["mean"].value, s.scored_samples, s.unscored_samples]
               for s in log.results.scores],
    "measured": log.results.metadata,
    "epochs": log.eval.config.epochs,
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
        "scores": {name: score.value for name, score in (s.scores or {}).items() if name != "terms"},
        "usage": [u.total_tokens for u in s.model_usage.values()],
        "error": s.error.message if s.error else None,
        "limit": s.limit.reason if s.limit else None,
    } for s in log.samples],
}))
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


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


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`mcpagent report ... --format inspect` in Inspect's environment."""
    command = [PYTHON, "-m", "mcpagent", "report", *map(str, arguments), "--format", "inspect"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def read_by_inspect(path: Path) -> JsonObject:
    """What READER prints."""
    done = subprocess.run(
        [PYTHON, "-c", READER, str(path), str(path.parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_inspect_reads_messages_calls_results_scores_usage_and_errors(tmp_path: Path) -> None:
    records = write_trajectories(tmp_path / "seen", episodes())
    assert (lone := report(records)).returncode == 2 and "--out" in lone.stderr
    done = report(records, "--out", tmp_path / "logs")
    assert done.returncode == 0, done.stderr
    found = read_by_inspect(tmp_path / "logs" / "seen.eval")
    assert (found["status"], found["listed"]) == ("success", 1)
    # a: 1, b: 0, a again: 0 and 1; the lost one is not among them.
    assert found["scores"][0] == ["success", 0.5, 4, 1]
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
    assert by_key["b/../c", 1]["limit"] == "max_turns"
    # 0.6 for a success, 0.4 of partial credit: nothing of it.
    assert by_key["b/../c", 1]["scores"] == {"success": 0.0, "reward": 0.0}
    lost = by_key["lost", 1]
    assert lost["scores"] == {}
    assert lost["error"] == "the server is gone" and lost["results"] == [
        ["polygon.get_aggs", "c0", "timeout"]
    ]
    assert ["lost", 1, "the server is gone", None, True] in found["summaries"]


def test_a_run_has_a_log_for_each_file_of_episodes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    document = json.loads(report(run, "--json").stdout)
    assert document["report"] == str(run / "inspect")
    names = {"eval_trained", "eval_trained_sampled", "eval_warm_start", "eval_warm_start_sampled"}
    assert {Path(log).stem for log in document["logs"]} == names
    found = read_by_inspect(run / "inspect" / "eval_trained_sampled.eval")
    assert (len(found["samples"]), found["epochs"]) == (24, 4)
    stored = json.loads((run / "eval" / "trained_sampled.json").read_text())["metrics"]
    assert found["measured"]["task_success"] == stored["task_success"]
    refused = report(run, "--out", run / "inspect")
    assert refused.returncode == 2 and "would be replaced" in refused.stderr
    empty = report(tmp_path)
    assert empty.returncode == 2 and "holds no trajectories" in empty.stderr
    assert not (tmp_path / "inspect").exists()


def test_a_broken_file_of_trajectories_leaves_no_log(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=3)
    (run / "trajectories" / "eval_trained.jsonl.zst").write_bytes(b"not compressed")
    done = report(run)
    assert done.returncode == 2 and "eval_trained" in done.stderr and "Traceback" not in done.stderr
    assert not (run / "inspect").exists()
