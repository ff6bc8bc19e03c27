"""A process of a sharded update holds its share of the memory."""

from __future__ import annotations

import pytest

from tests.slow import shards

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1200)
def test_a_process_with_shards_holds_its_share_of_a_step_and_never_a_whole_model() -> None:
    alone, *others = shards.measure_memory()
    print([(update.processes, update.loading, update.step) for update in (alone, *others)])
    whole = alone.ranks[0].parameters * 4 / 2**20
    for update in others:
        assert update.step <= shards.LIMITS[update.processes] * alone.step
        for rank in update.ranks:
            assert rank.loading < whole
            assert rank.loaded < 1.3 * whole / update.processes
        assert [rank.loss for rank in update.ranks] == pytest.approx([alone.ranks[0].loss] * update.processes)
