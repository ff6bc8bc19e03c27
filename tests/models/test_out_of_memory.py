"""Running out of memory is one error with the settings to lower, wherever it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from mcpagent.config.loader import load_train_config
from mcpagent.errors import RunError, UserError
from mcpagent.models.out_of_memory import memory_reported
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.engine_thread import EnginePolicy, Finished
from mcpagent.rollout.collector import AgentSettings, Sampling, attempts, collect
from mcpagent.servers.provider import builtin_servers
from mcpagent.storage.datasets import read_tasks
from mcpagent.tools.pool import ToolPool
from mcpagent.train.update import UpdateSettings, update_policy
from tests.train.world import given, make_learner, some_samples, tiny_model

CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
    "1.20 GiB is free."
)
CONFIG = load_train_config(
    [], ["rollout.num_envs=48", "training.micro_batch_tokens=6000", "rollout.max_new_tokens=512"]
).config


class FullEngine:
    """An engine whose next token does not fit."""

    has_work = False

    def admit(self, requests: Sequence[CompletionRequest]) -> Sequence[Finished]:
        raise torch.OutOfMemoryError(CUDA)

    def step(self) -> Sequence[Finished]:
        return ()

    def release(self, episode_id: str) -> Sequence[Finished]:
        return ()


def test_a_full_gpu_under_the_episodes_is_one_error_that_names_their_settings() -> None:
    async def play() -> None:
        async with ToolPool(builtin_servers(["fmp", "slack", "polygon", "tavily"])) as pool:
            await collect(
                list(attempts(list(read_tasks(Path("data/samples/train.jsonl")))[:3], per_task=2, seed=0)),
                policy=EnginePolicy(FullEngine, decode=lambda _: "", max_context=4096),
                tools=pool,
                settings=AgentSettings(sampling=Sampling(max_new_tokens=4)),
            )

    with pytest.raises(RunError) as caught, memory_reported(CONFIG):
        asyncio.run(play())
    error = caught.value
    assert error.exit_code == 1
    assert error.message == f"out of memory while sampling episodes: {CUDA}"
    assert error.remedy is not None
    assert "rollout.num_envs (it is 48: 24)" in error.remedy
    assert "rollout.max_new_tokens (it is 512: 256)" in error.remedy
    assert "micro_batch_tokens" not in error.remedy


def test_a_full_gpu_under_an_update_is_one_error_that_names_its_settings() -> None:
    learner = make_learner(tiny_model())

    def forward(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(CUDA)

    learner.model.model.register_forward_pre_hook(forward)
    samples = some_samples(2)
    with pytest.raises(RunError) as caught, memory_reported(CONFIG):
        update_policy(
            learner,
            given(samples, [1.0, -1.0]),
            settings=UpdateSettings(use_reference=False),
            first_optimizer_step=1,
            seed=0,
        )
    error = caught.value
    assert error.message == f"out of memory while updating the weights: {CUDA}"
    assert error.remedy is not None
    assert "training.micro_batch_tokens (it is 6000: 3000)" in error.remedy
    assert "model.gradient_checkpointing (it is false: true)" in error.remedy
    assert "num_envs" not in error.remedy


@pytest.mark.parametrize(
    "wrapped", [lambda error: ExceptionGroup("episodes", [ValueError("x"), error]), lambda error: error]
)
def test_what_an_allocator_of_a_cpu_says_is_known_too(wrapped) -> None:
    try:
        torch.empty(1 << 58, dtype=torch.uint8)
    except RuntimeError as error:
        real = error
    message = r"out of memory: .*allocate.* 288230376151711744"
    with pytest.raises(RunError, match=message) as caught, memory_reported(CONFIG):
        raise wrapped(real)
    assert "training.micro_batch_tokens" in str(caught.value)
    assert "rollout.num_envs" in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("HIP error: no room for 2.50 GiB"), MemoryError("2.50 GiB"), MemoryError()],
)
def test_an_exception_that_is_about_memory_by_its_type_is_known_whatever_it_says(error: Exception) -> None:
    said = str(error) or "MemoryError"
    with pytest.raises(RunError) as caught, memory_reported(CONFIG):
        raise error
    assert caught.value.message == f"out of memory: {said}"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("other", [RuntimeError("shape mismatch"), UserError("no such file"), KeyError("a")])
def test_other_errors_stay_what_they_are(other: Exception) -> None:
    with pytest.raises(type(other)) as caught, memory_reported(CONFIG):
        raise other
    assert caught.value is other
