"""Advantages and losses of SkyRL's batches equal the native ones on the same episodes, failed ones too."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.train.config import AlgorithmConfig
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors

from mcpagent.config.loader import load_train_config
from mcpagent.engines.skyrl.config import translate
from mcpagent.engines.skyrl.credit import credit_batch, native_credit, weigh_advantages
from mcpagent.engines.skyrl.task import skyrl_config
from mcpagent.rollout.collector import group_trajectories
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.objective.advantages import CreditSettings, assign_credit
from mcpagent.train.objective.grading import GradeSettings, Overlong, grade_groups
from mcpagent.train.objective.loss import policy_loss, sampler_weights, token_weights
from mcpagent.train.settings import grade_settings, update_settings
from tests.skyrl.test_episodes import BAD_SETUP
from tests.skyrl.world import TOKENIZER, ScriptedEngine, generator, gold, play, row, stops_early, uids

GROUP = 4
CLOSE = 1e-6  # SkyRL holds rewards in float32
# Group 0: two of four succeed, and one failed; 1: all alike; 2: one is cut; 3: one succeeds, two failed.
SCRIPTS = {"0_0": stops_early, "0_3": stops_early, "2_0": stops_early, "3_0": stops_early}


@pytest.fixture(scope="module")
def played() -> tuple[Any, list[Any]]:
    rows = [row() for _ in range(16)]
    for place in (2, 14, 15):
        rows[place] = row(truth=BAD_SETUP)
    engine = ScriptedEngine(script=lambda s: SCRIPTS.get(s, gold), cut=lambda s: s == "2_1")
    maker = generator(engine)
    output = play(maker, rows, group_size=GROUP)
    assert len(maker.played["train"]) == 16
    return output, maker.played["train"]


def tensors(output: Any) -> Any:
    """SkyRL's training batch of the output, as `convert_to_training_input` makes it."""
    sequences, attention, response, rewards, loss, logprobs, *_ = convert_prompts_responses_to_batch_tensors(
        TOKENIZER.pad_token_id,
        output["prompt_token_ids"],
        output["response_ids"],
        output["rewards"],
        output["loss_masks"],
        output["rollout_logprobs"],
    )
    batch = TrainingInputBatch(
        {
            "sequences": sequences,
            "attention_mask": attention,
            "response_mask": response,
            "rewards": rewards.double(),
            "loss_mask": loss.double(),
            "rollout_logprobs": logprobs.double(),
            "values": None,
        }
    )
    batch.metadata = {"uids": uids(16, group_size=GROUP), "stop_reasons": list(output["stop_reasons"])}
    return batch


def drawn(samples: list[TrainSample], seed: int) -> list[torch.Tensor]:
    rng = random.Random(seed)
    return [torch.tensor([rng.uniform(-1, 0) for _ in range(s.loss_tokens)]).double() for s in samples]


def native(trajectories: list[Any], config: Any, *, values: dict[str, list[float]] | None = None) -> Any:
    """The graded batch, its advantages by turn, and the ids of the trained episodes in their order."""
    grading = grade_settings(config)
    overlong = Overlong(mask_truncated=grading.overlong.mask_truncated)
    settings = GradeSettings(credit=grading.credit, overlong=overlong)
    graded = grade_groups(group_trajectories(trajectories), settings=settings)
    by_sample = {
        id(a.sample): t.id
        for g, group in zip(graded.groups, group_trajectories(trajectories), strict=True)
        for a, t in zip(g.attempts, group.trajectories, strict=True)
    }
    ids = [by_sample[id(sample)] for sample in graded.samples]
    state_values = None if values is None else [values[name] for name in ids]
    return graded, assign_credit(graded, values=state_values), ids


def by_token(values: list[float], sample: TrainSample) -> list[float]:
    """The value of each turn of a sample, once for each of its tokens."""
    return [v for v, n in zip(values, sample.turn_tokens_K, strict=True) for _ in range(n)]


CASES = [
    ("grpo.advantage=group",),
    ("grpo.advantage=group", "grpo.normalize_advantages=false"),
    ("grpo.advantage=group", "grpo.normalize_advantages=batch"),
    ("grpo.advantage=rloo",),
    ("grpo.advantage=reinforce++",),
    ("grpo.advantage=gae", "grpo.gamma=0.9", "grpo.lambda_gae=0.8"),
    ("grpo.loss=dapo",),
    ("grpo.loss=dr_grpo", "grpo.normalize_advantages=false"),
    ("grpo.loss=gspo", "grpo.dual_clip=null"),
    ("grpo.dual_clip=1.3",),
    ("grpo.loss=cispo",),
    ("grpo.loss=dapo", "grpo.mask_truncated=true"),
    ("grpo.tis_cap=1.05",),
]


@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
def test_advantages_and_losses_equal_the_native_ones(
    played: tuple[Any, list[Any]], overrides: tuple[str, ...]
) -> None:
    output, trajectories = played
    base = (
        "grpo.kl_coef=0",
        "grpo.loss=grpo",
        "grpo.tis_cap=null",
        "grpo.normalize_advantages=null",
        "rollout.max_new_tokens=64",
    )
    config = load_train_config([], [*base, *overrides]).config
    batch = tensors(output)
    values = None
    if config.grpo.advantage == "gae":
        torch.manual_seed(0)
        batch["values"] = torch.randn(batch["rewards"].shape, dtype=torch.float64)
        values = {}
        for i, trajectory in enumerate(trajectories):
            mask = batch["loss_mask"][i].bool().tolist()
            starts = [k for k, on in enumerate(mask) if on and (k == 0 or not mask[k - 1])]
            values[trajectory.id] = [float(batch["values"][i, k]) for k in starts]
    graded, credit, ids = native(trajectories, config, values=values)
    assert 0 < len(ids) <= 13  # three failed, and some groups are all alike
    metrics = credit_batch(batch, grade_settings(config))
    assert metrics["trained_samples"] == len(ids)
    rows = [next(i for i, t in enumerate(trajectories) if t.id == name) for name in ids]
    for i in range(16):
        is_trained = bool(batch["loss_mask"][i].any())
        assert is_trained == (i in rows)
    for place, i in enumerate(rows):
        mask = batch["loss_mask"][i].bool()
        advantages = by_token(credit.advantages[place], graded.samples[place])
        assert batch["advantages"][i][mask].tolist() == pytest.approx(advantages, abs=CLOSE)
        if config.grpo.advantage == "gae":
            returns = by_token(credit.returns[place], graded.samples[place])
            assert batch["returns"][i][mask].tolist() == pytest.approx(returns, abs=CLOSE)
    # The loss of new logprobs against old ones, and against the sampler's.
    new, old, sampler = (drawn(graded.samples, seed) for seed in (1, 2, 3))
    assert skyrl_loss(config, batch, rows, new, old, sampler) == pytest.approx(
        native_loss(config, graded, credit, new, old, sampler), abs=CLOSE
    )


def native_loss(config: Any, graded: Any, credit: Any, new: Any, old: Any, sampler: Any) -> float:
    settings = update_settings(config)
    lengths = torch.tensor([len(x) for x in new])
    weights = None
    if config.grpo.tis_cap is not None:
        weights = sampler_weights(torch.cat(old), torch.cat(sampler), cap=config.grpo.tis_cap)
    pairs = zip(credit.advantages, graded.samples, strict=True)
    advantages = [a for turns, sample in pairs for a in by_token(turns, sample)]
    parts = policy_loss(
        torch.cat(new),
        objective=settings.objective,
        old_logprobs_N=torch.cat(old),
        advantages_N=torch.tensor(advantages).double(),
        lengths_B=lengths,
        weights_N=weights,
    )
    by_sample = token_weights(
        lengths.tolist(), loss=config.grpo.loss, max_tokens=settings.max_response_tokens
    )
    return float((parts.loss_N * torch.tensor(by_sample).double().repeat_interleave(lengths)).sum())


def skyrl_loss(config: Any, batch: Any, rows: list[int], new: Any, old: Any, sampler: Any) -> float:
    """By SkyRL's own loss, with the settings that the run is mapped onto."""
    weigh_advantages(batch, [(0, 16)], update_settings(config))
    shape = batch["advantages"].shape
    placed = []
    for drawn_rows in (new, old, sampler):
        full = torch.zeros(shape, dtype=torch.float64)
        for i, logprobs in zip(rows, drawn_rows, strict=True):
            full[i, batch["loss_mask"][i].bool()] = logprobs
        placed.append(full)
    algorithm: AlgorithmConfig = skyrl_config(translate(config), {}).trainer.algorithm
    loss, _ = PolicyLossRegistry.get(algorithm.policy_loss_type)(
        placed[0], placed[1], batch["advantages"], algorithm, batch["loss_mask"], placed[2]
    )
    return float(loss)


def test_each_optimiser_batch_is_weighed_by_itself(played: tuple[Any, list[Any]]) -> None:
    """Groups 0 and 1 in one, 2 and 3 in the other: 3 rows are trained on in the first, 6 in the second."""
    output, _ = played
    config = load_train_config([], ["grpo.kl_coef=0", "grpo.loss=grpo"]).config
    batch = tensors(output)
    credit_batch(batch, grade_settings(config))
    before = batch["advantages"].clone()
    weigh_advantages(batch, [(0, 8), (8, 16)], update_settings(config))
    for rows, trained in ((range(8), 3), (range(8, 16), 6)):
        for i in rows:
            tokens = int(batch["loss_mask"][i].sum())
            if tokens:
                expected = before[i] / (trained * tokens)
                assert batch["advantages"][i].tolist() == pytest.approx(expected.tolist(), abs=CLOSE)


def test_a_kl_in_the_reward_is_taken_off_its_own_turn() -> None:
    """Two turns of two tokens; the KL costs 0.1 a token. group: totals 1 - 0.4 and 0 - 0.4, so that the
    difference is 1 and the mean 0.1: +-0.5 without a deviation."""
    rewards = torch.full((2, 5), -0.1)
    rewards[:, 2] = 0.0
    rewards[0, 4] += 1.0
    mask, scored = torch.tensor([[1.0, 1.0, 0.0, 1.0, 1.0]] * 2), torch.tensor([True, True])
    group = CreditSettings(scale="none")
    advantages, _, _ = native_credit(rewards, mask, ["a", "a"], group, scored_B=scored)
    assert advantages[0].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.5, 0.5], abs=1e-6)
    # gae without a value: undiscounted sums of what is left, turn by turn: 1 - 0.4 and 1 - 0.2.
    gae = CreditSettings(advantage="gae", scale="none", gamma=1.0, lambda_=1.0)
    _, returns, _ = native_credit(
        rewards, mask, ["a", "a"], gae, scored_B=scored, values_BL=torch.zeros(2, 5)
    )
    assert returns[0].tolist() == pytest.approx([0.6, 0.6, 0.0, 0.8, 0.8], abs=1e-6)
