"""What arrived is read back from the engine: exact, so that one update of any size shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mcpagent.errors import RunError
from mcpagent.policy.canary import Arrival
from mcpagent.policy.vllm.engine import VllmPolicy
from mcpagent.train.weight_sync import RolloutEngine, vllm_sampler
from tests.vllm.test_weights import canary, prove
from tests.vllm.world import serving, tiny_model, with_adapters

STEP = 1e-6  # the smallest learning rate: AdamW's first step on every weight


@torch.no_grad()
def step(model: Any, names: Callable[[str], bool] = lambda _: True, size: float = STEP) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and names(name):
            parameter.add_(size * torch.randn(parameter.shape, generator=generator).sign())


def read_back(engine: RolloutEngine) -> Arrival:
    assert engine.read_back is not None
    return engine.read_back()


@pytest.mark.parametrize("tied", [True, False])
def test_whole_weights_that_were_not_sent_again_are_seen_layer_by_layer(tmp_path: Path, tied: bool) -> None:
    model = tiny_model(tied=tied)
    with serving(model, tmp_path / "model", version=-1) as policy:
        engine = vllm_sampler(policy, model, folder=tmp_path)
        groups = read_back(engine)
        assert groups.differing == () and groups.tensors >= 4  # three layers, and what belongs to none
        step(model, lambda name: "layers.2." in name)
        assert [name.split(" on ")[0] for name in read_back(engine).differing] == ["the weights of layer 2"]
        step(model)
        assert len(read_back(engine).differing) == groups.tensors
        engine.push()
        assert read_back(engine) == groups
        assert prove(model, policy) < 1e-5


@pytest.fixture(scope="module")
def adapted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, RolloutEngine, VllmPolicy]]:
    """A model with adapters and the engine that they are sent to, both of one dtype. Tests with engines of
    their own come before the first that asks for it."""
    folder = tmp_path_factory.mktemp("adapted")
    tiny_model().save_pretrained(folder / "model")
    model = with_adapters(tiny_model())
    with serving(model, folder / "model", version=-1, lora_rank=8, dtype=request.param) as policy:
        yield model, vllm_sampler(policy, model, folder=folder), policy


@pytest.mark.parametrize("adapted", ["bfloat16", "float32"], indirect=True)
def test_an_adapter_that_was_not_sent_again_is_seen_matrix_by_matrix(
    adapted: tuple[Any, RolloutEngine, VllmPolicy],
) -> None:
    model, engine, _ = adapted
    assert read_back(engine) == Arrival(tensors=3 * 7 * 2)  # layers, adapted projections of each, A and B
    step(model, lambda name: "layers.1.mlp.up_proj.lora_B" in name)
    only = read_back(engine).differing
    assert len(only) == 1 and "layers.1.mlp.up_proj.lora_B" in only[0]
    step(model)
    assert len(read_back(engine).differing) >= 3 * 7  # every B; in bfloat16 an A may round to what it was
    engine.push()
    assert read_back(engine) == Arrival(tensors=3 * 7 * 2)


@pytest.mark.parametrize("adapted", ["float32"], indirect=True)
def test_the_proof_stops_at_the_first_missed_update_and_names_what_did_not_arrive(
    adapted: tuple[Any, RolloutEngine, VllmPolicy],
) -> None:
    model, engine, policy = adapted
    watch = canary(model)
    asyncio.run(watch.prove(policy, version=policy.version, read_back=engine.read_back))
    step(model)
    missed = policy.version + 1
    with pytest.raises(
        RunError, match=rf"of 42 tensors of policy version {missed} .* are not what the trainer"
    ):
        asyncio.run(watch.prove(policy, version=missed, read_back=engine.read_back))
    engine.push()
    proof = asyncio.run(watch.prove(policy, version=policy.version, read_back=engine.read_back))
    assert proof.arrived == 42
