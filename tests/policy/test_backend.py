"""Which engine samples, and what a user is told about it. The reasons depend on whether vLLM is here."""

from __future__ import annotations

import importlib.util

import pytest

from mcpagent.config.loader import load_train_config
from mcpagent.errors import UserError
from mcpagent.policy.backend import BackendChoice, choose_backend

SERVERS = '["http://127.0.0.1:8000"]'
HAS_VLLM = importlib.util.find_spec("vllm") is not None
without_vllm = pytest.mark.skipif(HAS_VLLM, reason="vllm is installed here")


def choice_of(backend: str, *, device: str, mode: str = "lora", servers: str = "[]") -> BackendChoice:
    settings = [f"rollout.backend={backend}", f"finetune.mode={mode}", f"vllm.servers={servers}"]
    return choose_backend(load_train_config([], settings).config, device=device)


def test_hf_is_hf_whatever_else_there_is() -> None:
    assert choice_of("hf", device="cuda", servers=SERVERS).backend == "hf"


@without_vllm
def test_asking_for_a_missing_vllm_is_an_error_with_the_install_command() -> None:
    with pytest.raises(UserError) as caught:
        choice_of("vllm", device="cuda")
    assert "not installed" in caught.value.message
    assert "pip install" in str(caught.value.remedy)
    assert "rollout.backend=hf" in str(caught.value.remedy)


def test_servers_need_no_vllm_on_this_side() -> None:
    assert choice_of("vllm", device="cpu", servers=SERVERS).backend == "vllm"
    assert choice_of("auto", device="cpu", mode="full", servers=SERVERS).backend == "vllm"


def test_auto_without_a_gpu_is_hf_and_says_why() -> None:
    choice = choice_of("auto", device="cpu")
    assert choice.backend == "hf"
    assert choice.why == ("there is no GPU" if HAS_VLLM else "vllm is not installed")


def test_auto_on_a_gpu_is_vllm_for_adapters_where_it_is_installed() -> None:
    adapters, full = (choice_of("auto", device="cuda", mode=mode) for mode in ("lora", "full"))
    assert adapters.backend == ("vllm" if HAS_VLLM else "hf")
    assert full.backend == "hf"
    assert "adapters" in full.why or not HAS_VLLM
