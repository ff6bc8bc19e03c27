"""One meaning, one place: entries in any spelling become settings by their resolved key."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mcpagent.config.schema import ServerSection, TrainConfig, TrainingConfig
from mcpagent.config.sections import Section
from mcpagent.config.source import Entry, Key
from mcpagent.core.records import short_repr
from mcpagent.errors import UserError


@dataclass(frozen=True)
class PromptsPerUpdate:
    """`grpo.minibatches` written as the prompts in each of them (`minibatch_size`)."""

    prompts: Any


# Familiar key -> the key that it means.
ALIASES: dict[str, str] = {
    "lora.enabled": "finetune.mode",
    "grpo.lambda": "grpo.lambda_gae",
    "rollout.minibatch_size": "grpo.minibatches",
    "rollout.batch_size": "training.batch_size",
    "training.learning_rate": "optimization.learning_rate",
    "training.gradient_accumulation_steps": "optimization.gradient_accumulation_steps",
    "tools.timeout": "tools.timeout_s",
    "tools.timeout_seconds": "tools.timeout_s",
    "tools.retry_attempts": "tools.retry",
}


def _mode_of_lora_enabled(enabled: Any) -> str:
    if not isinstance(enabled, bool):
        raise ValueError("it must be true or false")
    return "lora" if enabled else "full"


def _tracking_mode(value: Any) -> Any:
    """The mode, also in the words of wandb."""
    return {"run": "online", "dryrun": "offline"}.get(_lower(value), _lower(value))


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _algorithm(value: Any) -> Any:
    if _lower(value) not in ("grpo", "ppo", "sft"):
        raise ValueError("it must be grpo, ppo or sft")
    return _lower(value)


# Values that are rewritten on the way; ValueError says why one cannot be.
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "algorithm": _algorithm,
    "finetune.mode": _lower,
    "device": _lower,
    "tracking.mode": _tracking_mode,
    "lora.enabled": _mode_of_lora_enabled,
    "rollout.minibatch_size": PromptsPerUpdate,
}
# Familiar keys that need no setting here.
IGNORED: frozenset[str] = frozenset(
    {
        "model.pad_token_id",
        "rollout.num_workers",
        "rollout.max_episodes_per_update",
        "rollout.return_token_logprobs",
        "tools.enabled",
        "vllm.enabled",
    }
)
# Environment variables that users of this family of tools set, and the keys that they stand for if those
# are not set. Those of trackers count if a tracker is named.
ENVIRONMENT: dict[str, str] = {
    "DEVICE_TYPE": "device",
    "WANDB_PROJECT": "tracking.project",
    "WANDB_MODE": "tracking.mode",
}
_MOVED_SECTIONS: dict[Key, Key] = {("rollout", "tools"): ("tools",), ("finetune", "lora"): ("lora",)}


def full_spelling(key: Key) -> Key:
    """`key` with its section, if the familiar file leaves it out or puts it elsewhere."""
    if key[:2] == _ISOLATION and len(key) == 3:
        return (*_PER_SERVER, key[2], "isolation")
    if key[0] in _ROLLOUT_KEYS:
        return ("rollout", *key)
    moved = _MOVED_SECTIONS.get(key[:2])
    return key if moved is None else (*moved, *key[2:])


def _leaves(model: type[Section], prefix: Key = ()) -> Iterable[Key]:
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from _leaves(info.annotation, (*prefix, name))
        else:
            yield (*prefix, name)


KNOWN_KEYS: frozenset[Key] = frozenset(_leaves(TrainConfig))
_ISOLATION: Key = ("tools", "isolation")  # .NAME is short for tools.per_server.NAME.isolation
SECTIONS: frozenset[Key] = frozenset(key[:n] for key in KNOWN_KEYS for n in range(1, len(key))) | {_ISOLATION}
# Familiar keys that are no settings of their own: together with others they say what a setting is (`fold`).
FOLDED: frozenset[Key] = frozenset(
    {
        ("optimization", "gradient_accumulation_steps"),
        ("training", "steps_per_epoch"),
        ("grpo", "adaptive_kl"),
        ("vllm", "max_model_len"),
    }
)
# Below them stand the user's own names.
_PER_SERVER: Key = ("tools", "per_server")
_OPEN_KEYS: frozenset[Key] = frozenset({_PER_SERVER, ("reward", "weights")})
_NAMES = sorted({".".join(key) for key in KNOWN_KEYS | FOLDED} | set(ALIASES))
# A familiar rollout file may hold its keys without the leading `rollout`.
_ROLLOUT_KEYS = {name.removeprefix("rollout.") for name in (*_NAMES, *IGNORED) if name.startswith("rollout.")}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value of a resolved key, and the entry that it was written as."""

    value: Any
    entry: Entry


@dataclass(kw_only=True)
class Layer:
    """Settings of one layer (all files, or all `--set` options) and what there is to say about them."""

    settings: dict[Key, Setting] = field(default_factory=dict)
    problems: list[UserError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def merge(entries: Iterable[Entry]) -> list[Entry]:
    """Later entries replace earlier ones of the same spelling, and a value replaces a whole mapping.
    A section with nothing in it replaces nothing."""
    merged: dict[Key, Entry] = {}
    for entry in entries:
        if entry.value in (None, {}) and full_spelling(entry.key) in SECTIONS:
            continue
        replaced = [key for key in merged if _is_prefix(key, entry.key) or _is_prefix(entry.key, key)]
        for key in replaced:
            del merged[key]
        merged[entry.key] = entry
    return list(merged.values())


def resolve_entries(entries: Iterable[Entry]) -> Layer:
    """Give every entry its resolved key. Two spellings of one setting with different values are a problem
    that names both; the same value twice is fine."""
    layer = Layer()
    for entry in entries:
        spelled = full_spelling(entry.key)
        if ".".join(spelled) in IGNORED:
            layer.notes.append(no_effect(entry, "there is no such setting any more"))
        else:
            _take(layer, entry, spelled)
    return layer


class UnknownKeyError(UserError):
    """A key that there is not; `key` is its shortest unknown part."""

    def __init__(self, key: str, hint: str, *, where: str) -> None:
        super().__init__(f"unknown key {key}{hint}", where=where)
        self.key = key


def refusal(entry: Entry, why: str) -> UserError:
    """Return the one form of "this value is wrong"."""
    return UserError(f"{entry.dotted} is {short_repr(entry.value)}, but {why}", where=entry.where)


def no_effect(entry: Entry, why: str) -> str:
    """Return the one form of "this value changes nothing"."""
    return f"{entry.where}: {entry.dotted} has no effect: {why}"


def _take(layer: Layer, entry: Entry, spelled: Key) -> None:
    dotted = ".".join(spelled)
    key = tuple(ALIASES[dotted].split(".")) if dotted in ALIASES else spelled
    if key not in KNOWN_KEYS and key not in FOLDED and key[:2] not in _OPEN_KEYS:
        problem, file = _unknown(entry, spelled), entry.where.rpartition(":")[0]
        alike = [earlier for earlier in layer.problems if earlier.message == problem.message]
        if not any(str(earlier.where).rpartition(":")[0] == file for earlier in alike):
            layer.problems.append(problem)  # once for a whole section
        return
    if key[:2] == _PER_SERVER and len(key) > 3 and key[3] not in ServerSection.model_fields:
        hint = f"there are {', '.join(ServerSection.model_fields)}"
        layer.problems.append(UserError(f"unknown key {dotted}; {hint}", where=entry.where))
        return
    try:
        value = CONVERSIONS[dotted](entry.value) if dotted in CONVERSIONS else entry.value
    except ValueError as error:
        layer.problems.append(refusal(entry, str(error)))
        return
    first = layer.settings.get(key)
    if first is not None and first.value != value:
        layer.problems.append(_conflict(first.entry, entry))
    elif first is None:
        layer.settings[key] = Setting(value=value, entry=entry)


def _conflict(first: Entry, second: Entry) -> UserError:
    return UserError(
        f"{second.dotted} is {short_repr(second.value)}, but {first.dotted} ({first.where}) is "
        f"{short_repr(first.value)}, and both set the same thing; keep one of them",
        where=second.where,
    )


def _unknown(entry: Entry, spelled: Key) -> UserError:
    """One problem for the shortest unknown part of the key, with what was probably meant."""
    for depth in range(1, len(spelled) + 1):
        part = spelled[:depth]
        if part in KNOWN_KEYS or ".".join(part) in ALIASES:
            message = f"{'.'.join(part)} takes a value, not keys such as {spelled[depth]}"
            return UserError(message, where=entry.where)
        if part not in SECTIONS:
            break
    else:
        inside = [key for key in KNOWN_KEYS if key[: len(spelled)] == spelled]
        examples = ", ".join(sorted(map(".".join, inside))[:3])
        message = f"{entry.dotted} is a section with keys such as {examples}, not a value"
        return UserError(message, where=entry.where)
    meant = _near_match(".".join(part))
    hint = f"; did you mean {meant}?" if meant else ""
    return UnknownKeyError(".".join(part), hint, where=entry.where)


def _near_match(dotted: str) -> str | None:
    """Return the known key that was probably meant: the same name in another section, else the nearest
    spelling."""
    name = dotted.rpartition(".")[2]
    elsewhere = [key for key in _NAMES if key.rpartition(".")[2] == name]
    if elsewhere:
        return " or ".join(elsewhere[:2])
    sections = sorted(key[0] for key in SECTIONS if len(key) == 1)
    return next(iter(difflib.get_close_matches(dotted, [*_NAMES, *sections], n=1, cutoff=0.75)), None)


def _is_prefix(short: Key, long: Key) -> bool:
    return len(short) < len(long) and long[: len(short)] == short


def fold(settings: dict[Key, Setting]) -> tuple[list[UserError], list[str]]:
    """Put what the keys of FOLDED say into the settings that they speak of. Returns problems and notes."""
    problems, notes = _fold_minibatches(settings), list[str]()

    def said(section: str, name: str, kind: type) -> Setting | None:
        setting = settings.pop((section, name), None)
        if setting is None or setting.value is None:
            return None
        if type(setting.value) is kind and (kind is bool or setting.value >= 1):
            return setting
        expected = "true or false" if kind is bool else "a whole number, 1 or more"
        problems.append(refusal(setting.entry, f"it must be {expected}"))
        return None

    batch_size = _batch_size(settings)
    times = said("optimization", "gradient_accumulation_steps", int)
    if times is not None and times.value > 1 and type(batch_size) is int:
        settings["training", "batch_size"] = replace(times, value=batch_size * times.value)
    per_epoch = said("training", "steps_per_epoch", int)
    if per_epoch is not None and _value(settings, "training", "max_steps") is None:
        epochs = _value(settings, "training", "max_epochs") or 1
        settings["training", "max_steps"] = replace(per_epoch, value=epochs * per_epoch.value)
    engine = said("vllm", "max_model_len", int)
    limit = _value(settings, "rollout", "max_context_tokens")
    if engine is not None and _value(settings, "rollout", "backend") == "hf":
        notes.append(no_effect(engine.entry, "rollout.backend is hf"))
    elif engine is not None and (limit is None or (type(limit) is int and engine.value < limit)):
        settings["rollout", "max_context_tokens"] = engine
    adaptive, target = said("grpo", "adaptive_kl", bool), settings.get(("grpo", "target_kl"))
    if adaptive is not None and (target is None or target.value is None):
        if adaptive.value:
            why = "grpo.target_kl is not set; set it, for example to 0.05"
            problems.append(refusal(adaptive.entry, why))
    elif adaptive is not None and target is not None and not adaptive.value:
        del settings["grpo", "target_kl"]
        notes.append(no_effect(target.entry, "grpo.adaptive_kl is false"))
    return problems, notes


def _fold_minibatches(settings: dict[Key, Setting]) -> list[UserError]:
    """Turn prompts per minibatch into `grpo.minibatches`. Accumulation multiplies a batch and its minibatches
    alike, so it changes nothing here."""
    setting = settings.get(("grpo", "minibatches"))
    if setting is None or not isinstance(setting.value, PromptsPerUpdate):
        return []
    del settings["grpo", "minibatches"]
    prompts, batch_size = setting.value.prompts, _batch_size(settings)
    if type(prompts) is not int or prompts < 1:
        return [refusal(setting.entry, "it must be a number of prompts, 1 or more")]
    if type(batch_size) is not int:
        return []  # that key has its own problem
    if batch_size % prompts:
        return [refusal(setting.entry, f"training.batch_size {batch_size} is not a multiple of it")]
    settings["grpo", "minibatches"] = replace(setting, value=batch_size // prompts)
    return []


def _batch_size(settings: Mapping[Key, Setting]) -> Any:
    return _value(settings, "training", "batch_size") or TrainingConfig().batch_size


def _value(settings: Mapping[Key, Setting], *key: str) -> Any:
    return settings[key].value if key in settings else None


def nested(values: Mapping[Key, Any]) -> dict[str, Any]:
    """Values as the tree that the schema validates."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        branch = tree
        for part in key[:-1]:
            branch = branch.setdefault(part, {})
        branch[key[-1]] = value
    return tree
