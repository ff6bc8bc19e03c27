"""Several processes make the update that one would make."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing

from mcpagent.models.load import LoraShape, attach_lora
from mcpagent.train.loss import Objective
from mcpagent.train.processes import Processes
from mcpagent.train.update import update_policy
from mcpagent.train.update_settings import UpdateSettings
from tests.train.world import given, make_learner, some_samples, tiny_model

CASES = [(False, "grpo"), (True, "dapo")]  # whether adapters are trained, and the loss
CPU = torch.device("cpu")
# Three groups that tell something and one that does not: one process of two has a single group.
ADVANTAGES = [1.0, -1.0, 0.5, -0.5, 0.0, 0.0, 0.8, -0.8]
GROUPS = [0, 0, 1, 1, 2, 2, 3, 3]


def in_processes(work: Callable[[Path], None], folder: Path, *, count: int = 2) -> None:
    """Call `work(folder)` in `count` processes that know of each other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(_enter, args=(work, folder, count, port), nprocs=count)  # type: ignore[attr-defined]


def _enter(rank: int, work: Callable[[Path], None], folder: Path, count: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    torch.set_num_threads(1)
    try:
        work(folder)
    finally:
        torch.distributed.destroy_process_group()


def _update(
    processes: Processes, *, lora: bool, loss: Any = "grpo"
) -> tuple[dict[str, Any], dict[str, float]]:
    """Weights and statistics after two epochs of two minibatches."""
    model = tiny_model()
    if lora:
        shape = LoraShape(r=4, alpha=8, dropout=0.0, target_modules="all-linear")
        model = attach_lora(model, shape, seed=0)
    learner = make_learner(model, gradient_clip=1.0, learning_rate=0.003, processes=processes)
    graded = given(some_samples(8), ADVANTAGES, groups=GROUPS)
    groups = tuple(replace(group, has_signal=group.group_id != "2") for group in graded.groups)
    settings = UpdateSettings(objective=Objective(loss=loss, kl_coef=0.1), micro_batch_tokens=150, epochs=2)
    stats = update_policy(
        learner,
        replace(graded, groups=groups),
        settings=settings,
        first_optimizer_step=1,
        seed=0,
    )
    return {n: p.detach() for n, p in model.named_parameters()}, stats.summary()


def _work(folder: Path) -> None:
    processes = Processes.join(CPU)
    results = {f"{lora}-{loss}": _update(processes, lora=lora, loss=loss) for lora, loss in CASES}
    numbers = [float(i) for i in range(5)]
    shares = {
        "gathered": processes.gather(processes.share(numbers)),
        "sum": processes.sum([float(processes.index), 1.0]),
        "first": processes.from_first(lambda: processes.index),
    }
    torch.save((results, shares), folder / f"{processes.index}.pt")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two processes came to."""
    folder = tmp_path_factory.mktemp("two")
    in_processes(_work, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(("lora", "loss"), CASES)
def test_two_processes_make_the_update_of_one(lora: bool, loss: str, two: list[Any]) -> None:
    weights, stats = _update(Processes(), lora=lora, loss=loss)
    for results, _ in two:
        theirs, their_stats = results[f"{lora}-{loss}"]
        assert theirs.keys() == weights.keys()
        assert all(torch.allclose(theirs[n], p, rtol=0, atol=1e-5) for n, p in weights.items())
        assert their_stats == pytest.approx(stats, rel=1e-3, abs=1e-5)
    began = tiny_model().state_dict()
    assert lora or all(float((began[n] - p).abs().max()) > 1e-3 for n, p in weights.items())


def test_shares_are_gathered_in_order_and_the_first_decides(two: list[Any]) -> None:
    for _, shares in two:
        assert shares == {"gathered": [0.0, 1.0, 2.0, 3.0, 4.0], "sum": [1.0, 2.0], "first": 0}
