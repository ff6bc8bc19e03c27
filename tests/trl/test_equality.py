"""One update equals TRL's: the same episodes through `GRPOTrainer` and through `grade_groups` and
`update_policy`, in float64, to 1e-8, for every option that both have."""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.gpu import run_check
from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.objective.advantages import (
    CreditSettings,
    GradedAttempt,
    GradedBatch,
    assign_credit,
    graded_batch,
)
from mcpagent.train.objective.loss import Objective
from mcpagent.train.update import UpdateSettings, update_policy
from tests.train.world import (
    VOCABULARY,
    frozen_as,
    full_logprobs,
    gradients_seen,
    make_learner,
    tiny_model,
)

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("MCPAGENT_TRL_PYTHON", ROOT / ".venv-trl" / "bin" / "python"))
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not PYTHON.is_file(), reason=f"TRL's own environment is not there ({PYTHON}): make test-trl"
    ),
    pytest.mark.timeout(300),
]

GROUPS, GROUP_SIZE, MAX_TOKENS = 2, 4, 64
REWARDS = [1.0, 0.0, 0.4, 0.9, 0.2, 0.2, 0.7, 0.0]
CLIP = {"epsilon": 0.2, "epsilon_high": 0.28, "max_completion_length": MAX_TOKENS}
KL = {"beta": 0.3, "use_bias_correction_kl": False}
BASE = UpdateSettings(
    objective=Objective(clip_low=0.2, clip_high=0.28), use_reference=False, max_response_tokens=MAX_TOKENS
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """The same thing said twice: to TRL and to us."""

    config: dict[str, Any]
    settings: UpdateSettings = BASE
    kl_coef: float = 0.0
    credit: CreditSettings = field(default_factory=CreditSettings)
    rewards: list[float | None] = field(default_factory=lambda: list(REWARDS))
    masked: bool = False  # the attempts whose last token ends nothing are left out

    @property
    def corrects_sampler(self) -> bool:
        return self.settings.tis_cap is not None


def objective(loss: str, **options: Any) -> UpdateSettings:
    own = {"clip_low": 0.2, "clip_high": 0.28, **options}
    return replace(BASE, objective=Objective(loss=loss, **own))  # type: ignore[arg-type]


def near_reference(loss: str, **options: Any) -> UpdateSettings:
    return replace(objective(loss, **options), use_reference=True)


def corrected(loss: str) -> Case:
    return Case(
        config={
            "loss_type": loss,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.5,
        },
        settings=replace(objective(loss), tis_cap=1.5),
    )


CASES = {
    "grpo": Case(config={"loss_type": "grpo"}, settings=objective("grpo")),
    "dapo": Case(config={"loss_type": "dapo"}, settings=objective("dapo")),
    "dapo is bnpo on one batch": Case(config={"loss_type": "bnpo"}, settings=objective("dapo")),
    "dr_grpo": Case(
        config={"loss_type": "dr_grpo", "scale_rewards": "none"},
        settings=objective("dr_grpo"),
        credit=CreditSettings(scale="none"),
    ),
    "gspo": Case(
        config={"loss_type": "grpo", "importance_sampling_level": "sequence"}, settings=objective("gspo")
    ),
    "cispo": Case(  # TRL's bound is absolute
        config={"loss_type": "cispo", "epsilon_high": 1.28}, settings=objective("cispo")
    ),
    "kl": Case(config={"loss_type": "grpo", **KL}, settings=near_reference("grpo"), kl_coef=0.3),
    "kl dapo": Case(config={"loss_type": "dapo", **KL}, settings=near_reference("dapo"), kl_coef=0.3),
    "kl gspo": Case(
        config={"loss_type": "grpo", **KL, "importance_sampling_level": "sequence"},
        settings=near_reference("gspo"),
        kl_coef=0.3,
    ),
    "kl cispo": Case(
        config={"loss_type": "cispo", **KL, "epsilon_high": 1.28},
        settings=near_reference("cispo"),
        kl_coef=0.3,
    ),
    "symmetric clip": Case(
        config={"loss_type": "dapo", "epsilon_high": 0.2}, settings=objective("dapo", clip_high=0.2)
    ),
    "temperature": Case(
        config={"loss_type": "dapo", "temperature": 0.7}, settings=replace(objective("dapo"), temperature=0.7)
    ),
    "entropy": Case(
        config={"loss_type": "dapo", "entropy_coef": 0.2},
        settings=replace(objective("dapo"), entropy_coef=0.2),
    ),
    "scale batch": Case(
        config={"loss_type": "grpo", "scale_rewards": "batch"},
        settings=objective("grpo"),
        credit=CreditSettings(scale="batch"),
    ),
    "scale none": Case(
        config={"loss_type": "grpo", "scale_rewards": "none"},
        settings=objective("grpo"),
        credit=CreditSettings(scale="none"),
    ),
    "mask truncated": Case(
        config={"loss_type": "dapo", "mask_truncated_completions": True},
        settings=objective("dapo"),
        masked=True,
    ),
    "token_truncate": corrected("dapo"),
    "token_truncate cispo": corrected("cispo"),
}
CASES["token_truncate cispo"].config["epsilon_high"] = 1.28
# TRL keeps attempts without a signal in its denominators, we do not: here the advantages alone are compared.
UNEVEN = {
    "unscored": Case(config={}, rewards=[1.0, None, 0.4, 0.9, 0.2, None, None, 0.0]),
    "uniform": Case(config={}, rewards=[0.3, 0.3, 0.3, 0.3, 1.0, 0.0, 0.0, 0.0]),
    "unscored batch": Case(
        config={"scale_rewards": "batch"},
        credit=CreditSettings(scale="batch"),
        rewards=[1.0, None, 0.4, 0.9, 0.2, None, 0.5, 0.0],
    ),
}


def draw(end: int) -> list[TrainSample]:
    """Two sampled turns with tokens of the environment between them; prompts of two lengths. Every third
    episode does not close its last turn with `end`."""
    rng = random.Random(0)
    model = tiny_model(dtype=torch.float64)
    samples: list[TrainSample] = []
    for group in range(GROUPS):
        prompt = [rng.randrange(VOCABULARY) for _ in range(20 + 3 * group)]
        for attempt in range(GROUP_SIZE):
            lengths = [rng.randint(2, 7) for _ in range(3)]
            ids = prompt + [rng.randrange(VOCABULARY) for _ in range(sum(lengths))]
            if attempt % 3:
                ids[-1] = end
            mask = [False] * len(prompt) + [True] * lengths[0] + [False] * lengths[1] + [True] * lengths[2]
            plain = TrainSample(token_ids_T=tuple(ids), loss_mask_T=tuple(mask))
            exact = iter(full_logprobs(model, plain).detach().tolist())
            # Ratios from about 0.6 to 1.6, so that every clip is met from both sides.
            logprobs = tuple(next(exact) + rng.uniform(-0.5, 0.5) if own else 0.0 for own in mask)
            samples.append(replace(plain, sampler_logprobs_T=logprobs))
    return samples


def episode(sample: TrainSample, reward: float | None) -> dict[str, Any]:
    prompt = sample.first_loss
    return {
        "prompt_ids": sample.token_ids_T[:prompt],
        "completion_ids": sample.token_ids_T[prompt:],
        "sampled": [int(own) for own in sample.loss_mask_T[prompt:]],
        "logprobs": sample.sampler_logprobs_T[prompt:],
        "reward": reward,
        "group_size": GROUP_SIZE,
    }


def graded(samples: list[TrainSample], case: Case, end: int) -> GradedBatch:
    kept = [s if not case.masked or s.token_ids_T[-1] == end else None for s in samples]
    attempts_of: dict[str, list[GradedAttempt]] = {}
    for start in range(0, len(samples), GROUP_SIZE):
        own = slice(start, start + GROUP_SIZE)
        rewarded = zip(case.rewards[own], kept[own], strict=True)
        attempts_of[str(start)] = [GradedAttempt(reward=r, sample=s) for r, s in rewarded]
    return graded_batch(attempts_of, case.credit)


@dataclass(frozen=True)
class Oracle:
    samples: list[TrainSample]
    end: int
    results: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder = tmp_path_factory.mktemp("trl")
    tokenizer = train_tokenizer([], vocab_size=0, catalog_hash="")
    for name, seed in (("model", 0), ("reference", 1)):
        tiny_model(seed, dtype=torch.float64).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    samples = draw(tokenizer.eos_token_id)
    cases = {
        name: {
            "config": {**CLIP, **case.config},
            "corrects_sampler": case.corrects_sampler,
            "episodes": [episode(s, r) for s, r in zip(samples, case.rewards, strict=True)],
        }
        for name, case in (CASES | UNEVEN).items()
    }
    document = {"episodes": [episode(s, r) for s, r in zip(samples, REWARDS, strict=True)], "cases": cases}
    (folder / "cases.json").write_text(json.dumps(document))
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("oracle.py")), str(folder)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Oracle(samples, tokenizer.eos_token_id, load_file(folder / "results.safetensors"))


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_trl(name: str, oracle: Oracle) -> None:
    case = CASES[name]
    model = tiny_model(dtype=torch.float64)
    reference = frozen_as(tiny_model(1, dtype=torch.float64), model)
    learner = make_learner(model, learning_rate=0.0, reference=reference)
    seen = gradients_seen(model.named_parameters())
    scored: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
        if output[0].requires_grad:
            output[0].retain_grad()
            scored.append(output[0])

    learner.scorer.register_forward_hook(keep)
    own = graded(oracle.samples, case, oracle.end)
    (batch,) = learner.batches(own.samples, max_tokens=8192)
    stats = update_policy(
        learner, own, settings=case.settings, kl_coef=case.kl_coef, first_optimizer_step=1, seed=0
    )

    assert stats.loss == pytest.approx(float(oracle.results[f"{name}/loss"]), rel=1e-8, abs=1e-10)
    (logprobs,) = scored
    assert logprobs.grad is not None
    places = [oracle.samples.index(own.samples[i]) for i in batch.rows]
    for mine, key in ((logprobs.detach(), "logprobs"), (logprobs.grad, "gradient")):
        theirs = oracle.results[f"{name}/{key}"]
        assert torch.allclose(mine, sampled(theirs, oracle, places), rtol=1e-8, atol=1e-8), key
    assert any(g.abs().max() > 1e-3 for g in seen.values())
    for parameter_name, gradient in seen.items():
        # Norms of transformers compute in float32, whatever the model is.
        expected = oracle.results[f"{name}/gradient/{parameter_name}"]
        assert torch.allclose(gradient, expected, rtol=1e-6, atol=1e-6), parameter_name


def sampled(matrix: torch.Tensor, oracle: Oracle, places: list[int]) -> torch.Tensor:
    """The values of the sampled tokens [N] of a matrix over completions [B, C]."""
    rows: list[torch.Tensor] = []
    for place in places:
        own = torch.tensor(oracle.samples[place].loss_mask_T[oracle.samples[place].first_loss :])
        rows.append(matrix[place, : len(own)][own])
    return torch.cat(rows)


@pytest.mark.parametrize("name", [*CASES, *UNEVEN])
def test_advantages_are_those_of_trl(name: str, oracle: Oracle) -> None:
    case = (CASES | UNEVEN)[name]
    own = graded(oracle.samples, case, oracle.end)
    credit = iter(assign_credit(own).advantages)
    # TRL has a zero where nothing is trained on, and an advantage for what is masked.
    expected = oracle.results[f"{name}/advantages"].tolist()
    trained = {id(a) for group in own.groups for a in group.trained}
    attempts = [a for group in own.groups for a in group.attempts]
    for attempt, value in zip(attempts, expected, strict=True):
        if id(attempt) in trained:
            assert next(credit) == pytest.approx([value, value], rel=1e-8, abs=1e-10)
        elif attempt.sample is not None:
            assert value == pytest.approx(0.0, abs=1e-10)


def test_logprobs_of_packed_trees_are_those_of_trls_fused_head(oracle: Oracle) -> None:
    learner = make_learner(tiny_model())
    (batch,) = learner.batches(oracle.samples, max_tokens=8192)
    assert learner.why_not_packed is None
    with torch.no_grad():
        logprobs, _ = learner.score(batch)
    fused = sampled(oracle.results["fused"], oracle, list(batch.rows))
    assert torch.allclose(logprobs, fused.float(), atol=2e-6)  # both in float32


def test_the_acceptance_of_a_gpu_measures_a_whole_step_beside_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """On small shapes, whose times say nothing: what both sides sampled is reported."""
    monkeypatch.setenv("MCPAGENT_TRL_PYTHON", str(PYTHON))
    rows = {row.what.partition(":")[0]: row for row in run_check("beside trl", device="cpu", is_tiny=True)}
    ours, theirs = (int(count) for count in rows["sampled tokens a step"].value.split(", "))
    assert theirs == 2 * 2 * 8  # prompts x attempts x tokens
    assert 0.5 * theirs < ours <= theirs  # a turn of ours may end earlier
    assert all(float(value) > 0 for value in rows["seconds a step"].value.split(", "))
    assert rows["of TRL's time"].ok is None
