"""A process of a run that is killed, or stopped: the others end with one error, and the run goes on later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from mcpagent.config.environment import resource_path
from mcpagent.storage.packages import missing
from mcpagent.storage.run_folder import RunFolder

pytestmark = pytest.mark.system
needs_deepspeed = pytest.mark.skipif(bool(missing("deepspeed")), reason="DeepSpeed is not installed")

TIMEOUT_S = 10
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def command(
    run: Path, checkpoint: Path, *, parallel: str, steps: int, launcher: Sequence[str] = ()
) -> list[str]:
    """Supervised training in two processes, on tasks of the samples."""
    settings = {
        "algorithm": "sft",
        "finetune.mode": "full",
        "model.name": checkpoint,
        "data.train": resource_path("data/samples/train.jsonl"),
        "data.max_tasks": 4,
        "training.max_steps": steps,
        "training.batch_size": 2,
        "training.save_frequency": 2,
        "training.eval_samples": 0,
        "training.parallel": parallel,
        "training.collective_timeout_s": TIMEOUT_S,
        "output_dir": run.parent,
        "name": run.name,
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    own = [] if launcher else ["--num-processes", "2"]
    config = str(resource_path("configs/algo_grpo.yaml"))
    return [sys.executable, *launcher, "-m", "mcpagent.cli.main", "train", "--config", config, *own, *options]


def rank(process: psutil.Process, index: int) -> psutil.Process:
    """The process of that number among those that a launcher has started."""
    (found,) = [
        child
        for child in process.children(recursive=True)
        if child.environ().get("RANK") == str(index) and "mcpagent.cli.main" in child.cmdline()
    ]
    return found


def has_begun(run: Path) -> bool:
    return (run / "metrics.jsonl").is_file() and len(RunFolder(run).metrics()) >= 3


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def begin(run: Path, log: Path, checkpoint: Path, *, parallel: str) -> subprocess.Popen[bytes]:
    """A run without an end, once it has made some steps."""
    words = command(run, checkpoint, parallel=parallel, steps=100_000)
    with log.open("w") as out:
        started = subprocess.Popen(words, stderr=out, env=ENVIRONMENT)
    until = time.monotonic() + 300
    while not has_begun(run):
        assert started.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.2)
    return started


def resume(run: Path, checkpoint: Path, *, parallel: str) -> tuple[int, subprocess.CompletedProcess[str]]:
    """The last step of the run when it goes on for two steps, and what came of it."""
    latest = RunFolder(run).latest_checkpoint()
    assert latest is not None
    steps = 2 + int(latest.name.removeprefix("step-"))
    words = command(run, checkpoint, parallel=parallel, steps=steps, launcher=TORCHRUN)
    return steps, subprocess.run([*words, "--resume"], env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("parallel", ["replicate", "fsdp", pytest.param("zero3", marks=needs_deepspeed)])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_all_end_when_one_is_lost_and_the_run_goes_on_from_its_checkpoint(
    sent: signal.Signals, parallel: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    started = begin(run, log, tiny_checkpoint, parallel=parallel)
    everyone = psutil.Process(started.pid)
    processes = [everyone, *everyone.children(recursive=True)]
    rank(everyone, 1).send_signal(sent)
    assert started.wait(TIMEOUT_S + 30) != 0
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert alive == []
    said = log.read_text()
    errors = [line for line in said.splitlines() if line.startswith("error")]
    assert len(errors) <= 1 and (errors or "exitcode  : -9" in said.replace("exitcode :", "exitcode  :")), (
        said
    )
    steps, ended = resume(run, tiny_checkpoint, parallel=parallel)
    assert ended.returncode == 0, ended.stderr
    assert [m["step"] for m in RunFolder(run).metrics()] == list(range(1, steps + 1))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stopped_process_that_nothing_could_end_keeps_the_run_to_itself_until_it_is_gone(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """The first one, which writes, is stopped, and launcher and second process are lost: nobody is left to
    end it. What it does when it wakes up later must not meet what a resumed run does."""
    run = tmp_path / "run"
    started = begin(run, tmp_path / "log", tiny_checkpoint, parallel="replicate")
    everyone = psutil.Process(started.pid)
    writer, second = rank(everyone, 0), rank(everyone, 1)
    writer.suspend()
    started.kill()
    second.kill()
    started.wait()
    try:
        _, refused = resume(run, tiny_checkpoint, parallel="replicate")
        assert refused.returncode != 0
        assert f"is in use by another process: pid {writer.pid}" in refused.stderr, refused.stderr
    finally:
        writer.resume()
    _, alive = psutil.wait_procs([writer], timeout=TIMEOUT_S + 30)
    assert alive == []
    steps, ended = resume(run, tiny_checkpoint, parallel="replicate")
    assert ended.returncode == 0, ended.stderr
    assert [m["step"] for m in RunFolder(run).metrics()] == list(range(1, steps + 1))
