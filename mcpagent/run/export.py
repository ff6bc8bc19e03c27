"""A checkpoint as a folder that other programs take: plain Hugging Face format, or its adapters, with a
card."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mcpagent.config.environment import environment
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject, Metric
from mcpagent.core.redact import SECRETS
from mcpagent.env.parsing import LOADED_DIALECTS
from mcpagent.errors import UserError
from mcpagent.models.probe import PROBE_FILE, trained_format
from mcpagent.models.weights import weight_shapes
from mcpagent.run.episodes import next_data
from mcpagent.storage.atomic import atomic_dir
from mcpagent.storage.checkpoints import (
    ADAPTER_FILE,
    MODEL_FILE,
    choose_checkpoint,
    run_of,
    verified,
    weights_sha256,
)
from mcpagent.storage.lineage import base_of, copy_model, read_lineage
from mcpagent.storage.locks import locked_file
from mcpagent.storage.packages import missing, require
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.train.trackers import safe_config

# The parser of `vllm serve` that reads each format; it has none for the others, which are written as text.
TOOL_PARSERS = {name: name for name in ("hermes", "qwen3_coder", "mistral", "gemma4")}
TOOL_PARSERS |= {"glm": "glm45", "llama3": "llama3_json", "pythonic": "lfm2", "harmony": "openai"}
TOOL_PARSERS["atem"] = "muse_glimmer"
_LORA_RANKS = (16, 32, 64, 128, 256, 320, 512)  # that vLLM takes as the largest
_SHOWN_STEP = ("reward_mean", "success_rate", "calls_mean", "tokens_mean", "kl", "entropy", "loss")
_VERSIONS = ("mcpagent", "torch", "transformers", "peft")


def model_card(checkpoint: Path, run: RunFolder | None, config: TrainConfig, *, is_adapter: bool) -> str:
    """Return Markdown with the metadata block of the Hugging Face hub; `config` is that of the run. Paths are
    cut to their last part, since a card is published."""
    head: JsonObject = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["mcpagent", "tool-use", "mcp"],
    }
    base = _base(checkpoint, None if run is None else config.model.name)
    if base is not None and not Path(base).is_dir():
        head["base_model"] = base
    kind = "LoRA adapters for" if is_adapter else "A model fine-tuned from"
    about = "The exported folder is in no training run, so nothing more is known."
    name = checkpoint.name
    if run is not None:
        name, about = f"{config.name}, step {step_of(checkpoint)}", _training(checkpoint, run, config)
    return f"""---
{yaml.safe_dump(head, sort_keys=False)}---

# {name}

{kind} {_short(base) if base else "an unnamed base"}, which calls tools over MCP.
Weights (SHA-256 over the checkpoint's files): `{weights_sha256(checkpoint)}`

{_forms(_tool_format(checkpoint))}{about.rstrip()}
"""


def _training(checkpoint: Path, run: RunFolder, config: TrainConfig) -> str:
    manifest, data = run.manifest, run.manifest.get("data", {})
    versions = manifest.get("versions", {})
    shown = ", ".join(f"{name} {versions[name]}" for name in _VERSIONS if name in versions)
    git = manifest.get("git")
    commit = "unknown" if not git else f"`{git['commit']}`{' with changes' if git['has_changes'] else ''}"
    settings = run.settings
    del settings["output_dir"], settings["tracking"]
    environment()  # what it names as a secret is one from here on
    safe = safe_config(_without_folders(settings))
    return f"""## Data and training

- data: {data.get("tasks")} tasks of `{_short(data.get("train", ""))}`, SHA-256 `{data.get("sha256")}`
- servers: {_servers(run)}
- tools: catalog `{manifest.get("catalog_hash")}`
- algorithm: {config.algorithm}, {config.finetune.mode}, seed {config.seed}
- steps: {step_of(checkpoint)}
- versions: {shown}
- commit of mcpagent: {commit}

## Measured

{"".join(_measured(checkpoint, run))}
## Configuration

```yaml
{yaml.safe_dump(safe, sort_keys=False).rstrip()}
```"""


def _tool_format(folder: Path) -> str | None:
    """Return the format that the model calls tools in: that of its run, else that of its chat template."""
    named = trained_format(str(folder))
    if named not in (None, "auto") or missing("hf"):
        return named
    from mcpagent.env.tool_format import open_renderer
    from mcpagent.models.load import load_tokenizer

    with suppress(UserError):  # no template, or code of its own that nobody allowed
        named = open_renderer(load_tokenizer(str(folder)), name=str(folder)).tool_format
        return "hermes" if named == "auto" else named  # what `auto` writes
    return None


def _forms(tool_format: str | None) -> str:
    """Return the section on how the model calls and answers; nothing if no run says it."""
    if tool_format is None or tool_format not in LOADED_DIALECTS:
        return ""
    call = LOADED_DIALECTS[tool_format].write([("get_weather", {"city": "Oslo"})])
    return f"""## Calls and answers

Tools are called in the format `{tool_format}`:

```
{call.strip()}
```

The last message is the answer. If a question says what form its answer has, one line of it is `Answer: ...`.

"""


def _servers(run: RunFolder) -> str:
    """Return the servers with the versions that they reported."""
    versions = run.manifest.get("server_versions", {})
    metrics = next((row["tool_metrics"] for row in run.metrics() if "tool_metrics" in row), {"servers": ()})
    names = sorted({*versions, *(server["server"] for server in metrics["servers"])})
    return ", ".join(f"{name} {versions.get(name, '(no version)')}" for name in names) or "not recorded"


def _measured(checkpoint: Path, run: RunFolder) -> Iterator[str]:
    """Yield the evaluations of exactly these weights, and the training step that made them."""
    step, weights = step_of(checkpoint), weights_sha256(checkpoint)
    is_measured = False
    for path in sorted(run.evaluations.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        facts = document.get("provenance", {}) if isinstance(document, dict) else {}
        if facts.get("step") != step and (facts.get("policy") or {}).get("weights_sha256") != weights:
            continue
        is_measured = True
        where = facts.get("split") or _short((facts.get("dataset") or {}).get("path", path.stem))
        yield f"Evaluation `{path.stem}` on {where}, temperature {facts.get('temperature')}:\n\n"
        yield "| metric | value | 95 % interval | tasks |\n|---|---|---|---|\n"
        for name, metric in document["metrics"].items():
            yield _row(name, Metric.model_validate(metric))
        yield "\n"
    records = [record for record in run.metrics() if record["step"] == step]
    if records:
        shown = ", ".join(f"{name} {records[0][name]:.4g}" for name in _SHOWN_STEP if name in records[0])
        yield f"Training step {step}, whose episodes were sampled with the weights before it: {shown}\n"
    if not is_measured:
        yield "No evaluation of these weights is stored with the run: `mcpagent eval checkpoint` makes one.\n"


def _row(name: str, metric: Metric) -> str:
    if metric.value is None:
        return f"| {name} | not measured | | {metric.n} |\n"
    interval = "" if metric.ci_low is None else f"{metric.ci_low:.3f} to {metric.ci_high:.3f}"
    return f"| {name} | {metric.value:.3f} | {interval} | {metric.n} |\n"


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return _short(value) if isinstance(value, str) else value


def _short(path: str) -> str:
    return Path(path).name if Path(path).is_absolute() else path


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A checkpoint that was written. `kind` is model or adapter; `why` says how the checkpoint was chosen
    from a run; `commands` are what one types next."""

    out: Path
    checkpoint: Path
    why: str
    kind: str
    weights_sha256: str | None
    commands: tuple[str, ...]


def export(path: Path, out: Path, *, merge: bool = False) -> Exported:
    """Write the checkpoint (of a run folder, the best one) to the new folder `out`.

    `merge` adds adapters to their base; without it they are exported as adapters. A checkpoint of all weights
    is a model either way. Raises UserError: no checkpoint, a damaged one, or something in `out` already.
    """
    resolved = choose_checkpoint(path)
    checkpoint = resolved.path
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError("already exists", where=f"--out {out}", remedy="name a new folder")
    run = run_of(checkpoint)
    weight_shapes(verified(checkpoint))
    has_adapters = (checkpoint / ADAPTER_FILE).is_file()
    is_merged = has_adapters and merge
    is_adapter = has_adapters and not merge
    config = load_train_config(inherited=run.config_path if run else None, for_training=False).config
    model = None
    if is_merged:
        require("hf", use="export --merge")
    if is_merged or ((checkpoint / PROBE_FILE).is_file() and not missing("hf")):
        model = _proved(checkpoint, config, merge=merge)
    elif not has_adapters:
        _check_sizes(checkpoint)
    with locked_file(out), atomic_dir(out) as draft:
        if is_merged:
            _save_merged(model, checkpoint, draft, trust_remote_code=config.model.trust_remote_code)
        else:
            copy_model(checkpoint, draft)
        card = model_card(checkpoint, run, config, is_adapter=is_adapter)
        (draft / "README.md").write_text(SECRETS.text(card), encoding="utf-8")
    folder = shlex.quote(str(out))
    return Exported(
        out=out,
        checkpoint=checkpoint,
        why=resolved.why,
        kind="adapter" if is_adapter else "model",
        weights_sha256=weights_sha256(out),
        commands=(
            f"mcpagent eval checkpoint {folder} --data {'FILE' if run is None else next_data(config)}",
            f"hf upload {_repository(out)} {folder}",
            *_serving(out, base=_base(checkpoint, config.model.name) if is_adapter else None),
        ),
    )


def _repository(out: Path) -> str:
    """Return a name that the hub and a server take."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", out.resolve().name)


def _serving(out: Path, *, base: str | None) -> Iterator[str]:
    """Yield the commands that serve an export, of adapters with their `base`: by vLLM, and of a model by
    llama.cpp if its converter is on the path."""
    command = ["vllm", "serve", str(out) if base is None else base]
    if base is not None:
        rank = json.loads((out / "adapter_config.json").read_text(encoding="utf-8"))["r"]
        largest = next((each for each in _LORA_RANKS if each >= rank), rank)
        command += ["--enable-lora", "--max-lora-rank", str(largest), "--lora-modules"]
        command += [f"{_repository(out)}={out}", "--chat-template", str(out / "chat_template.jinja")]
    if parser := TOOL_PARSERS.get(_tool_format(out) or ""):
        command += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    yield shlex.join(command)
    if base is None and shutil.which("convert_hf_to_gguf.py"):
        yield f"convert_hf_to_gguf.py {shlex.quote(str(out))} --outfile {_repository(out)}.gguf"


def _check_sizes(checkpoint: Path) -> None:
    """Raise UserError for whole weights that no command would load."""
    if b'"auto_map"' in (checkpoint / MODEL_FILE).read_bytes():
        return  # code of its own tells their sizes
    from mcpagent.models.load import check_weights, load_config

    check_weights(str(checkpoint), load_config(str(checkpoint)))


def _proved(checkpoint: Path, config: TrainConfig, *, merge: bool) -> Any:
    """Return the model as any command would load it, in the dtype of the run: a merge in fewer bits would not
    be the model that was trained."""
    from mcpagent.models.load import load_model, resolve_device, resolve_dtype

    device = resolve_device(config.device)
    return load_model(
        str(checkpoint),
        dtype=resolve_dtype(config.model.dtype, device),
        device=device,
        trust_remote_code=config.model.trust_remote_code,
        merge=merge,
    )


def _save_merged(model: Any, checkpoint: Path, draft: Path, *, trust_remote_code: bool) -> None:
    """Write the model with the checkpoint's probe, so that whatever opens the folder is proved too."""
    from mcpagent.models.load import load_tokenizer, save_model
    from mcpagent.models.tokens import Renderer

    tokenizer = load_tokenizer(str(checkpoint), trust_remote_code=trust_remote_code)
    # What ended a turn in training must end one elsewhere.
    model.generation_config.eos_token_id = sorted(Renderer(tokenizer).stop_ids)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    save_model(model, tokenizer, draft)
    if (checkpoint / PROBE_FILE).is_file():
        shutil.copyfile(checkpoint / PROBE_FILE, draft / PROBE_FILE)


def _base(checkpoint: Path, configured: str | None) -> str | None:
    """Return the model that a checkpoint was trained from, as far as it is known: recorded, else
    `configured`."""
    lineage = read_lineage(checkpoint)
    if lineage is not None and lineage.merged:
        return str(lineage.merged[0]["path"])
    base = base_of(checkpoint)
    return configured if base is None else base.place
