"""Episodes of a dataset that another program's model plays: our servers, our limits, our reward."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import api_schemas
from mcpagent.core.trajectory import Completion, StopReason, Trajectory, Turn
from mcpagent.env.episode import Episode, StepOutput
from mcpagent.errors import EpisodeError, UserError
from mcpagent.policy.scripted import call_text
from mcpagent.rollout.collector import AgentSettings
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.episodes import load_for_dataset
from mcpagent.storage.datasets import TaskFile, split_files
from mcpagent.tools.setup import Tools, open_tools


class HostedEpisode:
    """One episode: `start`, then `act` until `done`, then `trajectory`; `close` at any time. It lives on the
    loop of the host's tools. If the machinery fails, it ends unscored; nothing is raised."""

    def __init__(self, task: Task, *, tools: Tools, settings: AgentSettings, attempt: int = 0) -> None:
        self.task, self.attempt = task, attempt
        self._episode = Episode(
            task,
            tools.pool,
            limits=settings.limits,
            episode_id=f"{task.id}#{uuid.uuid4().hex}",
            discovery=settings.discovery,
            reward=settings.reward,
            judge=settings.judge,
        )
        self._turns: list[Turn] = []
        self._lock = asyncio.Lock()  # a model's parallel calls are carried out one after the other
        self.prompt: list[JsonObject] = []
        self._schemas: tuple[JsonObject, ...] = ()

    @property
    def schemas(self) -> tuple[JsonObject, ...]:
        """Return the tools that are offered, under names that chat APIs take."""
        return api_schemas(self._schemas)[0]

    @property
    def done(self) -> bool:
        """Return whether the episode has ended."""
        return self._episode.done

    async def start(self) -> None:
        """Put the servers into their initial state; then `prompt` and `schemas` are what the model sees
        first. Raise UserError if the task offers a tool that no server has."""
        try:
            start = await self._episode.start()
        except EpisodeError as error:
            await self._episode.finish(StopReason.FAILED, error=str(error))
        else:
            self.prompt, self._schemas = start.messages, start.tool_schemas

    async def act(self, text: str, calls: Sequence[tuple[str, JsonObject]] = ()) -> StepOutput | None:
        """Carry out one message of the model: its calls by name and arguments, as its trainer or provider has
        parsed them, or its answer. None: the episode had ended."""
        name_of = api_schemas(self._schemas)[1]
        written = (call_text(name_of.get(name, name), arguments) for name, arguments in calls)
        completion = Completion(text="".join([text, *written]))
        async with self._lock:
            if self.done:
                return None
            started = time.perf_counter()
            try:
                out = await self._episode.step(completion.text)
            except EpisodeError as error:
                await self._episode.finish(StopReason.FAILED, error=str(error))
                return None
            wall_s = time.perf_counter() - started
            self._turns.append(out.as_turn(len(self._turns), completion, wall_s=wall_s))
            self._schemas += out.tool_schemas
            return out

    async def stop(self, reason: StopReason) -> None:
        """End the episode from outside; the first reason stands."""
        async with self._lock:
            await self._episode.finish(reason)

    async def trajectory(self) -> Trajectory:
        """Return the graded record of the ended episode; `reward` None if it is unscored."""
        return await self._episode.trajectory(
            self._turns, prompt=self.prompt, group_id=self.task.id, attempt=self.attempt, seed=self.attempt
        )

    async def close(self) -> None:
        """End the episode's own server instances. May be called more than once."""
        await self._episode.close()


@dataclass(frozen=True)
class Host:
    """Started servers and the tasks of each split. `tools.io` has the loop that episodes live on."""

    tools: Tools
    splits: Mapping[str, TaskFile]
    settings: AgentSettings

    def tasks(self, split: str) -> TaskFile:
        """Raise UserError for a split that the dataset does not have."""
        if split not in self.splits:
            raise UserError(
                f"the dataset has no split {split!r}", remedy=f"it has {', '.join(sorted(self.splits))}"
            )
        return self.splits[split]

    def episode(self, task: Task, *, attempt: int = 0) -> HostedEpisode:
        """Return a new episode of `task`, not started."""
        return HostedEpisode(task, tools=self.tools, settings=self.settings, attempt=attempt)


@contextmanager
def open_host(
    data: Path,
    *,
    config_files: Sequence[Path | str] = (),
    overrides: Sequence[str] = (),
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator[Host]:
    """Start the servers that the dataset remembers, or that the configuration names. `data` is a folder, or a
    file, which is then the split `train`. Raises UserError."""
    config = load_for_dataset(
        config_files, overrides, data=data, split=None, note=on_note, for_training=False
    )
    with ExitStack() as stack:
        splits = {name: stack.enter_context(TaskFile(path)) for name, path in split_files(data).items()}
        tools = stack.enter_context(open_tools(config.tools, on_note=on_note))
        yield Host(tools, splits, agent_settings(config, max_context=None))
