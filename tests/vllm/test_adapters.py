"""Adapters swapped while the engine runs; the traps are sprung first, the canary must see each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpagent.errors import RunError
from mcpagent.policy.vllm.engine import VllmPolicy
from tests.vllm.test_weights import prove
from tests.vllm.world import (
    PARITY,
    ask,
    prompts,
    requests,
    serving,
    tiny_model,
    train_a_little,
    with_adapters,
    worst,
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmPolicy]:
    with serving(tiny_model(), tmp_path_factory.mktemp("model"), lora_rank=8, version=-1) as policy:
        yield policy


@pytest.fixture
def model() -> Any:
    model = with_adapters(tiny_model())
    train_a_little(model, seed=1)
    return model


@pytest.fixture
def policy(engine: VllmPolicy, model: Any, tmp_path: Path) -> VllmPolicy:
    engine.load_adapter(saved(model, tmp_path / "first"))
    return engine


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def loaded_as(policy: VllmPolicy, name: str, number: int, folder: Path) -> None:
    """As one would write it: the same name or number for the next adapter."""
    from vllm.lora.request import LoRARequest

    engine = policy.engine
    adapter = LoRARequest(name, number, str(folder))
    policy.call(lambda: engine._llm.add_lora(adapter))
    engine._adapter = adapter


def test_no_turn_is_sampled_before_there_is_an_adapter(engine: VllmPolicy) -> None:
    """First of this file: on a CPU such a row would get whatever adapter its neighbours use."""
    assert engine.engine._adapter is None
    with pytest.raises(RuntimeError, match="no adapter"):
        engine.call(lambda: engine.engine.admit(requests(prompts(1))))


def test_every_version_of_an_adapter_is_the_one_that_samples(
    policy: VllmPolicy, model: Any, tmp_path: Path
) -> None:
    asked = requests(prompts(6), temperature=0.9)
    for step in range(6):  # more than vLLM keeps
        train_a_little(model, seed=step)
        policy.load_adapter(saved(model, tmp_path / f"{step}"))
        got = ask(policy, asked)
        assert worst(model, asked, got) < PARITY
        assert {span.version for c in got for span in c.policy_versions} == {policy.version}
        assert prove(model, policy) < 1e-5


def test_another_adapter_under_a_known_number_is_caught(
    policy: VllmPolicy, model: Any, tmp_path: Path
) -> None:
    train_a_little(model, seed=3)
    number = policy.version + 1  # of the adapter that is loaded
    loaded_as(policy, "another name", number, saved(model, tmp_path / "next"))
    with pytest.raises(RunError, match="does not serve the weights"):
        prove(model, policy)


def test_keys_of_another_adapter_under_a_known_name_are_caught(policy: VllmPolicy, model: Any) -> None:
    prove(model, policy)  # the canary's prompts are in the cache under the adapter's name and folder
    loaded = policy.engine._adapter
    train_a_little(model, seed=4)
    loaded_as(policy, loaded.lora_name, 1000, saved(model, Path(loaded.lora_path)))
    with pytest.raises(RunError, match="does not serve the weights"):
        prove(model, policy)
