"""The copying curriculum of the warm start."""

from __future__ import annotations

import re

import pytest

from mcpagent.demo.embedded_model import train_tokenizer
from mcpagent.demo.warm_start import copy
from mcpagent.models.tokens import Renderer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(train_tokenizer([], vocab_size=0, catalog_hash=""))


def test_a_copy_task_asks_for_the_users_text_and_nothing_else(renderer: Renderer) -> None:
    for sample in copy(renderer, count=20, seed=4):
        pairs = list(zip(sample.token_ids_T, sample.loss_mask_T, strict=True))
        wanted = renderer.decode([i for i, own in pairs if own])
        shown = renderer.decode([i for i, own in pairs if not own])
        asked = re.fullmatch(r"<\|im_start\|>user\n(.*)<\|im_end\|>\n<\|im_start\|>assistant\n", shown)
        assert asked is not None
        assert asked.group(1) == wanted != ""
        assert sample.token_ids_T[-1] in renderer.stop_ids


def test_copy_tasks_depend_on_their_seed_alone(renderer: Renderer) -> None:
    first, again, other = (copy(renderer, count=5, seed=s) for s in (1, 1, 2))
    assert first == again != other
