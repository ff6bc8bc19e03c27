"""What episodes are played with: tasks, started servers and a policy, all made from one configuration."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from mcpagent.config.dataset_servers import DatasetServers, read_dataset_servers
from mcpagent.config.loader import LoadedConfig, load_train_config
from mcpagent.config.schema import ToolsConfig, TrainConfig
from mcpagent.console import Console, counted
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import Breakdown
from mcpagent.evaluate.summary import EvalResult, summarise
from mcpagent.judge.tasks import judge_note
from mcpagent.models.out_of_memory import memory_reported
from mcpagent.policy.contract import Sampling
from mcpagent.reward.terms import load_reward
from mcpagent.reward.validate import lacks_form, unstated_answer
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.run.policies import (
    SCRIPTED,
    OpenedJudge,
    ReadyPolicy,
    at_once,
    open_agent,
    open_policy,
    refuse_policy,
)
from mcpagent.run.shots import play_shots, refuse_overlong
from mcpagent.storage.datasets import DiskList, TaskFile, find_dataset, split_file
from mcpagent.storage.packages import provenance
from mcpagent.tools.contract import OnChange, PinnedTools
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
) -> TrainConfig:
    """Return the configuration with the servers that the dataset's folder remembers, if no others are named;
    `note` is told which, and what else there is to say of the settings. `data` None: the configured dataset
    of `split`; both None: no dataset. Raises UserError."""

    def load(remembered: DatasetServers | None = None) -> LoadedConfig:
        return load_train_config(
            files, overrides, for_training=for_training, inherited=inherited, dataset=remembered
        )

    loaded = load()
    remembered = _remembered(loaded, data or (split and _configured(loaded.config, split)), inherited)
    if remembered is not None:
        loaded = load(remembered)
        if any(where == str(remembered.path) for where in loaded.sources.values()):
            note(f"servers: {described(loaded.config.tools)} (from {remembered.path})")
    for text in loaded.notes:
        note(text)
    return loaded.config


def _remembered(loaded: LoadedConfig, dataset: Path | None, inherited: Path | None) -> DatasetServers | None:
    """Return what the dataset's folder remembers and `loaded` does not say otherwise. Raises UserError."""
    config = loaded.config
    if "tools.servers" in loaded.explicit and config.tools.servers is not None:
        note_named(Path(config.tools.servers))
    if not dataset or (inherited is not None and _is_of_run(dataset, config)):
        return None
    remembered = read_dataset_servers(dataset)
    if remembered is not None and _NAMING & loaded.explicit:
        servers_file = config.tools.servers
        names = frozenset(config.tools.builtin) if servers_file is None else server_names(Path(servers_file))
        return remembered.for_servers(names, are_builtin=servers_file is None)
    if remembered is not None and remembered.servers is not None:
        check_named(remembered.servers, by=remembered.path)
    return remembered


def described(tools: ToolsConfig) -> str:
    """Return the servers in a few words."""
    if tools.servers is not None:
        return tools.servers
    return f"built-in {', '.join(tools.builtin)}, {'limited' if tools.limited else 'full'} tool set"


def _configured(config: TrainConfig, split: Literal["train", "validation"]) -> Path | None:
    """Return the dataset that the command will look for, or None: to say that it is missing is the
    command's."""
    try:
        if split == "train":
            return find_dataset(config.data.train, split="train")
        return _validation_file(config)
    except UserError:
        return None


def _is_of_run(dataset: Path, config: TrainConfig) -> bool:
    """Return whether the run was trained on this folder: then its own settings have the servers already."""
    trained = _configured(config, "train")
    return trained is not None and trained.resolve().parent == dataset.resolve().parent


_NAMED = 5  # tools or episodes named in one note


@dataclass(frozen=True, kw_only=True)
class EpisodeSetup:
    """The started parts of a job that plays episodes. `concurrency` is how many episodes run at once."""

    config: TrainConfig
    tasks: TaskFile
    tools: Tools
    ready: ReadyPolicy
    settings: AgentSettings
    concurrency: int
    judge: OpenedJudge | None = None

    def play(
        self,
        *,
        samples: int | Sequence[Sampling],
        on_done: Callable[[Trajectory], None],
        label: str = "evaluation",
        tasks: Sequence[Task] | None = None,
        played: Mapping[str, Trajectory] | None = None,
    ) -> DiskList[Trajectory]:
        """Play `samples` attempts at each task of the setup, or at `tasks`, or one with each sampling; those
        of `played`, by id, are not played again. `label` tells their random streams from others': training
        never uses that of an evaluation."""
        tasks = self.tasks if tasks is None else tasks
        return self.tools.io.run(
            collect(
                attempts(tasks, per_task=samples, seed=self.config.seed, label=label),
                policy=self.ready.policy,
                tools=self.tools.pool,
                settings=self.settings,
                renderer=self.ready.renderer,
                concurrency=self.concurrency,
                deterministic=self.ready.is_deterministic,
                on_done=on_done,
                played=played,
            )
        )

    def result(
        self,
        trajectories: Sequence[Trajectory],
        provenance: JsonObject,
        *,
        breakdown: Breakdown | None = None,
    ) -> EvalResult:
        """Return what episodes of this setup came to, and what their calls did."""
        return summarise(trajectories, tasks=self.tasks).with_provenance(
            provenance,
            cassette=self.tools.take_cassette_counts(),
            tool_metrics=self.tools.pool.metrics(),
            breakdown=breakdown,
        )

    def provenance(self, *, samples: int) -> JsonObject:
        """Return what a result of this setup was made with."""
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
            "shots": {
                "count": len(self.settings.shots),
                "tasks": [shot.played.task_id for shot in self.settings.shots],
            },
            "reward": self.settings.reward.as_json(),
            "max_context_tokens": self.settings.max_context_tokens,
            "concurrency": self.concurrency,
            "user": config.rollout.user_model or "scripted",
            "tools": config.tools.model_dump(mode="json"),
            **self.tools.as_json(),
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
    shots: int = 0,
) -> Iterator[EpisodeSetup]:
    """Open the tasks of `data` (default: the validation set of `config`), start the servers, load the policy
    that `policy` names (see `open_policy`), and play the `shots` that stand before every question. Raises
    UserError before any other episode is played."""
    refuse_policy(policy)
    if shots and policy in SCRIPTED:
        raise UserError(
            f"the policy {policy} reads no shots", where=f"--shots {shots}", remedy="name a model"
        )
    for note in load_reward(config.reward).notes():
        console.note(note)
    with memory_reported(config), ExitStack() as stack:
        tasks = stack.enter_context(open_tasks(config, data, shard=shard, on_note=console.note))
        tools = stack.enter_context(open_tools(config.tools, ledger=ledger, on_note=console.note))
        check_catalog(tasks, tools.pool, on_change=config.tools.on_catalog_change, on_note=console.note)
        concurrency = min(config.rollout.num_envs, len(tasks) * samples)
        ready = stack.enter_context(
            open_policy(
                policy, tasks=tasks, config=config, slots=concurrency, io=tools.io, on_note=console.note
            )
        )
        settings, judge = stack.enter_context(
            open_agent(config, max_context=ready.max_context, io=tools.io, on_note=console.note)
        )
        if shots:
            played = play_shots(
                shots, tasks=tasks, config=config, tools=tools, settings=settings, ready=ready
            )
            refuse_overlong(played, tasks[0], tools=tools, settings=settings, ready=ready)
            settings = replace(settings, shots=played)
        yield EpisodeSetup(
            config=config,
            tasks=tasks,
            tools=tools,
            ready=ready,
            settings=settings,
            concurrency=at_once(ready.episodes, asked=concurrency, on_note=console.note),
            judge=judge,
        )


def open_tasks(
    config: TrainConfig,
    data: Path | None = None,
    *,
    shard: tuple[int, int] = (1, 1),
    on_note: Callable[[str], None] = lambda _: None,
) -> TaskFile:
    """Open the dataset `data`, or the validation set of `config`; of it the `shard`. `on_note` is told if the
    judge and the tasks do not go together, and if questions lack the form of their answer. Raises UserError,
    also for an answer that can have none."""
    lacking = 0

    def look(task: Task, where: str) -> None:
        nonlocal lacking
        if flaw := unstated_answer(task):
            remedy = "write it so; mcpagent data validate FILE lists all such records"
            raise UserError(flaw, where=f"{where} ({task.id})", remedy=remedy)
        lacking += lacks_form(task)

    path = data or _validation_file(config)
    tasks = TaskFile(path, max_tasks=config.data.max_tasks, shard=shard, on_task=look)
    try:
        if not tasks:
            problem, where = "has no task: there are fewer than shards", f"--shard {shard[0]}/{shard[1]}"
            raise UserError(problem, where=where, remedy="use fewer shards")
        note = judge_note(config, tasks)  # refuses tasks that nothing could score
    except UserError:
        tasks.close()
        raise
    if note is not None:
        on_note(note)
    if lacking:
        on_note(
            f"{path}: {lacking} of {counted(len(tasks), 'question')} state no form of the answer, which is "
            f"read in one; add it: mcpagent data restate {shlex.quote(str(path))} --out FILE"
        )
    return tasks


def evaluated_file(config: TrainConfig) -> Path | None:
    """Return the tasks that a training run evaluates on as it goes; None if it never does. Raises
    UserError."""
    evaluates = config.algorithm == "grpo" and config.training.eval_every
    return _validation_file(config) if evaluates else None


def measured_file(
    config: TrainConfig, *, on_note: Callable[[str], None] = lambda _: None
) -> tuple[Path, str] | None:
    """Return the tasks that a training run is judged on, and which split they are: the held-out tasks next to
    the training set, else the validation set; None, with a note, if there is neither. Raises UserError for a
    set that is named and not there."""
    train = find_dataset(config.data.train, split="train")
    if (path := split_file(train.parent, "heldout")) is not None:
        return path, "held-out"
    try:
        return find_dataset(config.data.validation, split="validation", beside=str(train)), "validation"
    except UserError as error:
        if config.data.validation is not None:
            raise
        on_note(f"no before and after in the report: {error.message}, nor is there a heldout.jsonl")
        return None


def next_data(config: TrainConfig) -> str:
    """Return the word after `--data` in what a person may type next: the file that `measured_file` finds,
    else FILE."""
    try:
        measured = measured_file(config)
    except UserError:
        measured = None
    return "FILE" if measured is None else shlex.quote(str(measured[0]))


def _validation_file(config: TrainConfig) -> Path:
    return find_dataset(config.data.validation, split="validation", beside=config.data.train)


def check_catalog(
    tasks: Sequence[Task], pool: PinnedTools, *, on_change: OnChange, on_note: Callable[[str], None]
) -> None:
    """Tell `on_note` how the servers' tools differ from those that the dataset says it was made for. Raises
    UserError if such a change is refused."""
    pinned = next(
        (task.extra_info["catalog_hash"] for task in tasks if "catalog_hash" in task.extra_info), None
    )
    if pinned is None or pinned == pool.catalog_hash:
        return
    offered = {name for task in tasks for name in task.offered_in(len(task.truth.user_turns)) or ()}
    live = {spec.dotted for spec in pool.tools.values()}
    gone, new = sorted(offered - live), sorted(live - offered)
    changes = [
        *([f"gone: {some_of(gone)}"] if gone else []),
        *([f"in no task's offer: {some_of(new)}"] if new else []),
    ]
    note = (
        f"the tools have changed since the dataset was made (catalog {str(pinned)[:12]} then, "
        f"{pool.catalog_hash[:12]} now); "
        + ("; ".join(changes) if changes else "their names are the same, descriptions or schemas differ")
    )
    if on_change == "refuse":
        remedy = "Make the dataset anew, or accept it: --set tools.on_catalog_change=warn"
        raise UserError(note, where="tools.on_catalog_change", remedy=remedy)
    on_note(note)


def some_of(texts: Sequence[str], separator: str = ", ") -> str:
    """Return the first of the texts, and how many more there are."""
    rest = len(texts) - _NAMED
    return separator.join(texts[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
