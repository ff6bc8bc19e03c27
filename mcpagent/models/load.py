"""Load, adapt and save models of transformers and PEFT."""

from __future__ import annotations

import copy
import ctypes
import ctypes.util
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from mcpagent.errors import UserError
from mcpagent.models.weights import (
    holds_weights,
    refuse_incomplete,
    refuse_other_sizes,
    stored_tensors,
    weight_shapes,
)
from mcpagent.storage.checkpoints import ADAPTER_FILE, choose_checkpoint, verified
from mcpagent.storage.packages import require

# Where DeepSpeed is installed, transformers imports it to save a model, and it warns on stdout without a GPU.
logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno > logging.WARNING)

# What transformers and PEFT say of weights that do not fit, in exceptions and warnings of general kinds.
_UNFIT = ("size mismatch", "ignore_mismatched_sizes", "conversion of the weights")
_LACKING = "Found missing adapter keys"


@dataclass(frozen=True, kw_only=True)
class LoraShape:
    """Low-rank adapters: rank, scale alpha / r (with `rslora` alpha / sqrt(r)), dropout, and which linear
    layers carry them."""

    r: int
    alpha: float
    dropout: float
    target_modules: str | Sequence[str]
    rslora: bool = False


def resolve_device(name: str) -> torch.device:
    """`auto` is cuda, then mps, then cpu. A device that is asked for and missing is an error."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if cuda else "mps" if mps else "cpu"
    if (name == "cuda" and not cuda) or (name == "mps" and not mps):
        raise UserError(
            f"device {name} is not available here",
            where="device",
            remedy="use --device cpu, or run `mcpagent doctor`",
        )
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on an accelerator that computes it, else float32: older GPUs (T4, V100) only emulate
    it. A CUDA device that is planned for on a machine without one is taken to have it."""
    if name == "auto":
        is_emulated = (
            device.type == "cuda"
            and torch.cuda.is_available()
            and not torch.cuda.is_bf16_supported(including_emulation=False)
        )
        return torch.float32 if device.type == "cpu" or is_emulated else torch.bfloat16
    return getattr(torch, name)


def load_tokenizer(name: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a hub id or folder."""
    from transformers import AutoTokenizer

    return _from_pretrained(AutoTokenizer.from_pretrained, name, trust_remote_code=trust_remote_code)


def load_config(name: str, *, trust_remote_code: bool = False, local_only: bool = False) -> Any:
    """The transformers configuration of a hub id or folder; of an adapter folder, that of its base.
    `local_only` asks no hub."""
    from transformers import AutoConfig

    if (base := _base_of_adapter(name)) is not None:
        name = base
    options = {"trust_remote_code": trust_remote_code, "local_files_only": local_only}
    return _from_pretrained(AutoConfig.from_pretrained, name, **options)


def load_model(
    name: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    in_4bit: bool = False,
) -> Any:
    """A causal LM from a hub id, a folder, or a PEFT adapter folder (its base with the adapter merged).
    `in_4bit` keeps the weights of its linear layers as NF4 and computes in `dtype`. Only safetensors are
    read, of the sizes that config.json says. Raises UserError."""
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    if attn_implementation is not None:
        refuse_missing_attention(attn_implementation, device)
        options["attn_implementation"] = attn_implementation
    if in_4bit:
        require_4bit(device)
        options |= {"quantization_config": _nf4(dtype), "device_map": {"": device}}
    base = _base_of_adapter(name)
    if base is None:
        model = _load_weights(name, **options)
        return model if in_4bit else model.to(device)
    if in_4bit:
        raise UserError(
            f"{name} is an adapter, which cannot be merged into 4-bit weights",
            where="model.name",
            remedy="merge it first: mcpagent export CKPT --merge --out DIR; or use --mode lora",
        )
    return _load_adapter(name, base=base, **options).merge_and_unload().to(device)


def empty_model(
    name: str, *, dtype: torch.dtype, attn_implementation: str | None = None, trust_remote_code: bool = False
) -> Any:
    """The causal LM that `load_model` would give, without memory for its weights: they have shapes and no
    values, while buffers, which a configuration determines, are there. Raises UserError."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = load_config(name, trust_remote_code=trust_remote_code)
    options = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=trust_remote_code, **options
        )
    with suppress(OSError):
        model.generation_config = _from_pretrained(GenerationConfig.from_pretrained, name)
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            # One number under all places: PEFT puts no adapters beside weights of the meta device.
            one = torch.zeros(1, dtype=parameter.dtype).expand(parameter.shape)
            setattr(module, key, torch.nn.Parameter(one, requires_grad=parameter.requires_grad))
    model.tie_weights()
    return model.eval()


def weight_sources(name: str, fits: Collection[str], **options: Any) -> Mapping[str, Callable[[], Any]]:
    """What reads each weight of a model, from safetensors one at a time; where they hold an adapter, or are
    not under the names in `fits`, the whole model is loaded for it, with the `options` of `load_model`."""
    if _base_of_adapter(name) is None:
        from huggingface_hub import snapshot_download

        folder = _local_folder(name)
        if folder is None:
            folder = Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json"]))
        stored = stored_tensors(folder)
        if set(stored) <= set(fits):
            return stored
    whole = load_model(name, device=torch.device("cpu"), **options).state_dict()
    return {key: partial(whole.get, key) for key in whole}


def check_weights(name: str, config: Any) -> None:
    """What `load_model` refuses of a folder here without reading its weights: pickles, files that were cut
    short, sizes other than those of `config`, its transformers configuration. A folder without any weights
    passes: a plan needs none. Raises UserError."""
    for place in (name, _base_of_adapter(name)):
        folder = None if place is None else _local_folder(place)
        if folder is None or not holds_weights(folder):
            continue
        if (folder / ADAPTER_FILE).is_file():
            weight_shapes(folder)
        else:
            refuse_other_sizes(folder, config)


def _load_weights(name: str, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    if (folder := _local_folder(name)) is not None:
        trusted = options["trust_remote_code"]
        refuse_other_sizes(folder, load_config(name, trust_remote_code=trusted))
    options |= {"use_safetensors": True, "output_loading_info": True}
    model, info = _from_pretrained(AutoModelForCausalLM.from_pretrained, name, **options)
    refuse_incomplete(info, name)
    return model


def _load_adapter(name: str, *, base: str, **options: Any) -> Any:
    """The base with the adapter on it, as PEFT's AutoPeftModelForCausalLM puts them together."""
    from peft import PeftConfig, PeftModel

    folder = _local_folder(name)
    assert folder is not None
    weight_shapes(folder)
    revision = _from_pretrained(PeftConfig.from_pretrained, name).revision
    model = _load_weights(base, **options, **({} if revision is None else {"revision": revision}))
    if (folder / "tokenizer_config.json").is_file():
        trusted = options["trust_remote_code"]
        model.resize_token_embeddings(len(load_tokenizer(name, trust_remote_code=trusted)))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=_LACKING)
        return _from_pretrained(lambda place: PeftModel.from_pretrained(model, place), name)


def require_4bit(device: torch.device, *, is_here: bool = True) -> None:
    """Raises UserError where weights cannot be held in 4 bits; with `is_here` off, the device is that of
    another machine, and what is installed is not asked."""
    if device.type != "cuda":
        raise UserError(
            f"finetune.mode qlora needs a CUDA GPU (bitsandbytes has 4-bit kernels for nothing else), "
            f"and the device is {device.type}",
            where="finetune.mode",
            remedy="use --mode lora, whose frozen weights take 2 bytes each with model.dtype=bfloat16",
        )
    if is_here:
        require("qlora", use="finetune.mode qlora")


def refuse_missing_attention(name: str, device: torch.device, *, is_here: bool = True) -> None:
    """Raises UserError where an attention of transformers cannot run; `is_here` as in `require_4bit`."""
    package = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}.get(name)
    if package is None:
        return
    if device.type != "cuda":
        why = f"it needs a CUDA GPU, and the device is {device.type}"
    elif is_here and importlib.util.find_spec(package) is None:
        why = f"the package {package} is not installed"
    else:
        return
    raise UserError(
        f"model.attn_implementation {name} is not available here: {why}",
        where="model.attn_implementation",
        remedy="use sdpa, which packs samples without padding on every device",
    )


def _nf4(dtype: torch.dtype) -> Any:
    """Dettmers et al. 2023 (arXiv 2305.14314), section 3: NF4 with double quantisation."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def attach_lora(model: Any, shape: LoraShape, *, seed: int) -> Any:
    """The model with fresh adapters; their random half depends on `seed` alone. They are in the dtype that
    the model computes in: for others PEFT casts the input of every adapted layer and keeps the copy for the
    backward pass, two thirds of what a pass would keep (`train.learner.optim.MasterWeights` keeps steps that
    the dtype does not resolve). Raises UserError where no layer has one of the names."""
    from peft import LoraConfig, get_peft_model

    target: Any = shape.target_modules
    if target == "all-linear" and has_stacked_experts(model):
        target = _linear_beside_experts(model)
    config = LoraConfig(
        r=shape.r,
        lora_alpha=int(shape.alpha),
        lora_dropout=shape.dropout,
        target_modules=target if isinstance(target, str) else list(target),
        use_rslora=shape.rslora,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT gives stacked experts a rank of their own, and then says that it matched nothing.
        warnings.filterwarnings("ignore", message=r"The following \w+ keys did not match", module="peft")
        torch.manual_seed(seed)
        try:
            adapted: Any = get_peft_model(model, config, autocast_adapter_dtype=True)
        except ValueError as error:
            linear = {
                n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)
            }
            raise UserError(
                f"lora.target_modules {shape.target_modules} fits no layer of the model",
                where="lora.target_modules",
                remedy=f"use all-linear, or names among {', '.join(sorted(linear))}",
            ) from error
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(causal_lm(adapted).dtype)
    return adapted


# PEFT takes these names to mean the stacked weights of a mixture's experts, and its router.
_NAMES_OF_EXPERTS = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "gate"})


def has_stacked_experts(model: Any) -> bool:
    """Whether it is a mixture whose experts are one tensor."""
    return any(parameter.ndim == 3 for parameter in causal_lm(model).parameters())


def _linear_beside_experts(model: Any) -> list[str]:
    """The names of a mixture's linear layers, but for those that PEFT would carry over to the experts and the
    router: a router that moves makes the trainer and the sampler choose other experts for the same token."""
    head = causal_lm(model).get_output_embeddings()
    linear = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}
    return sorted({n.rpartition(".")[2] for n in linear} - _NAMES_OF_EXPERTS)


def adapted_beside_linear(model: Any) -> list[str]:
    """The adapted modules of a LoRA model that are not linear layers: stacked experts, embeddings."""
    from peft.tuners.lora.layer import Linear, LoraLayer

    return [n for n, m in model.named_modules() if isinstance(m, LoraLayer) and not isinstance(m, Linear)]


def use_checkpointing(model: Any) -> None:
    """Keep the input of each layer alone for the backward pass and compute the rest again there."""
    inner = causal_lm(model)
    if not inner.supports_gradient_checkpointing:
        raise UserError(
            f"{type(inner).__name__} does not support gradient checkpointing",
            where="model.gradient_checkpointing",
            remedy="set it to false; training.micro_batch_tokens bounds the memory of activations too",
        )
    inner.gradient_checkpointing_enable({"use_reentrant": False})
    if inner.device.type == "cpu":
        map_large_blocks()


def map_large_blocks() -> None:
    """Tell glibc to map every block of 1 MiB or more by itself. Otherwise what is freed on a CPU stays in the
    heap between what is kept: of checkpointing as much again as without it, of shards, whose layers are
    gathered and let go, as much as the gathered layers. Mapping costs about a third more time."""
    _glibc("mallopt", -3, 1 << 20)  # M_MMAP_THRESHOLD


def trim_heap() -> None:
    """Have glibc give back what is free in its heap: more than the shards of a model just loaded."""
    _glibc("malloc_trim", 0)


def _glibc(function: str, *arguments: int) -> None:
    if sys.platform == "linux" and (name := ctypes.util.find_library("c")):
        getattr(ctypes.CDLL(name), function, lambda *_: 0)(*arguments)


def causal_lm(model: Any) -> Any:
    """The transformers model inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def is_quantised(model: Any) -> bool:
    """Whether the weights are held in 4 bits."""
    return bool(getattr(causal_lm(model), "is_loaded_in_4bit", False))


class MergedCopy:
    """A plain copy of a LoRA model for sampling, with the adapters of its linear layers merged into its
    weights at each `sync`; for float32 weights, since narrower ones round most of an update away.

    Each merge starts again from the frozen base, so nothing accumulates. Costs the memory of the base once.
    """

    def __init__(self, model: Any) -> None:
        self._source = model
        with torch.no_grad():
            self.model = copy.deepcopy(model).unload()
        self.model.requires_grad_(False).eval()
        self.sync()

    @torch.no_grad()
    def sync(self) -> None:
        """Bring the copy up to date with the adapters."""
        for _, target, merged in self._layers():
            target.copy_(merged)

    @torch.no_grad()
    def layers(self) -> Iterator[tuple[str, bool]]:
        """Each adapted layer, and whether the copy has what the adapters say now."""
        for name, target, merged in self._layers():
            yield name, torch.equal(target, merged)

    def _layers(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """The name of each adapted layer, its weight in the copy and what it is to be."""
        from peft.tuners.lora.layer import Linear

        for name, layer in self._source.named_modules():
            if isinstance(layer, Linear):
                name = name.removeprefix("base_model.model.")
                weight: torch.Tensor = layer.get_base_layer().weight  # type: ignore[assignment]
                merged = weight + layer.get_delta_weight("default").to(weight.dtype)
                yield name, self.model.get_submodule(name).weight, merged


def save_model(
    model: Any, tokenizer: Any, folder: Path, weights: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Hugging Face format, or PEFT format for a LoRA model; safetensors either way. `weights` are the whole
    ones of a model that holds shards."""
    _hide_progress_bars()
    model.save_pretrained(folder, **({} if weights is None else {"state_dict": weights}))
    tokenizer.save_pretrained(folder)


def _base_of_adapter(name: str) -> str | None:
    """The model that an adapter folder belongs to, checked like the folder itself; None for what is not
    one."""
    folder = _local_folder(name)
    if folder is None or not (folder / "adapter_config.json").is_file():
        return None
    from peft import PeftConfig

    base = _from_pretrained(PeftConfig.from_pretrained, name).base_model_name_or_path
    if base and Path(base).is_dir():
        verified(Path(base))  # PEFT loads it by itself
    if not base:
        raise UserError(
            f"{name} is an adapter that does not say of which model",
            where=f"{name}/adapter_config.json",
            remedy="write the folder or hub id of its model there as base_model_name_or_path",
        )
    return base


def _local_folder(name: str) -> Path | None:
    """The folder that a model's name means here, a run's best checkpoint where it is a run, checked against
    its seal; None for a hub id. Raises UserError."""
    path = Path(name).expanduser()
    if (path / "checkpoints").is_dir() or (not path.is_dir() and "@" in path.name):
        path = choose_checkpoint(path).path
    if path.is_dir():
        return verified(path)
    if name.startswith((".", "/", "~")):
        raise UserError(f"there is no model folder {name}", remedy="check model.name or the path")
    return None


def _from_pretrained(load: Callable[..., Any], name: str, **options: Any) -> Any:
    folder = _local_folder(name)
    if folder is not None:
        _hide_progress_bars()
    # Where a repository has no safetensors, transformers asks a service to convert its pickle.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    try:
        with _no_pickles(name):
            return load(name if folder is None else str(folder), **options)
    except (
        OSError,
        ValueError,
        SafetensorError,
        RuntimeError,
        UserWarning,
        StrictDataclassError,
    ) as error:
        said = str(error).strip()
        if isinstance(error, StrictDataclassError):
            said = " ".join(said.split())  # its first line does not say which value
        is_unfit = any(phrase in said for phrase in (*_UNFIT, _LACKING))
        if isinstance(error, RuntimeError) and not is_unfit:
            raise
        remedy = "give a local folder, or a hub id that this machine can reach (see `mcpagent doctor`)"
        if is_unfit:
            remedy = "its configuration and its weights are of two models: copy both from one place"
        first_line = said.splitlines()[0] if said else type(error).__name__
        raise UserError(f"cannot load {name}: {first_line}", remedy=remedy) from error


@contextmanager
def _no_pickles(name: str) -> Iterator[None]:
    """Refuses what a library would unpickle, whichever file of a hub id or folder led it there. Raises
    UserError."""
    unpickle = torch.load

    def refuse(file: Any, *_: Any, **__: Any) -> None:
        raise UserError(
            f"{Path(str(file)).name} is a pickle, which can run any code when it is loaded; only safetensors "
            "are read",
            where=name,
            remedy="name a model or revision that has safetensors",
        )

    torch.load = refuse
    try:
        yield
    finally:
        torch.load = unpickle


def _hide_progress_bars() -> None:
    """Local files take a moment; only a download is worth a bar."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
