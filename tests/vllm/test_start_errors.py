"""An engine that cannot start says so in one error, whichever library refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.errors import RunError
from tests.vllm.world import serving, tiny_model


def test_what_vllm_refuses_is_one_error_with_what_it_said(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"(?s)vLLM engine did not start: .*max_model_len") as refused,
        serving(tiny_model(), tmp_path, max_context=1 << 20),
    ):
        pass
    assert refused.value.where == "rollout.backend"
    assert "hf" in (refused.value.remedy or "")
