"""Which engine samples, and what a user is told about it. The reasons depend on whether vLLM is here."""

from __future__ import annotations

import importlib.util

import pytest

from mcpagent.errors import UserError
from mcpagent.policy.contract import choose_backend, require_vllm

HAS_VLLM = importlib.util.find_spec("vllm") is not None
without_vllm = pytest.mark.skipif(HAS_VLLM, reason="vllm is installed here")


def test_hf_is_hf_whatever_else_there_is() -> None:
    assert choose_backend("hf", is_lora=True, has_gpu=True, has_servers=True).backend == "hf"


@without_vllm
def test_asking_for_a_missing_vllm_is_an_error_with_the_install_command() -> None:
    with pytest.raises(UserError) as caught:
        choose_backend("vllm", is_lora=True, has_gpu=True)
    assert "not installed" in caught.value.message
    assert "pip install" in str(caught.value.remedy)
    assert "rollout.backend=hf" in str(caught.value.remedy)


def test_servers_need_no_vllm_on_this_side() -> None:
    require_vllm(has_servers=True)
    assert choose_backend("vllm", is_lora=True, has_gpu=False, has_servers=True).backend == "vllm"
    assert choose_backend("auto", is_lora=False, has_gpu=False, has_servers=True).backend == "vllm"


def test_auto_without_a_gpu_is_hf_and_says_why() -> None:
    choice = choose_backend("auto", is_lora=True, has_gpu=False)
    assert choice.backend == "hf"
    assert choice.why == ("there is no GPU" if HAS_VLLM else "vllm is not installed")


def test_auto_on_a_gpu_is_vllm_for_adapters_where_it_is_installed() -> None:
    adapters, full = (choose_backend("auto", is_lora=lora, has_gpu=True) for lora in (True, False))
    assert adapters.backend == ("vllm" if HAS_VLLM else "hf")
    assert full.backend == "hf"
    assert "adapters" in full.why or not HAS_VLLM
