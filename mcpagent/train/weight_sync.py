"""What samples the episodes of a run, with how the learner's weights get there: transformers or vLLM."""

from __future__ import annotations

import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.models.adapters import MergedCopy, adapted_beside_linear, causal_lm
from mcpagent.models.architecture import cache_elements
from mcpagent.policy.canary import Arrival, ReadBack
from mcpagent.policy.contract import Policy
from mcpagent.policy.hf.policy import HFPolicy
from mcpagent.policy.vllm.engine import VllmPolicy
from mcpagent.policy.vllm.servers import VllmServers
from mcpagent.policy.vllm.worker import digest, weight_sums
from mcpagent.train.batch.samples import sample_from_segments
from mcpagent.train.forecast import AIR
from mcpagent.train.learner.learner import Learner

_SCORED_TOKENS = 4096  # of one forward pass of the canary
_KEPT_ADAPTERS = 4  # versions whose files stay: turns that began with one may still run


@dataclass(frozen=True, kw_only=True)
class RolloutEngine:
    """`push` brings the learner's weights to the policy as its next version; between `rest` and `push` a
    colocated engine gives its memory to the trainer. `read_back` compares what the engines hold with the
    learner's weights; None if they never change. `episodes` is how many it has room for at once, None for
    any number."""

    policy: Policy
    push: Callable[[], None]
    close: Callable[[], None]
    rest: Callable[[], None] = lambda: None
    read_back: ReadBack | None = None
    episodes: int | None = None


def hf_sampler(
    model: Any,
    *,
    decode: Callable[[Sequence[int]], str],
    stop_ids: frozenset[int],
    max_context: int,
    slots: int,
    threads: int = 1,
    is_trained: bool = False,
) -> RolloutEngine:
    """Over `model`'s weights: a merged copy if it has adapters that can be merged without loss, else the
    model itself, whose adapters are computed next to the weights. On an accelerator the episodes that it has
    room for follow the memory that is free now; with `is_trained` gradients and moments are still to come."""
    merged = MergedCopy(model) if _merges_without_loss(model) else None
    serving = merged.model if merged is not None else causal_lm(model)
    policy = HFPolicy(
        serving,
        decode=decode,
        stop_ids=stop_ids,
        max_context=max_context,
        slots=slots,
        threads=threads,
    )

    def push() -> None:
        policy.on_weights_changed(merged.sync if merged is not None else lambda: None)

    def read_back() -> Arrival:
        if merged is not None:
            layers = list(merged.layers())
            return Arrival(tensors=len(layers), differing=tuple(n for n, is_same in layers if not is_same))
        # The very tensors that are trained, so nothing can be older than they are.
        serves = {id(parameter) for parameter in serving.parameters()}
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return Arrival(tensors=len(trained), differing=tuple(n for n, p in trained if id(p) not in serves))

    free = free_bytes(serving.device)
    if free is not None and is_trained:
        free -= 3 * 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    room = None
    if free is not None:
        room = episodes_with_room(
            serving.config, free=AIR * free, max_context=max_context, itemsize=serving.dtype.itemsize
        )
    return RolloutEngine(
        policy=policy,
        push=push,
        close=policy.close,
        rest=(lambda: None) if merged is None else merged.rest,
        read_back=read_back,
        episodes=room,
    )


def episodes_with_room(config: Any, *, free: float, max_context: int, itemsize: int) -> int:
    """Return how many whole contexts fit into `free` bytes, at least one; `config` is the model's."""
    return max(1, int(free // (max_context * cache_elements(config) * itemsize)))


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of an accelerator, with what torch keeps and does not use; None for a CPU, whose
    slots are settings."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return None


def _merges_without_loss(model: Any) -> bool:
    """Weights of 4 bits take no adapters, and bfloat16 ones keep less than a tenth of one step at 2e-5."""
    return (
        hasattr(model, "peft_config")
        and causal_lm(model).dtype == torch.float32
        and not adapted_beside_linear(model)
    )


def vllm_sampler(
    engine: VllmPolicy | VllmServers,
    model: Any,
    *,
    folder: Path,
    learner: Learner | None = None,
) -> RolloutEngine:
    """Sampling with vLLM in this process or behind HTTP. The weights of a `learner` that holds shards are
    gathered by all processes first; then one of them sends them to servers.

    Adapters are written to `folder`, which servers must be able to read too; so are whole checkpoints for
    servers. The first push makes version 0."""
    kept: deque[Path] = deque()
    gathered: dict[str, torch.Tensor] = {}  # the adapters of a learner that holds shards, as they were sent
    has_adapters = hasattr(model, "peft_config")
    if has_adapters and (others := adapted_beside_linear(model)):
        raise UserError(
            f"vLLM serves adapters of linear layers, and lora.target_modules adapts the experts too "
            f"({others[0]} and {len(others) - 1} more)",
            where="lora.target_modules",
            remedy="use all-linear, which leaves experts and router as they are, or --set rollout.backend=hf",
        )

    def write(save: Callable[[Path], object]) -> Path:
        path = folder / f"version-{engine.version + 1}"
        save(path)
        kept.append(path)
        if len(kept) > _KEPT_ADAPTERS:
            shutil.rmtree(kept.popleft(), ignore_errors=True)
        return path

    def send(weights: Mapping[str, torch.Tensor] | None) -> str | None:
        whole = {} if weights is None else {"state_dict": weights}
        if has_adapters:
            engine.load_adapter(
                write(lambda path: model.save_pretrained(path, save_embedding_layers=False, **whole))
            )
        elif isinstance(engine, VllmPolicy):
            engine.load_weights((model.state_dict() if weights is None else weights).items())
        else:
            engine.load_folder(write(lambda path: model.save_pretrained(path, **whole)))
        return engine.adapter if isinstance(engine, VllmServers) else None

    def push() -> None:
        engine.wake()
        if learner is None or not learner.wrapping.is_sharded:
            send(None)
        elif isinstance(engine, VllmPolicy):
            send(learner.weights(everywhere=True))
        else:
            weights = learner.weights()
            gathered.update((name, weight) for name, weight in weights.items() if ".lora_" in name)
            adapter = learner.processes.broadcast_from_rank0(lambda: send(weights))
            if not learner.processes.is_first:
                engine.follow(adapter)

    push()
    whole_served = _WeightsServed()

    def read_back() -> Arrival:
        if has_adapters:
            return _adapters_served(model, gathered or model.state_dict(), engine.served())
        return whole_served(model, engine.served())

    holds_shards = learner is not None and learner.wrapping.is_sharded
    return RolloutEngine(
        policy=engine,
        push=push,
        close=engine.close,
        rest=engine.sleep,
        # Shards of whole weights have no digests: there the tokens of the proof alone tell.
        read_back=read_back if gathered or not holds_shards else None,
    )


def _adapters_served(
    model: Any, weights: Mapping[str, torch.Tensor], served: Mapping[str, Sequence[JsonObject]]
) -> Arrival:
    """Every matrix of the adapters, in the dtype and with the scale that vLLM gives it; `weights` has the
    whole ones by their names in a state dict. Engines and names do not matter: a matrix of an older version
    has another digest."""
    from peft.tuners.lora.layer import Linear

    differing: list[str] = []
    tensors = 0
    for engine, worker in ((engine, worker) for engine, workers in served.items() for worker in workers):
        dtype, there = getattr(torch, worker["dtype"]), Counter(worker["digests"])
        for name, layer in ((n, m) for n, m in model.named_modules() if isinstance(m, Linear)):
            for adapter in layer.active_adapters:
                first, second = (weights[f"{name}.lora_{letter}.{adapter}.weight"] for letter in "AB")
                scaled = second.detach().to(dtype) * layer.scaling[adapter]
                for letter, matrix in (("A", first.to(dtype)), ("B", scaled)):
                    key = digest(matrix)
                    tensors += 1
                    if not there[key]:
                        differing.append(f"{name}.lora_{letter} on {engine}")
                    there[key] -= 1
    return Arrival(tensors=tensors, differing=tuple(differing))


class _WeightsServed:
    """Compares sums over the weights of each layer. Layers that an engine holds in another form, as the first
    comparison finds, are left to the canary's tokens."""

    def __init__(self) -> None:
        self._comparable: dict[tuple[str, str], bool] = {}

    def __call__(self, model: Any, served: Mapping[str, Sequence[JsonObject]]) -> Arrival:
        """Compare all engines and layers."""
        differing: list[str] = []
        compared = 0
        for engine, workers in served.items():
            theirs = _joined(worker["sums"] for worker in workers)
            if not theirs:
                continue
            ours = _sums(model, dtype=workers[0]["dtype"], columns=workers[0]["columns"])
            for group, sums in theirs.items():
                is_same = ours.get(group) == sums
                if self._comparable.setdefault((engine, group), is_same):
                    compared += 1
                    if not is_same:
                        differing.append(f"the weights of layer {group} on {engine}")
        return Arrival(tensors=compared, differing=tuple(differing))


def _sums(model: Any, *, dtype: str, columns: int | None) -> dict[str, list[int]]:
    of = getattr(torch, dtype)
    sums = weight_sums(model.named_parameters(), dtype=of, columns=columns)  # a tied tensor once
    head = model.get_output_embeddings().weight
    return sums | {"head": weight_sums([("head", head)], dtype=of, columns=columns)["other"]}


def _joined(parts: Iterable[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Return the sums of one engine from those of its shards."""
    sums: dict[str, list[int]] = {}
    for part in parts:
        for group, values in part.items():
            before = sums.get(group, [0] * len(values))
            sums[group] = [(a + b) % 2**63 for a, b in zip(before, values, strict=True)]
    return sums


def score_completions(
    learner: Learner,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float,
) -> list[float]:
    """Return the trainer's logprobs (nats) of the completions' tokens, in their order: a `canary.Scorer`."""
    rows = [
        sample_from_segments([(prompt, False), (completion, True)])
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    scored = learner.logprobs(rows, max_tokens=_SCORED_TOKENS, temperature=temperature)
    return [value for row in scored for value in row]
