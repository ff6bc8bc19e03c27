"""Collecting trajectories, with the servers' own record of the calls as the witness."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.run.rollout import RolloutOutcome, collect_rollouts
from mcpagent.storage.trajectories import read_trajectories
from tests.env.world import make_task
from tests.run.world import (
    SHORT,
    TRAIN,
    as_processes,
    config,
    dataset,
    ledger_nonces,
    nonces,
    samples,
    task_calling,
)


def played(out: Path, *overrides: str, **options: object) -> tuple[RolloutOutcome, list[Trajectory]]:
    arguments = {"policy": "gold", "data": TRAIN, **options}
    outcome = collect_rollouts(config(*overrides), out=out, **arguments)  # type: ignore[arg-type]
    return outcome, list(read_trajectories(outcome.path))


def without_times(trajectory: Trajectory) -> Trajectory:
    turns = [
        turn.model_copy(update={"wall_s": 0.0, "tool_results": tuple(r.content for r in turn.tool_results)})
        for turn in trajectory.turns
    ]
    return trajectory.model_copy(update={"turns": tuple(turns), "state_results": ()})


@pytest.mark.system
@pytest.mark.parametrize("transport", ["memory", "stdio"])
def test_the_servers_counted_the_calls_that_the_trajectories_hold(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "calls.jsonl"
    monkeypatch.setenv("MCPAGENT_CALL_LEDGER", str(ledger))
    tasks = [
        *samples(count=4),
        task_calling("unknown-tool", "weather", "get_weather", city="Oslo"),
        task_calling("unsendable", "fmp", "fmp_get_quote", symbol=["no", "text"]),
        task_calling("refused-by-the-server", "fmp", "fmp_get_quote", symbol="NO-SUCH"),
    ]
    processes = as_processes(tmp_path / "mcp.json", os.environ, "--limited")
    own_slack = "tools.per_server.slack.isolation=episode"
    servers = [] if transport == "memory" else [f"tools.servers={processes}", own_slack]
    outcome, trajectories = played(
        tmp_path / "gold",
        *servers,
        data=dataset(tmp_path / "tasks.jsonl", tasks),
    )
    results = [result for trajectory in trajectories for result in trajectory.tool_results]
    failures = Counter(result.failure for result in results if result.failure is not None)
    assert failures == {
        FailureKind.UNKNOWN_TOOL: 1,
        FailureKind.INVALID_ARGUMENTS: 1,
        FailureKind.TOOL_ERROR: 1,
    }
    sent = [r for r in results if r.failure in (None, FailureKind.TOOL_ERROR)]
    assert len(sent) == len(results) - 2 > 5
    written = ledger_nonces(ledger)
    assert len(written) == len(sent)
    assert sorted(written) == sorted(nonces(results)) == sorted(nonces(sent))
    assert len(set(written)) == len(written)
    own = [result for trajectory in trajectories for result in trajectory.state_results]
    assert own and sorted(ledger_nonces(tmp_path / "calls.jsonl.env")) == sorted(nonces(own))
    assert (outcome.nonces.results.total(), outcome.nonces.stamped.total()) == (len(sent), len(sent))


def test_the_outcome_describes_what_was_written(tmp_path: Path) -> None:
    outcome, trajectories = played(tmp_path / "runs" / "gold.jsonl", "data.max_tasks=5", samples=2)
    document = outcome.as_json()
    assert document["path"] == str(tmp_path / "runs" / "gold.jsonl")
    assert document["tokens"] is None
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["gold.jsonl"]
    expected = [(task.id, attempt) for task in samples(count=5) for attempt in range(2)]
    assert [(t.task_id, t.attempt) for t in trajectories] == expected
    assert (document["n_tasks"], document["n_episodes"], document["unscored"]) == (5, 10, 0)
    assert document["metrics"]["task_success"]["value"] == 1.0
    calls = sum(len(t.tool_results) for t in trajectories)
    assert document["tool_calls"]["from_servers"] == document["tool_calls"]["with_nonce"] == calls
    assert document["provenance"]["policy"] == {"name": "gold"}
    assert document["provenance"]["dataset"]["tasks"] == 5


def test_calls_past_a_limit_of_the_task_are_not_counted_as_the_servers(tmp_path: Path) -> None:
    step = {"server": "fmp", "tool": "fmp_get_quote", "params": {"symbol": "NO-SUCH"}}
    steps = [{**step, "step": number, "parallel_group": 1} for number in (1, 2)]
    task = make_task(tool_sequence=steps, limits={"max_tools": 1}, tools=["fmp.fmp_get_quote"])
    outcome, (trajectory,) = played(tmp_path / "x", data=dataset(tmp_path / "t.jsonl", [task]))
    assert [r.failure for r in trajectory.tool_results] == [FailureKind.TOOL_ERROR, FailureKind.LIMIT]
    assert outcome.nonces.results.total() == outcome.nonces.stamped.total() == 1


def test_a_model_gives_the_same_tokens_for_the_same_seed_and_others_for_another(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    def tokens(name: str, seed: int) -> list[Trajectory]:
        overrides = (SHORT, f"seed={seed}", "data.max_tasks=3")
        outcome, trajectories = played(tmp_path / name, *overrides, policy=str(tiny_checkpoint), samples=2)
        assert outcome.tokens == tmp_path / f"{name}.safetensors"
        return [without_times(trajectory) for trajectory in trajectories]

    first, again, other = tokens("first", 1), tokens("again", 1), tokens("other", 2)
    assert first == again
    assert [t.turns[0].completion for t in first] != [t.turns[0].completion for t in other]
    completions = [turn.completion for trajectory in first for turn in trajectory.turns]
    assert len(completions) == 6
    for completion in completions:
        assert 0 < len(completion.token_ids) == len(completion.logprobs) <= 4
        assert all(logprob <= 0.0 for logprob in completion.logprobs)
    assert all(trajectory.turns[0].added_token_ids for trajectory in first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "openai:gpt-5"}, "OPENAI_API_KEY"),
        ({"policy": "outputs-of-nobody"}, "no such checkpoint or run folder"),
        ({"policy": "tests/no-such-run"}, "no such checkpoint or run folder"),
        ({"policy": str(TRAIN.parent)}, "is neither a checkpoint"),
        ({"data": Path("missing.jsonl")}, "there is no such file"),
        ({"out": Path("a") / "b.parquet"}, "is not a .jsonl.zst, .jsonl.gz, .jsonl file"),
    ],
)
def test_what_cannot_be_played_is_refused_and_leaves_nothing(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    out = tmp_path / Path(str(options.pop("out", "runs/x")))
    with pytest.raises(UserError, match=message) as refused:
        played(out, **options)
    assert refused.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is a file, not a folder"):
        played(tmp_path / "file" / "x.jsonl", data=Path("missing.jsonl"))
    with pytest.raises(UserError, match="is a folder"):
        played(tmp_path, data=Path("missing.jsonl"))


def test_tools_that_differ_from_the_datasets_are_noted_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse = "tools.on_catalog_change=refuse"
    played(tmp_path / "same", "data.max_tasks=1", refuse)
    assert "the tools have changed" not in capsys.readouterr().err
    played(tmp_path / "more", "data.max_tasks=1", "tools.limited=false")
    err = capsys.readouterr().err
    assert "the tools have changed since the dataset was made" in err and "in no task's offer: " in err
    task = samples(count=1)[0]
    old = task.model_copy(update={"extra_info": {**task.extra_info, "catalog_hash": "0123456789abcdef"}})
    data = dataset(tmp_path / "old.jsonl", [old])
    played(tmp_path / "old", data=data)
    assert "descriptions or schemas differ" in capsys.readouterr().err
    with pytest.raises(UserError, match="tools have changed since the dataset was made") as error:
        played(tmp_path / "refused", refuse, data=data)
    assert error.value.where == "tools.on_catalog_change"
