"""A checkpoint as a folder that other programs take: plain Hugging Face format, or its adapters, with a
card."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.loader import load_train_config
from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.errors import UserError
from mcpagent.storage.atomic import atomic_dir
from mcpagent.storage.checkpoints import (
    ADAPTER_FILE,
    MODEL_FILE,
    SEAL_FILE,
    STATE_FOLDER,
    choose_checkpoint,
    run_of,
    verified,
    weights_sha256,
)
from mcpagent.storage.locks import locked_file
from mcpagent.storage.packages import require
from mcpagent.storage.weights import PICKLES, weight_shapes
from mcpagent.workflows.model_card import model_card
from mcpagent.workflows.stage import next_data

_NOT_EXPORTED = (STATE_FOLDER, SEAL_FILE, "README.md", *(f"*{suffix}" for suffix in PICKLES))


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. `kind` is model or adapter; `why` says how the checkpoint was chosen from a run;
    `data` is the file that the run was judged on, FILE where none is known."""

    out: Path
    checkpoint: Path
    why: str
    kind: str
    weights_sha256: str | None
    data: str

    def as_json(self) -> JsonObject:
        return {
            "out": str(self.out),
            "checkpoint": str(self.checkpoint),
            "kind": self.kind,
            "weights_sha256": self.weights_sha256,
        }


def export(path: Path, out: Path, *, merge: bool = False) -> Exported:
    """Write the checkpoint (of a run folder, the best one) to the new folder `out`.

    `merge` adds adapters to their base; without it they are exported as adapters. A checkpoint of all weights
    is a model either way. Raises UserError: no checkpoint, a damaged one, or something in `out` already.
    """
    chosen = choose_checkpoint(path)
    checkpoint = chosen.path
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError("there is something here already", where=f"--out {out}", remedy="name a new folder")
    run = run_of(checkpoint)
    _check_weights(verified(checkpoint))
    has_adapters = (checkpoint / ADAPTER_FILE).is_file()
    is_adapter = has_adapters and not merge
    with locked_file(out), atomic_dir(out) as draft:
        if has_adapters and merge:
            _merge(checkpoint, draft, config_path=run.config_path if run else None)
        else:
            shutil.copytree(
                checkpoint, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_EXPORTED)
            )
        card = model_card(checkpoint, run, base=_base(checkpoint), is_adapter=is_adapter)
        (draft / "README.md").write_text(SECRETS.text(card), encoding="utf-8")
    return Exported(
        out=out,
        checkpoint=checkpoint,
        why=chosen.why,
        kind="adapter" if is_adapter else "model",
        weights_sha256=weights_sha256(out),
        data="FILE" if run is None else next_data(load_train_config([run.config_path]).config),
    )


def _check_weights(checkpoint: Path) -> None:
    """Raises UserError for weights that no command would load."""
    weight_shapes(checkpoint)
    model = checkpoint / MODEL_FILE
    if (checkpoint / ADAPTER_FILE).is_file() or b'"auto_map"' in model.read_bytes():
        return  # it has no sizes of its own, or code of its own that tells them
    from mcpagent.models.load import check_weights, load_config

    check_weights(str(checkpoint), load_config(str(checkpoint)))


def _merge(checkpoint: Path, draft: Path, *, config_path: Path | None) -> None:
    """In the dtype of the run: a merge in fewer bits would not be the model that was trained."""
    require("hf", use="export --merge")
    from mcpagent.models.load import load_model, load_tokenizer, resolve_device, resolve_dtype, save_model
    from mcpagent.models.tokens import Renderer

    config = load_train_config([config_path] if config_path else [], for_training=False).config
    device = resolve_device(config.device)
    model = load_model(
        str(checkpoint),
        dtype=resolve_dtype(config.model.dtype, device),
        device=device,
        trust_remote_code=config.model.trust_remote_code,
    )
    tokenizer = load_tokenizer(str(checkpoint), trust_remote_code=config.model.trust_remote_code)
    # What ended a turn in training must end one elsewhere.
    model.generation_config.eos_token_id = sorted(Renderer(tokenizer).stop_ids)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    save_model(model, tokenizer, draft)


def _base(checkpoint: Path) -> str | None:
    adapters = checkpoint / ADAPTER_FILE
    if adapters.is_file():
        return json.loads(adapters.read_text(encoding="utf-8")).get("base_model_name_or_path")
    run = run_of(checkpoint)
    return load_train_config([run.config_path]).config.model.name if run else None
