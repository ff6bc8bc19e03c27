"""An engine without seeds; a process can have no other beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from tests.vllm.world import PARITY, ask, prompts, requests, serving, tiny_model, worst


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
        probes = [replace(request, is_repeatable=True) for request in asked]
        assert [c.token_ids for c in ask(policy, probes)] == [c.token_ids for c in ask(policy, probes)]
