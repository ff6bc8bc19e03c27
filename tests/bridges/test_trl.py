"""What TRL gets of an episode: which tokens are trained, and what stands for a failure of the machinery."""

from __future__ import annotations

import pytest

from mcpagent.bridges.trl import rollout_func, training_row
from mcpagent.core.trajectory import Completion, RewardTerm, StopReason, Trajectory, Turn
from mcpagent.errors import UserError

PLAYED = Trajectory(
    id="t#0",
    task_id="t",
    group_id="t",
    stop_reason=StopReason.ANSWERED,
    reward_terms=(RewardTerm(name="success", value=1.0, weight=0.6),),
    turns=(
        Turn(
            index=0,
            added_token_ids=(1, 2, 3),
            completion=Completion(text="a call", token_ids=(10, 11), logprobs=(-0.5, -0.25)),
        ),
        Turn(
            index=1,
            added_token_ids=(4, 5),
            completion=Completion(text="an answer", token_ids=(12,), logprobs=(-1.0,)),
        ),
    ),
)


def test_tokens_of_the_environment_are_in_the_completion_but_not_trained() -> None:
    row = training_row(PLAYED, limit=100)
    assert row["prompt_ids"] == [1, 2, 3]
    assert row["completion_ids"] == [10, 11, 4, 5, 12]
    assert row["env_mask"] == [1, 1, 0, 0, 1]
    assert row["logprobs"] == [-0.5, -0.25, 0.0, 0.0, -1.0]
    assert row["mcpagent_reward"] == pytest.approx(0.6)


def test_an_unscored_episode_has_no_reward_and_no_token_in_the_loss() -> None:
    row = training_row(PLAYED.model_copy(update={"stop_reason": StopReason.FAILED}), limit=100)
    assert row["mcpagent_reward"] is None and not any(row["env_mask"])


def test_an_episode_that_is_too_long_is_cut_in_every_list_alike() -> None:
    row = training_row(PLAYED, limit=4)
    assert row["is_cut"]
    assert [len(row[key]) for key in ("completion_ids", "logprobs", "env_mask")] == [4, 4, 4]


def test_a_prompt_of_another_dataset_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match="not of an open dataset"):
        rollout_func([[{"role": "user", "content": "hello"}]], None)
