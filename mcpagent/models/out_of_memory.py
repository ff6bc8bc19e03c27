"""Running out of memory as one error that names what to lower, with the numbers."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from mcpagent.config.schema import TrainConfig
from mcpagent.errors import MCPAgentError, RunError

Phase = Literal["loading the model", "sampling episodes", "updating the weights"]

# What allocators and libraries without an exception of their own say: CPU, CUDA, cuBLAS, MPS, vLLM's cache.
_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "No available memory for the cache blocks",
)
_PHASE_OF: dict[str, Phase] = {
    "mcpagent.models.load": "loading the model",
    "mcpagent.policy": "sampling episodes",
    "mcpagent.rollout": "sampling episodes",
    "mcpagent.train.update": "updating the weights",
    "mcpagent.train.learner.learner": "updating the weights",
    "mcpagent.train.batch.scoring": "updating the weights",
    "mcpagent.train.sft": "updating the weights",
}


@contextmanager
def memory_reported(config: TrainConfig) -> Iterator[None]:
    """Turn running out of memory, on a GPU or a CPU, into a RunError that names what to lower."""
    try:
        yield
    except MCPAgentError:
        raise
    except Exception as error:
        cause = _cause(error)
        if cause is None:
            raise
        phase, said = _phase(cause), " ".join(str(cause).split())
        when = f" while {phase}" if phase else ""
        raise RunError(
            f"out of memory{when}: {said or type(cause).__name__}",
            where=f"device {config.device}",
            remedy=f"{what_to_lower(config, phase)}. --resume goes on with it from the last checkpoint",
        ) from error


def what_to_lower(config: TrainConfig, phase: Phase | None) -> str:
    """Return which settings take memory in that phase (None: in any), each with a lower value."""
    remedies = [text for part, text in _settings(config) if phase is None or part == phase]
    return f"lower one of: {'; '.join(remedies)}"


def _settings(config: TrainConfig) -> Iterator[tuple[Phase, str]]:
    """Yield what takes memory in which phase, with its value and a lower one."""
    training, rollout, vllm = config.training, config.rollout, config.vllm
    yield "loading the model", f"model.name (it is {config.model.name}: a smaller one)"
    if config.finetune.mode != "qlora":
        yield "loading the model", f"finetune.mode (it is {config.finetune.mode}: {_lighter(config)})"
    if config.rollout.backend != "hf":
        share = vllm.gpu_memory_utilization
        yield "loading the model", f"vllm.gpu_memory_utilization (it is {share:g}: {share * 0.75:.2g})"
    yield "sampling episodes", f"rollout.num_envs (it is {rollout.num_envs}: {_half(rollout.num_envs)})"
    context = rollout.max_context_tokens
    if context is not None:
        yield "sampling episodes", f"rollout.max_context_tokens (it is {context}: {_half(context)})"
    tokens = rollout.max_new_tokens
    yield "sampling episodes", f"rollout.max_new_tokens (it is {tokens}: {_half(tokens)})"
    tokens = training.pass_tokens
    yield "updating the weights", f"training.micro_batch_tokens (it is {tokens}: {_half(tokens)})"
    if not config.model.checkpoints_on(_device_kind(config)):
        yield "updating the weights", "model.gradient_checkpointing (it is false: true)"
    if config.finetune.mode == "full":
        yield "updating the weights", f"finetune.mode (it is full: {_lighter(config)})"


def _device_kind(config: TrainConfig) -> str:
    torch = sys.modules.get("torch")
    has_gpu = torch is not None and torch.cuda.is_available()
    return config.device if config.device != "auto" or has_gpu else "cpu"


def _lighter(config: TrainConfig) -> str:
    return "lora" if config.finetune.mode == "full" else "qlora"


def _half(number: int) -> int:
    return max(1, number // 2)


def _cause(error: BaseException) -> BaseException | None:
    """Return the part of `error` that is about memory: itself, what caused it, or a member of a group."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        if is_about_memory(current):
            return current
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
        waiting += [other for other in (current.__cause__, current.__context__) if other is not None]
    return None


def is_about_memory(error: BaseException) -> bool:
    """Return whether a device or the machine had no memory left, whichever library says so."""
    torch = sys.modules.get("torch")  # a command that has not imported it cannot fail by it
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError | ValueError) and any(phrase in str(error) for phrase in _PHRASES)


def _phase(error: BaseException) -> Phase | None:
    """Return the phase of the innermost of our own frames that has one."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        for prefix, phase in _PHASE_OF.items():
            if f"{module}.".startswith(f"{prefix}."):
                return phase
    return None
