"""Architectures that the slot cache cannot serve, or whose logits are more than the head's, against sampling
without any cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from mcpagent.policy.hf.slot_engine import cache_keyword
from tests.models.families import FAMILIES, SHAPE, tiny
from tests.policy.oracle import naive_turn, request, serving


def windowed() -> Any:
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=5))


def recurrent() -> Any:
    """Gated linear attention in the first layer, full attention in the second."""
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
    }
    config = Qwen3_5TextConfig(**SHAPE, **linear, layer_types=["linear_attention", "full_attention"])
    return Qwen3_5ForCausalLM(config)


def without_a_cache() -> Any:
    """One that does not give back what it could be continued from."""
    return MambaForCausalLM(MambaConfig(**SHAPE, state_size=4))


MODELS: dict[str, Callable[[], Any]] = {
    "windowed": windowed,
    "recurrent": recurrent,
    "without a cache": without_a_cache,
    **{family: partial(tiny, family) for family in FAMILIES},
}


@pytest.mark.parametrize("name", MODELS)
def test_turns_of_any_architecture_are_sampled_as_without_a_cache(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()

    async def run() -> None:
        contexts = {f"e{i}": list(range(3, 8 + 3 * i)) for i in range(3)}
        for turn in range(2):
            asked = [request(e, c, seed=turn + len(c), max_new_tokens=9) for e, c in contexts.items()]
            for own, completion in zip(asked, await policy.complete(asked), strict=True):
                tokens, logprobs, reason = naive_turn(model, own)
                assert (completion.token_ids, completion.finish_reason) == (tokens, reason)
                assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)
                contexts[own.episode_id] += [*completion.token_ids, 5, 6]
        await policy.release("e0")

    with serving(model) as policy:
        asyncio.run(run())


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("name", ["windowed", "recurrent"])
def test_a_turn_computes_its_context_once_whatever_transformers_calls_the_cache(name: str) -> None:
    model, computed = MODELS[name]().eval(), list[int]()
    model.get_decoder().register_forward_pre_hook(
        lambda _module, _args, named: computed.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    with serving(model, stop_ids=frozenset()) as policy:
        asyncio.run(policy.complete([request("e", [3, 4, 5, 6, 7], max_new_tokens=4)]))
    assert computed == [5, 1, 1, 1]


class _NamesIt(torch.nn.Module):
    def forward(self, input_ids: Any = None, cache: Any = None) -> None: ...


class _NamesItAsBefore(torch.nn.Module):
    def forward(self, input_ids: Any = None, past_key_values: Any = None, **others: Any) -> None: ...


def test_a_decoder_is_given_its_cache_by_the_name_that_it_has_for_it() -> None:
    assert cache_keyword(_NamesIt()) == "cache"
    assert cache_keyword(_NamesItAsBefore()) == "past_key_values"
