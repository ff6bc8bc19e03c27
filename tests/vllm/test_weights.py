"""All weights replaced, one test for each way in which that goes wrong silently. Every trap is sprung first,
by the plain call that vLLM offers: the canary must see it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mcpagent.core.trajectory import Completion
from mcpagent.errors import RunError
from mcpagent.policy.canary import Canary
from mcpagent.policy.vllm.engine import VllmPolicy
from tests.vllm.world import (
    PARITY,
    ask,
    logprobs,
    prompts,
    requests,
    serving,
    tiny_model,
    train_a_little,
    worst,
)


@pytest.fixture
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmPolicy]:
    """Over the weights of `tiny_model()` at first; `policy` gives it the test's own."""
    with serving(tiny_model(), tmp_path_factory.mktemp("model"), version=-1) as policy:
        yield policy


@pytest.fixture
def policy(engine: VllmPolicy, model: Any) -> VllmPolicy:
    engine.load_weights(model.state_dict().items())
    return engine


def canary(model: Any) -> Canary:
    def score(
        contexts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], temperature: float
    ) -> list[float]:
        return [
            value
            for context, token_ids in zip(contexts, completions, strict=True)
            for value in logprobs(
                model,
                requests([context], temperature=temperature)[0],
                Completion(text="", token_ids=tuple(token_ids)),
            )
        ]

    return Canary(prompts(4), score=score, dtype="float32", max_context=256)


def prove(model: Any, policy: Any) -> float:
    return asyncio.run(canary(model).prove(policy, version=policy.version)).difference


def reload_plainly(policy: VllmPolicy, model: Any) -> None:
    """The tensors of the model's checkpoint, which has no head of its own where it is tied, the way vLLM's
    documentation loads them."""
    names = dict(model.named_parameters())  # without the second name of a tied tensor
    weights = {"weights_iterator": [(name, model.state_dict()[name]) for name in names]}
    engine = policy.engine
    policy.call(lambda: engine._llm.collective_rpc("reload_weights", kwargs=weights))


@pytest.mark.parametrize("names", ["both names of the tied tensor", "one name, as in a checkpoint"])
def test_new_weights_with_a_tied_head_are_served_whole(policy: VllmPolicy, model: Any, names: str) -> None:
    asked = requests(prompts(8), temperature=0.8)
    train_a_little(model, seed=1)
    tensors = model.state_dict() if names.startswith("both") else dict(model.named_parameters())
    policy.load_weights((name, value.detach()) for name, value in tensors.items())
    assert worst(model, asked, ask(policy, asked)) < PARITY
    assert prove(model, policy) < 1e-5


def test_a_tied_head_that_kept_its_old_weights_is_caught(policy: VllmPolicy, model: Any) -> None:
    train_a_little(model, seed=2)
    reload_plainly(policy, model)
    policy.call(policy.engine._llm.reset_prefix_cache)  # so that the head alone is stale
    with pytest.raises(RunError, match="does not serve the weights"):
        prove(model, policy)


def test_keys_of_old_weights_in_the_prefix_cache_are_caught(policy: VllmPolicy, model: Any) -> None:
    from mcpagent.policy.vllm.worker import repack_heads

    prove(model, policy)  # its prompts are in the cache now
    train_a_little(model, seed=3)
    reload_plainly(policy, model)
    policy.call(lambda: policy.engine._llm.apply_model(repack_heads))
    with pytest.raises(RunError, match="does not serve the weights"):
        prove(model, policy)
    policy.call(policy.engine._llm.reset_prefix_cache)
    assert prove(model, policy) < 1e-5


def test_weights_that_were_never_sent_are_caught_with_both_numbers(policy: VllmPolicy, model: Any) -> None:
    train_a_little(model, seed=4)
    with pytest.raises(RunError, match=r"mean logprob is -\d+\.\d+, the trainer's -\d+\.\d+ nats"):
        prove(model, policy)


def test_sleeping_and_waking_changes_nothing(policy: VllmPolicy, model: Any) -> None:
    policy.sleep()
    policy.wake()
    assert prove(model, policy) < 1e-5
