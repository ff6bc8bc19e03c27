"""How much memory a run will take, by part, from the shape of its model: no weight is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from mcpagent.config.schema import MAX_PASS_TOKENS, LoraConfig, TrainConfig
from mcpagent.models.architecture import cache_elements
from mcpagent.models.weights import meta_model
from mcpagent.storage.checkpoints import MODEL_FILE

_MASTER_BYTES = 4  # of what is trained, its gradients and each of its moments: float32 always
_NF4_BYTES = 0.516  # 4 bits, and 0.127 bits of block constants (arXiv 2305.14314, section 3)
ZERO3_BUCKET = 50_000_000  # elements: DeepSpeed's buffer of gradients, if its file does not say
_LIVE = _SUB_GROUP = 10**9  # DeepSpeed's defaults: weights gathered at once, those that are moved at once
_LOGITS_CHUNK = 1 << 25  # elements; as in `train.batch.scoring`, on a CPU half of it
_MIN_PASS_TOKENS = 256  # below that a pass costs more for each token: at 256, 3% more than at 512
_LOGITS_COPIES = 3  # logits, probabilities and their gradient, in float32
ASSUMED_CONTEXT = 2048  # tokens, if rollout.max_context_tokens is not set
GIB = 2**30
AIR = 0.95  # share of a device's memory that a run can have: the rest is the driver's and fragments


@dataclass(frozen=True)
class ModelShape:
    """Counts of parameters and elements. What a layer keeps of each token for its backward pass if nothing
    is computed again, is `layer_elements` in the dtype of the weights and `layer_copies` in float32; with all
    weights trained, `norm_elements` more."""

    class_name: str
    can_checkpoint: bool
    parameters: int
    root: int  # parameters outside of the layers: embeddings, head, last norm
    linear: int  # parameters of the linear layers that qlora quantises
    linear_names: tuple[str, ...]  # what lora.target_modules may name
    adapters: int
    layers: int
    hidden: int
    layer_elements: int
    layer_copies: int
    norm_elements: int
    cache_elements: int  # of a token, over all layers
    vocabulary: int
    max_context: int


def shape_of(config: Any, lora: LoraConfig, *, where: str = MODEL_FILE) -> ModelShape:
    """Return the shape of a transformers configuration, which errors call `where`: the architecture is built
    on the meta device. Raises UserError if it cannot be."""
    model = meta_model(config, where=where)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    linear = {n: m for n, m in model.get_decoder().named_modules() if isinstance(m, nn.Linear)}
    targets = lora.target_modules
    adapted = [m for n, m in linear.items() if targets == "all-linear" or n.rpartition(".")[2] in targets]
    feedforward = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    if experts := getattr(config, "num_experts_per_tok", None):
        feedforward = experts * (getattr(config, "moe_intermediate_size", None) or feedforward)
    queries, keys = config.num_attention_heads * head_dim, heads * head_dim
    # Norms compute on float32 copies: those before attention and feed-forward, and of queries and keys.
    has_qk_norm = any(n.endswith("q_norm") for n, _ in model.named_modules())
    normed = 2 * config.hidden_size + (queries + keys if has_qk_norm else 0)
    return ModelShape(
        class_name=type(model).__name__,
        can_checkpoint=model.supports_gradient_checkpointing,
        parameters=sum(p.numel() for p in model.parameters()),
        root=sum(p.numel() for p in model.parameters())
        - sum(p.numel() for layer in model.get_decoder().layers for p in layer.parameters()),
        linear=sum(m.weight.numel() for m in linear.values()),
        linear_names=tuple(sorted({n.rpartition(".")[2] for n in linear})),
        adapters=sum((m.in_features + m.out_features) * lora.r for m in adapted),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        # Gate, its activation, up and their product; what norms give; queries, keys, values and outputs.
        layer_elements=4 * feedforward + 2 * config.hidden_size + 2 * queries + 2 * keys,
        layer_copies=normed + 2 * config.num_attention_heads + 2,
        norm_elements=normed,
        cache_elements=cache_elements(config),
        vocabulary=config.vocab_size,
        max_context=config.max_position_embeddings,
    )


def trained_parameters(config: TrainConfig, shape: ModelShape) -> int:
    """Return how many of them an optimiser moves."""
    return shape.parameters if config.finetune.mode == "full" else shape.adapters


def _master_bytes(config: TrainConfig, shape: ModelShape, itemsize: int) -> int:
    """Return the bytes of the optimiser's own copies of weights that are narrower than float32."""
    return trained_parameters(config, shape) * _MASTER_BYTES if itemsize < _MASTER_BYTES else 0


def checkpoint_bytes(config: TrainConfig, shape: ModelShape, *, itemsize: int) -> int:
    """Return bytes of a checkpoint: what is trained, its two moments, and the optimiser's copies."""
    trained = trained_parameters(config, shape)
    return trained * (itemsize + 2 * _MASTER_BYTES) + _master_bytes(config, shape, itemsize)


@dataclass(frozen=True)
class Forecast:
    """Bytes by part, each at the moment of a step at which it is largest, and `peak`, the most that are held
    at once. `fixed` is what no setting of a batch changes. `episodes` is how many are played at once:
    `asked`, or what there is room for."""

    parts: dict[str, float]
    peak: float
    episodes: int
    asked: int

    @property
    def fixed(self) -> float:
        """Bytes that are taken whatever the length of a batch."""
        return sum(self.parts[name] for name in _FIXED)


_SHARED = ("weights", "gradients", "optimiser", "reference")  # between processes with shards
_FIXED = (*_SHARED, "sampling_copy", "gathered")


def forecast(
    config: TrainConfig,
    shape: ModelShape,
    *,
    itemsize: int,
    backend: Literal["hf", "vllm"],
    device_bytes: int | None,
    shards: int = 1,
    zero3: Mapping[str, Any] | None = None,
    has_own_memory: bool = False,
) -> Forecast:
    """Return what a process of a run holds. An engine of vLLM on the trainer's GPU has its share of the
    device's memory (`device_bytes`; left out if that is not known), during updates only if it does not sleep.
    `shards` is the number of processes that hold the weights once between them, by FSDP2, or by ZeRO-3 if
    there are DeepSpeed's settings `zero3` of it. On an accelerator, which `has_own_memory`, no more episodes
    are sampled at once than fit (see `train.weight_sync`)."""
    parts = memory(config, shape, itemsize=itemsize, samples_here=backend == "hf")
    parts["gathered"], on_host, copied = 0.0, (), 0.0
    if shards > 1:
        on_host = _on_host(config, zero3)
        if zero3 is not None and itemsize >= _MASTER_BYTES:
            parts["optimiser"] += parts["gradients"]  # DeepSpeed keeps its copies next to float32 weights too
        parts |= {name: parts[name] / shards for name in _SHARED}
        parts["gathered"] = _gathered(config, shape, itemsize, zero3)
        if zero3 is not None:  # flattened for the optimiser, when the backward pass is over
            copied = min(parts["gradients"], zero3.get("sub_group_size", _SUB_GROUP) * _MASTER_BYTES)
            parts["gradients"] += copied
    parts |= dict.fromkeys(on_host, 0.0)
    copied = 0.0 if "gradients" in on_host else copied
    has_engine = backend == "vllm" and config.algorithm == "grpo" and not config.vllm.servers
    parts["vllm"] = config.vllm.gpu_memory_utilization * (device_bytes or 0) if has_engine else 0.0
    fixed = sum(parts[name] for name in _FIXED)
    episodes = asked = episodes_requested(config)
    if has_own_memory and device_bytes is not None and parts["kv_cache"]:
        room = AIR * device_bytes - fixed
        each = parts["kv_cache"] / asked
        episodes = max(1, min(asked, int(room // each)))
    parts["kv_cache"] *= episodes / asked
    sampling = fixed + parts["kv_cache"] + parts["vllm"]
    updating = sum(parts.values()) - parts["vllm"]
    updating -= parts["kv_cache"] + parts["sampling_copy"]  # `rest` lets go of both
    passing = parts["activations"] + parts["logits"]  # over before gradients are flattened
    updating -= min(copied, passing)
    return Forecast(parts=parts, peak=max(sampling, updating), episodes=episodes, asked=asked)


def episodes_requested(config: TrainConfig) -> int:
    """Return how many episodes the settings want at once."""
    return min(config.rollout.num_envs, config.training.batch_size * config.rollout.group_size)


def _on_host(config: TrainConfig, zero3: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the parts that several processes share in the memory of the host."""
    if config.training.cpu_offload:
        return _SHARED
    if zero3 is None:
        return ()
    weights = ("weights", "reference") if _is_offloaded(zero3, "param") else ()
    return (*weights, *(("gradients", "optimiser") if _is_offloaded(zero3, "optimizer") else ()))


def _is_offloaded(zero3: Mapping[str, Any], part: str) -> bool:
    return (zero3.get(f"offload_{part}") or {}).get("device", "none") != "none"


def _gathered(
    config: TrainConfig, shape: ModelShape, itemsize: int, zero3: Mapping[str, Any] | None
) -> float:
    """Bytes of the weights that are gathered at once. By FSDP2: what is outside of the layers, and two
    layers, of which one is fetched while the other is computed; if all are trained, the whole gradients of
    the first and of one layer before they are scattered. ZeRO-3 keeps what a pass uses again, up to a number
    of weights, and has a float32 buffer of a fixed size for gradients that are summed."""
    if zero3 is not None:
        live = min(zero3.get("stage3_max_live_parameters", _LIVE), shape.parameters)
        return live * itemsize + zero3.get("reduce_bucket_size", ZERO3_BUCKET) * _MASTER_BYTES
    layer = (shape.parameters - shape.root) / shape.layers
    gradients = shape.root + layer if config.finetune.mode == "full" else 0.0
    return (shape.root + 2 * layer + gradients) * itemsize


def memory(config: TrainConfig, shape: ModelShape, *, itemsize: int, samples_here: bool) -> dict[str, float]:
    """Return bytes by part, each at the moment of a step at which it is largest. `itemsize` is that of the
    weights; with `samples_here` the episodes are sampled by transformers in this process."""
    mode, is_grpo = config.finetune.mode, config.algorithm == "grpo"
    is_full = mode == "full"
    frozen = 0 if is_full else shape.parameters
    trained = trained_parameters(config, shape) * itemsize
    moment = trained_parameters(config, shape) * _MASTER_BYTES
    weights = frozen * itemsize + trained
    if mode == "qlora":
        weights = shape.linear * _NF4_BYTES + (frozen - shape.linear) * itemsize + trained
    reference = 0.0
    if is_grpo and config.grpo.reference == "ema":
        reference = moment  # shadows are in float32
    elif is_grpo and config.grpo.reference == "frozen" and config.grpo.kl_coef > 0 and is_full:
        reference = trained
    samples_here = samples_here and is_grpo
    context = min(config.rollout.max_context_tokens or ASSUMED_CONTEXT, shape.max_context)
    tokens = config.training.pass_tokens
    return {
        "weights": weights,
        "gradients": moment,
        "optimiser": (2 if config.optimization.optimizer == "adamw" else 1) * moment
        + _master_bytes(config, shape, itemsize),
        "reference": reference,
        "sampling_copy": shape.linear * itemsize
        if samples_here and mode == "lora" and itemsize >= 4
        else 0.0,  # adapters on narrower weights are computed next to them
        "kv_cache": episodes_requested(config) * context * shape.cache_elements * itemsize
        if samples_here
        else 0.0,
        "activations": tokens * _kept_of_a_token(config, shape, itemsize),
        "logits": min(_LOGITS_CHUNK, tokens * shape.vocabulary) * 4 * _LOGITS_COPIES,
    }


def pass_tokens(config: TrainConfig, shape: ModelShape, *, itemsize: int) -> int:
    """Return how many tokens a pass on a CPU may have: what it keeps takes at most half of what the weights
    do, or half a GiB."""
    room = max(GIB, shape.parameters * itemsize) / 2
    tokens, each = MAX_PASS_TOKENS, _kept_of_a_token(config, shape, itemsize)
    while tokens > _MIN_PASS_TOKENS and tokens * each > room:
        tokens //= 2
    return tokens


def _kept_of_a_token(config: TrainConfig, shape: ModelShape, itemsize: int) -> int:
    """Bytes of a token for the backward pass; other samples under the same prompt share it."""
    elements, copies = shape.layer_elements, shape.layer_copies
    if config.finetune.mode == "full":
        elements += shape.norm_elements
    layer = elements * itemsize + copies * 4
    # After the last layer: its output, the float32 copy of the norm, and what predicts a token.
    head = shape.hidden * (2 * itemsize + 4)
    if config.model.gradient_checkpointing:
        # The input of every layer, and one layer at a time as it is computed again.
        return shape.layers * shape.hidden * itemsize + layer + head
    return shape.layers * layer + head
