"""One meaning, one place: entries in any spelling become settings by their resolved key."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcpagent.config.named_parts import COPYING
from mcpagent.config.schema import ServerSection, TrainConfig
from mcpagent.config.sections import Section
from mcpagent.config.source import Entry, Key, Problem
from mcpagent.core.records import shown_value


@dataclass(frozen=True)
class PromptsPerUpdate:
    """`grpo.minibatches` written as the prompts in each of them (`minibatch_size`)."""

    prompts: Any


@dataclass(frozen=True)
class NoEffect:
    """A key that needs no setting here. Its `silent` value asks for nothing else; any other is noted."""

    reason: str
    silent: Any = None


@dataclass(frozen=True)
class OnlyValue:
    """A key with one meaningful value."""

    value: Any
    reason: str


# Familiar key -> the key that it means.
ALIASES: dict[str, str] = {
    "algo": "algorithm",
    "algorithm.name": "algorithm",
    "algorithm.type": "algorithm",
    "lora.enabled": "finetune.mode",
    "grpo.lambda": "grpo.lambda_gae",
    "kl.placement": "grpo.kl_placement",
    "kl.estimator": "grpo.kl_estimator",
    "training.minibatch_size": "grpo.minibatches",
    "rollout.minibatch_size": "grpo.minibatches",
    "rollout.batch_size": "training.batch_size",
    "training.learning_rate": "optimization.learning_rate",
    "training.gradient_accumulation_steps": "optimization.gradient_accumulation_steps",
    "training.gradient_clip": "optimization.gradient_clip",
    "training.max_cpu_s": "budget.cpu_s",
    "sft.copy_steps": "sft.curriculum_steps",
    "sft.copy_mix": "sft.curriculum_mix",
    "tools.timeout": "tools.timeout_s",
    "tools.timeout_seconds": "tools.timeout_s",
    "tools.retry_attempts": "tools.retry",
    "tools.cassette_stateless": "tools.read_only",
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
    "algo": _algorithm,
    "algorithm": _algorithm,
    "algorithm.name": _algorithm,
    "algorithm.type": _algorithm,
    "finetune.mode": _lower,
    "device": _lower,
    "tracking.mode": _tracking_mode,
    "lora.enabled": _mode_of_lora_enabled,
    "training.minibatch_size": PromptsPerUpdate,
    "rollout.minibatch_size": PromptsPerUpdate,
}
NO_EFFECT: dict[str, NoEffect] = {
    "rollout.num_workers": NoEffect(
        "one thread drives every episode and no worker waits for a tool; rollout.num_envs is how many "
        "episodes run at once"
    ),
    "rollout.max_episodes_per_update": NoEffect(
        "a step is made of training.batch_size x rollout.group_size episodes"
    ),
    "rollout.return_token_logprobs": NoEffect("training always takes the sampler's logprobs", silent=True),
    "vllm.enabled": NoEffect("rollout.backend chooses the engine"),
}
ONLY_VALUES: dict[str, OnlyValue] = {
    "tools.enabled": OnlyValue(True, "an agent is trained on its tool calls, so leave this key out"),
}
# Environment variables that users of this family of tools set, and the keys that they stand for where nobody
# set those. Those of trackers count where a tracker is named.
ENVIRONMENT: dict[str, str] = {
    "DEVICE_TYPE": "device",
    "WANDB_PROJECT": "tracking.project",
    "WANDB_ENTITY": "tracking.entity",
    "WANDB_MODE": "tracking.mode",
    "WEAVE_PROJECT": "tracking.weave_project",
}
NO_BITSANDBYTES = "DISABLE_BITSANDBYTES"
# A familiar rollout file may hold its keys without the leading `rollout`.
BARE_ROLLOUT_KEYS = frozenset(
    {
        "backend",
        "num_envs",
        "num_workers",
        "max_steps_per_episode",
        "max_episodes_per_update",
        "max_new_tokens",
        "temperature",
        "top_p",
        "return_token_logprobs",
        "batch_size",
        "minibatch_size",
    }
)
_MOVED_SECTIONS: dict[Key, Key] = {("rollout", "tools"): ("tools",), ("finetune", "lora"): ("lora",)}


def full_spelling(key: Key) -> Key:
    """`key` with its section, where the familiar file leaves it out or puts it elsewhere."""
    if key[0] in BARE_ROLLOUT_KEYS:
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
SECTIONS: frozenset[Key] = frozenset(key[:n] for key in KNOWN_KEYS for n in range(1, len(key)))
# Below them stand the user's own names.
_PER_SERVER: Key = ("tools", "per_server")
_OPEN_KEYS: frozenset[Key] = frozenset(
    {("tools", "isolation"), _PER_SERVER, ("budget", "usd_per_call"), ("reward", "weights")}
)
_NAMES = sorted({".".join(key) for key in KNOWN_KEYS} | set(ALIASES))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value of a resolved key, and the entry that it was written as."""

    value: Any
    entry: Entry


@dataclass(kw_only=True)
class Layer:
    """Settings of one layer (all files, or all `--set` options) and what there is to say about them."""

    settings: dict[Key, Setting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
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
        dotted = ".".join(spelled)
        if dotted in NO_EFFECT:
            without_effect = NO_EFFECT[dotted]
            if entry.value is None or entry.value != without_effect.silent:
                layer.notes.append(f"{entry.where}: {entry.dotted} has no effect: {without_effect.reason}")
        elif dotted in ONLY_VALUES:
            only = ONLY_VALUES[dotted]
            if entry.value != only.value:
                layer.problems.append(
                    refusal(entry, f"it can only be {shown_value(only.value)}: {only.reason}")
                )
        else:
            _take(layer, entry, spelled)
    return layer


def refusal(entry: Entry, why: str) -> Problem:
    """The one form of "this value is wrong"."""
    return Problem(where=entry.where, message=f"{entry.dotted} is {shown_value(entry.value)}, but {why}")


def _take(layer: Layer, entry: Entry, spelled: Key) -> None:
    dotted = ".".join(spelled)
    key = tuple(ALIASES[dotted].split(".")) if dotted in ALIASES else spelled
    if key not in KNOWN_KEYS and key[:2] not in _OPEN_KEYS:
        problem = _unknown(entry, spelled)
        if not any(problem.repeats(earlier) for earlier in layer.problems):  # once for a whole section
            layer.problems.append(problem)
        return
    if key[:2] == _PER_SERVER and len(key) > 3 and key[3] not in ServerSection.model_fields:
        fields = list(ServerSection.model_fields)
        near = difflib.get_close_matches(key[3], fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
        layer.problems.append(Problem(where=entry.where, message=f"unknown key {dotted}; {hint}"))
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


def _conflict(first: Entry, second: Entry) -> Problem:
    message = (
        f"{second.dotted} is {shown_value(second.value)}, but {first.dotted} ({first.where}) is "
        f"{shown_value(first.value)}, and both set the same thing; keep one of them"
    )
    return Problem(where=second.where, message=message)


def _unknown(entry: Entry, spelled: Key) -> Problem:
    """One problem for the shortest unknown part of the key, with what was probably meant."""
    for depth in range(1, len(spelled) + 1):
        part = spelled[:depth]
        if part in KNOWN_KEYS or ".".join(part) in ALIASES:
            message = f"{'.'.join(part)} takes a value, not keys such as {spelled[depth]}"
            return Problem(where=entry.where, message=message)
        if part not in SECTIONS:
            break
    else:
        inside = [key for key in KNOWN_KEYS if key[: len(spelled)] == spelled]
        examples = ", ".join(sorted(map(".".join, inside))[:3])
        message = f"{entry.dotted} is a section with keys such as {examples}, not a value"
        return Problem(where=entry.where, message=message)
    meant = _near_match(".".join(part))
    hint = f"; did you mean {meant}?" if meant else ""
    return Problem(where=entry.where, message=f"unknown key {'.'.join(part)}{hint}")


def _near_match(dotted: str) -> str | None:
    """The known key that was probably meant: the same name in another section, else the nearest spelling."""
    section, _, name = dotted.rpartition(".")
    elsewhere = [key for key in _NAMES if key.rpartition(".")[2] == name]
    if elsewhere:
        return " or ".join(elsewhere[:2])
    siblings = {key.rpartition(".")[2]: key for key in _NAMES if key.rpartition(".")[0] == section}
    headings = {} if section else {key[0]: key[0] for key in sorted(SECTIONS) if len(key) == 1}
    anywhere = {key.rpartition(".")[2]: key for key in _NAMES}
    for candidates, cutoff in ((siblings | headings, 0.6), (anywhere, 0.75)):
        close = difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff)
        if close:
            return candidates[close[0]]
    return None


def _is_prefix(short: Key, long: Key) -> bool:
    return len(short) < len(long) and long[: len(short)] == short


def settle_minibatches(settings: dict[Key, Setting], *, default_batch_size: int) -> list[Problem]:
    """Turn prompts per minibatch into `grpo.minibatches`. Returns problems. Accumulation multiplies a batch
    and its minibatches alike, so it changes nothing here."""
    key = ("grpo", "minibatches")
    setting = settings.get(key)
    if setting is None or not isinstance(setting.value, PromptsPerUpdate):
        return []
    del settings[key]
    batch = settings.get(("training", "batch_size"))
    batch_size = default_batch_size if batch is None else batch.value
    prompts = setting.value.prompts
    if not isinstance(prompts, int) or isinstance(prompts, bool) or prompts < 1:
        return [refusal(setting.entry, "it must be a number of prompts, 1 or more")]
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        return []  # that key has its own problem
    if batch_size % prompts:
        return [refusal(setting.entry, f"training.batch_size {batch_size} is not a multiple of it")]
    settings[key] = Setting(value=batch_size // prompts, entry=setting.entry)
    return []


def name_curriculum(settings: dict[Key, Setting]) -> None:
    """`sft.copy_steps` and `sft.copy_mix` name the curriculum that they are about, where none is named."""
    key = ("sft", "curriculum")
    for name in ("curriculum_steps", "curriculum_mix"):
        setting = settings.get(("sft", name))
        if setting is not None and setting.value and setting.entry.dotted.startswith("sft.copy_"):
            settings.setdefault(key, Setting(value=COPYING, entry=setting.entry))


def nested(settings: Mapping[Key, Setting]) -> dict[str, Any]:
    """Settings as the tree that the schema validates."""
    tree: dict[str, Any] = {}
    for key, setting in settings.items():
        branch = tree
        for part in key[:-1]:
            branch = branch.setdefault(part, {})
        branch[key[-1]] = setting.value
    return tree
