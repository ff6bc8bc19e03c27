"""An engine that gave its memory to the trainer. It fails for good when it is asked, so this test has one of
its own; a process can have no other beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.vllm.world import prompts, requests, serving, tiny_model


def test_asking_an_engine_that_sleeps_is_an_error_and_no_wait_without_end(
    tmp_path: Path,
) -> None:
    with serving(tiny_model(), tmp_path) as policy:
        # vLLM refuses `enable_sleep_mode` on a CPU, but its engine can be put to sleep as a GPU's is.
        policy._thread.call(lambda: policy._thread.engine._llm.sleep(level=1))
        with pytest.raises(RuntimeError, match="sleeps"):
            asyncio.run(asyncio.wait_for(policy.complete(requests(prompts(1))), timeout=20))
