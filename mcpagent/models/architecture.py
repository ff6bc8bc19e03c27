"""The architecture of a model without its weights: its transformers configuration, wherever it can be had."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from mcpagent.config.named_parts import is_built, model_builder
from mcpagent.errors import UserError
from mcpagent.models.load import load_config

_HUB_TIMEOUT_S = 5.0
# The dense models of Qwen3 as their config.json describes them (arXiv 2505.09388, table 1), so that the
# default model can be planned on a machine that has neither it nor a network.
PUBLISHED = {
    # layers, hidden, heads, intermediate, tied embeddings
    "Qwen/Qwen3-0.6B": (28, 1024, 16, 3072, True),
    "Qwen/Qwen3-1.7B": (28, 2048, 16, 6144, True),
    "Qwen/Qwen3-4B": (36, 2560, 32, 9728, True),
    "Qwen/Qwen3-8B": (36, 4096, 32, 12288, False),
    "Qwen/Qwen3-14B": (40, 5120, 40, 17408, False),
    "Qwen/Qwen3-32B": (64, 5120, 64, 25600, False),
}


def cache_elements(config: Any) -> int:
    """Return the number of elements in the keys and values of one token, over all layers of a transformers
    configuration."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * head_dim


@dataclass(frozen=True)
class Architecture:
    """A configuration of transformers and a sentence that says where it is from; `config` is None if it
    could not be had, and then the sentence says why and what to do."""

    config: Any
    source: str


def find_architecture(name: str, *, trust_remote_code: bool = False) -> Architecture:
    """Find the architecture of a model that mcpagent builds itself, a folder with a config.json (no weights
    needed), an adapter's folder, or a hub id: from this machine, for the dense Qwen3 models as it was
    published, else that one file from the hub (at most 5 s, never under HF_HUB_OFFLINE). Raises UserError for
    a path that is not a model."""
    if is_built(name):
        return Architecture(model_builder(name).architecture(), "built by mcpagent")
    if Path(name).expanduser().is_dir() or name.startswith((".", "/", "~")):
        return Architecture(load_config(name, trust_remote_code=trust_remote_code), f"config.json of {name}")
    if (config := _in_cache(name, trust_remote_code=trust_remote_code)) is not None:
        return Architecture(config, "config.json in the hub's cache on this machine")
    if name in PUBLISHED:
        return Architecture(published(name), "its published config.json; the model is not on this machine")
    if not is_offline() and (config := _within(_HUB_TIMEOUT_S, lambda: _from_hub(name))) is not None:
        return Architecture(config, "config.json from the hub; the model is not on this machine")
    return Architecture(
        None,
        f"the config.json of {name} is neither on this machine nor to be had from the hub: put that one file "
        "into a folder and name the folder with model.name",
    )


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids to ask the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _in_cache(name: str, *, trust_remote_code: bool) -> Any:
    try:
        return load_config(name, trust_remote_code=trust_remote_code, local_only=True)
    except UserError:
        return None


def _from_hub(name: str) -> Any:
    """One request without a retry; the library's own would wait half a minute without a network."""
    from huggingface_hub import get_token, hf_hub_url

    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(
            hf_hub_url(name, "config.json"), headers=headers, follow_redirects=True, timeout=_HUB_TIMEOUT_S
        )
        answer.raise_for_status()
        with TemporaryDirectory(prefix="mcpagent-config-") as folder:
            Path(folder, "config.json").write_bytes(answer.content)
            return load_config(folder)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UserError):
        return None


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """Return what `ask` gives; None if it takes longer. A thread, because no timeout covers name
    resolution."""
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    asking.start()
    asking.join(seconds)
    return answers[0] if answers else None


def published(name: str) -> Any:
    """Return the transformers configuration of one of PUBLISHED."""
    from transformers import Qwen3Config

    layers, hidden, heads, intermediate, tied = PUBLISHED[name]
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=intermediate,
        max_position_embeddings=40960,
        tie_word_embeddings=tied,
    )
