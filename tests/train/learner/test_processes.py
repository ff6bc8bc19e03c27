"""Several processes: what they share, how they begin and end, and that they train as one would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from mcpagent.config.environment import resource_path
from mcpagent.demo.warm_start import copy, train_tokenizer
from mcpagent.models.tokens import Renderer
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.train.learner.processes import Processes
from mcpagent.train.sft import Curriculum, SftSettings, SftState, train_sft
from tests.running import BOUND_S, Python
from tests.train.world import make_learner, some_samples, tiny_model

pytestmark = pytest.mark.system

CPU = torch.device("cpu")


def hosted_store() -> TCPStore:
    """The store of a launcher, at a port that nobody else can take: as torchrun hosts it."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def environment_of(rank: int, *, count: int, store: TCPStore) -> dict[str, str]:
    """What a launcher that hosts the store sets for the process of that number."""
    shared = {
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": 1}
    return os.environ | {name: str(value) for name, value in (shared | numbers).items()}


def in_processes(folder: Path, *, count: int = 2, module: str = __name__) -> None:
    """Call `work(folder)` of the module in `count` processes that know of each other."""
    store = hosted_store()
    code = f"import sys, {module} as this; from pathlib import Path; this.work(Path(sys.argv[1]))"
    started = [
        Python(
            *("-c", code, folder),
            env=environment_of(rank, count=count, store=store),
            cwd=Path(__file__).parents[3],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=BOUND_S)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * count, "\n".join(said)


def _supervised(processes: Processes, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Weights and records after some steps on copies, then on demonstrations."""
    model = tiny_model()
    run = processes.broadcast_from_rank0(
        lambda: RunFolder.create(folder / f"sft-{processes.count}", config_yaml="", manifest={})
    )
    records: list[dict[str, Any]] = []
    train_sft(
        make_learner(model, gradient_clip=1.0, learning_rate=0.003, processes=processes),
        some_samples(5),
        renderer=Renderer(train_tokenizer([], vocab_size=0, catalog_hash="")),
        run=run,
        settings=SftSettings(
            total_steps=4,
            curriculum=Curriculum(copy, steps=1, mix=0),
            save_every=2,
            batch_size=3,
            micro_batch_tokens=150,
            seed=0,
        ),
        state=SftState(),
        of_tools={},
        on_step=records.append,
    )
    told = ("step", "loss", "grad_norm", "tokens")
    return {n: p.detach() for n, p in model.named_parameters()}, [{k: r[k] for k in told} for r in records]


def work(folder: Path) -> None:
    """Of one process among several: leaves what it came to in the folder."""
    torch.set_num_threads(1)
    processes = Processes.join(CPU)
    supervised = _supervised(processes, folder)
    numbers = [float(i) for i in range(5)]
    shares = {
        "gathered": processes.gather(processes.share(numbers)),
        "sum": processes.sum([float(processes.index), 1.0]),
        "first": processes.broadcast_from_rank0(lambda: processes.index),
    }
    torch.save((supervised, shares), folder / f"{processes.index}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two processes came to."""
    folder = tmp_path_factory.mktemp("two")
    in_processes(folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_two_processes_make_the_supervised_steps_of_one(two: list[Any], tmp_path: Path) -> None:
    weights, steps = _supervised(Processes(), tmp_path)
    for (theirs, their_steps), _ in two:
        assert theirs.keys() == weights.keys()
        assert all(torch.allclose(theirs[n], p, rtol=0, atol=1e-5) for n, p in weights.items())
        for step, other in zip(steps, their_steps, strict=True):
            assert other == pytest.approx(step, rel=1e-3, abs=1e-5)
    began = tiny_model().state_dict()
    assert all(float((began[n] - p).abs().max()) > 1e-3 for n, p in weights.items())


# In an interpreter of its own, the imports alone take longer than a timeout of a second.
_BEGIN = """
import sys, torch
from torch import distributed
from mcpagent.train.learner.processes import Processes
CPU = torch.device("cpu")
print("starts", flush=True)
"""

# What is still there when the interpreter ends: the process group, and threads that talk to others.
_AT_END = """
import atexit, threading
def tell():
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("mcpagent")]
    print("at the end:", distributed.is_initialized(), names)
atexit.register(tell)
"""


def interpreter(*words: str, **settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *words], **settings)


@contextmanager
def one_after_another(
    code: str, *, count: int, start: Callable[..., subprocess.Popen[str]] = Python
) -> Iterator[list[subprocess.Popen[str]]]:
    """The first two of `count` processes, the second begun when the first is about to join."""
    store = hosted_store()
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(2):
            process = start(
                *("-c", _BEGIN + code),
                env=environment_of(rank, count=count, store=store),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            assert process.stdout is not None and process.stdout.readline() == "starts\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_process_that_starts_later_than_the_timeout_of_collectives_is_waited_for_and_left_first() -> None:
    """A thread that is inside the store while the interpreter ends aborts the process: exit code -6."""
    code = _AT_END + "p = Processes.join(CPU, timeout_s=1)\np.meet()\nprint(p.gather([p.index]))"
    with one_after_another(code + "\nraise SystemExit(3)", count=2, start=interpreter) as started:
        said = [process.communicate(timeout=BOUND_S) for process in started]
        assert [process.returncode for process in started] == [3, 3], said
    assert [out for out, _ in said] == ["[0, 1]\nat the end: False []\n"] * 2


def test_one_process_says_that_another_has_not_started() -> None:
    code = "Processes.join(CPU, timeout_s=1, start_within_s=1)"
    with one_after_another(code, count=3) as started:
        said = [process.communicate(timeout=BOUND_S)[1] for process in started]
        assert [process.returncode for process in started] == [1, 1]
    assert ["has not started within 1 s" in text for text in said] == [True, False], said


def test_a_process_that_does_not_answer_in_a_part_of_the_processes_counts_as_lost() -> None:
    """The groups that shards are gathered in, which torch would let wait for half an hour."""
    code = """
processes = Processes.join(CPU, timeout_s=2)
across, inside = processes.split(1)
assert (across.size(), inside.size()) == (2, 1)
if processes.index:
    sys.stdin.read()
with processes.failing_together():
    distributed.all_reduce(torch.ones(1), group=across)
"""
    with one_after_another(code, count=2) as (first, _):
        said = first.communicate(timeout=BOUND_S)[1]
        assert first.returncode == 1
    assert "another of the 2 processes did not answer within 2 s" in said


def test_shares_are_gathered_in_order_and_the_first_decides(two: list[Any]) -> None:
    for _, shares in two:
        assert shares == {"gathered": [0.0, 1.0, 2.0, 3.0, 4.0], "sum": [1.0, 2.0], "first": 0}


def _train(
    folder: Path, checkpoint: Path, launcher: list[str], *, steps: int, resume: bool = False
) -> RunFolder:
    settings = {
        "model.name": checkpoint,
        "data.train": resource_path("data/samples/train.jsonl"),
        "data.validation": resource_path("data/samples/train.jsonl"),
        "data.max_tasks": 5,
        "training.max_steps": steps,
        "training.batch_size": 3,
        "training.eval_every": 1,
        "training.save_frequency": 1,
        "rollout.group_size": 3,
        "rollout.max_new_tokens": 12,
        "lora.dropout": 0.1,
        "reward.control": "random",  # so that weights move from the first step on
        "output_dir": folder.parent,
        "name": folder.name,
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = ["-m", "mcpagent.cli.main", "train", "--config", str(resource_path("configs/quickstart.yaml"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *launcher, *command, *options, *(["--resume"] if resume else [])]
    subprocess.run(words, check=True, capture_output=True, env=environment)
    return RunFolder.open(folder)


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DDP = str(resource_path("configs/accelerate/ddp.yaml"))
ACCELERATE = ["-m", "accelerate.commands.launch", "--config_file", DDP]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_in_two_processes_plays_every_episode_once_and_resumes_exactly(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    alone = _train(tmp_path / "alone", tiny_checkpoint, [], steps=1)
    both = _train(tmp_path / "both", tiny_checkpoint, [*ACCELERATE, "--num_processes", "2"], steps=1)
    _train(tmp_path / "both", tiny_checkpoint, TORCHRUN, steps=3, resume=True)
    whole = _train(tmp_path / "whole", tiny_checkpoint, TORCHRUN, steps=3)
    assert [m["step"] for m in both.metrics()] == [1, 2, 3]
    names = [f"step-00000{step}" for step in range(4)]
    assert [path.name for path in both.all_checkpoints()] == names[-3:]
    assert sorted(path.stem for path in both.evaluations.iterdir()) == ["best", *names, "untrained"]
    # Seeds come from tasks and attempts, so that the first step's episodes do not depend on who plays them.
    assert _sampled(both, 1) == _sampled(alone, 1)
    for step in (1, 2, 3):
        assert len(_sampled(both, step)) == 9
        assert _sampled(both, step) == _sampled(whole, step)
    ours, theirs = (load_file(run.checkpoint_dir(3) / "adapter_model.safetensors") for run in (both, whole))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def _sampled(run: RunFolder, step: int) -> list[Any]:
    path = run.trajectory_stem(step).with_suffix(".jsonl.zst")
    return [(t.id, [turn.completion.token_ids for turn in t.turns]) for t in read_trajectories(path)]
