"""Checkpoints: exact to the bit, by parameter name, without pickle."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mcpagent.errors import RunError
from mcpagent.models.load import load_model
from mcpagent.storage.checkpoints import SEAL_FILE, seal
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.wrapping import Wrapping
from tests.models.adapters import adapted
from tests.train.world import make_learner, some_samples, tiny_model


def train(learner: Learner, steps: range) -> None:
    for step in steps:
        for batch in learner.batches(some_samples(4, seed=step), max_tokens=100):
            learner.backward(-learner.score(batch)[0].mean())
        learner.step(step)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def make_model(*, adapters: bool, dtype: torch.dtype = torch.float32) -> Any:
    model = tiny_model(dtype=dtype)
    return (adapted(model, r=2, dropout=0.3) if adapters else model).train()


@pytest.mark.parametrize(
    ("adapters", "kind", "dtype"),  # each two of them in each combination
    [
        (False, "adamw", torch.float32),
        (True, "adamw", torch.bfloat16),
        (False, "muon", torch.bfloat16),
        (True, "muon", torch.float32),
    ],
)
def test_a_restored_learner_continues_to_the_same_bits(
    tmp_path: Path, adapters: bool, kind: str, dtype: torch.dtype
) -> None:
    unbroken = make_learner(make_model(adapters=adapters, dtype=dtype), kind=kind)
    torch.manual_seed(5)  # dropout draws from the global stream, which must be restored, too
    train(unbroken, range(1, 4))
    unbroken.save(tmp_path / "step", state={"step": 3})
    moments = copy.deepcopy([o.state_dict()["state"] for o in unbroken._optimizers])
    train(unbroken, range(4, 7))

    resumed = make_learner(make_model(adapters=adapters, dtype=dtype), kind=kind)
    torch.manual_seed(6)
    assert resumed.restore(tmp_path / "step") == {"step": 3}
    for wanted, optimizer in zip(moments, resumed._optimizers, strict=True):
        state = optimizer.state_dict()["state"]
        assert state.keys() == wanted.keys()
        for place, entries in wanted.items():
            assert state[place].keys() == entries.keys()
            assert all(torch.equal(state[place][k], v) for k, v in entries.items())
    train(resumed, range(4, 7))
    expected, got = weights(unbroken.model), weights(resumed.model)
    assert all(torch.equal(got[name], value) for name, value in expected.items())
    # The next step begins where the optimiser's float32 weights are, not at what the model holds of them.
    masters = dict(resumed._masters.named)
    assert all(torch.equal(masters[name], value) for name, value in unbroken._masters.named)


def test_every_random_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    def draw() -> list[Any]:
        numbers = [random.gauss(0, 1), random.random(), np.random.normal(), np.random.rand()]
        return [*numbers, torch.rand(3).tolist(), torch.randn(3).tolist()]

    learner = make_learner(make_model(adapters=False))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    draw()  # both generators of normal numbers keep a second one for the next call
    learner.save(tmp_path / "step", state={})
    expected = draw()
    random.seed(2)
    np.random.seed(2)
    torch.manual_seed(2)
    make_learner(make_model(adapters=False)).restore(tmp_path / "step")
    assert draw() == expected


def test_moments_are_stored_by_name_and_nothing_is_pickled(tmp_path: Path) -> None:
    learner = make_learner(make_model(adapters=False))
    train(learner, range(1, 2))
    learner.save(tmp_path / "step", state={"step": 1})
    stored = load_file(tmp_path / "step" / "trainer_state" / "optimizer.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    parameter = dict(learner.model.named_parameters())[name]
    assert torch.equal(stored[f"0|{name}|exp_avg"], learner._optimizers[0].state[parameter]["exp_avg"])
    kinds = {path.suffix for path in (tmp_path / "step").rglob("*") if path.is_file()}
    assert kinds <= {".json", ".safetensors", ".jinja"}


def test_a_checkpoint_loads_as_a_plain_model(tmp_path: Path) -> None:
    learner = make_learner(make_model(adapters=False))
    train(learner, range(1, 3))
    learner.save(tmp_path / "step", state={})
    loaded = load_model(str(tmp_path / "step"), dtype=torch.float32, device=torch.device("cpu"))
    expected = weights(learner.model)
    assert all(torch.equal(expected[name], value) for name, value in weights(loaded).items())


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    other = make_learner(make_model(adapters=True))
    train(other, range(1, 2))
    other.save(tmp_path / "lora", state={})
    full = make_learner(make_model(adapters=False))
    train(full, range(1, 2))
    full.save(tmp_path / "full", state={})
    state = tmp_path / "full" / "trainer_state" / "optimizer.safetensors"
    state.write_bytes((tmp_path / "lora" / "trainer_state" / "optimizer.safetensors").read_bytes())
    (tmp_path / "full" / SEAL_FILE).unlink()
    seal(tmp_path / "full")
    with pytest.raises(RunError, match="does not train") as caught:
        make_learner(make_model(adapters=False)).restore(tmp_path / "full")
    assert caught.value.remedy


def test_a_tensor_of_another_shape_is_refused_and_not_spread_out() -> None:
    rank_8 = torch.zeros(8, 4)
    with pytest.raises(RunError, match=r"\(1, 4\) stands where the run has one of \(8, 4\)"):
        Wrapping(Processes()).put(rank_8, lambda: torch.ones(1, 4))
    assert not rank_8.any()


def test_an_interrupted_save_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    learner = make_learner(make_model(adapters=False))
    learner.save(tmp_path / "step", state={"step": 1})
    with pytest.raises(TypeError):
        learner.save(tmp_path / "step", state={"step": object()})
    document = json.loads((tmp_path / "step" / "trainer_state" / "state.json").read_text())
    assert document["state"] == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["step"]
