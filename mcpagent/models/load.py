"""Load, adapt and save models of transformers and PEFT.

`load_model` is the one way from a name to weights: a hub id, a folder, a run or RUN@STEP, adapters, adapters
on adapters, a merged export. Whoever evaluates, exports, trains on or serves a model gets it from here.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import os
import platform
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from mcpagent.console import Console
from mcpagent.errors import UserError
from mcpagent.models.adapters import causal_lm
from mcpagent.models.probe import prove
from mcpagent.models.weights import (
    holds_weights,
    refuse_incomplete,
    refuse_other_sizes,
    stored_tensors,
    weight_shapes,
)
from mcpagent.storage.checkpoints import ADAPTER_FILE, choose_checkpoint, verified
from mcpagent.storage.lineage import Base, base_of, refuse_other_base
from mcpagent.storage.packages import require

# If DeepSpeed is installed, transformers imports it to save a model, and it warns on stdout without a GPU.
logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno > logging.WARNING)

# PEFT asks models for this, which transformers has renamed in 5.23.
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)

# Huge pages for blocks of 2 MiB or more, if the kernel gives them to those who ask: a supervised step of a
# model of 0.5B takes a tenth less. torch reads this once, at its first block.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# What transformers and PEFT say of weights that do not fit, in exceptions and warnings of general kinds.
_UNFIT = ("size mismatch", "ignore_mismatched_sizes", "conversion of the weights")
_LACKING = "Found missing adapter keys"


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


def resolve_dtype(name: str, device: torch.device, *, width: int | None = None) -> torch.dtype:
    """`auto` is bfloat16 on an accelerator that computes it, else float32: older GPUs (T4, V100) only emulate
    it. A CUDA device that is planned for on a machine without one is taken to have it. On a CPU it is
    bfloat16 if the hidden states of the model are of a `width` at which its products are measured to be
    faster."""
    if name == "auto" and device.type == "cpu" and width is not None:
        return torch.bfloat16 if _is_faster_in_bfloat16(width) else torch.float32
    if name == "auto":
        is_emulated = (
            device.type == "cuda"
            and torch.cuda.is_available()
            and not torch.cuda.is_bf16_supported(including_emulation=False)
        )
        return torch.float32 if device.type == "cpu" or is_emulated else torch.bfloat16
    return getattr(torch, name)


MIN_WIDTH = 512  # a narrower model is small and fast in any dtype
_MIN_SPEEDUP = 1.5


@cache
def _is_faster_in_bfloat16(width: int) -> bool:
    """Return whether this CPU has instructions for products in bfloat16, and is faster in them for a layer
    of this width: the best of a few products, some milliseconds each."""
    has = torch.cpu.get_capabilities()
    if width < MIN_WIDTH or not (has.get("avx512_bf16") or has.get("amx_bf16")):
        return False
    best: dict[torch.dtype, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.ones(256, width, dtype=dtype), torch.ones(4 * width, width, dtype=dtype)
        times: list[float] = []
        for _ in range(6):  # the first chooses a kernel
            started = time.perf_counter()
            torch.nn.functional.linear(left, right)
            times.append(time.perf_counter() - started)
        best[dtype] = min(times)
    return best[torch.float32] > _MIN_SPEEDUP * best[torch.bfloat16]


def load_tokenizer(name: str, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a hub id or folder."""
    from transformers import AutoTokenizer

    return _from_pretrained(AutoTokenizer.from_pretrained, name, trust_remote_code=trust_remote_code)


def load_config(name: str, *, trust_remote_code: bool = False, local_only: bool = False) -> Any:
    """Return the transformers configuration of a hub id or folder; of an adapter folder, that of its base.
    `local_only` asks no hub."""
    from transformers import AutoConfig

    while (base := _base_of_adapter(name)) is not None:
        name = base.place
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
    merge: bool | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Any:
    """Load the causal LM that `name` means: a hub id, a folder or a run, whole weights or adapters with
    whatever they stand on.

    Adapters are merged into their base if `merge` says so, by default in float32 alone: in narrower dtypes
    and over 4 bits a merge would round most of them away, so they are computed next to the weights, as they
    were in training. `in_4bit` keeps the weights of linear layers as NF4 and computes in `dtype`. Only
    safetensors are read, of the sizes that config.json says. `on_note` (default: stderr) is told what a
    checkpoint does not record. Raises UserError, also if the model is not the one that was trained: its
    base is another, or the logprobs of its probe are."""
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    if attn_implementation is not None:
        refuse_missing_attention(attn_implementation, device)
        options["attn_implementation"] = attn_implementation
    if in_4bit:
        require_4bit(device)
        options |= {"quantization_config": _nf4(dtype), "device_map": {"": device}}
    if device.type == "cpu":  # what held another model, if one was here
        gc.collect()
        trim_heap()
    model = _assembled(name, on_note=on_note or Console().note, **options)
    if hasattr(model, "peft_config") and (merge or (merge is None and dtype.itemsize >= 4 and not in_4bit)):
        model = model.merge_and_unload().requires_grad_(True)  # PEFT froze it
    model = model if in_4bit else model.to(device)
    if (folder := _local_folder(name)) is not None:
        prove(model, folder)
    return model


def _assembled(name: str, *, on_note: Callable[[str], None], **options: Any) -> Any:
    """The weights of a name, with adapters next to those of their base, into which all further ones are
    merged."""
    base = _base_of_adapter(name)
    if base is None:
        return _load_weights(name, **options)
    if base.note is not None:
        on_note(base.note)
    revision = {} if base.revision is None else {"revision": base.revision}
    under = _assembled(base.place, on_note=on_note, **options, **revision)
    if hasattr(under, "peft_config"):
        if "quantization_config" in options:
            raise UserError(
                f"{base.place}, the base of {name}, is an adapter, which cannot be merged into 4-bit weights",
                where="model.name",
                remedy=f"merge it first: mcpagent export {name} --merge --out DIR",
            )
        under = under.merge_and_unload()
    return _with_adapters(under, name, base, trust_remote_code=options["trust_remote_code"])


def empty_model(
    name: str, *, dtype: torch.dtype, attn_implementation: str | None = None, trust_remote_code: bool = False
) -> Any:
    """Return the causal LM that `load_model` would give, without memory for its weights: they have shapes
    and no values, while buffers, which a configuration determines, are there. Raises UserError."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = load_config(name, trust_remote_code=trust_remote_code)
    options = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=trust_remote_code, **options
        )
    with suppress(UserError):
        model.generation_config = _from_pretrained(GenerationConfig.from_pretrained, name)
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            # One number under all places: PEFT adds no adapters to weights of the meta device.
            one = torch.zeros(1, dtype=parameter.dtype).expand(parameter.shape)
            setattr(module, key, torch.nn.Parameter(one, requires_grad=parameter.requires_grad))
    model.tie_weights()
    return model.eval()


def weight_sources(name: str, fits: Collection[str], **options: Any) -> Mapping[str, Callable[[], Any]]:
    """Return what reads each of a model's whole weights, from safetensors one at a time; if they are not
    under the names in `fits`, the whole model is loaded for it, with the `options` of `load_model`."""
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
    """Refuse what `load_model` refuses of a folder here, without reading its weights: pickles, files that
    were cut short, sizes other than those of `config`, its transformers configuration. A folder without any
    weights passes: a plan needs none. Raises UserError."""
    base = _base_of_adapter(name)
    for place in (name,) if base is None else (name, base.place):
        folder = _local_folder(place)
        if folder is None or not holds_weights(folder):
            continue
        if (folder / ADAPTER_FILE).is_file():
            weight_shapes(folder)
        else:
            refuse_other_sizes(folder, config)


def _load_weights(name: str, **options: Any) -> Any:
    import transformers

    kind: Any = transformers.AutoModelForCausalLM
    parts: dict[str, Any] = {}
    if (folder := _local_folder(name)) is not None:
        config = load_config(name, trust_remote_code=options["trust_remote_code"])
        refuse_other_sizes(folder, config)
        family: Any = getattr(transformers, next(iter(config.architectures or ()), ""), None)
        is_causal = getattr(family, "__name__", "").endswith("ForCausalLM")
        if is_causal and family.config_class is type(config):
            # By a name it would map all of each file, which then counts as memory next to the weights.
            kind, parts = family, {"config": config, "state_dict": stored_tensors(folder)}
    options |= {"use_safetensors": True, "output_loading_info": True, **parts}
    model, info = _from_pretrained(kind.from_pretrained, name, is_named=not parts, **options)
    refuse_incomplete(info, name)
    if parts:
        model.name_or_path = model.config.name_or_path = str(folder)
        with suppress(UserError):
            model.generation_config = _from_pretrained(transformers.GenerationConfig.from_pretrained, name)
    return model


def _with_adapters(model: Any, name: str, base: Base, *, trust_remote_code: bool) -> Any:
    """The base with the adapters of a folder next to it, in the dtype that it computes in. The base keeps its
    vocabulary unless the adapters' tokenizer has more tokens than it: rows that no token has are part of
    every softmax, in training too."""
    from peft import PeftModel

    folder = _local_folder(name)
    assert folder is not None
    weight_shapes(folder)
    if base.folder is None and (cached := hub_folder(base.place, base.revision)) is not None:
        refuse_other_base(folder, base, cached)
    if (folder / "tokenizer_config.json").is_file():
        tokens = len(load_tokenizer(name, trust_remote_code=trust_remote_code))
        if tokens > model.get_input_embeddings().num_embeddings:
            model.resize_token_embeddings(tokens)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=_LACKING)
        as_stored = {"autocast_adapter_dtype": False}
        adapted: Any = _from_pretrained(partial(PeftModel.from_pretrained, model), name, **as_stored)
    for key, parameter in adapted.named_parameters():
        if ".lora_" in key:
            parameter.data = parameter.data.to(model.dtype)
    return adapted


def hub_folder(name: str, revision: str | None = None) -> Path | None:
    """Return the folder of a hub id in the cache of this machine; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def require_4bit(device: torch.device, *, is_here: bool = True) -> None:
    """Raise UserError if weights cannot be held in 4 bits; with `is_here` off, the device is that of
    another machine, and what is installed is not asked."""
    if device.type != "cuda":
        raise UserError(
            f"finetune.mode qlora needs a CUDA GPU (bitsandbytes has 4-bit kernels for nothing else), "
            f"and the device is {device.type}",
            where="finetune.mode",
            remedy="--set finetune.mode=lora, whose frozen weights take 2 bytes each with "
            "model.dtype=bfloat16",
        )
    if is_here:
        require("qlora", use="finetune.mode qlora")


def refuse_missing_attention(name: str, device: torch.device, *, is_here: bool = True) -> None:
    """Raise UserError if an attention of transformers cannot run; `is_here` as in `require_4bit`."""
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


def use_checkpointing(model: Any, *, may_map: bool = True) -> None:
    """Keep the input of each layer alone for the backward pass and compute the rest again there. On a CPU
    large blocks are mapped for that, if they `may`."""
    inner = causal_lm(model)
    if not inner.supports_gradient_checkpointing:
        raise UserError(
            f"{type(inner).__name__} does not support gradient checkpointing",
            where="model.gradient_checkpointing",
            remedy="set it to false; training.micro_batch_tokens bounds the memory of activations too",
        )
    inner.gradient_checkpointing_enable({"use_reentrant": False})
    if inner.device.type == "cpu" and may_map:
        map_large_blocks()


def map_large_blocks() -> None:
    """Tell glibc to map every block of 1 MiB or more by itself. Otherwise what is freed on a CPU stays in the
    heap between what is kept: of checkpointing as much again as without it, of shards, whose layers are
    gathered and let go, as much as the gathered layers. Mapping costs time: a tenth with huge pages, else a
    third."""
    if (glibc := _glibc()) is not None:
        glibc.mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD


def trim_heap() -> None:
    """Have glibc give back what is free in its heap: more than the shards of a model just loaded."""
    if (glibc := _glibc()) is not None:
        glibc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None


def is_quantised(model: Any) -> bool:
    """Return whether the weights are held in 4 bits."""
    return bool(getattr(causal_lm(model), "is_loaded_in_4bit", False))


def save_model(
    model: Any, tokenizer: Any, folder: Path, weights: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Hugging Face format, or PEFT format for a LoRA model; safetensors either way. `weights` are the whole
    ones of a model that holds shards."""
    _hide_progress_bars()
    model.save_pretrained(folder, **({} if weights is None else {"state_dict": weights}))
    tokenizer.save_pretrained(folder)


def _base_of_adapter(name: str) -> Base | None:
    """The model that an adapter folder stands on; None for what is not one. Raises what `base_of` does."""
    folder = _local_folder(name)
    if folder is None or not (folder / ADAPTER_FILE).is_file():
        return None
    from peft import PeftConfig

    _from_pretrained(PeftConfig.from_pretrained, name)  # says what is wrong with its configuration
    return base_of(folder)


def _local_folder(name: str) -> Path | None:
    """Return the folder that a model's name means here, a run's best checkpoint if it is a run, checked
    against its seal; None for a hub id. Raises UserError."""
    path = Path(name).expanduser()
    if (path / "checkpoints").is_dir() or (not path.is_dir() and "@" in path.name):
        path = choose_checkpoint(path).path
    if path.is_dir():
        return verified(path)
    if name.startswith((".", "/", "~")):
        raise UserError(f"there is no model folder {name}", remedy="check model.name or the path")
    return None


def _from_pretrained(load: Callable[..., Any], name: str, *, is_named: bool = True, **options: Any) -> Any:
    folder = _local_folder(name)
    if folder is not None:
        _hide_progress_bars()
    # If a repository has no safetensors, transformers asks a service to convert its pickle.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    try:
        with _no_pickles(name):
            return load((name if folder is None else str(folder)) if is_named else None, **options)
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
