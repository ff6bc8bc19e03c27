"""The configuration of a command that takes a dataset: what its folder remembers of its servers is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from mcpagent.config.dataset_servers import read_dataset_servers
from mcpagent.config.loader import LoadedConfig, load_train_config
from mcpagent.config.schema import ToolsConfig, TrainConfig
from mcpagent.errors import UserError
from mcpagent.storage.jsonl import find_dataset
from mcpagent.tools.named_servers import check_named, note_named
from mcpagent.tools.servers_config import server_names

# Which servers there are; the other settings of `tools` fit any.
_NAMING = frozenset({"tools.servers", "tools.builtin"})


def load_for_dataset(
    files: Sequence[Path | str] = (),
    overrides: Sequence[str] = (),
    *,
    data: Path | None,
    split: Literal["train", "validation"] | None,
    note: Callable[[str], None],
    for_training: bool = True,
    inherited: Path | None = None,
) -> LoadedConfig:
    """`load_train_config` with the servers that the dataset's folder remembers, where no others are named;
    `note` is told which. `data` None: the configured dataset of `split`; both None: no dataset. Raises
    UserError."""
    loaded = load_train_config(files, overrides, for_training=for_training, inherited=inherited)
    config = loaded.config
    if "tools.servers" in loaded.explicit and config.tools.servers is not None:
        note_named(Path(config.tools.servers))
    dataset = data or (split and _configured(config, split))
    if not dataset or (inherited is not None and _is_of_run(dataset, config)):
        return loaded
    remembered = read_dataset_servers(dataset)
    if remembered is None:
        return loaded
    if _NAMING & loaded.explicit:
        own = config.tools.servers
        names = frozenset(config.tools.builtin) if own is None else server_names(Path(own))
        remembered = remembered.for_servers(names, are_builtin=own is None)
    elif remembered.servers is not None:
        check_named(remembered.servers, by=remembered.path)
    again = load_train_config(
        files, overrides, for_training=for_training, inherited=inherited, dataset=remembered
    )
    if any(where == str(remembered.path) for where in again.sources.values()):
        note(f"servers: {described(again.config.tools)} (from {remembered.path})")
    return again


def described(tools: ToolsConfig) -> str:
    """The servers in a few words."""
    if tools.servers is not None:
        return tools.servers
    return f"built-in {', '.join(tools.builtin)}, {'limited' if tools.limited else 'full'} tool set"


def _configured(config: TrainConfig, split: Literal["train", "validation"]) -> Path | None:
    """The dataset that the command will look for, or None: to say that it is missing is the command's."""
    try:
        if split == "train":
            return find_dataset(config.data.train, split="train")
        return find_dataset(config.data.validation, split="validation", beside=config.data.train)
    except UserError:
        return None


def _is_of_run(dataset: Path, config: TrainConfig) -> bool:
    """Whether the run was trained on this folder: then its own settings have the servers already."""
    trained = _configured(config, "train")
    return trained is not None and trained.resolve().parent == dataset.resolve().parent
