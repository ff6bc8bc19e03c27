"""A checkpoint as a folder that other programs take: plain Hugging Face format, or its adapters, with a
card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mcpagent.config.environment import environment
from mcpagent.config.loader import load_train_config
from mcpagent.core.records import JsonObject, Metric
from mcpagent.core.redact import SECRETS, secrets_of
from mcpagent.errors import UserError
from mcpagent.models.weights import PICKLES, weight_shapes
from mcpagent.run.episodes import next_data
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
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.train.trackers import safe_config

_SHOWN_STEP = ("reward_mean", "success_rate", "calls_mean", "tokens_mean", "kl", "entropy", "loss")
_VERSIONS = ("mcpagent", "torch", "transformers", "peft")


def model_card(checkpoint: Path, run: RunFolder | None, *, base: str | None, is_adapter: bool) -> str:
    """Markdown with the metadata block of the Hugging Face hub. Without a run it says nothing of its
    training. Paths are cut to their last part: a card is published."""
    head: JsonObject = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["mcpagent", "tool-use", "mcp"],
    }
    if base is not None and not Path(base).is_dir():
        head["base_model"] = base
    lines = [f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n", f"# {_name(checkpoint, run)}\n"]
    kind = "LoRA adapters for" if is_adapter else "A model fine-tuned from"
    lines.append(f"{kind} {_short(base) if base else 'an unnamed base'}, which calls tools over MCP.")
    lines.append(f"Weights (SHA-256 over the checkpoint's files): `{weights_sha256(checkpoint)}`\n")
    if run is None:
        lines.append(
            "The folder that it was exported from lies in no training run, so nothing more is known."
        )
    else:
        lines += [*_training(checkpoint, run), *_measured(checkpoint, run), *_configuration(run)]
    return "\n".join(lines).rstrip() + "\n"


def _training(checkpoint: Path, run: RunFolder) -> Iterator[str]:
    manifest = run.manifest
    config = load_train_config([run.config_path]).config
    data = manifest.get("data", {})
    versions = manifest.get("versions", {})
    yield "## Data and training\n"
    name, digest = _short(data.get("train", "")), data.get("sha256")
    yield f"- data: {data.get('tasks')} tasks of `{name}`, SHA-256 `{digest}`"
    yield f"- tools: catalog `{manifest.get('catalog_hash')}`"
    yield f"- algorithm: {config.algorithm}, {config.finetune.mode}, seed {config.seed}"
    yield f"- steps: {step_of(checkpoint)}"
    yield f"- versions: {', '.join(f'{name} {versions[name]}' for name in _VERSIONS if name in versions)}"
    git = manifest.get("git")
    if git:
        yield f"- commit of mcpagent: `{git['commit']}`{' with changes' if git['has_changes'] else ''}"
    yield ""


def _measured(checkpoint: Path, run: RunFolder) -> Iterator[str]:
    """Evaluations of exactly these weights, and the training step that made them."""
    yield "## Measured\n"
    step, weights = step_of(checkpoint), weights_sha256(checkpoint)
    is_measured = False
    for path in sorted(run.evaluations.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            continue
        provenance = document.get("provenance", {})
        if (
            provenance.get("step") != step
            and (provenance.get("policy") or {}).get("weights_sha256") != weights
        ):
            continue
        is_measured = True
        where = provenance.get("split") or _short((provenance.get("dataset") or {}).get("path", path.stem))
        yield f"Evaluation `{path.stem}` on {where}, temperature {provenance.get('temperature')}:\n"
        yield "| metric | value | 95 % interval | tasks |\n|---|---|---|---|"
        for name, metric in document["metrics"].items():
            yield _row(name, Metric.model_validate(metric))
        yield ""
    records = [record for record in run.metrics() if record["step"] == step]
    if records:
        shown = ", ".join(f"{name} {records[0][name]:.4g}" for name in _SHOWN_STEP if name in records[0])
        yield f"Training step {step}, whose episodes were sampled with the weights before it: {shown}\n"
    if not is_measured:
        yield "No evaluation of these weights is stored with the run: `mcpagent eval checkpoint` makes one.\n"


def _row(name: str, metric: Metric) -> str:
    if metric.value is None:
        return f"| {name} | not measured | | {metric.n} |"
    interval = "" if metric.ci_low is None else f"{metric.ci_low:.3f} to {metric.ci_high:.3f}"
    return f"| {name} | {metric.value:.3f} | {interval} | {metric.n} |"


def _configuration(run: RunFolder) -> Iterator[str]:
    config = yaml.safe_load(run.config_path.read_text(encoding="utf-8"))
    del config["output_dir"], config["tracking"]
    safe = safe_config(_without_folders(config), secrets_of(environment()))
    yield f"## Configuration\n\n```yaml\n{yaml.safe_dump(safe, sort_keys=False).rstrip()}\n```"


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _short(path: str) -> str:
    return Path(path).name if Path(path).is_absolute() else path


def _name(checkpoint: Path, run: RunFolder | None) -> str:
    if run is None:
        return checkpoint.name
    return f"{load_train_config([run.config_path]).config.name}, step {step_of(checkpoint)}"


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
        """The document of `export --json`."""
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
    resolved = choose_checkpoint(path)
    checkpoint = resolved.path
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
        why=resolved.why,
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
