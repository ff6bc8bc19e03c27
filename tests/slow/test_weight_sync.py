"""The weight-sync proof on six-layer models in bfloat16."""

from __future__ import annotations

import pytest

from tests.slow.weight_sync import measure

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("mode", "rate", "noise"), [("lora", 1e-6, 0.05), ("lora", 2e-5, 0.0), ("full", 1e-6, 0.05)]
)
def test_every_missed_update_is_seen_at_once_and_no_healthy_one_is_stopped(
    mode: str, rate: float, noise: float
) -> None:
    row = measure(mode, rate, missed=10, healthy=40, noise=noise, hidden=128, seed=3)
    assert row["missed"]["tries"] == row["missed"]["arrived"] == row["missed"]["any"] == 10
    assert row["missed"]["moved"] == 10  # by its tokens alone too
    assert row["healthy"] == {"tries": 40, "any": 0, "arrived": 0, "apart": 0, "moved": 0}
