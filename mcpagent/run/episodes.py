"""What episodes are played with: tasks, started servers and a policy, all made from one configuration."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from mcpagent.config.dataset_servers import read_dataset_servers
from mcpagent.config.loader import LoadedConfig, load_train_config
from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import ToolsConfig, TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.models.out_of_memory import memory_reported
from mcpagent.models.weights import weight_files
from mcpagent.policy.contract import Policy, require_vllm
from mcpagent.policy.scripted import EmptyPolicy, GoldPolicy, OverEagerPolicy
from mcpagent.reward.terms import load_reward
from mcpagent.rollout.agent import AgentSettings, ContextRenderer
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.api import PREFIX, OpenedJudge, judge_note, open_api_policy, open_judge, open_user
from mcpagent.storage.checkpoints import find_model, model_identity
from mcpagent.storage.datasets import TaskFile, find_dataset
from mcpagent.storage.packages import provenance, require
from mcpagent.tools.contract import PinnedTools
from mcpagent.tools.io_thread import IOThread
from mcpagent.tools.servers_config import server_names
from mcpagent.tools.setup import Tools, check_named, note_named, open_tools

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
        servers_file = config.tools.servers
        names = frozenset(config.tools.builtin) if servers_file is None else server_names(Path(servers_file))
        remembered = remembered.for_servers(names, are_builtin=servers_file is None)
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


SCRIPTED = ("gold", "empty", "over-eager")
_HELD_OUT = ("heldout.jsonl", "heldout.json")  # with .gz and .zst after it
_NAMED = 5  # tools named in one note


@dataclass(frozen=True, kw_only=True)
class ReadyPolicy:
    """A policy and what a context for it needs. `is_model` is False for those that work on text;
    `is_deterministic` where it is asked
    turn by turn in fixed batches (`rollout.deterministic`); `spent` is what an API used so far."""

    policy: Policy
    identity: JsonObject
    is_model: bool = False
    is_deterministic: bool = True
    renderer: ContextRenderer | None = None
    max_context: int | None = None
    spent: Callable[[], JsonObject | None] = lambda: None
    episodes: int | None = None  # that it has room for at once; None: any number


def at_once(room: int | None, *, asked: int, on_note: Callable[[str], None] = lambda _: None) -> int:
    """How many episodes are played at once where `asked` are wanted and there is `room` for so many."""
    if room is None or room >= asked:
        return asked
    on_note(f"{room} of {asked} episodes are played at once: so many fit into the device's free memory")
    return room


@dataclass(frozen=True, kw_only=True)
class EpisodeSetup:
    """Everything started. `concurrency` is how many episodes run at once."""

    config: TrainConfig
    tasks: TaskFile
    tools: Tools
    ready: ReadyPolicy
    settings: AgentSettings
    concurrency: int
    judge: OpenedJudge | None = None

    def provenance(self, *, samples: int) -> JsonObject:
        """What a result of this setup was made with."""
        config, spent = self.config, self.ready.spent()
        return {
            **provenance(),
            "policy": self.ready.identity,
            **({} if spent is None else {"api": spent}),
            **({} if self.judge is None else {"judge": self.judge.as_json()}),
            "dataset": {
                "path": str(self.tasks.path),
                "sha256": self.tasks.sha256,
                "tasks": len(self.tasks),
            },
            "seed": config.seed,
            "samples": samples,
            **asdict(self.settings.sampling),
            **asdict(self.settings.limits),
            "reward": self.settings.reward.as_json(),
            "max_context_tokens": self.settings.max_context_tokens,
            "concurrency": self.concurrency,
            "user": config.rollout.user_model if config.rollout.user == "model" else "scripted",
            "tools": config.tools.model_dump(mode="json"),
            "catalog_hash": self.tools.pool.catalog_hash,
            "renamed_tools": dict(self.tools.pool.renamed),
            "server_versions": dict(self.tools.pool.versions),
        }


@contextmanager
def open_episodes(
    config: TrainConfig,
    *,
    policy: str,
    samples: int,
    console: Console,
    data: Path | None = None,
    ledger: Path | None = None,
    shard: tuple[int, int] = (1, 1),
) -> Iterator[EpisodeSetup]:
    """Open the tasks of `data` (default: the validation set of `config`), start the servers, load the policy
    that `policy` names (see `open_policy`). Raises UserError before anything is played."""
    refuse_policy(policy)
    for note in load_reward(config.reward, config.judge).notes():
        console.note(note)
    with memory_reported(config), ExitStack() as stack:
        tasks = stack.enter_context(open_tasks(config, data, shard=shard))
        note = judge_note(config, tasks)
        if note is not None:
            console.note(note)
        tools = stack.enter_context(open_tools(config.tools, ledger=ledger, on_note=console.note))
        note = catalog_note(tasks, tools.pool)
        if note is not None:
            console.note(note)
        concurrency = min(config.rollout.num_envs, len(tasks) * samples)
        ready = stack.enter_context(
            open_policy(
                policy, tasks=tasks, config=config, slots=concurrency, io=tools.io, on_note=console.note
            )
        )
        user = stack.enter_context(open_user(config, io=tools.io, on_note=console.note))
        judge = stack.enter_context(open_judge(config, io=tools.io, on_note=console.note))
        yield EpisodeSetup(
            config=config,
            tasks=tasks,
            tools=tools,
            ready=ready,
            settings=agent_settings(
                config, max_context=ready.max_context, user=user, judge=judge and judge.judge
            ),
            concurrency=at_once(ready.episodes, asked=concurrency, on_note=console.note),
            judge=judge,
        )


def open_tasks(config: TrainConfig, data: Path | None = None, *, shard: tuple[int, int] = (1, 1)) -> TaskFile:
    """The dataset `data`, or the validation set of `config`; of it the `shard`. Raises UserError."""
    tasks = TaskFile(data or _validation_file(config), max_tasks=config.data.max_tasks, shard=shard)
    if not tasks:
        tasks.close()
        where = f"--shard {shard[0]}/{shard[1]}"
        raise UserError("has no task: there are fewer than shards", where=where, remedy="use fewer shards")
    try:
        judge_note(config, tasks)  # refuses tasks that nothing could score
    except UserError:
        tasks.close()
        raise
    return tasks


def evaluated_file(config: TrainConfig) -> Path | None:
    """The tasks that a training run evaluates on as it goes; None where it never does. Raises UserError."""
    evaluates = config.algorithm == "grpo" and config.training.eval_every
    return _validation_file(config) if evaluates else None


def measured_file(
    config: TrainConfig, *, on_note: Callable[[str], None] = lambda _: None
) -> tuple[Path, str] | None:
    """The tasks that a training run is judged on, and which split they are: the held-out tasks beside the
    training set, else the validation set; None, with a note, where there is neither. Raises UserError for a
    set that is named and not there."""
    train = find_dataset(config.data.train, split="train")
    names = [name + suffix for name in _HELD_OUT for suffix in ("", ".gz", ".zst")]
    path = next((train.parent / name for name in names if (train.parent / name).is_file()), None)
    if path is not None:
        return path, "held-out"
    try:
        return find_dataset(config.data.validation, split="validation", beside=str(train)), "validation"
    except UserError as error:
        if config.data.validation is not None:
            raise
        on_note(f"no before and after in the report: {error.message}, nor is there a heldout.jsonl")
        return None


def next_data(config: TrainConfig) -> str:
    """The word after `--data` in what a person may type next: the file that `measured_file` finds, else
    FILE."""
    try:
        measured = measured_file(config)
    except UserError:
        measured = None
    return "FILE" if measured is None else shlex.quote(str(measured[0]))


def _validation_file(config: TrainConfig) -> Path:
    return find_dataset(config.data.validation, split="validation", beside=config.data.train)


def catalog_note(tasks: Sequence[Task], pool: PinnedTools) -> str | None:
    """How the servers' tools differ from those that the dataset was made for; None where they agree or the
    dataset does not say. Raises UserError where the pool refuses such a change."""
    pinned = next(
        (task.extra_info["catalog_hash"] for task in tasks if "catalog_hash" in task.extra_info), None
    )
    if pinned is None or pinned == pool.catalog_hash:
        return None
    offered = {name for task in tasks for name in task.offered_in(len(task.truth.user_turns)) or ()}
    live = {spec.dotted for spec in pool.tools.values()}
    gone, new = sorted(offered - live), sorted(live - offered)
    changes = [
        *([f"gone: {_some(gone)}"] if gone else []),
        *([f"in no task's offer: {_some(new)}"] if new else []),
    ]
    note = (
        f"the tools have changed since the dataset was made (catalog {str(pinned)[:12]} then, "
        f"{pool.catalog_hash[:12]} now); "
        + ("; ".join(changes) if changes else "their names are the same, descriptions or schemas differ")
    )
    if pool.on_change == "refuse":
        remedy = "Make the dataset anew, or accept it: --set tools.on_catalog_change=warn"
        raise UserError(note, where="tools.on_catalog_change", remedy=remedy)
    return note


def refuse_policy(name: str) -> None:
    """What can be said of a policy before servers start. Raises UserError."""
    if name not in SCRIPTED and not name.startswith(PREFIX) and (checkpoint := find_model(name)) is not None:
        weight_files(checkpoint.path)


@contextmanager
def open_policy(
    name: str,
    *,
    tasks: Sequence[Task],
    config: TrainConfig,
    slots: int,
    io: IOThread,
    on_note: Callable[[str], None],
) -> Iterator[ReadyPolicy]:
    """`gold`, `empty`, `over-eager`, `openai:NAME`, a checkpoint or run folder, or a hub id. Raises
    UserError."""
    if name in SCRIPTED:
        policies = {"gold": lambda: GoldPolicy(tasks), "empty": EmptyPolicy, "over-eager": OverEagerPolicy}
        yield ReadyPolicy(
            policy=policies[name](),
            identity={"name": name},
            is_deterministic=config.rollout.deterministic is not False,
        )
    elif name.startswith(PREFIX):
        with open_api_policy(name, config=config, io=io, on_note=on_note) as api:
            yield ReadyPolicy(
                policy=api.policy,
                identity={"name": name, "base_url": api.base_url},
                is_deterministic=False,
                spent=api.budget.as_json,
            )
    else:
        with _open_model(name, config=config, slots=slots, on_note=on_note) as ready:
            yield ready


def pinned_model(config: TrainConfig, *, on_note: Callable[[str], None]) -> TrainConfig:
    """`config` with the checkpoint that its `model.name` means today, where that is a run folder: what the
    run does later must not change what is built on it. Raises UserError."""
    if is_built(config.model.name):
        return config
    checkpoint = find_model(config.model.name)
    if checkpoint is None or not checkpoint.why:
        return config
    on_note(f"model.name {config.model.name} means {checkpoint.path} ({checkpoint.why})")
    return config.model_copy(update={"model": config.model.model_copy(update={"name": str(checkpoint.path)})})


@contextmanager
def _open_model(
    name: str, *, config: TrainConfig, slots: int, on_note: Callable[[str], None]
) -> Iterator[ReadyPolicy]:
    resolved = find_model(name)
    checkpoint = None if resolved is None else resolved.path
    if resolved is not None and resolved.why:
        on_note(f"checkpoint: {resolved.path} ({resolved.why})")
    require("hf", use="running a model")
    from mcpagent.train.build import is_deterministic, load, open_sampler

    model = config.model.model_copy(update={"name": name if checkpoint is None else str(checkpoint)})
    named = config.model_copy(update={"model": model})
    if config.rollout.backend == "vllm":
        require_vllm(has_servers=bool(config.vllm.servers))
    loaded = load(named)
    identity = (
        {"path": name, "revision": getattr(loaded.model.config, "_commit_hash", None)}
        if checkpoint is None
        else model_identity(checkpoint)
    )
    template = str(loaded.tokenizer.chat_template)
    with open_sampler(loaded, named, model=loaded.model, slots=slots) as sampler:
        yield ReadyPolicy(
            policy=sampler.policy,
            episodes=sampler.episodes,
            identity={
                **identity,
                "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
                "dtype": str(loaded.model.dtype).removeprefix("torch."),
                "device": str(loaded.device),
            },
            is_model=True,
            is_deterministic=is_deterministic(config, loaded.device),
            renderer=loaded.renderer,
            max_context=loaded.max_context,
        )


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
