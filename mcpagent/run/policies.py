"""Who plays episodes (scripts, models behind an API, checkpoints), and how: limits and reward, the model that
plays the user, and the judge."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.env.user import UserSimulator
from mcpagent.errors import UserError
from mcpagent.judge.model import ModelJudge
from mcpagent.judge.tasks import judge_rules
from mcpagent.llm.budget import ApiBudget
from mcpagent.llm.client import open_client
from mcpagent.models.weights import weight_files
from mcpagent.policy.backend import require_vllm
from mcpagent.policy.contract import Policy
from mcpagent.policy.openai import OpenAIPolicy
from mcpagent.policy.scripted import GoldPolicy, ScriptedPolicy, over_eager
from mcpagent.rollout.collector import AgentSettings
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.api_models import budget_of, open_api_model
from mcpagent.storage.checkpoints import find_model, run_of
from mcpagent.storage.lineage import model_identity
from mcpagent.storage.packages import require
from mcpagent.tools.io_thread import IOThread

if TYPE_CHECKING:  # it takes jinja2, which a base installation has not
    from mcpagent.models.tokens import Renderer

SCRIPTED = ("gold", "empty", "over-eager")
PREFIX = "openai:"


@dataclass(frozen=True, kw_only=True)
class ReadyPolicy:
    """A policy and what a context for it needs. `is_deterministic` if it is asked turn by turn in fixed
    batches; `spent` is what an API used so far."""

    policy: Policy
    identity: JsonObject
    is_deterministic: bool = True
    renderer: Renderer | None = None
    max_context: int | None = None
    spent: Callable[[], JsonObject | None] = lambda: None
    episodes: int | None = None  # that it has room for at once; None: any number


def refuse_policy(name: str) -> None:
    """Raise UserError for what is wrong with a policy, as far as it can be told before servers start."""
    if name not in SCRIPTED and not name.startswith(PREFIX) and (checkpoint := find_model(name)) is not None:
        weight_files(checkpoint.path)


def config_of_run(policy: str) -> Path | None:
    """Return the settings file of the run that a policy is a checkpoint of, if it is. Raises UserError."""
    if policy in SCRIPTED or policy.startswith(PREFIX):
        return None
    checkpoint = find_model(policy)
    run = None if checkpoint is None else run_of(checkpoint.path)
    return None if run is None else run.config_path


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
    """Open `gold`, `empty`, `over-eager`, `openai:NAME`, a checkpoint or run folder, or a hub id. Raises
    UserError."""
    if name in SCRIPTED:
        extremes = {"empty": lambda _: "", "over-eager": over_eager}
        yield ReadyPolicy(
            policy=GoldPolicy(tasks) if name == "gold" else ScriptedPolicy(extremes[name]),
            identity={"name": name},
        )
    elif name.startswith(PREFIX):
        with _open_api(name, config=config, io=io, on_note=on_note) as ready:
            yield ready
    else:
        with _open_model(name, config=config, slots=slots, on_note=on_note) as ready:
            yield ready


@contextmanager
def _open_api(
    name: str, *, config: TrainConfig, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[ReadyPolicy]:
    """Open the policy of `openai:NAME`. Raises UserError if the key is missing."""
    model, api = name.removeprefix(PREFIX), config.api
    if not model:
        raise UserError("openai: names no model", remedy="for example openai:gpt-5-mini")
    budget = budget_of(model, api)
    with open_client(model, api, budget=budget, run=io.run, on_note=on_note) as client:
        yield ReadyPolicy(
            policy=OpenAIPolicy(client, price=budget.price),
            identity={"name": name, "base_url": api.base_url or "https://api.openai.com/v1"},
            is_deterministic=False,
            spent=budget.as_json,
        )


@contextmanager
def _open_model(
    name: str, *, config: TrainConfig, slots: int, on_note: Callable[[str], None]
) -> Iterator[ReadyPolicy]:
    resolved = find_model(name)
    checkpoint = None if resolved is None else resolved.path
    if resolved is not None and resolved.why:
        on_note(f"checkpoint: {resolved.path} ({resolved.why})")
    require("hf", use="running a model")
    from mcpagent.train.load import load
    from mcpagent.train.sampler import open_sampler
    from mcpagent.train.settings import is_deterministic

    named = config.with_settings(model={"name": name if checkpoint is None else str(checkpoint)})
    if config.rollout.backend == "vllm" and not config.vllm.servers:
        require_vllm()
    loaded = load(named)
    if loaded.why_format is not None:
        on_note(loaded.why_format)
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
            is_deterministic=is_deterministic(loaded.device),
            renderer=loaded.renderer,
            max_context=loaded.max_context,
        )


def pinned_model(config: TrainConfig, *, on_note: Callable[[str], None]) -> TrainConfig:
    """Return `config` with the checkpoint that its `model.name` means today, if that is a run folder: what
    the run does later must not change what is built on it. Raises UserError."""
    if is_built(config.model.name):
        return config
    checkpoint = find_model(config.model.name)
    if checkpoint is None or not checkpoint.why:
        return config
    on_note(f"model.name {config.model.name} means {checkpoint.path} ({checkpoint.why})")
    return config.with_settings(model={"name": str(checkpoint.path)})


@contextmanager
def open_agent(
    config: TrainConfig, *, max_context: int | None, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[tuple[AgentSettings, OpenedJudge | None]]:
    """Open the models next to an agent, the simulated user and the judge, and yield how it plays and the
    judge, if one is asked. Raises UserError."""
    with (
        _open_user(config, io=io, on_note=on_note) as user,
        open_judge(config, io=io, on_note=on_note) as judge,
    ):
        asked = judge and judge.judge
        yield agent_settings(config, max_context=max_context, user=user, judge=asked), judge


@contextmanager
def _open_user(
    config: TrainConfig, *, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[UserSimulator | None]:
    """Open the model that plays the user (`rollout.user_model`); None if the tasks' own messages are said.
    Raises UserError if its key is missing."""
    model, url = config.rollout.user_model, config.api.base_url
    if model is None:
        yield None
        return
    facts = {"user": model, "base_url": url}
    with open_api_model(
        model, config, name=f"user-{model}", run=facts, base_url=url, io=io, on_note=on_note
    ) as asked:
        yield UserSimulator(asked.client, model=model)


@dataclass(frozen=True)
class OpenedJudge:
    """`budget` is what was used so far, by earlier runs of its journal too."""

    judge: ModelJudge
    budget: ApiBudget
    journal: Path

    def as_json(self) -> JsonObject:
        """Return what a result says of the judge and what it cost."""
        return {**self.judge.rules.as_json(), "journal": str(self.journal), "spend": self.budget.as_json()}


@contextmanager
def open_judge(
    config: TrainConfig, *, io: IOThread, on_note: Callable[[str], None]
) -> Iterator[OpenedJudge | None]:
    """Open the judge of `judge.model`; None if none is named. Whatever it is asked and answers is in its
    journal before anything is made of it, and nothing that is there is asked again. Raises UserError."""
    rules = judge_rules(config)
    if rules is None:
        yield None
        return
    name, facts = f"{rules.model}-{rules.identity[:12]}", {"judge": rules.identity}
    with open_api_model(
        rules.model, config, name=name, run=facts, base_url=rules.base_url, io=io, on_note=on_note
    ) as asked:
        judge = ModelJudge(asked.client, rules, timeout_s=config.api.timeout_s, on_note=on_note)
        yield OpenedJudge(judge, asked.budget, asked.journal)


def at_once(room: int | None, *, asked: int, on_note: Callable[[str], None] = lambda _: None) -> int:
    """Return how many episodes are played at once if `asked` are wanted and there is `room` for so many."""
    if room is None or room >= asked:
        return asked
    on_note(f"{room} of {asked} episodes are played at once: no more fit into the device's free memory")
    return room
