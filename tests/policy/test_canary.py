"""The weight-sync proof over transformers: what it passes, and each failure that it must see. The failures of
vLLM are in tests/vllm."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mcpagent.core.trajectory import Completion
from mcpagent.errors import RunError
from mcpagent.models.load import LoraShape, MergedCopy, attach_lora
from mcpagent.policy.canary import CANARY_ROWS, Canary, Proof
from mcpagent.policy.contract import CompletionRequest, Policy
from mcpagent.policy.hf.policy import HFPolicy
from tests.policy.oracle import MAX_CONTEXT, STOP, VOCABULARY, tiny_model

PROMPTS = [[(7 * i + 3 * j) % (VOCABULARY - 1) + 1 for j in range(40)] for i in range(CANARY_ROWS)]


def lora_model() -> Any:
    torch.manual_seed(0)
    shape = LoraShape(r=4, alpha=8.0, dropout=0.0, target_modules="all-linear")
    return attach_lora(tiny_model(), shape, seed=0).eval()


@torch.no_grad()
def train_a_little(model: Any) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))


def scorer(model: Any) -> Any:
    @torch.no_grad()
    def score(
        prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], temperature: float
    ) -> list[float]:
        values: list[float] = []
        for prompt, own in zip(prompts, completions, strict=True):
            logits = model(input_ids=torch.tensor([[*prompt, *own]])).logits[0, len(prompt) - 1 : -1]
            logprobs = (logits.double() / temperature).log_softmax(-1)
            values += [float(logprobs[i, token]) for i, token in enumerate(own)]
        return values

    return score


@contextmanager
def serving(model: Any) -> Iterator[HFPolicy]:
    policy = HFPolicy(
        model, decode=lambda ids: "", stop_ids=frozenset({STOP}), max_context=MAX_CONTEXT, slots=CANARY_ROWS
    )
    try:
        yield policy
    finally:
        policy.close()


def prove(policy: Policy, model: Any, *, dtype: str = "float32") -> Proof:
    canary = Canary(PROMPTS, score=scorer(model), dtype=dtype, max_context=MAX_CONTEXT)
    return asyncio.run(canary.prove(policy, version=3))


class Altered:
    """A policy whose logprobs are changed on their way."""

    def __init__(self, policy: Policy, change: Any) -> None:
        self._policy, self._change = policy, change

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        completions = await self._policy.complete(requests)
        return [c.model_copy(update={"logprobs": tuple(map(self._change, c.logprobs))}) for c in completions]

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)


def test_a_merged_copy_that_was_brought_up_to_date_passes() -> None:
    model = lora_model()
    merged = MergedCopy(model)
    with serving(merged.model) as policy:
        train_a_little(model)
        merged.sync()
        policy.on_weights_changed()
        proof = prove(policy, model)
    assert proof.difference < 1e-5
    assert proof.largest >= proof.difference
    assert CANARY_ROWS <= proof.tokens <= 2 * CANARY_ROWS
    assert proof.sampler == pytest.approx(proof.trainer, abs=1e-5)


def test_adapters_that_were_not_merged_again_are_caught_with_both_numbers() -> None:
    model = lora_model()
    with serving(MergedCopy(model).model) as policy:
        train_a_little(model)
        policy.on_weights_changed()
        with pytest.raises(RunError, match=r"version 3 its mean logprob is -\d.*, the trainer's -\d.* nats"):
            prove(policy, model)


def test_logprobs_at_another_temperature_are_caught_also_where_episodes_have_temperature_1() -> None:
    model = tiny_model()

    class Unscaled:
        """Samples at the temperature that it is asked for; its logprobs are those at temperature 1."""

        async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
            completions = await policy.complete(requests)
            own = [c.token_ids for c in completions]
            values = iter(scorer(model)([r.token_ids for r in requests], own, 1.0))
            return [
                c.model_copy(update={"logprobs": tuple(next(values) for _ in c.token_ids)})
                for c in completions
            ]

        async def release(self, episode_id: str) -> None:
            await policy.release(episode_id)

    with serving(model) as policy, pytest.raises(RunError, match="does not serve the weights"):
        prove(Unscaled(), model)


@pytest.mark.parametrize(("dtype", "noise"), [("float32", 1e-3), ("float16", 0.03), ("bfloat16", 0.08)])
def test_what_the_dtype_explains_passes_and_more_does_not(dtype: str, noise: float) -> None:
    model = tiny_model()
    with serving(model) as policy:
        assert prove(Altered(policy, lambda p: p + noise / 10), model, dtype=dtype).difference > 0
        with pytest.raises(RunError):
            prove(Altered(policy, lambda p: p + noise), model, dtype=dtype)


def test_a_logprob_that_is_no_number_does_not_pass() -> None:
    model = tiny_model()
    with serving(model) as policy, pytest.raises(RunError):
        prove(Altered(policy, lambda _: math.nan), model)


def test_it_is_due_as_often_as_asked() -> None:
    def due(every: int) -> list[int]:
        canary = Canary(PROMPTS, score=scorer(None), dtype="float32", max_context=MAX_CONTEXT, every=every)
        return [version for version in range(7) if canary.is_due(version)]

    assert due(1) == list(range(7))
    assert due(3) == [0, 3, 6]
    assert due(0) == []
