"""YAML files and `--set` options into one checked `TrainConfig`, with every error at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcpagent.config import checks
from mcpagent.config.dataset_servers import DatasetServers
from mcpagent.config.environment import environment, resource_path, resource_root
from mcpagent.config.resolve import (
    ENVIRONMENT,
    KNOWN_KEYS,
    Layer,
    Setting,
    UnknownKeyError,
    fold,
    merge,
    nested,
    no_effect,
    refusal,
    resolve_entries,
)
from mcpagent.config.schema import TrainConfig
from mcpagent.config.source import Entry, Key, read_file, read_override, write_tree
from mcpagent.core.records import reason
from mcpagent.core.redact import SECRETS
from mcpagent.errors import UserError

DEFAULT_FILES = ("configs/model.yaml", "configs/algo_grpo.yaml", "configs/rollout.yaml")
_PPO = "configs/ppo.yaml"
_MARK, _MARKED = "<{}>", re.compile(r"://[^\s]*<[\w.:-]+>")  # what stands in a URL in place of a secret
_ALGORITHM: Key = ("algorithm",)
_ADVANTAGE: Key = ("grpo", "advantage")


@dataclass(frozen=True, kw_only=True)
class LoadedConfig:
    """A checked config. `sources` says by dotted key where each given setting stands ("file:line"); what is
    not in it is a default. `explicit` are the keys that a person set: not those of a run, nor what a preset
    that ships says like the defaults. `notes` are for the user: settings without effect, and why."""

    config: TrainConfig
    notes: tuple[str, ...]
    sources: dict[str, str]
    explicit: frozenset[str] = frozenset()


def load_train_config(
    files: Sequence[Path | str] = (),
    overrides: Sequence[str] = (),
    *,
    for_training: bool = True,
    inherited: Path | None = None,
    dataset: DatasetServers | None = None,
) -> LoadedConfig:
    """Merge `files` in order (none: `inherited`, the configuration of a run, else the three that ship with
    mcpagent), then `overrides` ("a.b=value", YAML). The servers of `dataset` replace what is not explicit.

    A later file replaces an earlier one's key; an override replaces it in any spelling. The algorithm `ppo`
    is GRPO's loop with configs/ppo.yaml below everything that is given. Without `for_training` the rules that
    hold only for training (no greedy sampling, say) are not applied. Raises one UserError with everything
    that is wrong.
    """
    problems: list[UserError] = []
    from_options = resolve_entries(merge(_read(overrides, problems, is_file=False)))
    paths = [_located(Path(file)) for file in files]
    paths = paths or ([inherited] if inherited is not None else _default_files(from_options))
    from_files = _read_layer(paths, problems)
    if inherited in paths:
        _leave_out_former_keys(from_files)
    problems += from_files.problems + from_options.problems
    set_in_files = {} if inherited in paths else _not_preset(from_files.settings)
    if dataset is not None:
        below = {key: setting for key, setting in from_files.settings.items() if key not in set_in_files}
        from_files.settings = _overlay(dataset.over(below), set_in_files)
    settings = _overlay(from_files.settings, from_options.settings)
    from_environment = Layer()
    if inherited not in paths:
        from_environment = _environment_layer(settings, explicit={*set_in_files, *from_options.settings})
    problems += from_environment.problems
    settings = _overlay(settings, from_environment.settings)
    _learn_secrets(settings)
    if _is_ppo(settings):
        settings = _as_ppo(settings, problems)
    folding_problems, folding_notes = fold(settings)
    problems += folding_problems
    config = _validate(settings, problems, for_training=for_training)
    if problems:
        raise _all_at_once(problems)
    given = {".".join(key): setting.entry for key, setting in settings.items()}
    notes = (*from_files.notes, *from_options.notes, *from_environment.notes, *_idle_notes(config, given))
    notes = (*notes, *folding_notes, *_notes_of_marks(settings))
    return LoadedConfig(
        config=config,
        notes=notes,
        sources={key: entry.where for key, entry in given.items()},
        explicit=frozenset(".".join(key) for key in (*set_in_files, *from_options.settings)),
    )


def _leave_out_former_keys(of_run: Layer) -> None:
    """Turn unknown keys of a run that was made with another version into one note."""
    unknown = [problem for problem in of_run.problems if isinstance(problem, UnknownKeyError)]
    of_run.problems = [problem for problem in of_run.problems if not isinstance(problem, UnknownKeyError)]
    if unknown:
        keys = ", ".join(problem.key for problem in unknown)
        file = str(unknown[0].where).partition(":")[0]
        of_run.notes.append(f"{file} is of another version: {len(unknown)} settings are left out: {keys}")


def _environment_layer(settings: dict[Key, Setting], *, explicit: Collection[Key]) -> Layer:
    """Return the settings of the environment (or `.env`) for keys that are not set."""
    variables, trackers = environment(), settings.get(("tracking", "backends"))
    entries = []
    for name, dotted in ENVIRONMENT.items():
        key = tuple(dotted.split("."))
        is_asked = key[0] != "tracking" or (trackers is not None and trackers.value)
        if variables.get(name) and is_asked and not {key, key[:1]} & set(explicit):
            entries.append(Entry(key=key, value=variables[name], where=f"{name} (environment)"))
    layer = resolve_entries(entries)
    layer.notes += [f"{entry.where}: {entry.dotted} is {entry.value}" for entry in entries]
    return layer


def dump_config(config: TrainConfig) -> str:
    """YAML of every setting; loading it gives an equal config, without what is secret in its URLs."""
    return write_tree(_public(config.model_dump(mode="json")))


def public_settings(config: TrainConfig) -> dict[str, Any]:
    """Every setting as a run keeps it: the users, passwords and keys of URLs as their names. All else is as
    it was given, since a path or a name in which the value of a secret occurs would be another one."""
    return _public(config.model_dump())


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _public(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_public(item) for item in value)
    # No brackets: within a URL they hold an address of IPv6.
    return SECRETS.text(value, mark=_MARK) if isinstance(value, str) and "://" in value else value


def _learn_secrets(settings: dict[Key, Setting]) -> None:
    """The users, passwords and keys of URLs, by the names of their settings."""
    for key, setting in settings.items():
        values = setting.value if isinstance(setting.value, list | tuple) else [setting.value]
        for value in values:
            if isinstance(value, str) and not _MARKED.search(value):
                SECRETS.learn_url(".".join(key), value)


def _notes_of_marks(settings: dict[Key, Setting]) -> list[str]:
    return [
        f"{setting.entry.where}: {'.'.join(key)} was kept without its secrets; if the command needs it, "
        f"give it again: --set {'.'.join(key)}=..."
        for key, setting in settings.items()
        if _MARKED.search(str(setting.value))
    ]


def _default_files(options: Layer) -> list[Path]:
    """The three that ship; for ppo, its preset over the other two in place of GRPO's objective."""
    model, _objective, rollout = DEFAULT_FILES
    names = (model, rollout, _PPO) if _is_ppo(options.settings) else DEFAULT_FILES
    return [resource_path(name) for name in names]


def _is_ppo(settings: dict[Key, Setting]) -> bool:
    return _ALGORITHM in settings and settings[_ALGORITHM].value == "ppo"


def _as_ppo(settings: dict[Key, Setting], problems: list[UserError]) -> dict[Key, Setting]:
    """The settings over those of the preset, as settings of GRPO. An advantage that is not PPO's is a
    problem: one of the two would be silently left out."""
    algorithm, given = settings[_ALGORITHM], settings.get(_ADVANTAGE)
    if given is not None and given.value != "gae":
        why = f"the algorithm is ppo ({algorithm.entry.where}), whose advantage is gae; leave one of them out"
        problems.append(refusal(given.entry, why))
    preset = _read_layer([resource_path(_PPO)], problems)
    grpo = Setting(value="grpo", entry=algorithm.entry)
    return _overlay(preset.settings, settings) | {_ALGORITHM: grpo}


def _located(path: Path) -> Path:
    """`configs/NAME` also means the file that ships with mcpagent, if the working folder has none."""
    shipped = resource_root() / path
    is_shipped = not path.is_absolute() and path.parts[:1] == ("configs",) and shipped.is_file()
    return shipped if is_shipped and not path.exists() else path


def _not_preset(settings: dict[Key, Setting]) -> dict[Key, Setting]:
    """Without what a file that ships with mcpagent sets to the default anyway: it only shows the key."""
    presets, defaults = resource_root() / "configs", TrainConfig().model_dump(mode="json")

    def is_shown(key: Key, setting: Setting) -> bool:
        file = Path(setting.entry.where.rpartition(":")[0])
        is_preset = key in KNOWN_KEYS and file.resolve().is_relative_to(presets)
        return is_preset and _at(defaults, ".".join(key)) == setting.value

    return {key: setting for key, setting in settings.items() if not is_shown(key, setting)}


def _read_layer(paths: Sequence[Path], problems: list[UserError]) -> Layer:
    return resolve_entries(merge(_read([str(path) for path in paths], problems, is_file=True)))


def _read(sources: Sequence[str], problems: list[UserError], *, is_file: bool) -> list[Entry]:
    entries: list[Entry] = []
    for source in sources:
        try:
            entries += read_file(Path(source)) if is_file else read_override(source)
        except UserError as error:
            problems.append(error)
    return entries


def _overlay(below: dict[Key, Setting], above: dict[Key, Setting]) -> dict[Key, Setting]:
    """Lay one over another, by resolved key; a value for a whole mapping replaces what stood below it."""
    kept = {
        key: setting
        for key, setting in below.items()
        if not any(key[: len(other)] == other or other[: len(key)] == key for other in above)
    }
    return kept | above


def _validate(settings: dict[Key, Setting], problems: list[UserError], *, for_training: bool) -> TrainConfig:
    """The config of `settings`. What is refused joins `problems` and falls back to its default, so that the
    rules between settings are checked in the same pass."""
    refused: dict[Key, UserError] = {}
    while True:
        accepted = {key: setting for key, setting in settings.items() if key not in refused}
        try:
            config = TrainConfig.model_validate(nested({k: s.value for k, s in accepted.items()}))
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
            problems.append(UserError(finding.message, where=place))
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
            notes.append(no_effect(given[key], why))
    return notes


def _at(tree: dict[str, Any], dotted: str) -> Any:
    value: Any = tree
    for part in dotted.split("."):
        value = value[part]
    return value


def _all_at_once(problems: list[UserError]) -> UserError:
    if len(problems) == 1:
        return problems[0]
    lines = "\n".join(f"  {problem}" for problem in problems)
    return UserError(f"the configuration has {len(problems)} errors:\n{lines}")
