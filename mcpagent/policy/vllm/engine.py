"""`VllmPolicy`: the `Policy` of a vLLM engine in this process, on a compute thread of its own.

Each of the settings below that looks like a detail is there because its default gave wrong numbers silently:
tests/vllm holds a test for each.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import FinishReason
from mcpagent.errors import RunError, UserError
from mcpagent.models.architecture import cache_elements
from mcpagent.models.out_of_memory import is_about_memory
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.engine_thread import EnginePolicy, Finished
from mcpagent.policy.sampling import refuse_infinite
from mcpagent.policy.vllm.process import ENVIRONMENT
from mcpagent.policy.vllm.worker import EXTENSION

_BLOCK = 32  # tokens; vLLM's 128 on CPU is longer than many prompts, which then never share anything
_MAX_CPU_CACHE = 4 << 30  # bytes
_CPU_STEP = 8192  # tokens of one step
_HERE = "the vLLM engine"
_MARGIN, _LEAST = 0.02, 0.05  # of a device's memory: left free, and too little to begin with
_ADAPTERS = 2  # of neighbouring versions in one batch: turns go on with the one that they began with
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM has kernels for


@dataclass(frozen=True, kw_only=True)
class VllmSettings:
    """`model` is a folder or hub id, `lora_rank` None if all weights change. `cache_bytes` None takes
    `gpu_memory_utilization` of the device; on CPU it is what `contexts` full contexts need."""

    model: str
    dtype: str = "float32"
    max_context: int = 4096
    contexts: int = 64  # turns at once
    lora_rank: int | None = None
    cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.6
    tensor_parallel_size: int = 1
    is_seeded: bool = True  # each turn has a random stream of its own: a kernel more for each row and token
    enforce_eager: bool = False
    trust_remote_code: bool = False
    can_sleep: bool = False  # give the device memory back while the trainer works
    logprobs_mode: str = "processed_logprobs"  # of the distribution that was sampled from

    @property
    def sleep_level(self) -> int:
        """The level to sleep at: 1 keeps the weights in host memory, for adapters to come back to; 2 drops
        them, since all of them are sent again."""
        return 2 if self.lora_rank is None else 1


class VllmEngine:
    """A `BatchEngine` (see `engine_thread`). Make it and use it on one thread."""

    def __init__(self, settings: VllmSettings, *, stop_ids: frozenset[int]) -> None:
        self._settings, self._stop_ids = settings, sorted(stop_ids)
        with _state_of_this_process():
            self._llm = _start(settings)
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        self._random = _RandomState(devices)
        self._numbers = itertools.count()
        self._open: dict[str, CompletionRequest] = {}  # by request id
        self._request_of: dict[str, str] = {}  # by episode
        self._adapter: Any = None
        self.prefilled_tokens = 0  # the cached ones among them left out

    @property
    def has_work(self) -> bool:
        """Return True while a turn is being sampled."""
        return bool(self._open)

    def admit(self, requests: Sequence[CompletionRequest]) -> list[Finished]:
        """Let requests join."""
        if self._llm.is_sleeping():
            # It would give no turn a token, and say nothing.
            raise RuntimeError("the vLLM engine sleeps while the trainer works: nothing can be sampled")
        for request in requests:
            self._join(request)
        return []

    def _join(self, request: CompletionRequest) -> None:
        if self._settings.lora_rank is not None and self._adapter is None:
            # Rows without an adapter would be given the last one's on CPU, and prove nothing elsewhere.
            raise RuntimeError("no adapter has been loaded yet")
        name = str(next(self._numbers))
        room = self._settings.max_context - len(request.token_ids)
        self._llm.add_request(
            name,
            {"prompt_token_ids": list(request.token_ids)},
            _sampling_params(request, self._stop_ids, room=room, is_seeded=self._settings.is_seeded),
            lora_request=self._adapter,
        )
        self._open[name] = request
        self._request_of[request.episode_id] = name

    def step(self) -> list[Finished]:
        """One token for every turn, or a part of a prompt; returns the turns that end."""
        # vLLM fills its noise from the global generator before each request's own overwrites it, and that
        # generator is the trainer's.
        with self._random.in_place():
            outputs = self._llm.step()
        return [self._finished(out) for out in outputs if out.finished]

    def release(self, episode_id: str) -> list[Finished]:
        """End the turn that is still being sampled, if any; it has no tokens then. Between turns an episode
        has nothing but prefixes in the cache, which are evicted when others need the room."""
        name = self._request_of.pop(episode_id, None)
        if name is None:
            return []
        self._llm.abort_request([name])
        return [Finished(self._open.pop(name), (), (), FinishReason.LENGTH)]

    def load_adapter(self, folder: Path, *, version: int) -> None:
        """Turns that begin from now on use the adapter in `folder` (PEFT format), which must stay. Name and
        id are new each time: under a known id vLLM keeps the old adapter, under a known name the keys that
        the old one computed."""
        from vllm.lora.request import LoRARequest

        adapter = LoRARequest(f"policy-{version}", version + 1, str(folder))
        self._llm.add_lora(adapter)
        self._adapter = adapter

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace every weight, and drop the keys that the old ones computed."""
        # Of a tied tensor's names a checkpoint holds the first, and some models (Gemma) know no other.
        once = {(w.data_ptr(), w.shape): (name, w) for name, w in reversed(list(weights))}
        self._llm.collective_rpc("mcpagent_load_weights", args=(list(reversed(once.values())),))
        self._llm.reset_prefix_cache()

    def served(self) -> list[JsonObject]:
        """Return what each worker computes with now: checksums of the current adapter, or of all weights."""
        if self._settings.lora_rank is None:
            return self._llm.collective_rpc("mcpagent_weights")
        number = None if self._adapter is None else self._adapter.lora_int_id
        return self._llm.collective_rpc("mcpagent_adapter", args=(number,))

    def sleep(self) -> None:
        """Weights to host memory, cache dropped. Nothing may be running."""
        if self._settings.can_sleep and not self._llm.is_sleeping():
            self._llm.sleep(level=self._settings.sleep_level)

    def wake(self) -> None:
        """The opposite of `sleep`; no effect if it is awake."""
        if self._settings.can_sleep and self._llm.is_sleeping():
            self._llm.wake_up()

    def close(self) -> None:
        """Free what the engine holds, the process group included."""
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._llm.engine_core.shutdown()
        del self._llm
        cleanup_dist_env_and_memory()

    def _finished(self, out: Any) -> Finished:
        (completion,) = out.outputs
        request = self._open.pop(out.request_id)
        del self._request_of[request.episode_id]
        token_ids = tuple(completion.token_ids)
        logprobs = tuple(completion.logprobs.logprobs[i] for i in completion.logprobs.start_indices)
        refuse_infinite(logprobs)
        self.prefilled_tokens += len(request.token_ids) - (out.num_cached_tokens or 0)
        reason = FinishReason.STOP if completion.finish_reason == "stop" else FinishReason.LENGTH
        return Finished(request, token_ids, logprobs, reason)


class _RandomState:
    """The engine's own state of torch's global generators."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._devices = devices
        self._states: list[torch.Tensor] = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the generators go on where they were at the end of the last time."""
        with torch.random.fork_rng(self._devices):
            if self._states:
                torch.set_rng_state(self._states[0])
                for device, state in zip(self._devices, self._states[1:], strict=True):
                    torch.cuda.set_rng_state(state, device)
            else:  # no two engines, and no two runs, sample alike
                torch.manual_seed(int.from_bytes(os.urandom(7)))
            yield
            of_devices = (torch.cuda.get_rng_state(device) for device in self._devices)
            self._states = [torch.get_rng_state(), *of_devices]


def memory_share(free: int, total: int, *, asked: float) -> float:
    """Return which share of a device's `total` bytes an engine may take, of the `asked` one: what is free
    there, but for a margin. vLLM ends at once if less is free than it was told to take. Raises
    UserError if next to nothing is."""
    share = min(asked, free / total - _MARGIN)
    if share < _LEAST:
        raise UserError(
            f"{free / 2**30:.1f} of the GPU's {total / 2**30:.1f} GiB are free, which is too little for a "
            "vLLM engine next to the trainer",
            where="vllm.gpu_memory_utilization",
            remedy="end what else runs on the GPU (nvidia-smi), name vllm.servers elsewhere, or use "
            "rollout.backend=hf",
        )
    return share


def cpu_cache_bytes(config: Any, *, contexts: int, max_context: int, itemsize: int) -> int:
    """Return what `contexts` full contexts of a transformers `config` need, at most 4 GiB."""
    tokens = (contexts + 1) * (max_context + _BLOCK)
    return min(_MAX_CPU_CACHE, tokens * cache_elements(config) * itemsize)


def _sampling_params(request: CompletionRequest, stop_ids: list[int], *, room: int, is_seeded: bool) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = request.sampling
    return SamplingParams(
        max_tokens=min(sampling.max_new_tokens, room),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=request.seed if is_seeded else None,
        stop_token_ids=stop_ids,
        ignore_eos=True,  # what ends a turn is in stop_ids, the tokenizer's eos included
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _start(settings: VllmSettings) -> Any:
    # Read by vLLM when it is imported, or when an engine is made.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    options = engine_options(settings)
    # A token is known before the next step, so versions are exact.
    options |= {"async_scheduling": False, "skip_tokenizer_init": True}
    # The context decides what a step holds at most by default: on an H100 16,384 tokens, not 2,048.
    try:
        return LLMEngine.from_engine_args(EngineArgs(**options), usage_context=UsageContext.LLM_CLASS)
    except Exception as error:
        if is_about_memory(error):
            raise
        raise RunError(
            f"the vLLM engine did not start: {str(error).strip() or type(error).__name__}",
            where="rollout.backend",
            remedy="if other processes use the GPU, start it alone; `--backend hf` samples without vllm",
        ) from error


def engine_options(settings: VllmSettings) -> dict[str, Any]:
    """Options of vLLM, for an engine here or in a process of its own. Raises UserError if the device or
    the adapters do not fit."""
    options: dict[str, Any] = {
        "model": settings.model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_context,
        "max_num_seqs": settings.contexts,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": settings.enforce_eager,
        "trust_remote_code": settings.trust_remote_code,
        "enable_sleep_mode": settings.can_sleep,
        "enable_prefix_caching": True,
        "logprobs_mode": settings.logprobs_mode,
        "generation_config": "vllm",  # not the model's own defaults for sampling
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
    }
    if settings.lora_rank is not None:
        rank = _kernel_rank(settings.lora_rank)
        options |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": _ADAPTERS}
    if not torch.cuda.is_available():
        return options | {
            "kv_cache_memory_bytes": settings.cache_bytes,
            "block_size": _BLOCK,
            "enforce_eager": True,  # compilation costs a start more than it saves
            # A row with a seed whose prompt was cut in two ends the engine: generators on CPU have no offset.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(_CPU_STEP, settings.max_context),
        }
    if settings.cache_bytes is not None:
        return options | {"kv_cache_memory_bytes": settings.cache_bytes}
    free, total = torch.cuda.mem_get_info()
    share = memory_share(free, total, asked=settings.gpu_memory_utilization)
    return options | {"gpu_memory_utilization": share}


def _kernel_rank(rank: int) -> int:
    fitting = [supported for supported in _LORA_RANKS if supported >= rank]
    if not fitting:
        raise UserError(
            f"lora.r is {rank}, but vLLM takes adapters up to rank {_LORA_RANKS[-1]}",
            where="lora.r",
            remedy="lower it, or --set rollout.backend=hf",
        )
    return fitting[0]


@contextmanager
def _state_of_this_process() -> Iterator[None]:
    """Starting an engine seeds every global generator and replaces `torch.set_num_threads`: both are the
    trainer's, and are put back."""
    set_num_threads = torch.set_num_threads
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([]):
        try:
            yield
        finally:
            torch.set_num_threads = set_num_threads
            random.setstate(states[0])
            np.random.set_state(states[1])


class VllmPolicy(EnginePolicy[VllmEngine]):
    """Samples with vLLM; weights may be changed whenever no turn is being sampled."""

    def __init__(
        self,
        settings: VllmSettings,
        *,
        decode: Callable[[Sequence[int]], str],
        stop_ids: frozenset[int],
        threads: int = 1,
        version: int = 0,
    ) -> None:
        """`version` is that of the weights in `settings.model`; -1 if the first ones are still to come."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise UserError(
                "vLLM needs the process group of this process for itself, and there is one already: another "
                "engine, or a run on several devices",
                where="rollout.backend",
                remedy="start vLLM servers and name them in vllm.servers, or --set rollout.backend=hf",
            )

        def make() -> VllmEngine:
            # The number of OpenMP threads belongs to the calling thread.
            torch.set_num_threads(threads)
            return VllmEngine(settings, stop_ids=stop_ids)

        super().__init__(make, decode=decode, max_context=settings.max_context, version=version)

    def load_adapter(self, folder: Path) -> None:
        """A new version: the adapter in `folder`, for turns that begin from now on."""
        self.change_weights(lambda: self.engine.load_adapter(folder, version=self.version + 1))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """A new version: every weight by its name in the checkpoint."""
        self.change_weights(lambda: self.engine.load_weights(weights))

    def served(self) -> dict[str, list[JsonObject]]:
        """Checksums of what samples, by engine and worker (see `policy.vllm.worker`)."""
        return {_HERE: self.call(lambda: self.engine.served())}

    def sleep(self) -> None:
        """Give the device's memory to the trainer until `wake`. Nothing may be running."""
        self.call(lambda: self.engine.sleep())

    def wake(self) -> None:
        """Take the memory back after `sleep`."""
        self.call(lambda: self.engine.wake())

    def close(self) -> None:
        """Stop the engine. Turns that are being sampled, and whoever asks later, get an error."""
        super().close()
        self.engine.close()
