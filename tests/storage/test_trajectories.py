from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.core.trajectory import (
    Completion,
    FinishReason,
    PolicySpan,
    RewardTerm,
    StopReason,
    Trajectory,
    Turn,
)
from mcpagent.errors import UserError
from mcpagent.storage.trajectories import read_trajectories, write_trajectories

UNSCORED = RewardTerm(name="judge", value=None)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
logprobs = st.lists(st.floats(max_value=0.0, width=32, allow_nan=False), max_size=5).map(tuple)
finite = st.floats(allow_nan=False, allow_infinity=False)
completions = st.builds(
    Completion,
    text=st.text(),
    finish_reason=st.sampled_from(FinishReason),
    token_ids=token_ids,
    logprobs=logprobs,
    policy_versions=st.just((PolicySpan(version=1, start=0, end=2),)),
)
calls = st.builds(
    ToolCall,
    id=st.text(),
    tool=st.text(),
    arguments=st.dictionaries(st.text(), st.integers() | st.text() | finite, max_size=2),
)
results = st.builds(
    ToolResult,
    call_id=st.text(),
    server=st.text(),
    tool=st.text(),
    content=st.text(),
    structured=st.none() | st.dictionaries(st.text(), st.text(), max_size=2),
)
turns = st.lists(
    st.builds(
        Turn,
        index=st.just(0),
        added_token_ids=token_ids,
        completion=completions,
        tool_calls=st.lists(calls, max_size=2).map(tuple),
        tool_results=st.lists(results, max_size=2).map(tuple),
    ),
    max_size=3,
).map(lambda made: tuple(turn.model_copy(update={"index": i}) for i, turn in enumerate(made)))
trajectories = st.builds(
    Trajectory,
    id=st.text(min_size=1),
    task_id=st.text(),
    group_id=st.text(),
    seed=st.integers(0, 2**63),
    turns=turns,
    final_answer=st.none() | st.text(),
    stop_reason=st.sampled_from(StopReason),
    reward_terms=st.just((RewardTerm(name="success", value=1.0, weight=0.6), UNSCORED)),
    errors=st.lists(st.text(), max_size=1).map(tuple),
)


def attempt(name: str, *, tokens: tuple[int, ...] = (7, 8)) -> Trajectory:
    completion = Completion(text=name, token_ids=tokens, logprobs=tuple(-0.5 for _ in tokens))
    turn = Turn(index=0, added_token_ids=tokens, completion=completion)
    return Trajectory(
        id=name, task_id="t", group_id="g", stop_reason=StopReason.ANSWERED, turns=(turn,) if tokens else ()
    )


@given(st.lists(trajectories, max_size=4, unique_by=lambda trajectory: trajectory.id))
def test_trajectories_survive_the_disk_with_their_tokens(
    tmp_path_factory: pytest.TempPathFactory, written: list[Trajectory]
) -> None:
    stem = tmp_path_factory.mktemp("trajectories") / "step-000001"
    path = write_trajectories(stem, written)
    assert list(read_trajectories(path)) == written
    assert list(read_trajectories(stem)) == written


def test_tokens_lie_in_the_sidecar_and_nowhere_else(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = write_trajectories(tmp_path / "step-000001", [attempt("g/0", tokens=(151_643, 9))])
    arrays = load_file(tmp_path / "step-000001.safetensors")
    assert {key: array.tolist() for key, array in arrays.items()} == {
        "g/0/0/added_token_ids": [151_643, 9],
        "g/0/0/token_ids": [151_643, 9],
        "g/0/0/logprobs": [-0.5, -0.5],
    }
    assert {str(array.dtype) for array in arrays.values()} == {"int32", "float32"}
    assert path.name == "step-000001.jsonl.zst"
    from mcpagent.storage.json_stream import open_bytes

    with open_bytes(path) as stream:
        assert b"151643" not in stream.read()


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst", "v1.x"])
def test_a_name_that_says_how_to_store_the_records_is_kept(tmp_path: Path, name: str) -> None:
    path = write_trajectories(tmp_path / name, [attempt("a")])
    stored, stem = (name, "x") if name.startswith("x") else ("v1.x.jsonl.zst", "v1.x")
    assert sorted(found.name for found in tmp_path.iterdir()) == sorted([stored, f"{stem}.safetensors"])
    assert path == tmp_path / stored
    assert list(read_trajectories(path)) == [attempt("a")]


def test_the_same_trajectories_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_trajectories(tmp_path / name, [attempt("a"), attempt("b")])
    for suffix in (".jsonl.zst", ".safetensors"):
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_trajectories_without_tokens_have_no_sidecar_and_remove_an_old_one(tmp_path: Path) -> None:
    stem = tmp_path / "step-000001"
    write_trajectories(stem, [attempt("a")])
    write_trajectories(stem, [attempt("a", tokens=())])
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001.jsonl.zst"]
    assert list(read_trajectories(stem)) == [attempt("a", tokens=())]


def test_an_id_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only 1 different"):
        write_trajectories(tmp_path / "x", [attempt("a"), attempt("a")])


def test_damaged_files_are_reported(tmp_path: Path) -> None:
    path = write_trajectories(tmp_path / "x", [attempt("a")])
    sidecar = tmp_path / "x.safetensors"
    sidecar.write_bytes(sidecar.read_bytes()[:20])
    with pytest.raises(UserError, match=r"x.safetensors: the token file is damaged"):
        list(read_trajectories(path))
    with pytest.raises(UserError, match="there is no such file"):
        list(read_trajectories(tmp_path / "absent"))
    plain = tmp_path / "y.jsonl"
    plain.write_text('{"id": "a", "turns": 3}\n')
    with pytest.raises(UserError, match=r"y.jsonl:1: task_id is missing"):
        list(read_trajectories(plain))
