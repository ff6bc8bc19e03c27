"""A small learner, samples and trajectories for tests of training."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mcpagent.core.trajectory import Completion, RewardTerm, StopReason, Trajectory, Turn
from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.batch.scoring import TokenScorer
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.optim import Precision, Schedule, build_optimizers, linear_schedule
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.reference import ShadowReference
from mcpagent.train.learner.wrapping import Wrapping
from mcpagent.train.objective.advantages import CreditSettings, GradedAttempt, GradedBatch, GradedGroup
from mcpagent.train.objective.value import ValueHead, named_parameters

VOCABULARY = 280
GIVEN = CreditSettings(advantage="given")


def tiny_model(seed: int = 0, *, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=24,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(dtype).eval()


def make_learner(
    model: Any,
    *,
    kind: str = "adamw",
    learning_rate: float = 0.01,
    gradient_clip: float | None = None,
    reference: ShadowReference | None = None,
    value_head: ValueHead | None = None,
    precision: Precision | None = None,
    processes: Processes | None = None,
    wrapping: Wrapping | None = None,
    scorer: TokenScorer | None = None,
) -> Learner:
    optimizers = build_optimizers(
        [*model.named_parameters(), *named_parameters(value_head)],
        kind=kind,
        learning_rate=learning_rate,
        muon_learning_rate=learning_rate,
        betas=(0.9, 0.98),
        weight_decay=0.1,
    )
    return Learner(
        model,
        train_tokenizer([], vocab_size=0, catalog_hash=""),
        schedule=Schedule(optimizers, linear_schedule(total=10)),
        gradient_clip=gradient_clip,
        precision=precision,
        processes=processes,
        reference=reference,
        value_head=value_head,
        wrapping=wrapping,
        scorer=scorer,
    )


def frozen_as(other: Any, model: Any) -> ShadowReference:
    """A reference of `model` with the weights of `other`."""
    reference = ShadowReference(model.named_parameters(), every=None)
    reference.shadows |= {name: weight.detach() for name, weight in other.named_parameters()}
    return reference


def some_samples(count: int, *, seed: int = 0, prefix: int = 24) -> list[TrainSample]:
    """Of different lengths, with a shared prompt, two sampled stretches each, and their logprobs made up."""
    rng = random.Random(seed)
    prompt = [rng.randrange(VOCABULARY) for _ in range(prefix)]
    samples: list[TrainSample] = []
    for _ in range(count):
        stretches = [(len(prompt), False), *((rng.randint(2, 9), own) for own in (False, True, False, True))]
        mask = [own for length, own in stretches for _ in range(length)]
        ids = prompt + [rng.randrange(VOCABULARY) for _ in range(len(mask) - len(prompt))]
        logprobs = [-rng.uniform(4.0, 7.0) if own else 0.0 for own in mask]
        samples.append(
            TrainSample(token_ids_T=tuple(ids), loss_mask_T=tuple(mask), sampler_logprobs_T=tuple(logprobs))
        )
    return samples


def given(
    samples: Sequence[TrainSample],
    rewards: Sequence[float],
    *,
    groups: Sequence[int] | None = None,
    settings: CreditSettings = GIVEN,
) -> GradedBatch:
    """The samples with these rewards, which are their advantages if nothing else is said, each a group of its
    own or in those of `groups`."""
    places = list(groups or range(len(samples)))
    attempts = [GradedAttempt(reward=r, sample=s) for s, r in zip(samples, rewards, strict=True)]
    return GradedBatch(
        groups=tuple(
            GradedGroup(
                group_id=str(place),
                attempts=tuple(a for a, own in zip(attempts, places, strict=True) if own == place),
            )
            for place in sorted(set(places))
        ),
        settings=settings,
    )


def gradients_seen(named: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, torch.Tensor]:
    """What will hold the last gradient of each parameter, also of those that a step clears."""
    seen: dict[str, torch.Tensor] = {}
    for name, parameter in named:
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: seen.__setitem__(name, p.grad.detach().clone())
        )
    return seen


def full_logprobs(model: Any, sample: TrainSample, *, temperature: float = 1.0) -> torch.Tensor:
    """Logprobs [N] of the sample's own tokens, from all logits of a row that is alone."""
    ids = torch.tensor([sample.token_ids_T])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].double() / temperature
    logprobs = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    return torch.stack(
        [logprobs[i - 1, sample.token_ids_T[i]] for i, own in enumerate(sample.loss_mask_T) if own]
    )


def on_policy(model: Any, samples: Sequence[TrainSample]) -> list[TrainSample]:
    """The samples as if `model` had sampled them."""
    made: list[TrainSample] = []
    for sample in samples:
        with torch.no_grad():
            own = iter(full_logprobs(model, sample).tolist())
        logprobs = tuple(next(own) if sampled else 0.0 for sampled in sample.loss_mask_T)
        made.append(replace(sample, sampler_logprobs_T=logprobs))
    return made


def trajectory(
    group: str, attempt: int, reward: float | None, *, tokens: Sequence[Sequence[int]] = ((5, 6),)
) -> Trajectory:
    """An attempt with that reward (None: unscored), one turn for each list of sampled tokens."""
    return Trajectory(
        id=f"{group}#{attempt}",
        task_id=group,
        group_id=group,
        attempt=attempt,
        turns=tuple(
            Turn(
                index=i,
                added_token_ids=(1, 2, 3),
                completion=Completion(
                    text="", token_ids=tuple(ids), logprobs=tuple(-0.1 * (k + 1) for k in range(len(ids)))
                ),
            )
            for i, ids in enumerate(tokens)
        ),
        stop_reason=StopReason.ANSWERED if reward is not None else StopReason.FAILED,
        reward_terms=(RewardTerm(name="success", value=reward, weight=1.0),),
    )
