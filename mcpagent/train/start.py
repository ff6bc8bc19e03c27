"""What a run begins with: the whole model under its weights, and the adapters that it goes on with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mcpagent.config.schema import LoraConfig, TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.models.adapters import LoraShape, attach_lora
from mcpagent.models.load import (
    empty_model,
    hub_folder,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
    save_model,
)
from mcpagent.models.weights import weight_shapes
from mcpagent.storage.checkpoints import ADAPTER_FILE, find_model, sealed_dir
from mcpagent.storage.lineage import (
    Base,
    Lineage,
    base_of,
    described,
    fingerprint,
    read_lineage,
    seen_from,
    write_lineage,
)
from mcpagent.storage.run_folder import START_FOLDER


@dataclass(frozen=True, kw_only=True)
class Start:
    """`base` is the whole model that the run's weights or adapters stand on; `adapters` are those that it
    goes on training, None if it makes new ones. `merged` is what was merged into the base (see `Lineage`)."""

    base: Base
    adapters: Path | None = None
    merged: Sequence[JsonObject] = ()

    @property
    def model(self) -> str:
        """The folder that the trained model is in, or the hub id: the adapters, else the whole model."""
        return self.base.place if self.adapters is None else str(self.adapters)


def settle_start(
    config: TrainConfig,
    run: Path,
    *,
    goes_on: bool = True,
    on_note: Callable[[str], None] = lambda _: None,
) -> Start:
    """Return what the run in the folder `run` begins with, or began with if it is resumed.

    Whole weights are taken as they are. Adapters of the shape that is to be trained are gone on with: the
    checkpoints of the run are then relative to the same base. Others are merged into their base, once, into
    `run`/start; all of them are with `goes_on` off, for an engine that takes whole weights alone. Only one
    process may call this at a time. Raises UserError."""
    place, folder = config.model.name, run / START_FOLDER
    if (run / "config.yaml").is_file() and folder.is_dir():
        return _merged_start(folder)
    checkpoint = find_model(place)
    if checkpoint is None or not (checkpoint.path / ADAPTER_FILE).is_file():
        path = hub_folder(place) if checkpoint is None else checkpoint.path
        sha256 = None if path is None else fingerprint(path)
        return Start(base=Base(place=place if checkpoint is None else str(checkpoint.path), sha256=sha256))
    adapters, base = checkpoint.path, base_of(checkpoint.path)
    assert base is not None
    if base.note is not None:
        on_note(base.note)
    why = _why_merged(config, adapters, base) if goes_on else "the engine takes whole weights alone"
    if why is None:
        on_note(f"training goes on with the adapters of {adapters}, on {base.place}")
        under = base.folder or hub_folder(base.place, base.revision)
        sha256 = base.sha256 or (None if under is None else fingerprint(under))
        return Start(base=Base(place=base.place, sha256=sha256, revision=base.revision), adapters=adapters)
    on_note(f"the adapters of {adapters} are merged into the start of the run, {folder}: {why}")
    _write_merged(config, adapters, folder)
    return _merged_start(folder)


def _merged_start(folder: Path) -> Start:
    lineage = read_lineage(folder) or Lineage()
    return Start(base=Base(place=str(folder.resolve()), sha256=fingerprint(folder)), merged=lineage.merged)


def _why_merged(config: TrainConfig, adapters: Path, base: Base) -> str | None:
    """Return why a run cannot go on with these adapters; None if it can."""
    if config.finetune.mode == "full":
        return "all weights are trained (finetune.mode full)"
    if base.folder is not None and (base.folder / ADAPTER_FILE).is_file():
        return "they stand on other adapters"
    theirs = json.loads((adapters / ADAPTER_FILE).read_text(encoding="utf-8"))
    is_scaled = theirs.get("use_rslora") or theirs.get("alpha_pattern")
    if is_scaled or theirs.get("lora_alpha") != int(config.lora.alpha):
        return f"they are scaled otherwise than lora.alpha {config.lora.alpha:g} says"
    if _new_shapes(base.place, config.lora, config.model.trust_remote_code) != weight_shapes(adapters):
        return f"they have other ranks or layers than lora.r {config.lora.r} and lora.target_modules say"
    return None


def _new_shapes(place: str, lora: LoraConfig, trust_remote_code: bool) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the adapters that a run would make."""
    from peft import get_peft_model_state_dict

    base = empty_model(place, dtype=torch.float32, trust_remote_code=trust_remote_code)
    made = get_peft_model_state_dict(
        attach_lora(base, LoraShape(**lora.model_dump()), seed=0), save_embedding_layers=False
    )
    return {name: tuple(tensor.shape) for name, tensor in made.items()}


def _write_merged(config: TrainConfig, adapters: Path, folder: Path) -> None:
    """Merge in the run's dtype, on the CPU: it is done once, and the device may be full of something else."""
    trusted = config.model.trust_remote_code
    dtype = resolve_dtype(config.model.dtype, resolve_device(config.device))
    model = load_model(
        str(adapters), dtype=dtype, device=torch.device("cpu"), trust_remote_code=trusted, merge=True
    )
    with sealed_dir(folder) as draft:
        save_model(model, load_tokenizer(str(adapters), trust_remote_code=trusted), draft)
        base = base_of(adapters)
        lineage = read_lineage(adapters) or Lineage(base=base)
        merged = [*described(lineage), {"path": str(adapters.resolve()), "sha256": fingerprint(adapters)}]
        write_lineage(draft, Lineage(merged=merged))


def lineage_of(start: Start, checkpoint: Path, *, is_adapter: bool) -> Lineage:
    """Return what a `checkpoint` of a run that began so says of itself."""
    base = start.base if is_adapter else None
    return seen_from(checkpoint, Lineage(base=base, merged=list(start.merged)))
