"""What needs an engine of its own: one fits into a process at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from mcpagent.errors import RunError
from tests.vllm.test_weights import prove
from tests.vllm.world import PARITY, SHAPE, ask, prompts, requests, serving, tiny_model, train_a_little, worst


def test_logprobs_at_another_temperature_are_caught(tmp_path: Path) -> None:
    model = tiny_model()
    with serving(model, tmp_path, logprobs_mode="raw_logprobs") as policy:
        with pytest.raises(RunError, match="does not serve the weights"):
            prove(model, policy)
        asked = requests(prompts(4), temperature=0.6)
        assert worst(model, asked, ask(policy, asked)) > 0.1
    with pytest.raises(RuntimeError, match="closed"):
        ask(policy, asked)


def scaled() -> Any:
    return GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=3.0))


def capped() -> Any:
    # vLLM caps attention as well, transformers only where it is computed eagerly.
    config = Gemma2Config(**SHAPE, final_logit_softcapping=3.0, attn_implementation="eager")
    return Gemma2ForCausalLM(config)


@pytest.mark.parametrize("make", [scaled, capped])
def test_what_a_model_does_to_its_logits_is_in_what_is_sampled(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().eval()
    asked = requests(prompts(4), temperature=0.7)
    with serving(model, tmp_path) as policy:
        assert worst(model, asked, ask(policy, asked)) < PARITY
        train_a_little(model, seed=8, scale=0.01)
        policy.load_weights(model.state_dict().items())
        assert prove(model, policy) < 1e-5


def test_without_seeds_turns_differ_and_leave_the_trainers_random_stream_alone(tmp_path: Path) -> None:
    model = tiny_model()
    with serving(model, tmp_path, is_seeded=False) as policy:
        asked = requests(prompts(1) * 12, temperature=1.5, max_new_tokens=20)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        first, second = ask(policy, asked), ask(policy, asked)
        assert torch.equal(torch.rand(3), expected)  # the engine draws from a stream of its own
        turns = {c.token_ids for c in (*first, *second)}
        assert len(turns) > 20  # of 24; one stream begun again at every step would give the same turn
        whole = [c for c in first if len(c.token_ids) == 20]  # a stop token is drawn at any step
        assert len(whole) >= 3
        assert all(len(set(c.token_ids)) > 3 for c in whole)
        assert worst(model, asked, first) < PARITY
