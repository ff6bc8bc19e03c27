"""What an engine says of the memory that it holds: counted apart from it, by shapes and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.policy.vllm.engine import cpu_cache_bytes
from mcpagent.train.weight_sync import memory_lines, vllm_sampler
from tests.vllm.world import MAX_CONTEXT, SHAPE, serving, tiny_model, with_adapters

# Of one layer, in bytes of float32: four projections of attention, three of the feed-forward.
_WIDE, _INNER, _LAYERS = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_hidden_layers"]
MATRICES = 4 * _LAYERS * (4 * _WIDE * _WIDE + 3 * _WIDE * _INNER)
SLOT = 4 * _LAYERS * 8 * (4 * 2 * _WIDE + 3 * (_WIDE + _INNER))  # of one adapter of rank 8
EMBEDDINGS = 4 * SHAPE["vocab_size"] * _WIDE


@pytest.mark.parametrize("has_adapters", [False, True])
def test_weights_and_cache_are_what_shapes_and_settings_say(tmp_path: Path, has_adapters: bool) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    model = with_adapters(tiny_model()) if has_adapters else tiny_model()
    notes: list[str] = []
    with serving(
        model, tmp_path / "model", version=-1, **({"lora_rank": 8} if has_adapters else {})
    ) as policy:
        vllm_sampler(policy, model, folder=tmp_path, on_note=notes.append)
        ((name, workers),) = policy.memory().items()
    (worker,) = workers
    assert name == "the vLLM engine" and worker["device"] == "cpu"
    cache = cpu_cache_bytes(tiny_model().config, contexts=32, max_context=MAX_CONTEXT, itemsize=4)
    assert 0.98 * cache <= worker["cache"] <= cache  # whole blocks
    weights = MATRICES + EMBEDDINGS
    slots = 2 * SLOT if has_adapters else 0  # of two neighbouring versions
    # Beside them norms, the angles of positions, and slots for embeddings and head.
    assert weights + slots <= worker["weights"] <= 1.1 * weights + 1.5 * slots
    assert worker["activations"] is None and worker["graphs"] is None  # vLLM measures them on a device alone
    assert 0 < worker["free"] < worker["total"]
    (line,) = notes
    assert line.partition(";")[0] == memory_lines({name: workers})[0].partition(";")[0]
    assert "weights 0.00, cache 0.0" in line and "are free" in line
