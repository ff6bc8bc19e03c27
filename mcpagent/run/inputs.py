"""What a training run can refuse within a moment: everything that needs neither torch nor a server."""

from __future__ import annotations

from pathlib import Path

from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import TrainConfig
from mcpagent.models.weights import holds_weights, weight_files
from mcpagent.run.episodes import evaluated_file
from mcpagent.storage.checkpoints import find_model
from mcpagent.storage.datasets import find_dataset, read_tasks
from mcpagent.storage.locks import holder
from mcpagent.storage.run_folder import RunFolder, has_not_begun, not_empty
from mcpagent.tools.setup import configured_servers


def check_inputs(config: TrainConfig, *, resume: bool = False, dry_run: bool = False) -> None:
    """Look at the files that `config` names: datasets (their first task), servers, the model's folder, the
    run folder. The run looks closer at each. Raises UserError."""
    next(read_tasks(find_dataset(config.data.train, split="train")))
    if (validation := evaluated_file(config)) is not None:
        next(read_tasks(validation))
    configured_servers(config.tools)
    if not is_built(config.model.name):
        checkpoint = find_model(config.model.name)
        if checkpoint is not None and (holds_weights(checkpoint.path) or not dry_run):
            weight_files(checkpoint.path)
    if config.name is not None and not dry_run:
        _check_folder(Path(config.output_dir) / config.name, resume=resume)


def _check_folder(folder: Path, *, resume: bool) -> None:
    if resume:
        RunFolder.open(folder)
    elif folder.exists() and not (folder.is_dir() and (holder(folder) or has_not_begun(folder))):
        raise not_empty(folder)
