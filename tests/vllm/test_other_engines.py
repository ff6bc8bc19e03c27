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


def test_an_untied_model_is_served_whole_too(tmp_path: Path) -> None:
    model = tiny_model(tied=False)
    with serving(model, tmp_path) as policy:
        train_a_little(model, seed=7)
        policy.load_weights(model.state_dict().items())
        assert prove(model, policy) < 1e-5


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
