"""What a configuration leaves open is decided by what samples and what trains."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError
from mcpagent.train.build import Loaded, update_settings, why_corrected
from mcpagent.train.update import SamplerCorrection
from tests.policy.oracle import tiny_model


def correction(*overrides: str, dtype: torch.dtype = torch.float32) -> SamplerCorrection | None:
    """That of a run with these settings, on a model held in `dtype`."""
    config = load_train_config([resource_path("configs/quickstart.yaml")], list(overrides)).config
    model = tiny_model().to(dtype)
    loaded = Loaded(model, None, cast(Any, None), torch.device("cpu"), 96)
    why = why_corrected(loaded, config, model=model)
    return update_settings(config, is_corrected=why is not None).correction


def test_one_engine_in_one_dtype_needs_no_weights_and_no_second_pass() -> None:
    assert correction() is None
    assert correction("model.dtype=bfloat16", dtype=torch.bfloat16) is None


@pytest.mark.parametrize(
    "overrides",
    [
        ("rollout.backend=vllm", "vllm.servers=[http://127.0.0.1:1]"),
        ("rollout.backend=auto", "vllm.servers=[http://127.0.0.1:1]"),
        ("training.mixed_precision=bf16",),
        ("rollout.max_staleness=1", "rollout.deterministic=false"),
    ],
    ids=["vllm", "auto that is vllm", "another dtype", "older weights"],
)
def test_another_engine_dtype_or_version_is_corrected_for_unless_told_otherwise(
    overrides: tuple[str, ...],
) -> None:
    assert correction(*overrides) == SamplerCorrection(cap=2.0)
    assert correction(*overrides, "grpo.tis_cap=1.5", "grpo.tis_level=sequence") == SamplerCorrection(
        cap=1.5, level="sequence"
    )
    if "rollout.max_staleness=1" not in overrides:  # where null is refused
        assert correction(*overrides, "grpo.tis_cap=null") is None


def test_negative_advantages_are_bounded_by_default_and_above_the_clip_alone() -> None:
    def bound(*overrides: str) -> float | None:
        config = load_train_config([resource_path("configs/quickstart.yaml")], list(overrides)).config
        return update_settings(config).objective.dual_clip

    assert bound() == 3.0
    assert bound("grpo.dual_clip=null") is None
    with pytest.raises(UserError, match=r"grpo.dual_clip is 1.2, but .* clipped at a ratio of 1.28"):
        bound("grpo.dual_clip=1.2")
