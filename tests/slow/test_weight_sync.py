"""The weight-sync proof sees each missed update, and stops no healthy one.

Six-layer Qwen3 models with random weights in bfloat16 whose logits spread as those of trained models do
(standard deviation 4, output head of its own). They take real AdamW steps with float32 masters on random
tokens with random advantages, at the learning rates of training. Each *healthy* try is one update that
reaches the sampler; each *missed* try is one that does not.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mcpagent.core.trajectory import Completion
from mcpagent.errors import RunError
from mcpagent.policy.canary import CANARY_ROWS, Arrival, Canary
from mcpagent.policy.contract import CompletionRequest, Policy
from mcpagent.policy.hf.policy import HFPolicy
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.optim import Schedule
from mcpagent.train.weight_sync import RolloutEngine, hf_sampler, score_completions
from tests.models.adapters import adapted

pytestmark = pytest.mark.slow

VOCABULARY, CONTEXT, LOGIT_SPREAD = 4096, 256, 4.0
HIDDEN, SEED = 128, 3
MISSED, HEALTHY = 10, 40


@pytest.mark.parametrize(
    ("mode", "rate", "noise"), [("lora", 1e-6, 0.05), ("lora", 2e-5, 0.0), ("full", 1e-6, 0.05)]
)
def test_every_missed_update_is_seen_at_once_and_no_healthy_one_is_stopped(
    mode: str, rate: float, noise: float
) -> None:
    """`noise` adds to each token's logprob a fixed error of that standard deviation, as between two kernels
    of a GPU, and a hundredth of it that is another one each time. Each missed update is made up for before
    the next one, so that it is one update that is missing."""
    torch.set_num_threads(1)
    world = World(mode, rate)
    with serving(world) as sampler:
        policy: Policy = Noisy(sampler.policy, noise) if noise else sampler.policy
        watch, read_back = world.canary(), sampler.read_back
        assert read_back is not None
        asyncio.run(watch.prove(policy, version=0, read_back=read_back))
        version = 0
        for index in range(HEALTHY):
            if index < MISSED:
                version += 1
                world.step()
                with pytest.raises(RunError, match="are not what the trainer sent"):
                    asyncio.run(watch.prove(policy, version=version, read_back=read_back))
                sampler.push()
                asyncio.run(watch.prove(policy, version=version, read_back=read_back))
            version += 1
            world.step()
            sampler.push()
            assert not read_back().differing
            asyncio.run(watch.prove(policy, version=version))


class World:
    """A model in bfloat16 that takes AdamW steps with float32 masters."""

    def __init__(self, mode: str, rate: float) -> None:
        torch.manual_seed(SEED)
        self._random = random.Random(SEED)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=3 * HIDDEN,
            num_hidden_layers=6,
            num_attention_heads=HIDDEN // 32,
            num_key_value_heads=HIDDEN // 64,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
        )
        self.base: Any = Qwen3ForCausalLM(config)
        with torch.no_grad():
            head = self.base.get_output_embeddings().weight
            self.base.model.norm.weight.mul_(LOGIT_SPREAD / (float(head.std()) * HIDDEN**0.5))
        self.base = self.base.to(torch.bfloat16).eval()
        self.twin = copy.deepcopy(self.base)
        self.model = self.base
        if mode == "lora":
            self.model, self.twin = (
                adapted(model, r=16).to(torch.bfloat16) for model in (self.base, self.twin)
            )
        self.model.eval()
        self.twin.eval()
        self.learner = Learner(self.model, None, schedule=Schedule([], lambda _: 1.0), gradient_clip=None)
        self._masters = [p.detach().float().clone() for _, p in self._trained()]
        self._optimizer = torch.optim.AdamW(self._masters, lr=rate, weight_decay=0.0)

    def step(self) -> None:
        """One update on tokens and advantages of chance, clipped as training clips."""
        tokens = torch.tensor([[self._random.randrange(1, VOCABULARY) for _ in range(24)] for _ in range(4)])
        advantages = torch.tensor([self._random.gauss(0.0, 1.0) for _ in range(4)])
        logits = self.model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        logprobs = logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[:, :, 0]
        (-(logprobs.mean(1) * advantages).mean()).backward()
        for master, (_, parameter) in zip(self._masters, self._trained(), strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self._masters, 1.0)
        self._optimizer.step()
        with torch.no_grad():
            for master, (_, parameter) in zip(self._masters, self._trained(), strict=True):
                parameter.copy_(master)

    def canary(self) -> Canary:
        """Over two prompts of chance."""
        rng = random.Random(SEED + 1)
        prompts = [[rng.randrange(1, VOCABULARY) for _ in range(72)] for _ in range(2)]

        def score(rows: Sequence[Sequence[int]], own: Sequence[Sequence[int]], heat: float) -> list[float]:
            return score_completions(self.learner, rows, own, heat)

        return Canary(prompts, score=score, dtype="bfloat16", max_context=CONTEXT, seed=SEED)

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)


@contextmanager
def serving(world: World) -> Iterator[RolloutEngine]:
    """An engine with weights of its own, as an engine elsewhere would have them; `push` copies the trained
    ones to it."""
    settings: dict[str, Any] = {"stop_ids": frozenset({0}), "max_context": CONTEXT, "slots": CANARY_ROWS}
    served = hf_sampler(world.twin, decode=lambda _: "", **settings)
    policy = served.policy
    assert isinstance(policy, HFPolicy)

    def read_back() -> Arrival:
        ours, theirs = world.model.state_dict(), world.twin.state_dict()
        differing = tuple(name for name in ours if not torch.equal(ours[name], theirs[name]))
        return Arrival(tensors=len(ours), differing=differing)

    def push() -> None:
        policy.on_weights_changed(lambda: world.twin.load_state_dict(world.model.state_dict()))

    push()
    try:
        yield RolloutEngine(policy=policy, push=push, close=served.close, read_back=read_back)
    finally:
        served.close()


class Noisy:
    """A policy whose logprobs are off by an error of their own, nearly the same each time."""

    def __init__(self, policy: Policy, size: float) -> None:
        self._policy, self._size, self._fresh = policy, size, random.Random(SEED)

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        completions = await self._policy.complete(requests)
        return [self._changed(r, c) for r, c in zip(requests, completions, strict=True)]

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)

    def _changed(self, request: CompletionRequest, completion: Completion) -> Completion:
        logprobs: list[float] = []
        for place, (token, value) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
            fixed = random.Random(f"{SEED}/{request.episode_id}/{place}/{token}").gauss(0.0, self._size)
            logprobs.append(min(0.0, value + fixed + self._fresh.gauss(0.0, self._size / 100)))
        return completion.model_copy(update={"logprobs": tuple(logprobs)})
