"""A cassette in a configuration: what is started, what it is told, and what a run says of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.core.trajectory import StopReason, Trajectory, Turn
from mcpagent.errors import UserError
from mcpagent.reward.record import record_of
from mcpagent.reward.rule import grade_by_rule
from mcpagent.run.rollout import RolloutOutcome, collect_rollouts
from mcpagent.run.train import run_training
from mcpagent.storage.datasets import read_tasks, write_jsonl
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.tools.setup import open_tools
from tests.tools.support import ECHO_SCRIPT

TRAIN = Path(__file__).parents[2] / "data" / "samples" / "train.jsonl"


def tools(*overrides: str) -> ToolsConfig:
    return load_train_config([], overrides, for_training=False).config.tools


def one_call(config: ToolsConfig, server: str, tool: str, **arguments: Any) -> tuple[ToolResult, list[str]]:
    notes: list[str] = []
    with open_tools(config, on_note=notes.append) as opened:
        session = opened.pool.session()
        wanted = ToolCall(id="1", server=server, tool=tool, arguments=arguments)
        result = opened.io.run(session.call(wanted))
        opened.io.run(session.close())
    return result, notes


def stdio_servers(path: Path, **entry: Any) -> Path:
    server = {"command": sys.executable, "args": [str(ECHO_SCRIPT)], **entry}
    path.write_text(json.dumps({"mcpServers": {"echo": server}}))
    return path


def played(
    tmp_path: Path, mode: str, *, data: Path = TRAIN, overrides: tuple[str, ...] = ()
) -> tuple[RolloutOutcome, list[Trajectory]]:
    overrides = (*overrides, f"tools.cassette={tmp_path / 'tape'}", f"tools.cassette_mode={mode}")
    config = load_train_config([], overrides, for_training=False).config
    outcome = collect_rollouts(config, policy="gold", out=tmp_path / mode, data=data)
    return outcome, list(read_trajectories(outcome.path))


def test_a_rollout_replays_without_servers_and_scores_the_same(tmp_path: Path) -> None:
    recorded, first = played(tmp_path, "record")
    replayed, second = played(tmp_path, "strict")
    assert [(t.task_id, t.reward, t.final_answer) for t in first] == [
        (t.task_id, t.reward, t.final_answer) for t in second
    ]
    assert replayed.result.metrics["task_success"].value == 1.0
    calls = sum(len(t.tool_results) + len(t.state_results) for t in first)
    document = replayed.as_json()
    assert document["cassette"]["hit_rate"] == 1.0
    assert document["cassette"]["replayed"] == calls
    # No server was asked, and no evidence is claimed that one was.
    assert document["tool_calls"]["from_servers"] == document["tool_calls"]["with_nonce"] == 0
    assert document["tool_calls"]["replayed"] == sum(len(t.tool_results) for t in second)
    assert all(r.from_cassette and not r.meta for t in second for r in (*t.tool_results, *t.state_results))
    assert recorded.as_json()["tool_calls"]["replayed"] == 0
    assert document["provenance"]["catalog_hash"] == recorded.result.provenance["catalog_hash"]


def test_what_a_policy_calls_and_a_strict_cassette_lacks_is_its_failure(tmp_path: Path) -> None:
    lines = TRAIN.read_text().splitlines(keepends=True)
    (tmp_path / "half.jsonl").write_text("".join(lines[::2]))
    played(tmp_path, "record", data=tmp_path / "half.jsonl")
    outcome, trajectories = played(tmp_path, "strict")
    missed = [t for t in trajectories if t.stop_reason is StopReason.NOT_RECORDED]
    assert 0 < len(missed) < len(trajectories)
    assert all("has no answer to" in t.errors[0] for t in missed)
    assert all(t.is_success is False and t.reward is not None and t.reward <= 0.4 for t in missed)
    assert outcome.result.cassette is not None
    assert sum(outcome.result.cassette["misses"].values()) >= len(missed)
    assert outcome.result.unscored == 0
    right = (len(trajectories) - len(missed)) / len(trajectories)
    for name in ("task_success", "task_success_scored"):
        assert outcome.result.metrics[name].value == pytest.approx(right)
    # Graded again from the file, a miss stays what it was.
    for task, trajectory in zip(read_tasks(TRAIN), trajectories, strict=True):
        terms = {term.name: term.value for term in grade_by_rule(task, record_of(task, trajectory))}
        assert terms["success"] == trajectory.term("success") is not None


def test_a_state_that_no_recording_reached_fails_and_a_missing_set_up_is_unscored(tmp_path: Path) -> None:
    """Strict mode, a server with state: the environment's own reads follow what the model wrote."""
    stateful = [task for task in read_tasks(TRAIN) if task.truth.state]
    task = stateful[0]
    write_jsonl(tmp_path / "one.jsonl", [task])
    overrides = [f"tools.cassette={tmp_path / 'tape'}", "tools.cassette_mode=record"]
    config = load_train_config([], overrides, for_training=False).config
    collect_rollouts(config, policy="gold", out=tmp_path / "gold", data=tmp_path / "one.jsonl")
    strict = load_train_config([], [overrides[0], "tools.cassette_mode=strict"], for_training=False).config
    silent = collect_rollouts(strict, policy="empty", out=tmp_path / "silent", data=tmp_path / "one.jsonl")
    (trajectory,) = read_trajectories(silent.path)
    assert trajectory.is_success is False and silent.result.unscored == 0
    server = next(iter(task.truth.state))
    call = {"tool": next(iter(task.truth.state.values()))[0].call.tool, "arguments": {"channel": "nowhere"}}
    document = json.loads((tmp_path / "one.jsonl").read_text())
    document["reward_spec"]["ground_truth"]["setup"] = {server: [call]}
    write_jsonl(tmp_path / "setup.jsonl", [document])
    lost = collect_rollouts(strict, policy="gold", out=tmp_path / "lost", data=tmp_path / "setup.jsonl")
    assert (lost.result.unscored, lost.result.metrics["task_success"].value) == (1, 0.0)


def test_strict_needs_neither_the_servers_file_nor_its_variables(tmp_path: Path) -> None:
    servers = stdio_servers(tmp_path / "mcp.json", env={"SERVICE_TOKEN": "tok-0123456789"})
    shared = (f"tools.servers={servers}", f"tools.cassette={tmp_path / 'tape'}")
    live, notes = one_call(tools(*shared), "echo", "variable", name="SERVICE_TOKEN")
    assert live.content == "[SERVICE_TOKEN]", "what the model sees is what a replay gives it"
    assert any("tools.read_only" in note for note in notes), "echo is shared, and can be written to"
    servers.unlink()
    replayed, _ = one_call(
        tools(*shared, "tools.cassette_mode=strict"), "echo", "variable", name="SERVICE_TOKEN"
    )
    assert (replayed.from_cassette, replayed.content) == (True, "[SERVICE_TOKEN]")
    tape = b"".join(path.read_bytes() for path in (tmp_path / "tape").iterdir())
    assert b"tok-0123456789" not in tape


def test_another_command_is_another_version_of_a_server(tmp_path: Path) -> None:
    servers = stdio_servers(tmp_path / "mcp.json")
    config = tools(f"tools.servers={servers}", f"tools.cassette={tmp_path / 'tape'}")
    assert not one_call(config, "echo", "echo", text="x")[0].from_cassette
    stdio_servers(servers, args=["-u", str(ECHO_SCRIPT)])
    with open_tools(config) as opened:
        session = opened.pool.session()
        wanted = ToolCall(id="1", server="echo", tool="echo", arguments={"text": "x"})
        assert not opened.io.run(session.call(wanted)).from_cassette
        counts = opened.take_cassette_counts()
        opened.io.run(session.close())
    assert counts is not None and counts["misses"] == {"changed": 1}


def test_a_cassette_that_is_off_is_neither_read_nor_written(tmp_path: Path) -> None:
    # YAML reads a bare off as false.
    config = tools(f"tools.cassette={tmp_path / 'tape'}", "tools.cassette_mode=off")
    assert config.cassette_mode == "off"
    assert not one_call(config, "slack", "list_slack_channels", limit=1)[0].from_cassette
    assert not (tmp_path / "tape").exists()


def test_a_mode_without_a_place_and_a_tape_that_is_missing_are_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tools\.cassette names no folder"):
        tools("tools.cassette_mode=strict")
    with (
        pytest.raises(UserError, match="there is no cassette"),
        open_tools(tools(f"tools.cassette={tmp_path / 'none'}", "tools.cassette_mode=strict")),
    ):
        pass


def test_a_training_step_says_what_its_cassette_did(tiny_checkpoint: Path, tmp_path: Path) -> None:
    stateful = [task for task in read_tasks(TRAIN) if task.truth.state]
    write_jsonl(tmp_path / "tasks.jsonl", stateful[:1])

    def step(name: str) -> dict[str, Any]:
        config = load_train_config(
            [],
            [
                f"model.name={tiny_checkpoint}",
                f"data.train={tmp_path / 'tasks.jsonl'}",
                f"tools.cassette={tmp_path / 'tape'}",
                "training.batch_size=1",
                "training.max_steps=1",
                "training.eval_every=0",
                "rollout.group_size=2",
                "rollout.max_new_tokens=4",
                "device=cpu",
            ],
        ).config
        outcome = run_training(config, run_dir=tmp_path / name)
        return outcome.metrics["cassette"]

    # The untrained model calls nothing; the environment reads the end state of both episodes, once live.
    first = step("first")
    assert (first["live"], first["replayed"]) == (first["misses"]["never_made"], first["live"])
    assert first["live"] > 0
    second = step("second")
    assert (second["hit_rate"], second["live"], second["replayed"]) == (1.0, 0, 2 * first["live"])


def test_searches_for_tools_replay_as_they_were_played(tmp_path: Path) -> None:
    overrides = ("tools.discovery=search",)
    _, first = played(tmp_path, "record", overrides=overrides)
    replayed, second = played(tmp_path, "strict", overrides=overrides)
    seen = [[(t.turns, t.reward, t.stop_reason) for t in map(_timeless, run)] for run in (first, second)]
    assert seen[0] == seen[1]
    assert all(t.reward == 1.0 for t in first)
    searches = sum(len(t.searches) for t in first)
    assert searches >= sum(not t.is_success or bool(t.tool_results) for t in first)
    # A search asks no server: the cassette knows nothing of it, and neither do the counts of calls.
    assert replayed.result.cassette is not None
    assert replayed.result.cassette["replayed"] == sum(
        len(t.tool_results) + len(t.state_results) for t in first
    )
    assert replayed.result.metrics["mean_searches"].value == pytest.approx(searches / len(first))
    assert replayed.result.metrics["invalid_call_rate"].value == 0.0
    assert replayed.as_json()["tool_calls"]["replayed"] == sum(len(t.tool_results) for t in second)
    for trajectory, task in zip(second, read_tasks(TRAIN), strict=True):
        assert grade_by_rule(task, record_of(task, trajectory)) == trajectory.reward_terms


def _timeless(trajectory: Trajectory) -> Trajectory:
    """Without what no two runs have in common: times, nonces, and where an answer came from."""
    same = {"latency_s": 0.0, "meta": {}, "from_cassette": False}
    turns: list[Turn] = []
    for turn in trajectory.turns:
        results = tuple(result.model_copy(update=same) for result in turn.tool_results)
        turns.append(turn.model_copy(update={"wall_s": 0.0, "tool_results": results}))
    return trajectory.model_copy(update={"turns": tuple(turns)})
