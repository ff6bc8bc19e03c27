"""Which kernels a model gets. Those of liger-kernel run on a CPU in Triton's interpreter, where both are
installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from mcpagent.models.kernels import choose_fused

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HAS_LIGER = importlib.util.find_spec("liger_kernel") is not None


def test_a_cpu_leaves_torchs_kernels_and_says_why() -> None:
    on_cpu = choose_fused(device=CPU, kind="qwen3")
    assert not on_cpu.is_used and "the device is cpu" in on_cpu.why


@pytest.mark.skipif(HAS_LIGER, reason="liger-kernel is installed")
def test_without_the_package_it_goes_on_and_says_what_installs_it() -> None:
    choice = choose_fused(device=CUDA, kind="qwen3")
    assert not choice.is_used and "pip install 'mcpagent[fused]'" in choice.why


def test_on_another_machine_the_package_is_not_counted_on() -> None:
    assert not choose_fused(device=CUDA, kind="qwen3", is_here=False).is_used


@pytest.mark.skipif(
    not HAS_LIGER or importlib.util.find_spec("triton") is None,
    reason="liger-kernel and triton are not installed",
)
def test_fused_kernels_compute_the_same_keep_less_and_are_dropped_where_they_do_not() -> None:
    command = [sys.executable, "-m", "tests.models.liger_interpreted"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["is_used"] and told["class of other models"] == "transformers.models.qwen3.modeling_qwen3"
    assert told["norms"] == 4 * 4 + 1  # four a layer, and the last
    assert told["logprobs apart"] < 1e-5 and told["gradients apart"] < 1e-4
    plain, fused = told["plain"], told["fused"]
    assert fused["counted"] < 0.8 * plain["counted"]
    assert 0.85 < plain["forecast"] / plain["counted"] < 1.15
    assert 0.85 < fused["forecast"] / fused["counted"] < 1.15
    assert not told["wrong"]["is_used"] and told["wrong"]["is_as_before"]
    assert "away from its own" in told["wrong"]["why"]
