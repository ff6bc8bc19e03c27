"""Engines in processes of their own: out of reach of others, gone with their parent, one for each process of
a run."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mcpagent.config.environment import resource_path
from mcpagent.models.load import load_tokenizer
from mcpagent.policy.vllm.engine import VllmSettings, cpu_cache_bytes, engine_options
from mcpagent.policy.vllm.process import own_engine
from mcpagent.policy.vllm.servers import VllmServers
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.weight_sync import vllm_sampler
from tests.vllm.test_training import checkpoint as checkpoint
from tests.vllm.world import (
    MAX_CONTEXT,
    PARITY,
    STOP,
    ask,
    decode,
    prompts,
    requests,
    tiny_model,
    train_a_little,
    with_adapters,
    worst,
)

START_S = 400.0


@pytest.fixture
def short_tmp() -> Iterator[str]:
    """A folder for sockets, whose paths may have 107 characters: that of a test is too deep."""
    with TemporaryDirectory(prefix="v") as folder:
        yield folder


def settings(folder: Path, **changes: Any) -> VllmSettings:
    model = tiny_model()
    cache = cpu_cache_bytes(model.config, contexts=32, max_context=MAX_CONTEXT, itemsize=4)
    options = {"max_context": MAX_CONTEXT, "contexts": 32, "cache_bytes": cache, **changes}
    return VllmSettings(model=str(folder), **options)


def test_an_own_engine_serves_adapters_out_of_reach_of_others_and_ends_with_the_run(
    checkpoint: Path, tmp_path: Path
) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path / "model")
    load_tokenizer(str(checkpoint)).save_pretrained(tmp_path / "model")
    model = with_adapters(model)
    options = engine_options(settings(tmp_path / "model", lora_rank=8))
    assert "async_scheduling" not in options  # vLLM's own choice: on, but for CPUs, where it has none
    with own_engine(options, device=None) as address:
        socket = Path(address.removeprefix("unix:"))
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        policy = VllmServers(
            [address], decode=decode, stop_ids=frozenset({STOP}), max_context=MAX_CONTEXT, version=-1
        )
        try:
            engine = vllm_sampler(policy, model, folder=tmp_path)
            assert engine.read_back is not None
            for step in range(2):
                train_a_little(model, seed=step)
                assert engine.read_back().differing
                engine.push()
                arrival = engine.read_back()
                assert (arrival.tensors, arrival.differing) == (42, ())
                asked = requests(prompts(5), temperature=0.7)
                assert worst(model, asked, ask(policy, asked)) < PARITY
        finally:
            policy.close()
    assert not socket.parent.exists()


CHILD = """
import json, sys
from mcpagent.policy.vllm.engine import ENVIRONMENT
from mcpagent.policy.vllm.process import own_engine
with own_engine(json.loads(sys.argv[1]), device=None) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


def test_an_own_engine_ends_when_its_parent_is_killed(
    checkpoint: Path, tmp_path: Path, short_tmp: str
) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    load_tokenizer(str(checkpoint)).save_pretrained(tmp_path / "model")
    options = json.dumps(engine_options(settings(tmp_path / "model")))
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": short_tmp},
    ) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        engines = _processes_with(address.removeprefix("unix:"))
        assert engines
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while _processes_with(address.removeprefix("unix:")) and time.monotonic() < until:
        os.sched_yield()
    assert not _processes_with(address.removeprefix("unix:"))


def _processes_with(argument: str) -> list[int]:
    there: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and argument.encode() in (folder / "cmdline").read_bytes():
                there.append(int(folder.name))
        except OSError:
            continue
    return there


def test_each_of_two_processes_has_an_engine_and_both_serve_what_was_trained(
    checkpoint: Path, tmp_path: Path, short_tmp: str
) -> None:
    sets = {
        "model.name": checkpoint,
        "data.train": resource_path("data/samples/train.jsonl"),
        "output_dir": tmp_path,
        "name": "run",
        "training.max_steps": 2,
        "training.batch_size": 2,
        "rollout.group_size": 3,
        "rollout.max_new_tokens": 12,
        "rollout.backend": "vllm",
        "optimization.learning_rate": 0.05,
        "reward.control": "random",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command += ["mcpagent.cli.main", "train", "--config", str(resource_path("configs/quickstart.yaml"))]
    command += [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": short_tmp},
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    records = RunFolder.open(tmp_path / "run").metrics()
    assert [record["step"] for record in records] == [1, 2]
    for record in records:
        assert record["canary_arrived"] > 0
        assert record["logprob_drift_max"] < 1e-2  # over the tokens of both processes
        assert abs(record["correction_mean"] - 1.0) < 1e-3
    assert not list(tmp_path.glob("mcpagent-engine-*"))
