"""YAML files and `--set` options into one checked `TrainConfig`, with every error at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcpagent.config import checks
from mcpagent.config.resolve import Layer, Setting, merge, nested, refusal, resolve, settle_minibatches
from mcpagent.config.resources import resource_path, resource_root
from mcpagent.config.schema import TrainConfig, TrainingConfig
from mcpagent.config.source import Entry, Key, Problem, SourceError, read_file, read_override, write_tree
from mcpagent.core.validation import reason
from mcpagent.errors import UserError

DEFAULT_FILES = ("configs/model.yaml", "configs/algo_grpo.yaml", "configs/rollout.yaml")


@dataclass(frozen=True, kw_only=True)
class LoadedConfig:
    """A checked config. `sources` says by dotted key where each given setting stands ("file:line"); what is
    not in it is a default. `notes` are for the user: settings without effect, and why."""

    config: TrainConfig
    notes: tuple[str, ...]
    sources: dict[str, str]


def load_train_config(
    files: Sequence[Path | str] = (), overrides: Sequence[str] = (), *, for_training: bool = True
) -> LoadedConfig:
    """Merge `files` in order (none: the three that ship with mcpagent), then `overrides` ("a.b=value", YAML).

    A later file replaces an earlier one's key; an override replaces it in any spelling. Without
    `for_training` the rules that hold only for training (no greedy sampling, say) are not applied. Raises one
    UserError with everything that is wrong.
    """
    problems: list[Problem] = []
    paths = [_located(Path(file)) for file in files] or [resource_path(name) for name in DEFAULT_FILES]
    from_files = resolve(merge(_read([str(path) for path in paths], problems, is_file=True)))
    from_options = resolve(merge(_read(overrides, problems, is_file=False)))
    problems += from_files.problems + from_options.problems
    settings = _overlay(from_files, from_options)
    problems += settle_minibatches(settings, default_batch_size=TrainingConfig().batch_size)
    config = _validate(settings, problems, for_training=for_training)
    if problems:
        raise _all_at_once(problems)
    given = {".".join(key): setting.entry for key, setting in settings.items()}
    notes = (*from_files.notes, *from_options.notes, *_idle_notes(config, given))
    return LoadedConfig(
        config=config.for_sft() if config.algorithm == "sft" else config,
        notes=notes,
        sources={key: entry.where for key, entry in given.items()},
    )


def dump_config(config: TrainConfig) -> str:
    """YAML of every setting; loading it gives an equal config."""
    return write_tree(config.model_dump(mode="json"))


def _located(path: Path) -> Path:
    """`configs/NAME` also means the file that ships with mcpagent, where the working folder has none."""
    shipped = resource_root() / path
    is_shipped = not path.is_absolute() and path.parts[:1] == ("configs",) and shipped.is_file()
    return shipped if is_shipped and not path.exists() else path


def _read(sources: Sequence[str], problems: list[Problem], *, is_file: bool) -> list[Entry]:
    entries: list[Entry] = []
    for source in sources:
        try:
            entries += read_file(Path(source)) if is_file else read_override(source)
        except SourceError as error:
            problems.append(error.problem)
    return entries


def _overlay(files: Layer, options: Layer) -> dict[Key, Setting]:
    """Options over files, by resolved key; an option for a whole mapping replaces what stood below it."""
    kept = {
        key: setting
        for key, setting in files.settings.items()
        if not any(key[: len(option)] == option or option[: len(key)] == key for option in options.settings)
    }
    return kept | options.settings


def _validate(settings: dict[Key, Setting], problems: list[Problem], *, for_training: bool) -> TrainConfig:
    """The config of `settings`. What is refused joins `problems` and falls back to its default, so that the
    rules between settings are checked in the same pass."""
    refused: dict[Key, Problem] = {}
    while True:
        accepted = {key: setting for key, setting in settings.items() if key not in refused}
        try:
            config = TrainConfig.model_validate(nested(accepted))
            break
        except ValidationError as error:
            for detail in error.errors():
                key = _owner(detail["loc"], accepted)
                refused.setdefault(key, refusal(accepted[key].entry, reason(detail)))
    problems += refused.values()
    bad = {".".join(key) for key in refused}
    where = {".".join(key): setting.entry.where for key, setting in settings.items()}
    for finding in checks.findings(config, for_training=for_training):
        if bad.isdisjoint(finding.keys):
            place = next((where[key] for key in finding.keys if key in where), "default")
            problems.append(Problem(where=place, message=finding.message))
    return config


def _owner(location: tuple[int | str, ...], settings: dict[Key, Setting]) -> Key:
    """The given key that a finding inside it (an item of a list, a member of a union) belongs to."""
    path = tuple(str(part) for part in location)
    around = [key for key in settings if path[: len(key)] == key]
    return around[0] if around else next(key for key in settings if key[: len(path)] == path)


def _idle_notes(config: TrainConfig, given: dict[str, Entry]) -> list[str]:
    """A note for each given setting that differs from its default and yet has no effect."""
    defaults, actual = TrainConfig().model_dump(), config.model_dump()
    notes: list[str] = []
    for key, why in checks.idle(config).items():
        if key in given and _at(actual, key) != _at(defaults, key):
            notes.append(f"{given[key].where}: {given[key].dotted} has no effect: {why}")
    return notes


def _at(tree: dict[str, Any], dotted: str) -> Any:
    value: Any = tree
    for part in dotted.split("."):
        value = value[part]
    return value


def _all_at_once(problems: list[Problem]) -> UserError:
    if len(problems) == 1:
        return UserError(problems[0].message, where=problems[0].where)
    lines = "\n".join(f"  {problem}" for problem in problems)
    return UserError(f"the configuration has {len(problems)} errors:\n{lines}")
