"""The weight-sync proof over transformers: what it passes, and each failure that it must see. The failures of
vLLM are in tests/vllm."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from mcpagent.core.trajectory import Completion
from mcpagent.errors import RunError
from mcpagent.models.adapters import MergedCopy
from mcpagent.policy.canary import CANARY_ROWS, Arrival, Canary, Proof
from mcpagent.policy.contract import CompletionRequest, Policy
from mcpagent.policy.hf.policy import HFPolicy
from tests.models.adapters import adapted
from tests.models.families import VOCABULARY
from tests.policy import oracle
from tests.policy.oracle import MAX_CONTEXT, tiny_model

PROMPTS = [[(7 * i + 3 * j) % (VOCABULARY - 1) + 1 for j in range(40)] for i in range(CANARY_ROWS)]


def lora_model() -> Any:
    return adapted(tiny_model()).eval()


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
        rows = [torch.tensor([*prompt, *own]) for prompt, own in zip(prompts, completions, strict=True)]
        every = model(input_ids=pad_sequence(rows, batch_first=True)).logits
        for logits, prompt, own in zip(every, prompts, completions, strict=True):
            logprobs = (logits[len(prompt) - 1 :].double() / temperature).log_softmax(-1)
            values += [float(logprobs[i, token]) for i, token in enumerate(own)]
        return values

    return score


def serving(model: Any) -> AbstractContextManager[HFPolicy]:
    return oracle.serving(model, slots=CANARY_ROWS)


def watching(model: Any, *, dtype: str = "float32") -> Canary:
    return Canary(PROMPTS, score=scorer(model), dtype=dtype, max_context=MAX_CONTEXT)


def proved(canary: Canary, policy: Policy, version: int, read_back: Any = None) -> Proof:
    return asyncio.run(canary.prove(policy, version=version, read_back=read_back))


def prove(policy: Policy, model: Any, *, dtype: str = "float32") -> Proof:
    return proved(watching(model, dtype=dtype), policy, 3)


Change = Callable[[Sequence[CompletionRequest], list[Completion]], list[Completion]]


class Changed:
    """A policy whose completions are changed on their way."""

    def __init__(self, policy: Policy, change: Change) -> None:
        self._policy, self._change = policy, change

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        return self._change(requests, await self._policy.complete(requests))

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)


def with_logprobs(completion: Completion, logprobs: Iterable[float]) -> Completion:
    return completion.model_copy(update={"logprobs": tuple(logprobs)})


def altered(policy: Policy, change: Callable[[float], float]) -> Changed:
    return Changed(
        policy, lambda _, completions: [with_logprobs(c, map(change, c.logprobs)) for c in completions]
    )


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

    def at_temperature_1(
        requests: Sequence[CompletionRequest], completions: list[Completion]
    ) -> list[Completion]:
        own = [c.token_ids for c in completions]
        values = iter(scorer(model)([r.token_ids for r in requests], own, 1.0))
        return [with_logprobs(c, [next(values) for _ in c.token_ids]) for c in completions]

    with serving(model) as policy, pytest.raises(RunError, match="does not serve the weights"):
        prove(Changed(policy, at_temperature_1), model)


@pytest.mark.parametrize(("dtype", "noise"), [("float32", 1e-3), ("float16", 0.03), ("bfloat16", 0.08)])
def test_what_the_dtype_explains_passes_and_more_does_not(dtype: str, noise: float) -> None:
    model = tiny_model()
    with serving(model) as policy:
        assert prove(altered(policy, lambda p: p + noise / 10), model, dtype=dtype).difference > 0
        with pytest.raises(RunError):
            prove(altered(policy, lambda p: p + noise), model, dtype=dtype)


def test_a_logprob_that_is_no_number_does_not_pass() -> None:
    model = tiny_model()
    with serving(model) as policy, pytest.raises(RunError):
        prove(altered(policy, lambda _: math.nan), model)


def test_what_was_wrong_once_and_is_right_when_measured_again_does_not_stop_a_run() -> None:
    model = tiny_model()
    with serving(model) as policy:
        off = itertools.chain([1.0], itertools.repeat(0.0))  # in its first answer alone

        def wrong_once(_: Sequence[CompletionRequest], completions: list[Completion]) -> list[Completion]:
            gap = next(off)
            return [with_logprobs(c, [p - gap for p in c.logprobs]) for c in completions]

        assert prove(Changed(policy, wrong_once), model).difference < 1e-5
        readings = iter([Arrival(tensors=2, differing=("a",)), Arrival(tensors=2), Arrival(tensors=2)])
        canary = watching(model)
        assert proved(canary, policy, 0, lambda: next(readings)).arrived == 2
        with pytest.raises(RunError, match=r"of 2 tensors of policy version 1 .*, b and 1 more are not"):
            proved(canary, policy, 1, lambda: Arrival(tensors=2, differing=("b", "c")))


def test_where_the_weights_were_read_back_a_noisier_pair_of_engines_sets_its_own_limit() -> None:
    model = tiny_model()
    arrived = lambda: Arrival(tensors=1)  # noqa: E731
    with serving(model) as policy:
        for noise, limit in ((0.06, 0.12), (0.02, 0.05)):
            canary = watching(model, dtype="bfloat16")
            proved(canary, altered(policy, lambda p, n=noise: p - n), 0, arrived)
            proved(canary, altered(policy, lambda p, n=limit - 0.005: p - n), 1, arrived)
            with pytest.raises(RunError, match=rf"bfloat16 explains {limit:g}"):
                proved(canary, altered(policy, lambda p, n=limit + 0.005: p - n), 2, arrived)
        with pytest.raises(RunError):  # nothing says that its weights are right
            proved(watching(model, dtype="bfloat16"), altered(policy, lambda p: p - 0.06), 0)
