"""What a configuration leaves open is decided by what samples and what trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError
from mcpagent.models.load import load_tokenizer
from mcpagent.train.load import Loaded, as_loaded
from mcpagent.train.sampler import refuse_shared_engine, why_corrected
from mcpagent.train.settings import update_settings
from tests.policy.oracle import tiny_model


def tis_cap(*overrides: str, dtype: torch.dtype = torch.float32) -> float | None:
    """That of a run with these settings, on a model held in `dtype`."""
    config = load_train_config([resource_path("configs/quickstart.yaml")], list(overrides)).config
    model = tiny_model().to(dtype)
    loaded = Loaded(model, None, cast(Any, None), torch.device("cpu"), 96)
    why = why_corrected(loaded, config, model=model)
    return update_settings(config, is_corrected=why is not None).tis_cap


def test_one_engine_in_one_dtype_needs_no_weights_and_no_second_pass() -> None:
    assert tis_cap() is None
    assert tis_cap("model.dtype=bfloat16", dtype=torch.bfloat16) is None


@pytest.mark.parametrize(
    "overrides",
    [
        ("rollout.backend=vllm", "vllm.servers=[http://127.0.0.1:1]"),
        ("rollout.backend=auto", "vllm.servers=[http://127.0.0.1:1]"),
        ("training.mixed_precision=bf16",),
    ],
    ids=["vllm", "auto that is vllm", "another dtype"],
)
def test_another_engine_dtype_is_corrected_for_unless_told_otherwise(
    overrides: tuple[str, ...],
) -> None:
    assert tis_cap(*overrides) == 2.0
    assert tis_cap(*overrides, "grpo.tis_cap=1.5") == 1.5
    assert tis_cap(*overrides, "grpo.tis_cap=null") is None


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("rollout.backend=hf",), 256),
        (("rollout.backend=auto", "vllm.servers=[http://127.0.0.1:1]"), 50),
        (("rollout.backend=vllm", "vllm.servers=[http://127.0.0.1:1]"), 50),
    ],
)
def test_what_an_engine_holds_bounds_a_context_whoever_chose_the_engine(
    overrides: tuple[str, ...], expected: int, tiny_checkpoint: Path
) -> None:
    tokenizer = load_tokenizer(str(tiny_checkpoint))
    config = load_train_config(
        [],
        [
            *overrides,
            "vllm.max_model_len=50",
            "rollout.max_new_tokens=20",
            "rollout.tool_format=hermes",  # this model has too few tokens to be asked
            f"model.name={tiny_checkpoint}",
            "device=cpu",
        ],
    ).config
    assert as_loaded(tiny_model(), tokenizer, config=config).max_context == expected


def test_processes_that_cannot_each_have_an_engine_are_refused() -> None:
    override = "vllm.tensor_parallel_size=2"
    config = load_train_config([], [override]).config
    refuse_shared_engine(config, count=1)
    message = "vllm.tensor_parallel_size is 2, but 4 processes train together"
    with pytest.raises(UserError, match=message) as caught:
        refuse_shared_engine(config, count=4)
    assert "vllm.servers" in (caught.value.remedy or "")
    elsewhere = load_train_config([], [override, "vllm.servers=[http://127.0.0.1:1]"]).config
    refuse_shared_engine(elsewhere, count=4)


def test_negative_advantages_are_bounded_by_default_and_above_the_clip_alone() -> None:
    def bound(*overrides: str) -> float | None:
        config = load_train_config([resource_path("configs/quickstart.yaml")], list(overrides)).config
        return update_settings(config).objective.dual_clip

    assert bound() == 3.0
    assert bound("grpo.dual_clip=null") is None
    with pytest.raises(UserError, match=r"grpo.dual_clip is 1.2, but .* clipped at a ratio of 1.28"):
        bound("grpo.dual_clip=1.2")
    with pytest.raises(UserError, match=r"raise it, for example to 6\b"):
        bound("grpo.clip_ratio_high=4.0")
    assert bound("grpo.loss=cispo", "grpo.clip_ratio_high=4.0") == 3.0  # that loss has no use for it
