"""The sampler of a run, from its model and its configuration: the backend, the engine and the canary."""

from __future__ import annotations

import copy
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mcpagent.config.schema import TrainConfig
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.env.episode import EpisodeLimits, prompt_messages
from mcpagent.env.offer import discovery, first_schemas
from mcpagent.errors import UserError
from mcpagent.models.load import is_quantised
from mcpagent.policy.backend import BackendChoice, choose_backend
from mcpagent.policy.canary import CANARY_PROMPTS, MAX_TEMPERATURE, Canary
from mcpagent.policy.vllm.engine import VllmPolicy, VllmSettings, cpu_cache_bytes, engine_options
from mcpagent.policy.vllm.process import own_engine
from mcpagent.policy.vllm.servers import VllmServers
from mcpagent.train.learner.learner import Learner
from mcpagent.train.load import Loaded, compute_dtype
from mcpagent.train.settings import is_deterministic
from mcpagent.train.weight_sync import RolloutEngine, hf_sampler, score_completions, vllm_sampler


@contextmanager
def open_sampler(
    loaded: Loaded,
    config: TrainConfig,
    *,
    model: Any,
    slots: int,
    weights: Path | None = None,
    learner: Learner | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator[RolloutEngine]:
    """Open the engine that samples with `model`'s weights, on the backend that `rollout.backend` names.
    `weights` is where a training run hands them to servers; None if they never change: servers then get them
    once, through `output_dir`. Raises UserError."""
    is_trained = weights is not None
    choice = _choice(loaded, config, model=model, is_trained=is_trained)
    if choice.backend == "vllm" and not is_trained and hasattr(model, "peft_config"):
        model = model.merge_and_unload()  # an engine has one model, and these adapters never change
    if config.rollout.backend == "auto":
        on_note(f"sampling with {choice.backend}: {choice.why}")
    refuse_temperature(config, choice)
    renderer = loaded.renderer
    common: dict[str, Any] = {
        "decode": renderer.decode,
        "stop_ids": renderer.stop_ids,
        "max_context": loaded.max_context,
    }
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        if choice.backend == "hf":
            sampler = hf_sampler(model, slots=slots, threads=threads, is_trained=is_trained, **common)
        elif config.vllm.servers:
            folder = weights or Path(config.output_dir).absolute() / f".weights-{secrets.token_hex(4)}"
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            seeded = is_deterministic(loaded.device)
            servers = VllmServers(config.vllm.servers, version=-1, is_seeded=seeded, **common)
            sampler = vllm_sampler(servers, model, folder=folder, learner=learner)
        else:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="mcpagent-vllm-")))
            settings = _vllm_settings(loaded, config, model=model, contexts=slots, folder=folder)
            if is_trained and _process_count() > 1:
                address = stack.enter_context(_own_engine(settings, loaded))
                level = settings.sleep_level if settings.can_sleep else None
                engine = VllmServers(
                    [address], version=-1, is_seeded=settings.is_seeded, sleep_level=level, **common
                )
            else:
                if not is_trained:
                    model.to("cpu")  # vLLM has a copy of its own
                del common["max_context"]
                engine = VllmPolicy(settings, threads=threads, version=-1 if is_trained else 0, **common)
            sampler = (
                vllm_sampler(engine, model, folder=folder, learner=learner)
                if is_trained
                else RolloutEngine(policy=engine, push=lambda: None, close=engine.close)
            )
        stack.callback(sampler.close)
        yield sampler


def refuse_temperature(config: TrainConfig, choice: BackendChoice) -> None:
    """Raise UserError for a temperature that the backend does not take."""
    if choice.backend == "vllm" and config.rollout.temperature > MAX_TEMPERATURE:
        raise UserError(
            f"rollout.temperature is {config.rollout.temperature}, but vLLM takes {MAX_TEMPERATURE} at most",
            where="rollout.temperature",
            remedy="lower it, or --set rollout.backend=hf",
        )


def refuse_shared_engine(config: TrainConfig, *, count: int) -> None:
    """Raise UserError if `count` processes could not each have a vLLM engine on their own device."""
    if count == 1 or config.vllm.servers:
        return
    if config.vllm.tensor_parallel_size > 1:
        raise UserError(
            f"vllm.tensor_parallel_size is {config.vllm.tensor_parallel_size}, but {count} processes train "
            "together, each with one device and an engine on it",
            where="vllm.tensor_parallel_size",
            remedy="set it to 1, or start vLLM servers on other devices and name them in vllm.servers",
        )


def _process_count() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _own_engine(settings: VllmSettings, loaded: Loaded) -> AbstractContextManager[str]:
    device = None
    if loaded.device.type == "cuda" and settings.tensor_parallel_size == 1:
        device = torch.cuda.current_device() if loaded.device.index is None else loaded.device.index
    return own_engine(engine_options(settings), device=device)


def _choice(loaded: Loaded, config: TrainConfig, *, model: Any, is_trained: bool = True) -> BackendChoice:
    is_lora = is_trained and hasattr(model, "peft_config") and not is_quantised(model)
    return choose_backend(config, device=loaded.device.type, is_lora=is_lora)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _vllm_settings(
    loaded: Loaded, config: TrainConfig, *, model: Any, contexts: int, folder: Path
) -> VllmSettings:
    is_lora, name = hasattr(model, "peft_config"), loaded.whole
    if name is None:
        # Adapters and their base were put together in memory, and vLLM reads a folder.
        name = str(folder / "model")
        (copy.deepcopy(model).unload() if is_lora else model).save_pretrained(name)
        loaded.tokenizer.save_pretrained(name)
    has_gpu, vllm = loaded.device.type == "cuda", config.vllm
    dtype = compute_dtype(loaded, config)
    return VllmSettings(
        model=name,
        dtype=_name(dtype),
        max_context=loaded.max_context,
        contexts=contexts,
        lora_rank=config.lora.r if is_lora else None,
        cache_bytes=None
        if has_gpu
        else cpu_cache_bytes(
            loaded.model.config, contexts=contexts, max_context=loaded.max_context, itemsize=dtype.itemsize
        ),
        gpu_memory_utilization=vllm.gpu_memory_utilization,
        tensor_parallel_size=vllm.tensor_parallel_size,
        is_seeded=is_deterministic(loaded.device),
        enforce_eager=vllm.enforce_eager,
        trust_remote_code=config.model.trust_remote_code,
        can_sleep=has_gpu,
    )


def build_canary(
    loaded: Loaded,
    config: TrainConfig,
    *,
    learner: Learner,
    tasks: Iterable[Task],
    catalog: Mapping[str, ToolSpec],
) -> Canary:
    """Return the proof over the prompts of the first tasks."""
    prompts = [
        loaded.renderer.prompt_ids(
            prompt_messages(task, EpisodeLimits().message_limit_chars),
            first_schemas(
                catalog,
                task.offered_tools,
                discovery(config.tools),
                task_id=task.id,
                tool_format=loaded.renderer.tool_format,
            ),
        )
        for task in islice(tasks, CANARY_PROMPTS)
    ]
    return Canary(
        prompts,
        score=partial(score_completions, learner),
        dtype=_name(compute_dtype(loaded, config)),
        max_context=loaded.max_context,
        temperature=config.rollout.temperature,
        seed=config.seed,
    )


def why_corrected(loaded: Loaded, config: TrainConfig, *, model: Any) -> str | None:
    """Return why the sampler's probabilities are not the trainer's; None if one engine in one dtype does
    both."""
    if _choice(loaded, config, model=model).backend == "vllm":
        return "vllm samples"
    if (dtype := compute_dtype(loaded, config)) != loaded.model.dtype:
        return f"the sampler computes in {_name(loaded.model.dtype)} and the trainer in {_name(dtype)}"
    return None
